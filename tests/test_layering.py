"""Imports of the library go one way: audit -> convert -> nn, geometry -> functional -> backends -> engines -> formula.

Inside engines/: an engine -> protocol, checks, dispatch, schedule; no engine imports another.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import layernorm
from support.layering import circle, circle_of, outside_imports, room, wrong_imports

ROOT = Path(layernorm.__file__).parent

BELOW = {
    # room: the rooms that it may import
    "formula": set(),
    "_torch": set(),
    "engines": {"_torch", "formula"},
    "backends": {"engines", "formula"},  # engines are imported by name, when they are used
    "functional": {"backends", "engines", "formula"},  # the reference's equations are the second derivative
    "geometry": {"functional", "formula"},
    "nn": {"functional", "formula"},
    "interop": {"nn", "formula"},
    "sb3": {"convert", "nn", "formula"},
    "torchrl": {"nn"},
    "convert": {"nn", "functional", "backends", "engines", "formula"},
    "audit": {"convert", "nn", "engines", "formula"},
    "export": {"nn", "functional", "formula"},
    "doctor": {"nn", "functional", "backends", "formula"},
    "__main__": {"doctor"},
    "__init__": {"backends", "functional", "geometry", "formula", "nn", "convert", "audit", "export", "interop"},
}
ENGINES = {
    # room of engines/: the rooms of engines/ that it may import
    "__init__": set(),
    "protocol": set(),  # what an engine is: its functions, and what they are called with
    "checks": {"protocol"},  # what every engine refuses
    "dispatch": set(),
    "schedule": {"protocol", "checks"},
    "reference": {"protocol", "checks", "dispatch", "schedule"},
    "native": {"protocol", "checks"},
    "compiled": {"reference", "protocol", "checks", "dispatch", "schedule"},  # compiles the reference's equations
}

WITH_TORCH = {"torch", "numpy", "typing_extensions"}
"""PyTorch brings the last one."""
OTHERS = {
    # room: the packages beside torch, numpy and Python's own that it may name
    "export": {"onnx", "onnx_ir", "onnxscript"},
    "sb3": {"sb3_contrib", "stable_baselines3", "gymnasium"},
    "torchrl": {"torchrl", "tensordict"},
    "__main__": {"layernorm_lab"},
}


def test_imports_go_down():
    assert [*wrong_imports(ROOT, "", BELOW), *wrong_imports(ROOT, "engines", ENGINES)] == []


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
        ("engines__reference___lstm", "from ..schedule import walk", None),
    ],
)
def test_the_check_sees_a_wrong_import_inside_engines(root, file, line, wrong):
    write(root, **{file: line})
    assert list(wrong_imports(root, "engines", ENGINES)) == ([] if wrong is None else [wrong])


@pytest.mark.parametrize("form", ["{}\n", UNDER_TYPE_CHECKING, INSIDE_A_FUNCTION])
def test_the_check_sees_a_circle(root, form):
    write(root, nn__a="from .b import f\n", nn__b="from . import c\n", nn__c="")
    assert circle(root) == []
    write(root, nn__c=form.format("from .a import g"))
    assert set(circle(root)) == {"layernorm.nn.a", "layernorm.nn.b", "layernorm.nn.c"}


def test_the_check_sees_another_package(root):
    write(root, nn__a="def f():\n    import scipy.stats\n    from . import b\n", nn__b="")
    assert outside_imports(root, root / "nn" / "a.py") == {"scipy"}
