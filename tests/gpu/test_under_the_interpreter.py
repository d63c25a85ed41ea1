"""Runs this folder's tests of the kernels under Triton's interpreter, in a process of its own (see conftest)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = ["test_norm_kernels.py", "test_engine.py", "test_side_by_side.py", "test_persistent_kernels.py"]


@pytest.mark.parametrize("file", FILES)
def test_the_kernels(file):
    pytest.importorskip("triton", reason="Triton is not installed: no kernel has run")
    path = Path(__file__).with_name(file)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--device", "cpu", str(path)]
    run = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, f"{' '.join(command)}\n{run.stdout[-10000:]}{run.stderr[-2000:]}"
