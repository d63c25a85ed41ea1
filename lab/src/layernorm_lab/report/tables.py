"""The tables of every experiment: its results, all learning rates, the time of an update."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..runs.folder import Run
from .arms import Said, is_named, said
from .blocks import Arm, Block, Group, Metric, heading
from .curves import geometric_mean
from .page import Table


def mean_and_range(values: Sequence[float], digits: int = 2) -> str:
    """Returns the mean over seeds and, from two seeds on, the lowest and the highest value."""
    mean, low, high = (f"{value:.{digits}f}" for value in (statistics.fmean(values), min(values), max(values)))
    return mean if len(values) == 1 else f"{mean} ({low}{' to ' if min(values) < 0 else '-'}{high})"


def mean(values: Sequence[float], digits: int) -> str:
    """Returns the mean over seeds."""
    return f"{statistics.fmean(values):.{digits}f}"


def geometric(values: Sequence[float], digits: int) -> str:
    """Returns the geometric mean over seeds, as 1.2e-03."""
    return f"{geometric_mean(values):.{digits}e}"


def low_to_high(values: Sequence[float], digits: int) -> str:
    """Returns the lowest and the highest value over seeds, or their one value if they are equal."""
    low, high = f"{min(values):.{digits}g}", f"{max(values):.{digits}g}"
    return low if low == high else f"{low}-{high}"


@dataclass(frozen=True)
class Column:
    """A column of results.

    Attributes:
        head: its head.
        metric: the metric's name.
        of: the evaluation that counts: the last, the first, the one with the lowest value; or the test at the end of a
            finished run, where the metric is in its result.
        scale: what values are multiplied by, such as 100 for percent.
        digits: the digits of the numbers.
        text: (the values of all seeds, digits) -> the cell.
    """

    head: str
    metric: str
    of: Literal["last", "first", "lowest", "test"] = "last"
    scale: float = 1.0
    digits: int = 2
    text: Callable[[Sequence[float], int], str] = mean_and_range

    def cell(self, runs: Group, prefix: str = "") -> str:
        """Writes the cell of some runs; a dash if none has the value."""
        able = [run for run in runs if run.whole or self.of != "test"]
        values = [self.scale * self._value(run, prefix + self.metric) for run in able]
        return self.text(values, self.digits) if values else "-"

    def _value(self, run: Run, name: str) -> float:
        if self.of == "test":
            return run.result[name]
        if self.of == "lowest":
            return min(record[name] for record in run.records)
        return run.records[-1 if self.of == "last" else 0][name]


Paper = Sequence[tuple[str, str, Mapping[str, str]]]
"""Rows to compare with: their label, the name of the norm or model, and cells by the heads of the columns."""


def results(
    blocks: Sequence[Block],
    metrics: Sequence[Metric],
    columns: Sequence[Column],
    note: str | Sequence[str | Said],
    paper: Paper = (),
    title: str = "Results",
) -> Table:
    """Makes a table with a row for each arm at each learning rate that the figure of the metrics shows it at, and the
    rows of the paper on these norms. A row is about the runs that are whole, as the report's first sentence is; without
    any, about all, each as far as it is. The note says what a reader must know of the columns."""
    heads = [heading(blocks), "norm", "rate", *(column.head for column in columns), "seeds", "updates"]
    rows, left_out = [], ""
    for block in blocks:
        choices = [choice for metric in metrics for choice in block.choices(metric).values()]
        for arm in block.arms:
            shown = [choice[arm] for choice in choices if arm in choice]
            apart = {(item.rate, *(run.config["seed"] for run in item.runs)): item for item in reversed(shown)}
            for _, item in sorted(apart.items()):
                runs = [run for run in item.runs if run.whole] or item.runs
                left_out = " Runs that are unfinished or diverged are left out." if runs != item.runs else left_out
                first = [block.label or "here" * bool(paper), arm.name, f"{item.rate:g}"]
                last = [str(len(runs)), low_to_high([run.records[-1]["update"] for run in runs], 9)]
                rows.append([*first, *(column.cell(runs, arm.prefix) for column in columns), *last])
    norms = {arm.norm for block in blocks for arm in block.arms}
    rows += [[label, name, *(cells.get(head, "-") for head in heads[2:])] for label, name, cells in paper
             if is_named(name, norms)]  # fmt: skip
    about = f"{said(note, norms)} Mean over seeds (lowest to highest), at the learning rates of the figure.{left_out}"
    return Table(title, heads, rows, about)


def learning_rates(blocks: Sequence[Block], metric: Metric, digits: int = 2) -> list[Table]:
    """Makes a table with a row for each arm and a column for each learning rate, the best value of a metric; none if
    there is only one learning rate."""
    rates = sorted({rate for block in blocks for by_rate in block.arms.values() for rate in by_rate})
    scale = 100 if metric.percent else 1

    def cell(runs: Group, prefix: str) -> str:
        lost = sum(run.diverged is not None for run in runs)
        if lost:
            return "diverged" if lost == len(runs) else f"{lost} of {len(runs)} diverged"
        return mean_and_range([scale * metric.best(run, prefix + metric.name) for run in runs], digits) if runs else "-"

    rows = [
        [block.label, arm.name, *(cell(by_rate.get(rate, []), arm.prefix) for rate in rates)]
        for block in blocks
        for arm, by_rate in block.arms.items()
    ]
    what = f"{metric.label}{', %' if metric.percent else ''}"
    note = f"The best evaluation of each run: {what}. Mean over seeds (lowest to highest)."
    table = Table("Learning rates", [heading(blocks), "norm", *(f"{rate:g}" for rate in rates)], rows, note)
    return [table] if len(rates) > 1 else []


SHORT = 0.010
"""The seconds of a baseline's update below which the fixed cost of calls is a large part of it."""


def update_times(blocks: Sequence[Block]) -> Table:
    """Makes a table with the time of an update for each arm, from what one version of the code ran at all learning
    rates. The version is the one that ran the most arms, and of these the one with the most runs. A run that was
    resumed counts for each version with what this version ran."""
    rows, left_out, short = [], [], []
    for block in blocks:
        versions: dict[Version, dict[Arm, list[float]]] = {}
        for arm in block.arms:
            for run in block.runs(arm) if not arm.prefix else ():
                for version, seconds in _fastest(run).items():
                    versions.setdefault(version, {}).setdefault(arm, []).append(seconds)
        if not versions:
            continue
        fastest = max(versions.values(), key=lambda arms: (len(arms), sum(map(len, arms.values()))))
        seconds_of = {arm: min(fastest[arm]) for arm in block.arms if arm in fastest}
        left_out += [
            arm.name for arm in block.arms if arm not in fastest and any(arm in arms for arms in versions.values())
        ]
        base = next((value for arm, value in seconds_of.items() if arm.norm == "none"), None)
        for arm, value in seconds_of.items():
            text, ratio = f"{1000 * value:.{int(value < 0.1)}f}", f"{value / base:.2f}" if base else "-"
            rows.append([block.label, arm.name, text, ratio])
        if base and base < SHORT and any(value > 1.1 * base for value in seconds_of.values()):
            short.append(base)
    note = (
        "Milliseconds: the median between two evaluations, of the fastest such stretch, since other work on the "
        "machine slows the rest. Norms are compared in what one version of the code ran."
    )
    if left_out:
        note += f" Not here, as another version ran it: {', '.join(dict.fromkeys(left_out))}."
    if short:
        times = " and ".join(f"{1000 * value:.1f}" for value in short)
        note += (
            f" The baseline's update takes only {times} ms here, so that the fixed cost of a norm's calls is a large "
            "part of the ratio; that of larger networks is nearer to 1."
        )
    return Table("Time of an update", [heading(blocks), "norm", "ms", "x baseline"], rows, note)


Version = tuple[str, str]
"""The library's version and its commit, which is empty where there is no checkout."""


def _fastest(run: Run) -> dict[Version, float]:
    """Returns the seconds of an update in a run's fastest stretch, for each version of the code that ran it. A stretch
    ends with a record, and is of the last start before it."""
    fastest: dict[Version, float] = {}
    for record in run.records:
        seconds = record["seconds_per_update"]  # a LackingError, which names the file, if there is none
        starts = [start for start in run.environment["starts"] if start.get("update", 0) < record["update"]]
        if starts:  # of a run that was resumed a summary knows only the last start
            version = (starts[-1].get("layernorm") or "", starts[-1].get("commit") or "")
            fastest[version] = min(seconds, fastest.get(version, seconds))
    return fastest
