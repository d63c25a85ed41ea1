"""Imports of the laboratory go one way: cli -> play, theory -> an experiment -> train, report, data, runs.

No experiment imports another, and the library imports nothing of the laboratory (tests/test_layering.py).
"""

import ast
from pathlib import Path

import layernorm_lab
from layernorm_lab.catalogue import EXPERIMENTS
from support.layering import circle, circle_of, imports, wrong_imports

ROOT = Path(layernorm_lab.__file__).parent

BELOW = {
    # room: the rooms that it may import
    "__init__": set(),
    "errors": set(),
    "runs": {"errors"},
    "data": {"runs", "errors"},
    "report": {"runs", "errors"},
    "config": {"runs"},
    "train": {"config", "runs", "errors"},
    "protocol": {"config", "train", "report", "runs"},  # their types
    "experiments": {"config", "protocol", "train", "report", "data", "runs", "errors"},
    "catalogue": {"protocol", "errors"},  # experiments are imported by name, when they are asked for
    "claims": {"catalogue", "report", "runs", "errors"},
    "theory": {"protocol", "train", "report", "data", "runs", "errors"},
    "play": {"catalogue", "protocol", "train", "report", "data", "runs", "errors", "experiments"},
    "cli": {
        "catalogue",
        "claims",
        "config",
        "data",
        "errors",
        "play",
        "protocol",
        "report",
        "runs",
        "theory",
        "train",
    },
    "__main__": {"cli"},
}

FOLDERS = {path.name for path in (ROOT / "experiments").iterdir() if path.is_dir() and path.name != "__pycache__"}


def test_imports_go_down():
    alone = {"__init__": set(), **{name: set() for name in FOLDERS}}  # no experiment imports another
    assert [*wrong_imports(ROOT, "", BELOW), *wrong_imports(ROOT, "experiments", alone)] == []


def test_there_is_no_circle_of_rooms_or_files():
    assert (circle_of(BELOW), circle(ROOT)) == ([], [])


def test_of_the_library_only_what_is_for_users_is_imported():
    """No file of its engines, and no name with an underscore."""
    names = {name: path for path in ROOT.rglob("*.py") for name in imports(ROOT, path) if name.startswith("layernorm.")}
    private = {n: p for n, p in names.items() if any(w.startswith("_") for w in n.split(".")) or ".engines." in n}
    assert private == {}


def test_every_experiment_is_a_folder_and_a_row():
    assert {module.partition(".")[0] for module, _ in EXPERIMENTS.values()} == FOLDERS


def test_shared_code_names_no_experiment():
    wrong = {}
    for room in ("protocol.py", "config.py", "cli/run.py", "cli/single.py", "cli/jobs.py", "train", "report", "runs"):
        for path in [ROOT / room] if room.endswith(".py") else (ROOT / room).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value}
            if found := {text for text in texts if isinstance(text, str)} & set(EXPERIMENTS):
                wrong[path] = found
    assert wrong == {}
