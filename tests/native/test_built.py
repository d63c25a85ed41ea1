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
    assert (NATIVE / "sets" / f"{name}.h").exists()
    assert f'!strcmp(name, "{name}")' in (NATIVE / "processor.h").read_text(encoding="utf-8")
    page = (ROOT / "docs/engine.md").read_text(encoding="utf-8")
    assert name in re.findall(r"\w+", " ".join(re.findall(r"`LAYERNORM_ISA=[^`]*`,[^`]*`[^`]*`", page)))


def test_each_value_of_a_template_is_inline_in_its_header():
    """Every file that includes a `template <> constexpr` defines it, and clang 22 links no two such files."""
    headers = [*NATIVE.glob("*.h"), *NATIVE.glob("sets/*.h")]
    assert headers
    for header in headers:
        assert not re.search(r"^template *<> *constexpr .*=", header.read_text(encoding="utf-8"), re.M), header.name
