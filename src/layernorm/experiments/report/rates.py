"""Learning rates: which one each norm was given, and how much its result depends on that."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from .comparison import NORMS, RATE, Block, Group, Score, best_rate, complete
from .page import STYLES, Curve, Panel, Table
from .verdicts import spread


def fewest(block: Block, *norms: str) -> int:
    """The lowest number of learning rates that one of these norms' best was chosen from."""
    return min(len(complete(block.rates[norm])) for norm in norms)


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
            cells = []
            for rate in rates:
                text = spread([sign * score(run) for run in found[rate]], digits) if rate in found else "-"
                cells.append(f"{text} *" if rate == best else text)
            rows.append([block.label, NORMS[norm], *cells])
    note = f"{what}, mean over seeds (lowest to highest), by learning rate. *: the norm's best rate, used above."
    return Table("Learning rates", [by, "norm", *(f"{rate:g}" for rate in rates)], rows, note)


def panel(block: Block, score: Score, label: str, negated: bool = False, percent: bool = False) -> Panel:
    """The score against the learning rate, a curve for each norm: how sensitive each is to its rate.

    Args:
        label: of the y axis.
        negated: the score is minus what the axis shows.
        percent: the axis is in percent.
    """
    title = f"sensitivity to the learning rate {block.mark}".strip()
    curves = [_curve(norm, found, score, -1 if negated else 1) for norm, found in block.rates.items()]
    return Panel(title, "learning rate", label, curves, log_x=True, percent=percent)


def _curve(norm: str, rates: dict[float, Group], score: Score, sign: int) -> Curve:
    values = {rate: [sign * score(run) for run in group] for rate, group in rates.items()}
    values = {rate: column for rate, column in values.items() if all(map(math.isfinite, column))}
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
