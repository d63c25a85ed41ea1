"""The figures of every experiment: its metrics' curves, and how much the best values depend on the learning rate."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..runs.folder import Run
from .arms import Arm, is_named
from .blocks import Block, Choice, Group, Metric
from .page import GREYS, Curve, Figure, Panel, Style, level

GEOMETRIC = "mean, on a logarithmic axis the geometric mean,"
"""The name of what lines show, for captions."""

SENSITIVITY = "sensitivity"
"""The name of the figure of all learning rates."""


def curves(name: str, about: str, blocks: Sequence[Block], metrics: Sequence[Metric], x: str = "epoch") -> list[Figure]:
    """Makes a figure with rows of panels for each block, one panel for each metric, against "epoch" or "update"; no
    figure if there is nothing to show.

    A panel shows each arm at the learning rate of `Block.choices`, and the caption, which begins with `about`, says
    which. If claims about a metric have chosen different rates, it has a panel for each of them. A pilot of shorter
    runs has no panels beside the runs that it chose the rates of.
    """
    rows: list[list[Panel]] = []
    rates: list[str] = []
    for block in blocks:
        if block.of_pilot:
            continue
        panels, shown = [], []
        for metric in metrics:
            choices = block.choices(metric)
            for by, choice in choices.items():
                title = [block.title, f"rates by {by}" * (len(choices) > 1)]
                panels += _panel(block, metric, choice, x, ", ".join(filter(None, title)))
                shown.append((metric.label, choice))
        width = 2 if len(panels) == 4 else 3
        rows += [panels[start : start + width] for start in range(0, len(panels), width)]
        rates += _rates(block, shown)
    if not rows:
        return []
    cut = any(panel.limits and panel.limits[1] < max(max(line.high) for line in panel.curves)
              for row in rows for panel in row)  # fmt: skip
    about = " ".join([about, *["Axes leave out the highest values of the beginning."] * cut, *rates])
    log = any(panel.log for row in rows for panel in row)
    return [Figure(name, about, rows, mean=GEOMETRIC if log else "mean", metrics=[metric.name for metric in metrics])]


def _panel(block: Block, metric: Metric, choice: Choice, x: str, title: str) -> list[Panel]:
    """Makes the panel of a metric; an empty list if no arm has it."""
    lines = []
    mean = geometric_mean if metric.log else statistics.fmean
    for arm, shown in choice.items():
        name = arm.prefix + metric.name
        records = [[record for record in run.records if not metric.sparse or name in record] for run in shown.runs]
        steps = list(zip(*records, strict=False))  # as many as the shortest run has
        if steps:
            values = [[record[name] for record in step] for step in steps]
            lines.append(banded(arm.name, block.style(arm), [step[0][x] for step in steps], values, mean))
    if not lines:
        return []
    ends = [0.0, max(line.x[-1] for line in lines)]
    norms = {arm.norm for arm in choice}
    known = [item for item in metric.levels.items() if is_named(item[0], norms)]
    levels = zip(known, GREYS * len(known), strict=False)
    lines += [level(label, style, ends, value) for (label, value), style in levels]
    limits = None if metric.log or metric.log_x else view(lines, 0.0 if metric.percent else None)
    options: Any = {"log": metric.log, "log_x": metric.log_x, "percent": metric.percent, "limits": limits}
    return [Panel(title, x, metric.label, lines, **options)]


def _rates(block: Block, shown: Sequence[tuple[str, Choice]]) -> list[str]:
    """Names the learning rates in a block's panels, in a sentence."""
    texts: dict[str, list[str]] = {}
    for label, choice in shown:
        by_how: dict[str, list[str]] = {}
        for arm, item in choice.items():
            by_how.setdefault(item.how, []).append(f"{arm.name} {item.rate:g}")
        text = "; ".join(f"{', '.join(arms)} ({how})" for how, arms in by_how.items())
        texts.setdefault(text, []).append(label)
    sentences = []
    for text, labels in texts.items():
        where = "; ".join(filter(None, [block.title, " and ".join(dict.fromkeys(labels)) if len(texts) > 1 else ""]))
        sentences.append(f"Learning rates{f' ({where})' if where else ''}: {text}.")
    return sentences


def banded(
    label: str,
    style: Style,
    x: Sequence[float],
    columns: Sequence[Sequence[float]],
    mean: Callable[[Sequence[float]], float] = statistics.fmean,
) -> Curve:
    """Makes a curve from the values of all seeds at each x."""
    return Curve(label, style, list(x), list(map(mean, columns)), list(map(min, columns)), list(map(max, columns)))


def geometric_mean(values: Sequence[float]) -> float:
    """Computes the geometric mean, for numbers that span decades. It is 0 if one of them is 0."""
    return statistics.geometric_mean(values) if min(values) > 0 else 0.0


def view(lines: Sequence[Curve], floor: float | None = None) -> tuple[float, float]:
    """Chooses limits of an axis that show the curves after their first fifth, where the differences are. The lower one
    is at least `floor`."""
    low = min(value for line in lines for value in line.low)
    high = max(value for line in lines for value in line.high[len(line.high) // 5 :])
    margin = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return low - margin if floor is None else max(floor, low - margin), high + margin


def sensitivity(blocks: Sequence[Block], *metrics: Metric) -> list[Figure]:
    """Makes the standard figure of every experiment: best and last value of a run against the learning rate.

    It shows the finished runs of the blocks with two learning rates or more, with a line for each arm; without such a
    block there is none. A run that diverged is a cross.
    """
    rows = []
    for block in blocks:
        ended = {arm: {rate: [run for run in group if run.done] for rate, group in by_rate.items()}
                 for arm, by_rate in block.arms.items()}  # fmt: skip
        if len({rate for by_rate in ended.values() for rate, group in by_rate.items() if group}) > 1:
            rows += [_against_rates(block, ended, metric) for metric in metrics]
    about = "Sensitivity to the learning rate: the best evaluation of each run, and its last one."
    if any(line.lost for row in rows for panel in row for line in panel.curves):
        about += " A cross at the upper edge: a seed diverged at this learning rate; a line there is of the others."
    return [Figure(SENSITIVITY, about, rows, mean=GEOMETRIC)] if rows else []


def _against_rates(block: Block, ended: Mapping[Arm, Mapping[float, Group]], metric: Metric) -> list[Panel]:
    """Makes the panels of a metric from a block's finished runs, by arm and learning rate: one if no run has a second
    evaluation. They are logarithmic if its values span more than a decade, so that the best are seen."""

    def best(run: Run, arm: Arm) -> float:
        return metric.best(run, arm.prefix + metric.name)

    def last(run: Run, arm: Arm) -> float:
        return run.records[-1][arm.prefix + metric.name]

    whole = [(run, arm) for arm, by_rate in ended.items() for group in by_rate.values() for run in group if run.whole]
    values = [value(run, arm) for value in (best, last) for run, arm in whole]
    log = bool(values) and 0 < 10 * min(values) < max(values)
    panels, both = [], (("best evaluation", best), ("at the end", last))
    for which, value in both if any(len(run.records) > 1 for run, _ in whole) else both[1:]:
        lines = []
        for arm, by_rate in ended.items():
            able = {rate: [value(run, arm) for run in group if run.whole] for rate, group in by_rate.items()}
            able = {rate: column for rate, column in able.items() if column}
            mean = statistics.geometric_mean if log else statistics.fmean
            line = banded(arm.name, block.style(arm), list(able), list(able.values()), mean)
            lost = [rate for rate, group in by_rate.items() if any(run.diverged is not None for run in group)]
            lines += [dataclasses.replace(line, lost=lost)] if able or lost else []
        title = ", ".join(filter(None, [block.title, which]))
        options: Any = {"log": log, "log_x": True, "percent": metric.percent, "dots": True}
        panels.append(Panel(title, "learning rate", metric.label, lines, **options))
    return panels
