"""Imports of the library go one way: audit -> convert -> nn -> functional -> backends -> engines -> equations ->
formula.

Inside engines/: an engine -> protocol. No engine imports another, and nobody else imports one: `backends` finds it by
name.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import layernorm
from support.layering import circle, circle_of, imports, outside_imports, room, wrong_imports

ROOT = Path(layernorm.__file__).parent

BELOW = {
    # room: the rooms that it may import
    "formula": set(),
    "_torch": set(),
    "equations": {"_torch", "formula"},
    "engines": {"equations", "formula"},
    "backends": {"engines", "formula"},  # engines are imported by name, when they are used
    "functional": {"backends", "engines", "equations", "formula"},  # of engines/ the types of `protocol`
    "geometry": {"functional", "equations", "formula"},
    "nn": {"functional", "equations", "formula"},
    "interop": {"nn", "formula"},
    "sb3": {"convert", "nn", "formula"},
    "torchrl": {"nn"},
    "convert": {"nn", "functional", "backends", "equations", "formula"},
    "audit": {"convert", "nn", "equations"},
    "export": {"nn", "functional", "equations", "formula"},
    "isolation": set(),  # processes that may crash: those of `doctor --check`, and the laboratory's jobs
    "doctor": {"isolation", "nn", "functional", "backends", "formula"},
    "__main__": {"doctor"},
    "__init__": {"backends", "functional", "geometry", "formula", "nn", "convert", "audit", "export", "interop"},
}
ENGINES = {
    # room of engines/: the rooms of engines/ that it may import
    "__init__": set(),
    "protocol": set(),  # what an engine is: its functions
    "reference": {"protocol"},
    "native": {"protocol"},
    "compiled": {"protocol"},
    "triton": {"protocol"},
}

WITH_TORCH = {"torch", "numpy", "typing_extensions"}
"""PyTorch brings the last one."""
OTHERS = {
    # room: the packages beside torch, numpy and Python's own that it may name
    "engines": {"triton"},
    "export": {"onnx", "onnx_ir", "onnxscript"},
    "sb3": {"sb3_contrib", "stable_baselines3", "gymnasium"},
    "torchrl": {"torchrl", "tensordict"},
}


def test_imports_go_down():
    assert [*wrong_imports(ROOT, "", BELOW), *wrong_imports(ROOT, "engines", ENGINES)] == []


def imported_engines(root):
    """By files outside of engines/ the engines that they import; what an engine is (`protocol`) anyone may import."""
    found = {}
    for path in root.rglob("*.py"):
        parts = [name.split(".") for name in imports(root, path) if room(root, path) != "engines"]
        if engines := {p[2] for p in parts if p[:2] == [root.name, "engines"] and len(p) > 2} - {"protocol"}:
            found[path.name] = engines
    return found


def test_nobody_imports_an_engine():
    assert imported_engines(ROOT) == {}


def test_there_is_no_circle_of_rooms_or_files():
    assert (circle_of(BELOW), circle_of(ENGINES), circle(ROOT)) == ([], [], [])


def test_the_library_names_no_package_beside_torch_and_numpy():
    wrong = {}
    for path in ROOT.rglob("*.py"):
        names = outside_imports(ROOT, path) - set(sys.stdlib_module_names)
        if more := names - WITH_TORCH - OTHERS.get(room(ROOT, path), set()):
            wrong[path] = more
    assert wrong == {}


def test_importing_layernorm_imports_little():
    code = "import sys, torch; before = set(sys.modules); import layernorm; print(*(set(sys.modules) - before))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    others = set().union(*OTHERS.values()) | {"matplotlib", "scipy", "rich"}
    assert not {name.split(".")[0] for name in out} & others
    assert not [name for name in out if name.startswith(("layernorm.doctor", "layernorm.geometry"))]
    assert "torch._dynamo" not in out, "it takes a second to import, and only torch.compile needs it"


# --- The check itself ---


UNDER_TYPE_CHECKING = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}\n"
INSIDE_A_FUNCTION = "def f():\n    {}\n"


def write(root, **contents):
    """Writes files of a package with these contents, by path."""
    for name, content in contents.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "layernorm"


@pytest.mark.parametrize("form", ["{}\n", UNDER_TYPE_CHECKING, INSIDE_A_FUNCTION])
@pytest.mark.parametrize(
    ("file", "line", "wrong"),
    [
        ("functional__x", "from ..nn import LSTM", "functional/x.py: imports nn"),
        ("functional__x", "from .. import backends", None),
        ("functional__x", "import layernorm.audit", "functional/x.py: imports audit"),
        ("somewhere__x", "import torch", "somewhere/x.py: a new room; say what it may import"),
    ],
)
def test_the_check_sees_a_wrong_import(root, file, line, wrong, form):
    write(root, nn____init__="", backends="", audit____init__="", **{file: form.format(line)})
    assert list(wrong_imports(root, "", BELOW)) == ([] if wrong is None else [wrong])


@pytest.mark.parametrize(
    ("file", "line", "wrong"),
    [
        ("engines__native___steps", "from ..reference import prepare", "engines/native/_steps.py: imports reference"),
        ("engines__protocol", "from . import native", "engines/protocol.py: imports native"),
        ("engines__compiled___x", "from ..reference import prepare", "engines/compiled/_x.py: imports reference"),
        ("engines__reference", "from ..equations.steps import prepare", None),
    ],
)
def test_the_check_sees_a_wrong_import_inside_engines(root, file, line, wrong):
    write(root, **{file: line})
    assert list(wrong_imports(root, "engines", ENGINES)) == ([] if wrong is None else [wrong])


def test_the_check_sees_an_engine(root):
    lines = (
        "from ..engines import native\n",
        "from ..engines.native import f\n",
        "from ..engines.protocol import Engine\n",
    )
    write(
        root, functional__a=lines[0], functional__b=lines[1], functional__c=lines[2], engines__x="from . import native"
    )
    assert imported_engines(root) == {"a.py": {"native"}, "b.py": {"native"}}


@pytest.mark.parametrize("form", ["{}\n", UNDER_TYPE_CHECKING, INSIDE_A_FUNCTION])
def test_the_check_sees_a_circle(root, form):
    write(root, nn__a="from .b import f\n", nn__b="from . import c\n", nn__c="")
    assert circle(root) == []
    write(root, nn__c=form.format("from .a import g"))
    assert set(circle(root)) == {"layernorm.nn.a", "layernorm.nn.b", "layernorm.nn.c"}


def test_the_check_sees_another_package(root):
    write(root, nn__a="def f():\n    import scipy.stats\n    from . import b\n", nn__b="")
    assert outside_imports(root, root / "nn" / "a.py") == {"scipy"}
