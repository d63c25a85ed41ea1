"""Every test draws the same numbers, whatever ran before it. What the CPU engine does not write is NaN."""

import contextlib
import importlib

import pytest
import torch

_compile = None
with contextlib.suppress(ImportError):  # without a C++ compiler there is no compiled engine
    _compile = importlib.import_module("layernorm.engines.compiled._compile")
with contextlib.suppress(ImportError, AttributeError):  # no library, or none that was built for tests
    importlib.import_module("layernorm.engines.native._library").LIBRARY.layernorm_poison(True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    torch.manual_seed(0)


@pytest.fixture(autouse=_compile is not None)
def compiler(request, monkeypatch):
    """Short chunks, and no compiler but in tests marked `compiles`: to compile takes seconds."""
    monkeypatch.setattr(_compile, "CHUNK", 2)
    if "compiles" not in request.keywords:
        monkeypatch.setattr(_compile, "through_compiler", lambda function: function)
    _compile._compiled.cache_clear()
    yield
    _compile._compiled.cache_clear()


@pytest.fixture
def empty_is_nan(monkeypatch):
    """Memory that Python code asks torch for begins as NaN, too; whole numbers begin as the largest."""

    def filled(make):
        def made(*args, **keywords):
            tensor = make(*args, **keywords)
            if tensor.device.type != "cpu" or torch.compiler.is_compiling():
                return tensor
            whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)
            return tensor.fill_(torch.iinfo(tensor.dtype).max if whole else float("nan"))

        return made

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, filled(getattr(owner, name)))
