"""A report as data: an experiment says what it found, `figures.py` and `rendering.py` say how it looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..runs.folder import Run

MARKS = {
    "P": "stated in the paper",
    "S": "read in the authors' or the original model's public source",
    "R": "a third party's reproduction",
    "I": "inferred: a decision of ours where the paper leaves it open",
    "stand-in": "used in place of what the paper used: compare the direction of results, not the numbers",
}
"""What the mark before a deviation means."""


class Style(NamedTuple):
    """How a curve is drawn. `dashes` are matplotlib's: "solid", or the offset and the lengths of dashes and gaps."""

    colour: str
    dashes: Any


STYLES = {
    # Okabe and Ito's palette and two darker colours; the dashes tell the lines apart without any colour
    "none": Style("#000000", (0, (1, 1.2))),
    "layer": Style("#D55E00", "solid"),
    "layer-channels": Style("#E69F00", (0, (7, 1.4))),
    "layer-gain": Style("#8C510A", (0, (2, 1, 2, 1, 6, 1))),
    "batch": Style("#0072B2", (0, (5, 1.6))),
    "batch-exact": Style("#56B4E9", (0, (5, 1.2, 1, 1.2, 1, 1.2))),
    "batch-everywhere": Style("#332288", (0, (8, 1.5, 2, 1.5))),
    "weight": Style("#009E73", (0, (5, 1.4, 1, 1.4))),
    "rms": Style("#CC79A7", (0, (2.4, 1))),
    "group": Style("#B3A100", (0, (3, 1, 1, 1, 1, 1))),
}
"""The style of each norm's curve, the same in every figure."""


@dataclass(frozen=True)
class Curve:
    """A line with a band: the mean, the lowest and the highest over seeds; and the places where a run diverged.

    One that is not `measured` is a level to compare with: its points are not marked.
    """

    label: str
    style: Style
    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    lost: Sequence[float] = ()
    measured: bool = True


def level(label: str, style: Style, ends: list[float], value: float) -> Curve:
    """A value to compare runs with, as a line from one end of the axis to the other."""
    values = [value] * len(ends)
    return Curve(label, style, ends, values, values, values, measured=False)


@dataclass(frozen=True)
class Panel:
    """One set of axes. `limits` cut the y axis; None leaves it to the data. `log`: of the y axis, `log_x` of the x.

    `dots`: at each point of the curves.
    """

    title: str
    x_label: str
    y_label: str
    curves: list[Curve]
    log: bool = False
    log_x: bool = False
    percent: bool = False
    limits: tuple[float, float] | None = None
    dots: bool = False


@dataclass(frozen=True)
class Figure:
    """Rows of panels with one legend.

    Attributes:
        name: of the file, without its ending.
        about: what the panels show; the caption begins with it.
        rows: the panels.
        mean: what the lines are where they have bands.
        of: over what they are it.
    """

    name: str
    about: str
    rows: list[list[Panel]]
    mean: str = "mean"
    of: str = "seed"

    @property
    def caption(self) -> str:
        """What the panels show, and what lines and bands are, if there is a band: from one seed there is none."""
        curves = [curve for row in self.rows for panel in row for curve in panel.curves]
        if all(curve.low == curve.high for curve in curves):
            return self.about
        return f"{self.about} Lines: {self.mean} over {self.of}s; bands: lowest to highest {self.of}."


@dataclass(frozen=True)
class Picture:
    """What a network drew: the content of a file `name.kind`, kind being "png", "svg" or "gif"."""

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
    """All that is said about some runs of one experiment, or about what a command has measured on the spot.

    Attributes:
        title: the heading.
        claim: the paper's, in its words or close to them.
        findings: what these runs show of it, one sentence each.
        status: what is unfinished or unequal among the runs; empty when nothing is.
        figures, tables, deviations: in the order of showing.
        runs: that it is about.
        start: without runs, `environment.describe` of the command that measured.
        pictures: samples as PNG, shown after the figures, on one scale.
    """

    title: str
    claim: str
    findings: list[str]
    status: list[str]
    figures: list[Figure]
    tables: list[Table]
    deviations: list[Deviation]
    runs: Sequence[Run] = field(default=(), repr=False)
    pictures: Sequence[Picture] = field(default=(), repr=False)
    start: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def starts(self) -> list[dict[str, Any]]:
        """The environments of all starts of all commands behind it."""
        return [start for run in self.runs for start in run.environment["starts"]] or [self.start]


def environment_lines(report: Report) -> list[tuple[str, str]]:
    """The environments behind a report as (what, value), where equal values appear once."""
    lines = []
    for key, label in _SHOWN.items():
        values = list(dict.fromkeys(str(start[key]) for start in report.starts if start.get(key) is not None))
        if values:
            lines.append((label, "; ".join(values)))
    for run in report.runs[:1]:
        data = run.environment["data"]
        lines.append(("data set", f"{data.get('name')}, SHA-256 {data.get('fingerprint')}"))
    hours = sum(run.records[-1]["seconds"] for run in report.runs if run.records) / 3600
    if report.runs:
        lines.append(("time of all runs", f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.1f} min"))
    return lines


def commands(report: Report) -> list[str]:
    """The command lines behind a report, each once."""
    return list(dict.fromkeys(start["command"] for start in report.starts))


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
