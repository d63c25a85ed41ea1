"""Where the kernels run in this session: ``--device cuda``, or ``--device cpu`` under Triton's interpreter.

Triton reads TRITON_INTERPRET when it is imported, and other tests are not to run beside an interpreted Triton. So a
session that has neither a GPU nor that variable collects only what starts such a session itself
(`test_under_the_interpreter`) and what compiles kernels without running them (`test_compilation`).
"""

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda" if torch.cuda.is_available() else None

if INTERPRETED:
    collect_ignore = ["test_under_the_interpreter.py", "test_compilation.py", "test_persistent_compilation.py"]
elif DEVICE is None:
    collect_ignore = ["test_norm_kernels.py", "test_engine.py", "test_side_by_side.py", "test_persistent_kernels.py"]


def pytest_addoption(parser):
    parser.addoption("--device", choices=["cpu", "cuda"], help="what the kernels must run on; default: whichever can")


def pytest_configure(config):
    asked = config.getoption("--device", None)
    if asked not in (None, DEVICE):
        hint = "this session has no GPU" if asked == "cuda" else "set TRITON_INTERPRET=1"
        raise pytest.UsageError(f"--device {asked}: {hint}")


@pytest.fixture(scope="session")
def device():
    return DEVICE
