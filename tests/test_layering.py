"""Imports go one way: cli -> experiments -> nn, geometry -> functional -> backends -> engines -> formula."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import layernorm

ROOT = Path(layernorm.__file__).parent

BELOW = {
    # room: the rooms that it may import
    "formula": set(),
    "plain": set(),
    "schedule": set(),
    "reference": {"formula", "plain", "schedule"},
    "native": {"formula"},
    "gpu": {"formula", "plain", "schedule"},
    "backends": {"formula"},  # engines are imported by name, when they are used
    "functional": {"backends", "reference", "formula"},  # reference: its equations are the second derivative
    "geometry": {"functional", "formula"},
    "nn": {"functional", "formula"},
    "interop": {"nn", "formula"},
    "experiments": {"nn", "geometry", "functional", "backends", "formula"},
    "doctor": {"experiments", "nn", "functional", "backends", "formula"},
    "cli": {"experiments", "geometry", "doctor"},
    "__main__": {"cli"},
    "__init__": {"backends", "functional", "geometry", "nn", "interop", "formula"},
}

OPTIONAL = {
    "accelerate",
    "tyro",
    "rich",
    "matplotlib",
    "PIL",
    "pooch",
    "safetensors",
    "sklearn",
    "scipy",
    "triton",
    "jax",
}
CORE = ["__init__", "formula", "backends", "reference", "functional", "nn", "interop", "geometry"]


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """The rooms of this package that a file imports from, at any depth of its code."""
    package = ["layernorm", *path.relative_to(ROOT).parent.parts]
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names += [f"{module}.{alias.name}" for alias in node.names]
    parts = [name.split(".") for name in names]
    return {p[1] for p in parts if p[0] == "layernorm" and len(p) > 1} & (set(BELOW) - {"__init__"})


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path):
    room = room_of(path)
    assert room in BELOW, f"{path}: a new room; say in BELOW what it may import"
    assert imported_rooms(path) - {room} <= BELOW[room]


def test_the_rule_is_without_cycles():
    done: set[str] = set()
    while len(done) < len(BELOW):
        ready = {room for room, below in BELOW.items() if room not in done and below <= done}
        assert ready, f"a cycle among {set(BELOW) - done}"
        done |= ready


def test_the_check_sees_an_upward_import(tmp_path, monkeypatch):
    (tmp_path / "functional").mkdir()
    path = tmp_path / "functional" / "_x.py"
    path.write_text("from ..nn import LSTM\nfrom .. import backends\nimport layernorm.cli\n")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert imported_rooms(path) == {"nn", "backends", "cli"}


@pytest.mark.parametrize("path", [p for p in FILES if room_of(p) in CORE], ids=lambda p: str(p.relative_to(ROOT)))
def test_the_core_names_no_optional_dependency(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        assert not {name.split(".")[0] for name in names} & OPTIONAL


def test_importing_layernorm_imports_no_optional_dependency():
    code = "import sys, torch; before = set(sys.modules); import layernorm; print(*(set(sys.modules) - before))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {name.split(".")[0] for name in out} & OPTIONAL
    assert not [
        name for name in out if name.startswith(("layernorm.experiments", "layernorm.cli", "layernorm.geometry"))
    ]
    assert "torch._dynamo" not in out, "it takes a second to import, and only torch.compile needs it"
