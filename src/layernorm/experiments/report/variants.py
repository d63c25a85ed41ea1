"""How runs differ besides norm and seed: unfinished runs, other options, other data, departures from the paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..runs.folder import Run
from .page import Deviation


def incomplete(runs: Sequence[Run]) -> list[str]:
    """Which of some runs are unfinished, and which diverged."""
    notes = []
    open_runs = [run.path.name for run in runs if not run.done]
    if open_runs:
        names = ", ".join(open_runs[:6]) + (", ..." if len(open_runs) > 6 else "")
        notes.append(f"Unfinished: {len(open_runs)} of {len(runs)} runs ({names}).")
    lost = [f"{run.path.name} at update {run.diverged}" for run in runs if run.diverged is not None]
    if lost:
        notes.append(f"Diverged: {len(lost)} of {len(runs)} runs ({', '.join(lost)}).")
    return [f"{note} Curves end where the shortest seed ends." for note in notes]


def unequal(runs: Sequence[Run], apart: Sequence[str]) -> list[str]:
    """Names the options, except those in `apart`, in which the runs differ, and says if their data sets differ."""
    notes = []
    names = dict.fromkeys(name for run in runs for name in run.config)
    for name in names:
        values = list(dict.fromkeys(str(run.config.get(name)) for run in runs))
        if name not in apart and len(values) > 1:
            notes.append(f"The runs differ in {name}: {', '.join(values)}.")
    if len({run.environment["data"].get("fingerprint") for run in runs}) > 1:
        notes.append("The runs were made on data sets with different content.")
    return notes


def departures(runs: Sequence[Run], protocol: Mapping[str, Any]) -> list[Deviation]:
    """The options in which runs differ from the paper's protocol, and mixed precision.

    Args:
        runs: the runs.
        protocol: the paper's values. The whole number 0 means that it uses all there are.
    """
    deviations = []
    for name, value in protocol.items():
        others = {run.config[name] for run in runs} - {value}
        if others:
            paper = "all" if value == 0 and type(value) is int else _said(value)
            deviations.append(Deviation("I", f"{name} is {one_of(others)}; the paper's protocol has {paper}."))
    precisions = sorted({str(run.config.get("precision")) for run in runs})
    if precisions != ["float32"]:
        deviations.append(Deviation("I", f"Mixed precision: {', '.join(precisions)}."))
    return deviations


def one_of(values: Iterable[Any]) -> str:
    """Values of an option in a sentence, in order: "0.001, 0.002 or 0.004"."""
    *first, last = map(_said, sorted(set(values)))
    return f"{', '.join(first)} or {last}" if first else last


def _said(value: Any) -> str:
    """An option's value in a sentence: 2e-05, "adam", on."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Variant:
    """Runs of which those in one row of a table differ in the seed alone.

    Attributes:
        mark: `(a)`, `(b)` and so on in the rows; empty if there is one variant.
        options: the options in which it differs from the other variants, with their values.
        runs: the runs of this variant.
    """

    mark: str
    options: str
    runs: list[Run]


def variants(runs: Sequence[Run], row: Sequence[str]) -> list[Variant]:
    """Splits runs so that no mean is taken over different configurations.

    Args:
        runs: the runs.
        row: the options that name a table's row. The runs in one row should differ in the seed alone.
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
