"""What some runs show, in one sentence for each configuration: which norm ends best, and by more than the seeds differ?

This is no verdict. It knows no pilot, no pairs and no margin: it says what one sees in the table of results. The
judge's verdicts on the paper's claims stand apart from it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from ..runs.folder import Run
from .arms import Arm
from .blocks import Block, Metric
from .judge import capital, counted

MOST = 4
"""The configurations that have a sentence each. More of them are counted in one."""


class _Ended(NamedTuple):
    """An arm's name in sentences, its value in each finished run that is shown, and the number of its rates."""

    name: str
    values: Sequence[float]
    rates: int

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float:
        """The distance from the lowest seed to the highest."""
        return max(self.values) - min(self.values)


def conclude(blocks: Sequence[Block], metric: Metric, digits: int) -> list[str]:
    """Writes what the finished runs show in a metric: one of the test after the last update; one by which learning
    rates are chosen at its best evaluation. Empty if no run is finished, or if each of many configurations has one arm.

    Args:
        blocks: the configurations.
        metric: what is compared. Each arm is at the learning rate that the figure of this metric shows.
        digits: the digits after the point.
    """
    sides = [(block, *_sides(block, metric)) for block in blocks]
    sides = [side for side in sides if side[1]]
    if len(sides) > MOST:
        several = [ended for _, ended, _ in sides if len(ended) > 1]
        return [_counted(several, metric)] if several else []
    if not sides:
        return []
    sentences = [_parts(block, ended, lost, metric, digits) for block, ended, lost in sides]
    shared = (
        sentences[0][1:] if len(sentences) > 1 and all(parts[1:] == sentences[0][1:] for parts in sentences) else []
    )
    if shared:  # said once, after the others
        sentences = [*(parts[:1] for parts in sentences), shared]
    return [f"{capital('; '.join(parts))}." for parts in sentences]


def _sides(block: Block, metric: Metric) -> tuple[list[_Ended], list[str]]:
    """Returns the arms with finished runs, the best mean first, and what is left out: an arm of which a run diverged
    has no mean that could be compared."""
    ended, lost = [], []
    for arm, shown in block.shown(metric).items():
        group = block.arms[arm][shown.rate]
        diverged = sum(run.diverged is not None for run in group)
        whole = [run for run in shown.runs if run.whole]
        if diverged:
            lost.append(f"{arm.spoken}, of which {diverged} of {counted(len(group), 'run')} diverged")
        elif whole:
            ended.append(_Ended(arm.spoken, [_value(run, arm, metric) for run in whole], len(block.arms[arm])))
    return sorted(ended, key=lambda item: -item.mean if metric.rising else item.mean), lost


def _value(run: Run, arm: Arm, metric: Metric) -> float:
    name = arm.prefix + metric.name
    return (100 if metric.percent else 1) * (run.records[-1][name] if metric.chosen else metric.best(run, name))


def _parts(block: Block, ended: Sequence[_Ended], lost: Sequence[str], metric: Metric, digits: int) -> list[str]:
    """Writes the parts of the sentence about a configuration: what ends best, how sure that is, what is left out."""

    def number(value: float) -> str:
        return f"{value:.{digits}f}{unit}"

    name, unit = _name_and_unit(metric)
    first, *others = ended
    level = [first, *(item for item in others if number(item.mean) == number(first.mean))]
    others = others[len(level) - 1 :]
    if len(ended) == 1:
        has = "has finished runs of which none diverged" if lost else "has finished runs"
        told = f"{_where(block)}only {first.name} {has}, so it is compared with nothing: {name} "
        return [f"{told}{_when(metric)} {number(first.mean)} ({_runs(ended)})", *_left_out(lost)]
    has = "have" if len(level) > 1 else "has"
    best = f"the {'highest' if metric.rising else 'lowest'} {name} {_when(metric)}"
    parts = [f"{_where(block)}{_listed([item.name for item in level])} {has} {best}, {number(first.mean)}"]
    if others:
        parts[0] += f" against {_listed([f'{number(item.mean)} of {item.name}' for item in others])}"
    parts[0] += f" ({_runs(ended)})"
    if min(len(item.values) for item in ended) == 1:
        parts.append("one seed does not tell whether another would give the same order")
    elif others:
        gap, spread = abs(others[0].mean - first.mean), max(item.spread for item in (*level, others[0]))
        points = " points" if metric.percent else unit
        size, wide = f"{gap:.{digits}f}{points}", f"{spread:.{digits}f}{points}"
        larger = "is larger than" if gap > spread else "is not larger than"
        parts.append(
            f"the difference of {size} from {others[0].name} {larger} the spread of the seeds, {wide} from the lowest "
            "to the highest"
        )
    return [*parts, *_left_out(lost)]


def _left_out(lost: Sequence[str]) -> list[str]:
    return [f"left out: {'; '.join(lost)}"] if lost else []


def _counted(by_block: Sequence[Sequence[_Ended]], metric: Metric) -> str:
    """Writes how often each arm is the best one, over many configurations."""
    firsts = [ended[0].name for ended in by_block]
    names = sorted(dict.fromkeys(firsts), key=lambda name: -firsts.count(name))
    apart = [
        abs(second.mean - first.mean) > max(first.spread, second.spread)
        for first, second, *_ in by_block
        if min(len(first.values), len(second.values)) > 1
    ]
    better = "highest" if metric.rising else "lowest"
    return (
        f"Of {len(by_block)} configurations with several norms the {better} {_name_and_unit(metric)[0]} "
        f"{_when(metric)} is that of {_listed([f'{name} in {firsts.count(name)}' for name in names])}; in {sum(apart)} "
        "of them the difference from the next norm is larger than the spread of the seeds."
    )


def _runs(ended: Sequence[_Ended]) -> str:
    """Says over how many seeds the means are, and at which learning rates."""
    counts = sorted({len(item.values) for item in ended})
    many = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    means = "one seed" if counts == [1] else f"means over {many} seeds"
    rates = "each at its best learning rate" if any(item.rates > 1 for item in ended) else "one learning rate"
    return f"{means}, {rates}"


def _when(metric: Metric) -> str:
    return "after the last update" if metric.chosen else "at the best evaluation"


def _name_and_unit(metric: Metric) -> tuple[str, str]:
    """Splits a metric's label into its name and the unit, with the space before it."""
    name, _, unit = metric.label.partition(", ")
    if metric.percent:
        return metric.label, " %"
    return (name, f" {unit}") if unit.startswith("nats") else (metric.label, "")


def _where(block: Block) -> str:
    return f"with {block.title} " if block.title else ""


def _listed(texts: Sequence[str]) -> str:
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last
