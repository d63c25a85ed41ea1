"""Where the kernels run in this session: ``--device cuda``, or ``--device cpu`` under Triton's interpreter.

Triton reads TRITON_INTERPRET when it is imported, and other tests are not to run beside an interpreted Triton. So a
session that has neither a GPU nor that variable collects only what starts such a session itself
(`test_under_the_interpreter`) and what compiles kernels without running them (`test_compilation`).
"""

import importlib
import os
import sys
from pathlib import Path

import pytest
import torch

# Some versions of PyTorch else warn of every product where a test asks for deterministic algorithms.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HERE = Path(__file__).parent
DEVICE = "cpu" if INTERPRETED else "cuda" if torch.cuda.is_available() else None

WITHOUT_KERNELS_RUN = ["test_under_the_interpreter.py", *(p.name for p in HERE.glob("test_*compilation.py"))]

if INTERPRETED:
    collect_ignore = WITHOUT_KERNELS_RUN
elif DEVICE is None:
    collect_ignore = [p.name for p in HERE.glob("test_*.py") if p.name not in WITHOUT_KERNELS_RUN]


def pytest_addoption(parser):
    parser.addoption("--device", choices=["cpu", "cuda"], help="what the kernels must run on; default: whichever can")


def pytest_configure(config):
    asked = config.getoption("--device", None)
    if asked not in (None, DEVICE):
        hint = "this session has no GPU" if asked == "cuda" else "set TRITON_INTERPRET=1"
        raise pytest.UsageError(f"--device {asked}: {hint}")
    if INTERPRETED:
        patch_once_a_launch()


def patch_once_a_launch():
    """The interpreter puts its own functions into triton.language for a launch, and again for every function that the
    kernel calls. The second time changes nothing and took a third of the tests' time."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch = interpreter._patch_lang

    def once(function):
        modules = [value for value in function.__globals__.values() if value is tl or value is tl.core]
        done = not any(tl.core.is_builtin(module.load) for module in modules)
        return interpreter._LangPatchScope() if done else patch(function)

    interpreter._patch_lang = once


@pytest.fixture(scope="session")
def device():
    return DEVICE


@pytest.fixture(scope="module")
def engine():
    """`layernorm.gpu`, which is imported only where there is a GPU, to compile kernels that do not run."""
    before = {name: module for name, module in sys.modules.items() if name.startswith("layernorm.gpu")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        yield importlib.import_module("layernorm.gpu")
    for name in [name for name in sys.modules if name.startswith("layernorm.gpu") and name not in before]:
        del sys.modules[name]
