"""This folder's tests are skipped only where the CPU engine was switched off, or where there is nothing to build it."""

import os
import re

import pytest

import layernorm as ln
from support.compiler import COMPILER
from support.instruction_sets import NAMES, NATIVE
from support.repository import ROOT


def test_it_is_there():
    (status,) = (status for status in ln.backends.status() if status.name == "native")
    if not status.available and os.environ.get("LAYERNORM_ISA") not in NAMES:
        assert "installed without its C++ library" in status.reason
        assert COMPILER is None
    assert status.available or os.environ.get("LAYERNORM_ISA") not in NAMES, "it was asked for and is not compiled"


@pytest.mark.parametrize("name", NAMES)
def test_an_instruction_set_is_in_all_its_places(name):
    """Without a question to the processor it would be taken anywhere, or nowhere."""
    places = [
        (NATIVE / "sets" / f"{name}.h", f"struct {name}_set"),
        (NATIVE / "processor.h", f'!strcmp(name, "{name}")'),
        (ROOT / "docs/engine.md", f"(`{name}`)"),
        (ROOT / "benchmarks/mca.py", f'    "{name}": ['),
    ]
    lacking = [
        f"{file}: no {words}"
        for file, words in places
        if not file.exists() or file.read_text(encoding="utf-8").count(words) != 1
    ]
    assert not lacking, "\n".join(lacking)


def test_each_value_of_a_template_is_inline_in_its_header():
    """Every file that includes a `template <> constexpr` defines it, and clang 22 links no two such files."""
    headers = [*NATIVE.glob("*.h"), *NATIVE.glob("sets/*.h")]
    assert headers
    for header in headers:
        assert not re.search(r"^template *<> *constexpr .*=", header.read_text(encoding="utf-8"), re.M), header.name
