"""The instruction sets of the CPU engine that run here."""

import os
import re

import pytest

from .repository import ROOT

NATIVE = ROOT / "src/layernorm/engines/native"

IN_PLAIN_CPP = ("pairs", "amx_emulated")
"""Products of bfloat16 by instructions that few processors have, in plain C++: the headers in tests/native/sets. Their
other kernels are those of the best set."""

_FLAGS = dict(re.findall(r"layernorm_set\((\w+)(.*)\)", (NATIVE / "CMakeLists.txt").read_text(encoding="utf-8"))[::-1])

NAMES = [name for name in _FLAGS if name not in IN_PLAIN_CPP]
"""All others that can be compiled, the best of a kind of processor last."""

WITH_BFLOAT16 = [*IN_PLAIN_CPP, *(name for name in NAMES if "bf16" in _FLAGS[name])]
"""Those whose compiler has instructions for products of bfloat16, or that stand for one."""


def start(name):
    """Has the library use an instruction set; an ImportError where there is no library, or the processor lacks it."""
    from layernorm.engines.native import _library

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAYERNORM_ISA", name)
        assert _library._start(_library.LIBRARY) == name


def sets():
    """The names, of which the last one is in use."""
    asked = os.environ.get("LAYERNORM_ISA")
    found = []
    for name in [asked] if asked else [*IN_PLAIN_CPP, *NAMES]:
        try:
            start(name)
        except ImportError:
            continue
        found.append(name)
    return found


EVERY_SET = sets()
"""Every set that was compiled and runs here."""

SETS = [name for name in EVERY_SET if name not in IN_PLAIN_CPP] or EVERY_SET


if __name__ == "__main__":
    print(*EVERY_SET)


def share_of(cases, name):
    """The cases that a set computes: the best set all, each other one a quarter of its own, as the equations hold no
    instructions of a set. Tests marked `long` compute the rest."""
    cases = list(cases)
    return cases if name == SETS[-1] else cases[SETS.index(name) % 4 :: 4]


def rest_of(cases, name):
    """The cases that are not in `share_of`."""
    cases = list(cases)
    return [] if name == SETS[-1] else [case for k, case in enumerate(cases) if k % 4 != SETS.index(name) % 4]
