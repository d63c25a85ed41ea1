"""Tests of the experiments look at no data of this machine, and at none of an earlier test."""

import functools
import os
import signal

import matplotlib
import pytest
import torch

from lab_support.data_sets import forget
from layernorm_lab.report import figures
from layernorm_lab.report.page import Figure, Panel


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _own_machine(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPLCONFIGDIR", matplotlib.get_cachedir())  # else each new cache would list the fonts anew
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("LAYERNORM_DATA", raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def _interruptible():
    """A shell has its background jobs ignore Ctrl-C, and the tests of Ctrl-C may be part of one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="session")
def _disk():
    """What a test writes need not outlive a power failure: waiting for the disk takes half of a small run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda opened: None)
        yield


@pytest.fixture(autouse=True, scope="module")
def _figures(request):
    """Every figure is a blank one but in modules marked `draws`: drawing three forms of each takes longer than all else
    that a short command does. Commands in processes of their own draw, too."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("draws") is None:
            patch.setattr(figures, "draw_figure", lambda figure, kind, narrow=False: _blank(kind))
        yield


@functools.cache
def _blank(kind):
    return _draw_figure(Figure("", "", [[Panel("", "", "", [])]]), kind)


_draw_figure = figures.draw_figure


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    forget()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
