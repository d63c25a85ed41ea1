"""Every test draws the same numbers, whatever ran before it."""

import contextlib
import importlib

import pytest
import torch

_compile = None
with contextlib.suppress(ImportError):  # without a C++ compiler there is no compiled engine
    _compile = importlib.import_module("layernorm.engines.compiled._compile")


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
