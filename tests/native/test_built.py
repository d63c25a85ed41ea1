"""This folder's tests are skipped only where the CPU engine was switched off, or where there is nothing to build it."""

import os

import layernorm as ln
from support.compiler import COMPILER


def test_it_is_there():
    (status,) = (status for status in ln.backends.status() if status.name == "native")
    if not status.available and not os.environ.get("LAYERNORM_ISA"):
        assert "installed without its C++ library" in status.reason
        assert COMPILER is None
