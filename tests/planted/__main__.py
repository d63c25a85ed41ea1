"""Plants faults one by one in a copy of the tree, and says which of them the tests find.

    PYTHONPATH=tests:lab/tests python -m planted
    PYTHONPATH=tests:lab/tests python -m planted --list
    PYTHONPATH=tests:lab/tests python -m planted --only native-relu judge

A fault is a row in faults.py. Its text is looked for in all sources and its tests by the names of their files, so that
files may move. The copy has the files that git knows or does not ignore, as they are now. All faults in C++ are
compiled at once, in a library of the best instruction set alone: each stands beside what it replaces, and the variable
PLANTED says which one runs. A fault counts as found if a test fails with it and passes without it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pytest

from .faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("src", "lab/src")
CHOICE = """#ifndef PLANTED
#include <stdlib.h>
static const int layernorm_planted = getenv("PLANTED") ? atoi(getenv("PLANTED")) : 0;
#define PLANTED(number) (layernorm_planted == (number))
#endif
"""
# An editable installation may look for the package's files by itself, before the paths.
SITE = """import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ == "importlib._bootstrap_external"
                    or "edit" not in (type(finder).__module__ + type(finder).__name__).lower()]
"""
PRELOADED = ("torch", "torch._dynamo", "torch._inductor.utils", "sklearn.datasets", "scipy.stats",
             "matplotlib.figure", "accelerate")  # fmt: skip
"""What most tests import, for seconds: once for all of them."""
PASSED, FAILED = 0, 1  # what pytest ends with; other numbers: it could not run the tests


class Note:
    """A plugin of pytest that notes which test failed first."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_configure(self, config: pytest.Config) -> None:
        self.root = config.rootpath

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.path.write_text(str(self.root / report.nodeid))


class Copy:
    """A copy of the tree, in which faults are planted."""

    def __init__(self, root: Path) -> None:
        self.root, self.sound = root, dict[str, bool]()
        names = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, check=True,
        ).stdout.decode().split("\0")  # fmt: skip
        for name in filter(None, names):
            if not name.startswith("docs/results") and (ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)
        (root / "docs").mkdir(exist_ok=True)
        (root / "docs/results").symlink_to(ROOT / "docs/results")
        (root / "site").mkdir()
        (root / "site/sitecustomize.py").write_text(SITE)
        self.paths = [str(root / "site"), *(str(root / source) for source in SOURCES)]
        self.environment = {
            "PYTHONPATH": os.pathsep.join(self.paths),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def file_of(self, fault: Fault) -> Path:
        """Finds the one file that has a fault's text."""
        endings = (".h", ".cpp") if fault.is_native else (".py",)
        paths = [
            path for source in SOURCES for path in sorted((self.root / source).rglob("*")) if path.suffix in endings
        ]
        counts = {path: path.read_text(encoding="utf-8").count(fault.find) for path in paths}
        found = [path for path, count in counts.items() if count]
        if len(found) != 1 or counts[found[0]] != 1:
            where = ", ".join(f"{counts[path]} times in {path.relative_to(self.root)}" for path in found) or "nowhere"
            raise LookupError(f"its text is to stand in the sources once, it stands {where}")
        return found[0]

    def tests_of(self, fault: Fault) -> list[list[str]]:
        """Returns pytest's arguments for each of the fault's tests."""
        calls = []
        for words in fault.tests.split(","):
            name, _, expression = words.strip().partition(" ")
            paths = [path for folder in ("tests", "lab/tests") for path in (self.root / folder).rglob(name)]
            if len(paths) != 1:
                raise LookupError(f"there are {len(paths)} files {name}")
            calls.append([str(paths[0]), *(["-k", expression] if expression else [])])
        return calls

    def run(self, tests: list[str], planted: int = 0) -> tuple[int, str]:
        """Runs some tests until one fails. Returns what pytest ends with, and the test that failed.

        A forked process does it, which has imported what most tests need: that is most of the time of a short test.
        """
        said, failed = self.root / "said.txt", self.root / "failed.txt"
        failed.write_text("")
        child = os.fork()
        if not child:
            code = 70
            try:
                os.environ.update(self.environment, PLANTED=str(planted))
                os.chdir(self.root)
                # a process in the background ignores it, and some tests press Ctrl-C
                signal.signal(signal.SIGINT, signal.default_int_handler)
                output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(output, 1)
                os.dup2(output, 2)
                sys.dont_write_bytecode = True
                sys.path[:0] = self.paths
                exec(SITE, {})
                options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not long"]
                code = int(pytest.main([*options, *tests], plugins=[Note(failed)]))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        self.said = said.read_text(errors="replace")
        return os.waitstatus_to_exitcode(status), failed.read_text()

    def is_sound(self, test: str) -> bool:
        """Says whether a test passes where nothing is planted."""
        if test not in self.sound:
            self.sound[test] = self.run([test])[0] == PASSED
        return self.sound[test]

    def build(self, faults: dict[int, Fault]) -> None:
        """Compiles the C++ library with all these faults, by number; puts it where the package looks for it."""
        for number, fault in faults.items():
            path = self.file_of(fault)
            text = path.read_text(encoding="utf-8")
            if fault.find.endswith(";"):
                both = f"if (PLANTED({number})) {{ {fault.put} }} else {{ {fault.find} }}"
            else:
                both = f"(PLANTED({number}) ? ({fault.put}) : ({fault.find}))"
            text = text.replace(fault.find, both)
            path.write_text(text if text.startswith(CHOICE) else CHOICE + text, encoding="utf-8")
        build = self.root / "build/planted"
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DLAYERNORM_TESTED=ON"]
        configure = ["cmake", "-S", ".", "-B", build, *options]
        for command in (configure, ["cmake", "--build", build]):
            done = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
        self.put_library(next(build.rglob("*layernorm_native.*")))

    def put_library(self, library: Path) -> None:
        """Puts a library beside the sources of the CPU engine."""
        place = next(path.parent for source in SOURCES for path in (self.root / source).rglob("planned.cpp"))
        shutil.copy2(library, place / library.name)


def find_library() -> Path:
    """Finds the library that is installed."""
    code = "from layernorm.engines.native import _library; print(_library._find())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def judge(copy: Copy, number: int, fault: Fault) -> str:
    """Plants one fault, runs its tests, and says what came of it."""
    calls = copy.tests_of(fault)
    path, before = None, ""
    if not fault.is_native:
        path = copy.file_of(fault)
        before = path.read_text(encoding="utf-8")
        path.write_text(before.replace(fault.find, fault.put), encoding="utf-8")
    try:
        ends = [copy.run(call, number if fault.is_native else 0) for call in calls]
    finally:
        if path is not None:
            path.write_text(before, encoding="utf-8")
    missed = []
    for call, (end, test) in zip(calls, ends, strict=True):
        if end == PASSED:
            missed.append(" ".join(call))
        elif end > FAILED:  # below 0: a signal, which is found, too
            return f"pytest could not run {call}: it ended with {end}\n{copy.said[-2000:]}"
        elif end == FAILED and not copy.is_sound(test):
            return f"{test} fails without it, too\n{copy.said[-2000:]}"
    if len(missed) == len(calls):
        return "NOT FOUND"
    return f"found, but not by {'; '.join(missed)}" if missed else "found"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="planted", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the faults, and plant none")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="faults whose names have one of these words")
    options = parser.parse_args()
    wanted = {
        number: fault
        for number, fault in enumerate(FAULTS, 1)
        if not options.only or any(word in fault.name for word in options.only)
    }
    if options.list:
        for fault in wanted.values():
            print(f"{fault.name:32} {fault.find}  ->  {fault.put or 'nothing'}    [{fault.tests}]")
        return 0
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    found = 0
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = Copy(Path(folder))
        native = {number: fault for number, fault in wanted.items() if fault.is_native}
        if native and not shutil.which("cmake"):
            raise SystemExit("planted: faults in C++ need cmake: pip install cmake; --only leaves them out")
        if native:
            start = time.monotonic()
            copy.build(native)
            print(f"compiled {len(native)} faults in {time.monotonic() - start:.0f} s", flush=True)
        else:
            copy.put_library(find_library())
        for number, fault in wanted.items():
            start = time.monotonic()
            try:
                said = judge(copy, number, fault)
            except LookupError as error:
                said = f"cannot be planted: {error}"
            found += said.startswith("found")
            print(f"{fault.name:32} {said}  ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{found} of {len(wanted)} found")
    return int(found < len(wanted))


if __name__ == "__main__":
    sys.exit(main())
