"""Runs this folder's tests of the kernels under Triton's interpreter, in processes of their own (see conftest)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = sorted(p.name for p in HERE.glob("test_*.py") if p != Path(__file__) and not p.match("*compilation.py"))


@pytest.fixture(scope="module")
def started(request, tmp_path_factory):
    """{file: (its process, what it has printed)} of all that this session is to run: the interpreter uses one core."""
    pytest.importorskip("triton", reason="Triton is not installed: no kernel has run")
    folder, found = tmp_path_factory.mktemp("printed"), {}
    asked_for = {
        item.callspec.params["file"] for item in request.session.items if item.originalname == "test_the_kernels"
    }
    for name in sorted(asked_for):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--device", "cpu", str(HERE / name)]
        environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        with (folder / name).open("w") as printed:
            process = subprocess.Popen(command, env=environment, stdout=printed, stderr=subprocess.STDOUT)
        found[name] = process, folder / name
    yield found
    for process, _ in found.values():
        process.kill()
        process.wait()


@pytest.mark.parametrize("file", FILES)
def test_the_kernels(file, started):
    process, printed = started[file]
    assert process.wait() == 0, f"{' '.join(process.args)}\n{printed.read_text()[-12000:]}"


def test_every_file_has_a_name_of_its_own():
    """Else pytest collects nothing in a session that runs the kernels beside all other tests."""
    names = [p.name for p in HERE.parent.rglob("test_*.py")]
    assert len(names) == len(set(names)), sorted(name for name in set(names) if names.count(name) > 1)
