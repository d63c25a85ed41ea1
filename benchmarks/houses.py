"""Draws the rooms of the library and of the laboratory, each above those that it imports from, into docs/houses.svg.

The arrows are the imports in the sources. One that another way implies is left out, and so is what imports nothing.

Examples:
    python benchmarks/houses.py
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import matplotlib

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))
from support.layering import imports, room  # noqa: E402

HOUSES = {"layernorm": ROOT / "src" / "layernorm", "layernorm_lab": ROOT / "lab" / "src" / "layernorm_lab"}
TITLES = {"layernorm": "the library: layernorm", "layernorm_lab": "the laboratory: layernorm-lab"}
COLOURS = {"layernorm": "#2a6fb0", "layernorm_lab": "#c46a1b"}
HIDDEN = {"__init__", "__main__"}
FIGURE = ROOT / "docs" / "houses.svg"


def graph() -> dict[str, set[str]]:
    """By room, such as `layernorm.nn`, the rooms of both houses that its files import from."""
    found: dict[str, set[str]] = {}
    for name, folder in HOUSES.items():
        for path in folder.rglob("*.py"):
            own = room(folder, path)
            if own in HIDDEN:
                continue
            below = found.setdefault(f"{name}.{own}", set())
            for item in imports(folder, path):
                house, _, rest = item.partition(".")
                other = rest.split(".")[0]
                if house in HOUSES and other and is_room(HOUSES[house], other) and (house, other) != (name, own):
                    below.add(f"{house}.{other}")
    return found


def is_room(folder: Path, name: str) -> bool:
    """Whether a folder has a room of this name."""
    return name not in HIDDEN and ((folder / name).is_dir() or (folder / f"{name}.py").is_file())


def heights(graph: dict[str, set[str]]) -> dict[str, int]:
    """The floor of each room: above all that it imports from."""
    found: dict[str, int] = {}

    def height(name: str) -> int:
        if name not in found:
            found[name] = max((height(below) + 1 for below in graph[name]), default=0)
        return found[name]

    for name in graph:
        height(name)
    return found


def reach(graph: dict[str, set[str]], name: str) -> set[str]:
    """Every room below one, at any distance."""
    return graph[name] | {far for below in graph[name] for far in reach(graph, below)}


def arrows(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows of the graph, without those that another way implies."""
    return [
        (name, below)
        for name, all_below in graph.items()
        for below in all_below
        if not any(below in reach(graph, other) for other in all_below - {below})
    ]


def draw(graph: dict[str, set[str]]) -> None:
    """Draws the figure: the laboratory stands above the library, the rooms of one floor side by side."""
    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {"svg.hashsalt": "houses", "svg.fonttype": "none"}
    )  # the same file each time, with words
    from matplotlib import pyplot as plt

    plan = {house: {n: b for n, b in graph.items() if n.partition(".")[0] == house} for house in HOUSES}
    place: dict[str, tuple[float, float]] = {}
    ground, roofs = 0.0, {}
    for house, inside in plan.items():
        own = {name: {b for b in below if b in inside} for name, below in inside.items()}
        floors = heights(own)
        top = max(floors.values())
        for floor in range(top + 1):
            names = sorted(name for name in floors if floors[name] == floor)
            for k, name in enumerate(names):
                place[name] = ((k + 0.5) * 10 / len(names) + 0.35 * (floor % 2) - 0.175, ground + floor)
        roofs[house] = (ground - 0.5, ground + top + 0.5)
        ground += top + 2.0
    figure, axes = plt.subplots(figsize=(9, 0.62 * ground))
    for house, (low, high) in roofs.items():
        box = plt.Rectangle((-0.3, low), 10.6, high - low, facecolor=COLOURS[house], alpha=0.08)
        axes.add_patch(box)
        axes.text(-0.2, high + 0.08, TITLES[house], color=COLOURS[house], weight="bold", va="bottom")
    boxes = {}
    for name, at in place.items():
        house, _, own = name.partition(".")
        box = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": COLOURS[house]}
        boxes[name] = axes.text(*at, own, ha="center", va="center", fontsize=9, bbox=box, zorder=3).get_bbox_patch()
    for name, below in arrows(graph):
        inside = name.split(".")[0] == below.split(".")[0]
        line = {"color": "#888888", "lw": 0.9} if inside else {"color": "#bbbbbb", "lw": 0.6}
        ends = {"patchA": boxes[name], "patchB": boxes[below], "arrowstyle": "-|>", "mutation_scale": 7}
        axes.annotate("", place[below], place[name], arrowprops={**ends, **line})
    axes.set(xlim=(-0.5, 10.5), ylim=(-0.8, ground - 0.6))
    axes.axis("off")
    figure.savefig(FIGURE, bbox_inches="tight", metadata={"Date": None})


def main() -> None:
    """Reads the sources and writes the figure."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    found = graph()
    draw(found)
    for name, below in sorted(found.items()):
        print(f"{name}: {', '.join(sorted(below)) or 'nothing'}")
    print(FIGURE)


if __name__ == "__main__":
    main()
