"""A report as data: an experiment says what it found, `figures.py` and `rendering.py` say how it looks.

Also the sums that every experiment's report needs: curves over seeds, and when one reaches another's best.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .run_folder import Run

MARKS = {
    "P": "stated in the paper",
    "S": "read in the authors' or the original model's public source",
    "R": "a third party's reproduction",
    "I": "inferred: a decision of ours where the paper leaves it open",
    "stand-in": "used in place of what the paper used: compare the direction of results, not the numbers",
}
"""What the mark before a deviation means."""


@dataclass(frozen=True)
class Curve:
    """A line with a band: the mean, the lowest and the highest over seeds. `style` picks its colour and dashes."""

    label: str
    style: str
    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class Panel:
    """One set of axes. `limits` cut the y axis; None leaves it to the data."""

    title: str
    x_label: str
    y_label: str
    curves: list[Curve]
    log: bool = False
    percent: bool = False
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Figure:
    """Rows of panels with one legend; `name` is the file's name without its ending."""

    name: str
    caption: str
    rows: list[list[Panel]]


@dataclass(frozen=True)
class Picture:
    """What a network drew: the content of a file `name.kind`, kind being "png" or "svg"."""

    name: str
    kind: str
    caption: str
    content: bytes


@dataclass(frozen=True)
class Table:
    """Texts in rows, and what a reader must know to read them."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


@dataclass(frozen=True)
class Deviation:
    """A difference from the paper's protocol, or a choice where it states none; `mark` is one of `MARKS`."""

    mark: str
    text: str


@dataclass(frozen=True)
class Report:
    """All that is said about some runs of one experiment.

    Attributes:
        title: the heading.
        claim: the paper's, in its words or close to them.
        findings: what these runs show of it, one sentence each.
        status: what is unfinished or unequal among the runs; empty when nothing is.
        figures, tables, deviations: in the order of showing.
        runs: that it is about.
        pictures: samples, shown after the figures.
    """

    title: str
    claim: str
    findings: list[str]
    status: list[str]
    figures: list[Figure]
    tables: list[Table]
    deviations: list[Deviation]
    runs: Sequence[Run] = field(repr=False)
    pictures: Sequence[Picture] = field(default=(), repr=False)


def curve(runs: Sequence[Run], metric: str, label: str, style: str) -> Curve:
    """A metric against epochs over seeds, at the evaluations that all these runs have made.

    Args:
        runs: alike but for the seed, each with a record at least.
    """
    length = min(len(run.records) for run in runs)
    columns = [[run.records[position][metric] for run in runs] for position in range(length)]
    return Curve(
        label=label,
        style=style,
        x=[record["epoch"] for record in runs[0].records[:length]],
        mean=[statistics.fmean(column) for column in columns],
        low=[min(column) for column in columns],
        high=[max(column) for column in columns],
    )


def first_reaching(line: Curve, goal: float) -> float | None:
    """The first x at which a curve's mean is at or below a goal; None if it never is."""
    return next((x for x, value in zip(line.x, line.mean, strict=True) if value <= goal), None)


def seconds_per_update(runs: Sequence[Run]) -> float:
    """The lowest of the evaluations' medians: other work on the machine can only slow the rest."""
    return min(record["seconds_per_update"] for run in runs for record in run.records)


def unfinished(runs: Sequence[Run]) -> list[str]:
    """What a reader must know about the completeness of some runs."""
    open_runs = [run.path.name for run in runs if not run.done]
    if not open_runs:
        return []
    names = ", ".join(open_runs[:6]) + (", ..." if len(open_runs) > 6 else "")
    return [f"Unfinished: {len(open_runs)} of {len(runs)} runs ({names}). Curves end where the shortest seed ends."]


def unequal(runs: Sequence[Run], apart: Sequence[str]) -> list[str]:
    """Names the options, but for those in `apart`, in which the runs differ, and differing data sets."""
    notes = []
    names = dict.fromkeys(name for run in runs for name in run.config)
    for name in names:
        values = list(dict.fromkeys(str(run.config.get(name)) for run in runs))
        if name not in apart and len(values) > 1:
            notes.append(f"The runs differ in {name}: {', '.join(values)}.")
    if len({run.environment["data"].get("fingerprint") for run in runs}) > 1:
        notes.append("The runs were made on data sets with different content.")
    return notes


@dataclass(frozen=True)
class Variant:
    """Runs of which no two in one row of a table differ in more than the seed.

    Attributes:
        mark: `(a)`, `(b)` and so on in the rows; empty if all runs are of one variant.
        options: the options that set it apart, with their values.
        runs: of this variant.
    """

    mark: str
    options: str
    runs: list[Run]


def variants(runs: Sequence[Run], row: Sequence[str]) -> list[Variant]:
    """Splits runs so that no mean is taken over different configurations.

    Args:
        row: the options that name a table's row; the runs in one should differ in their seed alone.
    """
    facts = [{**run.config, "data set": str(run.environment["data"].get("fingerprint"))[:12]} for run in runs]
    rows: dict[tuple, list[dict]] = {}
    for item in facts:
        rows.setdefault(tuple(item.get(name) for name in row), []).append(item)
    names = dict.fromkeys(name for item in facts for name in item if name not in (*row, "seed"))
    mixed = [name for name in names if any(len({item.get(name) for item in items}) > 1 for items in rows.values())]
    split: dict[str, list[Run]] = {}
    for run, item in zip(runs, facts, strict=True):
        split.setdefault(", ".join(f"{name} {item.get(name)}" for name in mixed), []).append(run)
    marks = [f"({_letters(number)})" if mixed else "" for number in range(len(split))]
    return [Variant(mark, *item) for mark, item in zip(marks, split.items(), strict=True)]


def _letters(number: int) -> str:
    """0, 1, ... as a, b, ..., z, aa, ab, ..."""
    return (_letters(number // 26 - 1) if number >= 26 else "") + chr(ord("a") + number % 26)


def environment_lines(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The environments of some runs as (what, value), where equal values appear once."""
    starts = [start for run in runs for start in run.environment["starts"]]
    lines = []
    for key, label in _SHOWN.items():
        values = list(dict.fromkeys(str(start[key]) for start in starts if start.get(key) is not None))
        if values:
            lines.append((label, "; ".join(values)))
    for run in runs[:1]:
        data = run.environment["data"]
        lines.append(("data set", f"{data.get('name')}, SHA-256 {data.get('fingerprint')}"))
    hours = sum(run.records[-1]["seconds"] for run in runs if run.records) / 3600
    lines.append(("time of all runs", f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.1f} min"))
    return lines


def commands(runs: Sequence[Run]) -> list[str]:
    """The command lines that made some runs, each once."""
    return list(dict.fromkeys(start["command"] for run in runs for start in run.environment["starts"]))


_SHOWN: dict[str, Any] = {
    "layernorm": "layernorm",
    "commit": "commit (+: with local changes)",
    "python": "Python",
    "torch": "PyTorch",
    "numpy": "NumPy",
    "accelerate": "accelerate",
    "system": "system",
    "processor": "processor",
    "cores": "cores",
    "threads": "threads",
    "device": "device",
    "gpu": "GPU",
    "processes": "processes",
}
