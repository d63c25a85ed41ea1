"""Learning rates: which one is chosen for each norm, and how much a norm's result depends on the rate."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..runs.folder import Run
from .comparison import RATE, Block, Group, Score, best_rate, spread
from .page import STYLES, Curve, Figure, Panel, Table


def swept(blocks: Sequence[Block]) -> bool:
    """Whether several learning rates are compared."""
    return any(len({rate for by_rate in block.rates.values() for rate in by_rate}) > 1 for block in blocks)


def table(blocks: Sequence[Block], by: str, score: Score, what: str, digits: int = 2, negated: bool = False) -> Table:
    """A table with a row for each norm and a column for each learning rate. The chosen rate's cell has a star.

    Args:
        blocks: as `compare` returns them.
        by: what blocks differ in, the head of the first column.
        score: as given to `compare`.
        what: what the cells show, for the note.
        digits: the cells' digits after the point.
        negated: whether the score is minus the number that the cells show.
    """
    rates = sorted({rate for block in blocks for by_rate in block.rates.values() for rate in by_rate})
    sign = -1 if negated else 1
    rows = []
    for block in blocks:
        for norm, by_rate in block.rates.items():
            best = best_rate(by_rate, score)
            cells = [_cell(by_rate.get(rate, []), score, sign, digits) for rate in rates]
            marked = [f"* {cell}" if rate == best else cell for rate, cell in zip(rates, cells, strict=True)]
            rows.append([block.label, block.name(norm), *marked])
    note = f"{what}, mean over seeds (lowest to highest), by learning rate. *: the norm's best rate, used above."
    return Table("Learning rates", [by, "norm", *(f"{rate:g}" for rate in rates)], rows, note)


def _cell(runs: Group, score: Score, sign: int, digits: int) -> str:
    lost = sum(run.diverged is not None for run in runs)
    if lost:
        return "diverged" if lost == len(runs) else f"{lost} of {len(runs)} diverged"
    return spread([sign * score(run) for run in runs], digits) if runs else "-"


@dataclass(frozen=True)
class Measure:
    """The metric that a sensitivity curve shows.

    Attributes:
        metric: its name in the run's records.
        label: the label of the axis.
        rising: whether higher values are better.
        percent: whether the axis is in percent.
    """

    metric: str
    label: str
    rising: bool = False
    percent: bool = False

    def best(self, run: Run) -> float:
        """The best value of a run's evaluations."""
        return (max if self.rising else min)(record[self.metric] for record in run.records)

    def last(self, run: Run) -> float:
        """The value at the run's end."""
        return run.records[-1][self.metric]


def sensitivity(blocks: Sequence[Block], *measures: Measure, title: str = "{}") -> list[Figure]:
    """The standard figure of every experiment: best and last value of a run against the learning rate.

    It shows finished runs, with a line for each norm. A run that diverged is a cross.

    Args:
        blocks: as `compare` returns them when it chooses learning rates. Blocks with one rate are left out.
        measures: the metrics to show.
        title: the form of the panels' titles, with the block's label in it, such as `{} glimpses`.

    Returns:
        the figure; an empty list if no block has two rates.
    """
    rows = []
    for block in blocks:
        ended = {
            norm: {rate: [run for run in runs if run.done] for rate, runs in by_rate.items()}
            for norm, by_rate in block.rates.items()
        }
        if len({rate for by_rate in ended.values() for rate, runs in by_rate.items() if runs}) > 1:
            head = title.format(block.label) if block.label else ""
            rows += [_row(block, ended, head, measure) for measure in measures]
    about = "Sensitivity to the learning rate: the best evaluation of each run, and its last one."
    if any(line.lost for row in rows for panel in row for line in panel.curves):
        about += " A cross at the upper edge: at this rate a seed diverged; a line there is of the other seeds."
    return [Figure("sensitivity", about, rows, mean="mean, on a logarithmic axis the geometric mean,")] if rows else []


def _row(block: Block, ended: Mapping[str, dict[float, Group]], head: str, measure: Measure) -> list[Panel]:
    """The panels of a measure. They are logarithmic if its values span more than a decade, so that the best are seen.

    Args:
        block: the block.
        ended: the block's finished runs by norm and learning rate.
        head: the beginning of the panels' titles; may be empty.
        measure: the metric to show.
    """
    columns = {"best evaluation": measure.best, "at the end": measure.last}
    runs = [run for by_rate in ended.values() for group in by_rate.values() for run in group if run.diverged is None]
    values = [value(run) for value in columns.values() for run in runs]
    log = bool(values) and 0 < 10 * min(values) < max(values)
    mean = statistics.geometric_mean if log else statistics.fmean
    panels = []
    for which, value in columns.items():
        lines = [_curve(block, norm, by_rate, value, mean) for norm, by_rate in ended.items()]
        curves = [line for line in lines if line.x or line.lost]
        about = f"{head}, {which}" if head else which
        options: Any = {"log": log, "log_x": True, "percent": measure.percent, "dots": True}
        panels.append(Panel(about, "learning rate", measure.label, curves, **options))
    return panels


def _curve(
    block: Block,
    norm: str,
    rates: Mapping[float, Group],
    value: Callable[[Run], float],
    mean: Callable[[Sequence[float]], float],
) -> Curve:
    able = {rate: [value(run) for run in runs if run.diverged is None] for rate, runs in rates.items()}
    values = {rate: column for rate, column in able.items() if column}
    return Curve(
        label=block.name(norm),
        style=STYLES[norm],
        x=list(values),
        mean=[mean(column) for column in values.values()],
        low=[min(column) for column in values.values()],
        high=[max(column) for column in values.values()],
        lost=[rate for rate, runs in rates.items() if any(run.diverged is not None for run in runs)],
    )


def at_the_edge(block: Block) -> list[str]:
    """A line for the norms whose chosen learning rate is the lowest or highest tried: a better one may lie beyond."""
    at_edge = []
    for norm, group in block.groups.items():
        rates, rate = list(block.rates[norm]), group[0].config[RATE]
        if len(rates) > 1 and rate in (rates[0], rates[-1]):
            at_edge.append(f"{block.name(norm)} {rate:g} ({'lowest' if rate == rates[0] else 'highest'})")
    if not at_edge:
        return []
    return [f"Best learning rates at the edge of those tried, beyond which a better one may lie: {', '.join(at_edge)}."]
