"""Processes of their own: forks of a server that has imported what the command needs, which takes seconds a process."""

import contextlib
import multiprocessing
import os
import signal
import sys

import pytest

from layernorm_lab import cli

IMPORTED = [
    "accelerate",
    "layernorm_lab.cli.run",
    "layernorm_lab.report.rendering",
    "sklearn.datasets",
    "torch._dynamo",
]


@contextlib.contextmanager
def process(function, *arguments, output=os.devnull, errors=os.devnull, environment=()):
    """Runs a function of a module in a session of its own, which is there no more at the end. `output` and `errors`
    are where it prints, `environment` are variables of its own."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        pytest.skip("the system has no fork, and so no server that forks")
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(IMPORTED)
    variables = {**os.environ, **dict(environment)}
    started = server.Process(target=_run, args=(function, arguments, str(output), str(errors), variables))
    started.start()
    try:
        yield started
        started.join(200)
        assert not started.is_alive(), "it hangs"
    finally:
        started.kill()
        started.join()


def command(*arguments, **options):
    """Runs `layernorm` with these arguments."""
    return process(run_command, arguments, **options)


def run_command(arguments):
    sys.exit(cli.main(list(arguments)))


def with_small_files(most, arguments):
    """Runs `layernorm`, whose files may have this many bytes at most."""
    import resource  # not on Windows

    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    run_command(arguments)


def _run(function, arguments, output, errors, variables):
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a server that a `Worker` started ignores it
    for target, path in ((1, output), (2, errors)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, target)
        os.close(opened)
    sys.stdout, sys.stderr = (os.fdopen(target, "w", buffering=1) for target in (1, 2))  # as Python starts
    os.environ.clear()
    os.environ.update(variables)
    function(*arguments)
