"""Learning rates: which one each norm was given, and how much its result depends on that."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from .comparison import NORMS, RATE, Block, Group, Score, best_rate, complete, mean_score
from .page import STYLES, Curve, Panel, Table
from .verdicts import spread


def fewest(block: Block, *norms: str) -> int:
    """The lowest number of learning rates that one of these norms' best was chosen from."""
    return min(len(complete(block.rates[norm])) for norm in norms)


def fewest_of_all(blocks: Sequence[Block]) -> int:
    """The lowest number of learning rates that a norm's best was chosen from."""
    return min((fewest(block, *block.groups) for block in blocks), default=0)


def swept(blocks: Sequence[Block]) -> bool:
    """Whether several learning rates are compared."""
    return any(len({rate for found in block.rates.values() for rate in found}) > 1 for block in blocks)


def table(blocks: Sequence[Block], by: str, score: Score, what: str, digits: int = 2, negated: bool = False) -> Table:
    """A row for each norm and a column for each learning rate; the chosen rate's cell has a star.

    Args:
        by: what blocks differ in, the first column's head.
        score: as given to `compare`.
        what: what the cells show, for the note.
        digits: of the cells, after the point.
        negated: the score is minus what the cells show.
    """
    rates = sorted({rate for block in blocks for found in block.rates.values() for rate in found})
    sign = -1 if negated else 1
    rows = []
    for block in blocks:
        for norm, found in block.rates.items():
            best = best_rate(found, score)
            cells = [_cell(found.get(rate, []), score, sign, digits) for rate in rates]
            marked = [f"* {cell}" if rate == best else cell for rate, cell in zip(rates, cells, strict=True)]
            rows.append([block.label, NORMS[norm], *marked])
    note = f"{what}, mean over seeds (lowest to highest), by learning rate. *: the norm's best rate, used above."
    return Table("Learning rates", [by, "norm", *(f"{rate:g}" for rate in rates)], rows, note)


def _cell(runs: Group, score: Score, sign: int, digits: int) -> str:
    lost = sum(run.diverged is not None for run in runs)
    if lost:
        return "diverged" if lost == len(runs) else f"{lost} of {len(runs)} diverged"
    return spread([sign * score(run) for run in runs], digits) if runs else "-"


def panel(block: Block, score: Score, label: str, negated: bool = False, percent: bool = False) -> Panel:
    """The score against the learning rate, a curve for each norm: how sensitive each is to its rate.

    Rates at which a run diverged are left out.

    Args:
        label: of the y axis.
        negated: the score is minus what the axis shows.
        percent: the axis is in percent.
    """
    title = f"sensitivity to the learning rate {block.mark}".strip()
    curves = [_curve(norm, found, score, -1 if negated else 1) for norm, found in block.rates.items()]
    return Panel(title, "learning rate", label, curves, log_x=True, percent=percent)


def _curve(norm: str, rates: dict[float, Group], score: Score, sign: int) -> Curve:
    able = {rate: group for rate, group in rates.items() if math.isfinite(mean_score(group, score))}
    values = {rate: [sign * score(run) for run in group] for rate, group in able.items()}
    return Curve(
        label=NORMS[norm],
        style=STYLES[norm],
        x=list(values),
        mean=[statistics.fmean(column) for column in values.values()],
        low=[min(column) for column in values.values()],
        high=[max(column) for column in values.values()],
    )


def at_the_edge(block: Block) -> list[str]:
    """A line for the norms whose chosen learning rate is the lowest or highest tried: a better one may lie beyond."""
    found = []
    for norm, group in block.groups.items():
        rates, rate = list(block.rates[norm]), group[0].config[RATE]
        if len(rates) > 1 and rate in (rates[0], rates[-1]):
            found.append(f"{NORMS[norm]} {rate:g} ({'lowest' if rate == rates[0] else 'highest'})")
    if not found:
        return []
    return [f"Best learning rates at the edge of those tried, beyond which a better one may lie: {', '.join(found)}."]
