"""A report as data. An experiment gives its content; `figures.py` and `rendering.py` decide how it looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..runs.folder import Run

MARKS = {
    "P": "stated in the paper",
    "S": "read in the authors' or the original model's public source",
    "I": "inferred: a decision of this library where the paper leaves it open",
    "stand-in": "used instead of what the paper used: compare the direction of results, not the numbers",
}
"""The meaning of the mark before a deviation."""


class Style(NamedTuple):
    """How a curve is drawn. `dashes` is matplotlib's: "solid", or an offset and the lengths of dashes and gaps."""

    colour: str
    dashes: Any


STYLES = {
    # Okabe and Ito's palette and some darker colours. By their dashes the lines differ without any colour, too.
    "none": Style("#000000", (0, (1, 1.2))),
    "layer": Style("#D55E00", "solid"),
    "layer-channels": Style("#E69F00", (0, (7, 1.4))),
    "layer-shared": Style("#F0A070", (0, (4, 1))),
    "layer-gain": Style("#8C510A", (0, (2, 1, 2, 1, 6, 1))),
    "batch": Style("#0072B2", (0, (5, 1.6))),
    "batch-exact": Style("#56B4E9", (0, (5, 1.2, 1, 1.2, 1, 1.2))),
    "batch-hidden": Style("#0099AA", (0, (6, 1, 1, 1))),
    "batch-hidden-exact": Style("#66C2C2", (0, (3, 1.2, 1, 1.2))),
    "batch-everywhere": Style("#332288", (0, (8, 1.5, 2, 1.5))),
    "weight": Style("#009E73", (0, (5, 1.4, 1, 1.4))),
    "rms": Style("#CC79A7", (0, (2.4, 1))),
    "rms-gain": Style("#882255", (0, (2, 1, 4, 1))),
    "group": Style("#B3A100", (0, (3, 1, 1, 1, 1, 1))),
}
"""The style of each arm's curve by `Arm.key`, the same in every figure."""

GREYS = [Style("#9a9a9a", dashes) for dashes in ((0, (1, 3)), (0, (4, 3)), (0, (9, 2)))]
"""The styles of levels that curves are compared with."""


@dataclass(frozen=True)
class Curve:
    """A line with a band: the mean, the lowest and the highest over seeds. `lost`: the x at which a run diverged.

    A curve that is not `measured` is a level to compare with. Its points are not marked.
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
    """Makes a line from one end of the axis to the other, at a value to compare runs with."""
    values = [value] * len(ends)
    return Curve(label, style, ends, values, values, values, measured=False)


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    `limits` are those of the y axis; None: they follow from the data. `log` makes the y axis logarithmic, `log_x` the x
    axis. `dots` marks each point of the curves.
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
        name: the file's name, without its ending.
        about: what the panels show. The caption begins with it.
        rows: the panels.
        mean: the name of what lines with bands show.
        of: the name of what this is taken over.
        metrics: the names of the metrics that the panels show.
        says: what the panels say, a sentence or two for each verdict on them; shown above the figure.
        rule: how this was decided; shown below the figure.
    """

    name: str
    about: str
    rows: list[list[Panel]]
    mean: str = "mean"
    of: str = "seed"
    metrics: Sequence[str] = ()
    says: Sequence[str] = ()
    rule: str = ""

    @property
    def caption(self) -> str:
        """What the panels show, and what lines and bands are. From one seed there are no bands."""
        curves = [curve for row in self.rows for panel in row for curve in panel.curves]
        if all(curve.low == curve.high for curve in curves):
            return self.about
        return f"{self.about} Lines: {self.mean} over {self.of}s; bands: lowest to highest {self.of}."


@dataclass(frozen=True)
class Picture:
    """What a network drew: the content of a file `name.kind`, where kind is "png", "svg" or "gif"."""

    name: str
    kind: str
    caption: str
    content: bytes


@dataclass(frozen=True)
class Table:
    """A table of texts. The note says what a reader must know to read it."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


@dataclass(frozen=True)
class Deviation:
    """A difference from the paper's protocol, or a choice where the paper states none.

    Attributes:
        name: what it is about, in a word or two.
        mark: one of `MARKS`.
        text: the difference. `{learning_rate}` stands for the runs' values of an option, `{data_images_train}` for a
            fact of the data set.
        where: the options of the runs that differ so, each with its values. One that is named "data" differs only where
            these are not the paper's.
    """

    name: str
    mark: str
    text: str
    where: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """The content of a report on some runs of one experiment, or on what a command has just measured.

    Attributes:
        title: the heading.
        claim: the paper's claim, in its words or close to them; empty if the data are not of its kind.
        findings: what these runs show beside the verdicts on them, one sentence each.
        status: what is unfinished or unequal among the runs; empty if nothing is.
        figures, tables, deviations: in the order in which they are shown.
        runs: the runs that the report is about.
        conclusion: what these runs show, in a sentence for each configuration. It decides no claim.
        verdicts: the judge's verdicts on these runs in all detail, one line each; the figures say them in plain words.
        start: without runs, `environment.describe` of the command that measured.
        pictures: samples as PNG, which are shown after the figures, on one scale.
    """

    title: str
    claim: str
    findings: list[str]
    status: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    deviations: list[Deviation] = field(default_factory=list)
    runs: Sequence[Run] = field(default=(), repr=False)
    pictures: Sequence[Picture] = field(default=(), repr=False)
    conclusion: Sequence[str] = ()
    verdicts: Sequence[str] = ()
    start: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def starts(self) -> list[dict[str, Any]]:
        """The environments of all starts of all commands that the report is based on."""
        return [start for run in self.runs for start in run.environment["starts"]] or [self.start]


def environment_lines(report: Report) -> list[tuple[str, str]]:
    """Lists the environments that a report is based on, as (what, value), where equal values appear once."""
    lines = []
    for key, label in _SHOWN.items():
        values = list(dict.fromkeys(str(start[key]) for start in report.starts if start.get(key) is not None))
        if values:
            lines.append((label, "; ".join(values)))
    data = [run.environment["data"] for run in report.runs]
    sets = dict.fromkeys(f"{item.get('name')}, SHA-256 {item.get('fingerprint')}" for item in data)
    lines += [("data set", text) for text in sets]
    hours = sum(run.records[-1]["seconds"] for run in report.runs if run.records) / 3600
    if report.runs:
        lines.append(("time of all runs", f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.1f} min"))
    return lines


def commands(report: Report) -> list[str]:
    """Lists the command lines that made the runs of a report, each once. Early summaries have none."""
    return list(dict.fromkeys(start["command"] for start in report.starts if "command" in start))


_SHOWN: dict[str, Any] = {
    "layernorm": "layernorm",
    "commit": "commit (+: with local changes)",
    "python": "Python",
    "torch": "PyTorch",
    "numpy": "NumPy",
    "accelerate": "accelerate",
    "system": "system",
    "processor": "CPU",
    "cores": "cores",
    "threads": "threads",
    "device": "device",
    "gpu": "GPU",
    "processes": "processes",
}
