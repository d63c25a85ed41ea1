"""Imports go one way: cli -> experiments -> audit -> convert -> nn, geometry -> functional -> backends -> engines ->
formula.

Inside experiments/: command -> an experiment -> train, report, data, runs; no experiment imports another. Inside
engines/: an engine -> protocol, checks, dispatch, schedule; no engine imports another.
"""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import layernorm
from layernorm.experiments.catalogue import EXPERIMENTS

ROOT = Path(layernorm.__file__).parent

BELOW = {
    # room: the rooms that it may import
    "_command": set(),
    "formula": set(),
    "engines": {"formula"},
    "backends": {"engines", "formula"},  # engines are imported by name, when they are used
    "functional": {"backends", "engines", "formula"},  # the reference's equations are the second derivative
    "geometry": {"functional", "formula"},
    "nn": {"functional", "formula"},
    "interop": {"nn", "formula"},
    "sb3": {"convert", "nn", "formula"},
    "torchrl": {"nn"},
    "convert": {"nn", "functional", "backends", "engines", "formula"},
    "audit": {"convert", "nn", "engines", "formula"},
    "export": {"nn", "formula"},
    "experiments": {"audit", "convert", "nn", "geometry", "functional", "backends", "formula"},
    "doctor": {"experiments", "nn", "functional", "backends", "formula"},
    "play": {"experiments", "geometry"},
    "cli": {"experiments", "geometry", "doctor", "play"},
    "__main__": {"cli"},
    "__init__": {"_command", "backends", "functional", "geometry", "formula"}
    | {"nn", "convert", "audit", "export", "interop"},
}

SHARED = {
    # room of experiments/: the rooms of experiments/ that it may import
    "__init__": set(),
    "errors": set(),
    "runs": {"errors"},
    "data": {"runs", "errors"},
    "report": {"runs", "errors"},
    "protocol": {"report", "runs"},  # their types
    "train": {"protocol", "runs", "errors"},
    "catalogue": {"protocol", "errors"},  # experiments are imported by name, when they are asked for
    "claims": {"catalogue", "report", "runs", "errors"},
    "command": {"catalogue", "protocol", "train", "report", "data", "runs", "errors"},
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
OF_AN_EXPERIMENT = {"protocol", "train", "report", "data", "runs", "errors"}
"""What the folder of an experiment may import; every folder that is not in `SHARED` is one."""

OPTIONAL = {
    "accelerate",
    "rich",
    "matplotlib",
    "PIL",
    "pooch",
    "filelock",
    "safetensors",
    "sklearn",
    "scipy",
    "jax",
    "onnx",
    "onnx_ir",
    "onnxscript",
    "onnxruntime",
    "nicegui",
    "sb3_contrib",
    "torchrl",
}
CORE = ["__init__", "formula", "backends", "engines", "functional", "nn", "convert", "audit", "interop", "geometry"]


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Everything that a file imports of this package, at any depth of its code: `layernorm.nn.LSTM`."""
    package = ["layernorm", *path.relative_to(ROOT).parent.parts]
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names += [f"{module}.{alias.name}" for alias in node.names]
    return {name for name in names if name.split(".")[0] == "layernorm"}


def imported_rooms(path: Path) -> set[str]:
    """The rooms of this package that a file imports from."""
    parts = [name.split(".") for name in imports(path)]
    return {p[1] for p in parts if len(p) > 1} & (set(BELOW) - {"__init__"})


def inner_room(path: Path) -> str:
    return path.relative_to(ROOT / room_of(path)).parts[0].removesuffix(".py")


def wrong_rooms(path: Path) -> set[str]:
    """The rooms of experiments/ or engines/ from which a file there imports what it may not."""
    parts = [name.split(".") for name in imports(path)]
    outer, room = room_of(path), inner_room(path)
    below = ENGINES[room] if outer == "engines" else SHARED.get(room, OF_AN_EXPERIMENT)
    return {p[2] for p in parts if p[1:2] == [outer] and len(p) > 2} - {room} - below


def circle() -> list[str]:
    """Some files that import one another in a circle; empty if there is none."""
    modules = {}
    for path in ROOT.rglob("*.py"):
        parts = ["layernorm", *path.relative_to(ROOT).with_suffix("").parts]
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        names = imports(path)
        files = {name if name in modules else name.rpartition(".")[0] for name in names}
        graph[module] = files & set(modules) - {module}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


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


IN_EXPERIMENTS = [path for path in FILES if room_of(path) == "experiments"]
FOLDERS = {inner_room(path) for path in IN_EXPERIMENTS} - set(SHARED)


IN_ENGINES = [path for path in FILES if room_of(path) == "engines"]


@pytest.mark.parametrize("path", [*IN_EXPERIMENTS, *IN_ENGINES], ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_inside_experiments_and_engines_go_down(path):
    assert not wrong_rooms(path)


def test_no_file_imports_itself_in_a_circle():
    assert circle() == []


def test_every_experiment_is_a_folder_and_a_row():
    assert {module.partition(".")[0] for module, _ in EXPERIMENTS.values()} | {"theory"} == FOLDERS


@pytest.mark.parametrize("room", ["protocol", "command", "train", "report", "runs"])
def test_shared_code_names_no_experiment(room):
    for path in IN_EXPERIMENTS:
        if inner_room(path) == room:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
            assert not texts & set(EXPERIMENTS), path


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Writes files of a package with these contents, by path; the checks look at it."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)

    def write(**contents):
        for name, content in contents.items():
            path = tmp_path / (name.replace("__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return path

    return write


def test_the_check_sees_an_upward_import(tree):
    path = tree(functional__x="from ..nn import LSTM\nfrom .. import backends\nimport layernorm.cli\n")
    assert imported_rooms(path) == {"nn", "backends", "cli"}


UNDER_TYPE_CHECKING = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}\n"
INSIDE_A_FUNCTION = "def f():\n    {}\n"


@pytest.mark.parametrize("form", ["{}\n", UNDER_TYPE_CHECKING, INSIDE_A_FUNCTION])
@pytest.mark.parametrize(
    ("file", "line", "wrong"),
    [
        ("experiments__draw__network", "from ..mnist.network import Config", {"mnist"}),
        ("experiments__draw__network", "from ... import nn", set()),
        ("experiments__draw__report", "from ..command import sweep", {"command"}),
        ("experiments__draw__report", "import layernorm.experiments.catalogue", {"catalogue"}),
        ("experiments__draw__report", "from ..report.page import Report", set()),
        ("experiments__train__loop", "from .. import data", {"data"}),
        ("experiments__data__idx", "from ..protocol import option", {"protocol"}),
        ("experiments__command__sweep", "from ..mnist import digits", {"mnist"}),
        ("experiments__runs__files", "from layernorm.experiments.report import page", {"report"}),
        ("engines__native___steps", "from ..reference import prepare", {"reference"}),
        ("engines__protocol", "from . import native", {"native"}),
        ("engines__reference___lstm", "from ..schedule import walk", set()),
    ],
)
def test_the_check_sees_a_wrong_import_inside_experiments(tree, file, line, wrong, form):
    assert wrong_rooms(tree(**{file: form.format(line)})) == wrong


@pytest.mark.parametrize("form", ["{}\n", UNDER_TYPE_CHECKING, INSIDE_A_FUNCTION])
def test_the_check_sees_a_circle(tree, form):
    tree(nn__a="from .b import f\n", nn__b="from . import c\n", nn__c="")
    assert circle() == []
    tree(nn__c=form.format("from .a import g"))
    assert set(circle()) == {"layernorm.nn.a", "layernorm.nn.b", "layernorm.nn.c"}


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
