"""Programs in processes of their own: forks of a server that has imported torch, which takes seconds a process.

Python's own fork server is another one: there is one in a process, and the laboratory's tests have imported layernorm
into it.
"""

import atexit
import functools
import gc
import json
import os
import subprocess
import sys
import tempfile
import traceback
import types


def python(code, *arguments, check=True, folder=".", **variables):
    """Runs a program as `python -c` does, with more variables of the environment; `check`: it must not fail."""
    arguments, environment = list(map(str, arguments)), {**os.environ, **variables}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        if sys.platform == "linux":
            of_child = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (output, errors)]
            server = _server()
            print(json.dumps([code, arguments, str(folder), environment, *of_child]), file=server.stdin, flush=True)
            returned = int(server.stdout.readline())
        else:
            command = [sys.executable, "-c", code, *arguments]
            returned = subprocess.run(command, cwd=folder, env=environment, stdout=output, stderr=errors).returncode
        said, complained = (file.seek(0) or file.read() for file in (output, errors))
    assert not (check and returned), said + complained[-3000:] or returned
    return subprocess.CompletedProcess(code, returned, said, complained)


def program(path, *arguments, warnings="default", **options):
    """Runs a file, `warnings` as `-W`."""
    run = f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')"
    return python(f"import warnings; warnings.simplefilter({warnings!r}); {run}", *arguments, **options)


@functools.cache
def _server():
    server = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.kill)
    return server


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401

    gc.freeze()  # what forks share
    for line in sys.stdin:
        child = os.fork()
        if not child:
            code, sys.argv[1:], folder, environment, *files = json.loads(line)
            for target, file in enumerate(files, 1):
                os.dup2(os.open(file, os.O_WRONLY), target)
            os.environ.clear()
            os.environ.update(environment)
            sys.path[0] = folder
            os.chdir(folder)
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            returned = 0
            try:
                exec(compile(code, "<string>", "exec"), vars(main))
            except SystemExit as end:
                returned = end.code if isinstance(end.code, int | None) else print(end.code, file=sys.stderr) or 1
            except BaseException:
                traceback.print_exc()
                returned = 1
            sys.stdout.flush()
            os._exit(returned or 0)  # to take all modules down takes a second
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
