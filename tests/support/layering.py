"""Which rooms of a package a file imports from, and what is wrong with it.

A room is a folder or a file of a package. A rule says for each which others it may import: at the head of a file,
under `TYPE_CHECKING` and inside functions alike.
"""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator, Mapping, Set
from pathlib import Path


def imports(root: Path, path: Path) -> set[str]:
    """Everything that a file of the package in `root` imports, at any depth of its code: `layernorm.nn.LSTM`."""
    package = [root.name, *path.relative_to(root).parent.parts]
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names += [f"{module}.{alias.name}" for alias in node.names]
    return set(names)


def room(folder: Path, path: Path) -> str:
    """The room of a folder in which a file is: `nn` of `nn/_lstm.py`, `formula` of `formula.py`."""
    return path.relative_to(folder).parts[0].removesuffix(".py")


def wrong_imports(root: Path, inside: str, below: Mapping[str, Set[str]]) -> Iterator[str]:
    """The imports that the rule does not allow, each as a line that names the file.

    Args:
        root: the folder of the package.
        inside: the folder in it whose rooms are meant, "" for the package itself.
        below: by room the rooms that it may import; a room without a row is wrong as well.
    """
    folder, prefix = root / inside, [root.name, *([inside] if inside else [])]
    for path in sorted(folder.rglob("*.py")):
        own = room(folder, path)
        if own not in below:
            yield f"{path.relative_to(root)}: a new room; say what it may import"
            continue
        parts = [name.split(".") for name in imports(root, path)]
        found = {p[len(prefix)] for p in parts if p[: len(prefix)] == prefix and len(p) > len(prefix)}
        rooms = found & ({item.name.removesuffix(".py") for item in folder.iterdir()} | set(below)) - {"__init__"}
        yield from (f"{path.relative_to(root)}: imports {name}" for name in sorted(rooms - {own} - below[own]))


def outside_imports(root: Path, path: Path) -> set[str]:
    """The other packages that a file imports."""
    return {name.split(".")[0] for name in imports(root, path)} - {root.name}


def circle(root: Path) -> list[str]:
    """Some files that import one another in a circle; empty if there is none."""
    modules = {}
    for path in root.rglob("*.py"):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        names = imports(root, path)
        files = {name if name in modules else name.rpartition(".")[0] for name in names}
        graph[module] = files & set(modules) - {module}
    return circle_of(graph)


def circle_of(graph: Mapping[str, Set[str]]) -> list[str]:
    """A circle in a graph that is given by the successors of each node; empty if there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []
