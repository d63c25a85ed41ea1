"""The structures that Python and the library share."""

import ctypes
import re
from pathlib import Path

import pytest

pytest.importorskip("layernorm.engines.native", exc_type=ImportError)

from layernorm.engines.native import _layout, _library

HEADER = Path(__file__).parents[2] / "src" / "layernorm" / "engines" / "native" / "engine.h"
TYPES = {"int64_t": _layout.INTEGER, "double": _layout.NUMBER}


def declared(name):
    """The fields of a structure of engine.h, with ctypes' types."""
    text = HEADER.read_text(encoding="utf-8")
    constants = dict(re.findall(r"constexpr int64_t (\w+) = (\d+);", text))
    body = re.sub(r"//.*", "", re.search(rf"struct {name} {{\n(.*?)\n}};", text, re.DOTALL)[1])
    for declaration in filter(str.strip, body.split(";")):
        kind, names = re.fullmatch(r"\s*(?:const )?(\w+) (.*)", declaration, re.DOTALL).groups()
        for field in names.split(","):
            pointer, name, count = re.fullmatch(r"\s*(\*?)(\w+)(?:\[(\w+)\])?", field).groups()
            type_ = _layout.POINTER if pointer else TYPES[kind]
            yield name, type_ * int(constants[count]) if count else type_


@pytest.mark.parametrize("structure", [_layout.Recurrent, _layout.Norm], ids=lambda structure: structure.__name__)
def test_the_fields_are_those_of_the_header(structure):
    found = list(declared(structure.__name__))
    assert found == list(structure._fields_)
    assert len(found) > 20


@pytest.mark.parametrize("name", ["Recurrent", "Norm"])
@pytest.mark.parametrize("change", ["shorter", "longer", "exchanged"])
def test_a_library_of_another_layout_is_refused(name, change, monkeypatch):
    fields = list(getattr(_layout, name)._fields_)
    at = next(i for i, (field, _) in enumerate(fields) if field == "eps")
    changed = {
        "shorter": fields[:at] + fields[at + 1 :] + [("eps", _layout.NUMBER)],
        "longer": [*fields, ("one_more", _layout.POINTER)],
        "exchanged": [*fields[: at - 1], fields[at], fields[at - 1], *fields[at + 1 :]],
    }[change]
    monkeypatch.setattr(_layout, name, type(name, (ctypes.Structure,), {"_fields_": changed}))
    with pytest.raises(ImportError, match="do not belong together; install layernorm again"):
        _library._load(_library._find())
