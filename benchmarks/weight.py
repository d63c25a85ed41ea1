"""Counts what the tree weighs: lines by room, words of the pages, bytes, packages. `make weight` prints it.

python benchmarks/weight.py
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = {".py", ".cpp", ".h", ".txt", ".sh"}
PLACES = {
    "src/layernorm": "library",
    "lab/src/layernorm_lab": "laboratory",
    "tests": "tests",
    "lab/tests": "tests of the laboratory",
    "benchmarks": "benchmarks",
    "examples": "examples",
}


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def place_of(path: Path) -> tuple[str, str] | None:
    """The place of a file of code, and its room there."""
    name = path.relative_to(ROOT).as_posix()
    for folder, place in PLACES.items():
        if name.startswith(f"{folder}/") and path.suffix in CODE:
            inside = name.removeprefix(f"{folder}/").split("/")
            return place, inside[0] if len(inside) > 1 else ""
    return None


def packages(project: Path) -> list[str]:
    found = re.search(r"^dependencies = (\[.*?\])$", project.read_text(encoding="utf-8"), re.M | re.S)
    assert found, f"{project} has no dependencies"
    return ast.literal_eval(found[1])


def main() -> None:
    files = tracked()
    rooms: dict[str, Counter[str]] = {place: Counter() for place in PLACES.values()}
    for path in files:
        if found := place_of(path):
            rooms[found[0]][found[1]] += path.read_bytes().count(b"\n")
    for place, of in rooms.items():
        named = ", ".join(f"{room} {lines:,}" for room, lines in of.most_common() if room)
        print(f"{place}: {of.total():,} lines{f' ({named})' if named else ''}")
    pages = [path for path in files if path.suffix in (".md", ".rst") and "tests" not in path.parts]
    words = {path: len(path.read_text(encoding="utf-8").split()) for path in pages}
    docs = sum(count for path, count in words.items() if ROOT / "docs" in path.parents)
    print(f"words: {docs:,} in docs, {sum(words.values()) - docs:,} elsewhere")
    kinds: Counter[str] = Counter()
    for path in files:
        kinds[path.suffix] += path.stat().st_size
    named = ", ".join(f"{kind or 'without a name'} {size / 1e6:.1f}" for kind, size in kinds.most_common(6))
    print(f"tree: {kinds.total() / 1e6:.1f} MB ({named}), {len(files):,} files")
    for name in ("", "lab"):
        print(f"packages of {name or 'the library'}: {', '.join(packages(ROOT / name / 'pyproject.toml'))}")


if __name__ == "__main__":
    main()
