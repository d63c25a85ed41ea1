"""Compares runs: norms in blocks, curves over seeds, and when one norm reaches another's best."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from torch import Tensor

from ..errors import RunError
from ..runs.folder import CHECKPOINT, Run
from .arms import GAINED as GAINED
from .arms import NORMS as NORMS
from .arms import RATE as RATE
from .bootstrap import paired
from .page import STYLES, Curve, Style, Table
from .variants import incomplete, unequal, variants

Group = list[Run]
"""Runs that differ in the seed alone."""

RATES = 3
"""The least number of learning rates among which one is chosen, where there are as many."""

FIRST_GRADIENT = "first_gradient_norm"
"""The name, in a run's first record, of the norm of update 0's gradient."""

FAR_APART = 100
"""If the first gradients of two norms differ by this factor, the comparison is not fair."""

Score = Callable[[Run], float]
"""The number by which a learning rate is chosen: lower is better. It must not depend on test cases."""

Tested = Mapping[str, Tensor]
"""The tensors that the test of one run saved, by name."""

Key = TypeVar("Key")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Block:
    """Runs that are compared with one another. They differ in norm and seed alone.

    Attributes:
        label: the value of the option that blocks differ in, and the mark; may be empty.
        mark: the mark of the variant, `(a)`, `(b)` and so on; empty if there is one variant.
        groups: the runs that have records, by norm. If learning rates are compared, those at the norm's best one.
        rates: if learning rates are compared, every norm's runs by learning rate, from low to high. They have records,
            or diverged before the first one.
    """

    label: str
    mark: str
    groups: dict[str, Group]
    rates: dict[str, dict[float, Group]] = field(default_factory=dict)

    def has(self, *norms: str) -> bool:
        """Whether the block has runs of all these norms."""
        return set(norms) <= set(self.groups)

    def name(self, norm: str) -> str:
        """The name of a norm in figures, tables and findings."""
        return named(self.all_runs(norm)[0])

    def curve(self, norm: str, metric: str, x: str = "epoch", geometric: bool = False) -> Curve:
        """A norm's metric over seeds. `geometric`: by geometric means, for values that span decades."""
        return curve(self.groups[norm], metric, self.name(norm), STYLES[norm], x, geometric)

    def curves(self, metric: str, x: str = "epoch", geometric: bool = False) -> list[Curve]:
        """A metric over seeds, of every norm."""
        return [self.curve(norm, metric, x, geometric) for norm in self.groups]

    def reached(self, norm: str, metric: str, x: str = "epoch", geometric: bool = False) -> str:
        """When the mean of a norm's runs is first at or below the lowest mean of the baseline's, as text."""
        if "none" not in self.groups:
            return "-"
        best = min(self.curve("none", metric, geometric=geometric).mean)
        reached = first_reaching(points(self.curve(norm, metric, x, geometric)), best)
        return "not reached" if reached is None else f"{reached:g}"

    def to_best(
        self, norm: str, metric: str, what: Literal["updates", "share", "time"] = "updates", rising: bool = False
    ) -> str:
        """When the mean of a norm's runs reaches the baseline's best, as text.

        Args:
            norm: the norm.
            metric: the metric.
            what: the updates until then, their share of the baseline's updates, or the share of its time.
            rising: whether higher values of the metric are better.
        """
        if not self.has("none"):
            return "-"
        sign = -1 if rising else 1
        lines = [
            [(x, sign * value) for x, value in points(self.curve(name, metric, x="update"))] for name in (norm, "none")
        ]
        goal = min(value for _, value in lines[1])
        own, base = (first_reaching(line, goal, interpolated=True) for line in lines)
        if own is None or base is None:
            return "not reached"
        pace = self.pace(norm)[0] / self.pace("none")[0] if what == "time" else 1.0
        return f"{own:.0f}" if what == "updates" else f"{own * pace / base:.2f}"

    def pace(self, norm: str) -> tuple[float, str]:
        """Seconds an update, and their ratio to the baseline's as text, from the runs at all learning rates."""
        seconds = seconds_per_update(self.all_runs(norm))
        return seconds, f"{seconds / seconds_per_update(self.all_runs('none')):.2f}" if self.has("none") else "-"

    def all_runs(self, norm: str) -> Group:
        """A norm's runs at all learning rates."""
        return [run for group in self.rates.get(norm, {}).values() for run in group] or self.groups[norm]

    def epochs(self, norm: str, form: str = "g") -> str:
        """The number of epochs that a norm's runs have made, and "of" how many if they are not finished."""
        runs = self.groups[norm]
        made = f"{min(run.records[-1]['epoch'] for run in runs):{form}}"
        whole = all(run.done and run.diverged is None for run in runs)
        return made if whole else f"{made} of {runs[0].config['epochs']}"


def compare(
    runs: Sequence[Run],
    by: str | None = None,
    descending: bool = False,
    choose: Score | None = None,
    told: Sequence[str] = (),
) -> tuple[list[Block], list[str]]:
    """Sorts runs into blocks.

    Args:
        runs: of one experiment.
        by: an option besides norm and seed. Each of its values makes a block of its own.
        descending: whether the block with the largest value is first.
        choose: if given, each norm is compared at its own best learning rate: the one with the lowest mean of this
            score over the seeds that its rates share (see `best_rate`). Without it, runs at different rates are
            different variants.
        told: options that are part of a norm's name. No status line says that runs differ in them.

    Returns:
        the blocks that have records, and the status lines: which runs are unfinished, diverged or unequal, and what the
        marks mean.
    """
    row = ["norm", *([by] if by else []), *([RATE] if choose else [])]
    apart = variants(runs, row)
    values = sorted({run.config[by] for run in runs}, reverse=descending) if by else [""]
    blocks = []
    for value in values:
        for item in apart:
            here = [run for run in item.runs if not by or run.config[by] == value]
            rates = {}
            if choose is not None:
                rates = {norm: _by_rate(group) for norm, group in _by_norm(here).items()}
                here = [run for by_rate in rates.values() for run in by_rate[best_rate(by_rate, choose)]]
            groups = _by_norm(run for run in here if run.records)
            blocks.append(Block(f"{value} {item.mark}".strip(), item.mark, groups, rates))
    status = [*incomplete(runs), *unequal(runs, apart=(*row, *told, "seed"))]
    status += [f"Rows marked {item.mark}: {item.options}." for item in apart if item.mark]
    status += [line for block in blocks for line in unequal_starts(block)]
    return [block for block in blocks if block.groups], status


def arms(runs: Sequence[Run]) -> list[Run]:
    """The runs, with layer norm from other gains than 1 as a norm of its own, `layer-gain`.

    A norm without this gain, or with the gain 1, does not keep the option `gain_init`, so that several other gains are
    variants of layer norm and not of all norms.
    """
    found = []
    for run in runs:
        config = dict(run.config)
        other = config["norm"] in GAINED and config.get("gain_init", 1.0) != 1.0
        if not other:
            config.pop("gain_init", None)
        elif config["norm"] == "layer":
            config["norm"] = "layer-gain"
        found.append(dataclasses.replace(run, config=config))
    return found


def named(run: Run) -> str:
    """The name of a run's norm in figures, tables and findings, with its initial gain if that is not 1."""
    norm = run.config["norm"]
    bare = norm.removesuffix("-gain")
    gain = run.config.get("gain_init", 1.0) if bare in GAINED else 1.0
    return NORMS[norm] if gain == 1.0 else f"{NORMS[bare]} with gain {gain:g}"


def first_gradients(runs: Iterable[Run]) -> list[float]:
    """The gradient's norm at update 0, before clipping, of the runs that have recorded it."""
    return [run.records[0][FIRST_GRADIENT] for run in runs if run.records and FIRST_GRADIENT in run.records[0]]


def unequal_starts(block: Block) -> list[str]:
    """A line if the first gradients of two norms differ a lot, which is a defect of the initial weights, not of a norm.

    Each norm's gradient is the median over its runs at all learning rates, on which it does not depend.
    """
    gradients = {norm: first_gradients(block.all_runs(norm)) for norm in block.groups}
    starts = {norm: statistics.median(values) for norm, values in gradients.items() if values}
    if not starts or max(starts.values()) < FAR_APART * min(starts.values()):
        return []
    told = ", ".join(f"{block.name(norm)} {value:.3g}" for norm, value in starts.items())
    rows = f"Rows {block.label}: the" if block.label else "The"
    return [
        f"{rows} gradient's norms at update 0 differ by {FAR_APART} times or more ({told}): the initial weights are "
        "not fair to all norms."
    ]


def _by_norm(runs: Iterable[Run]) -> dict[str, Group]:
    """The runs that have records or diverged before the first one, by norm. A norm without such a run is left out."""
    able = [run for run in runs if run.records or run.diverged is not None]
    for run in able:
        if run.config["norm"] not in NORMS:  # no table would have it
            raise RunError(f"{run.path} has the norm {run.config['norm']!r}, not one of {', '.join(NORMS)}")
    groups = {norm: [run for run in able if run.config["norm"] == norm] for norm in NORMS}
    return {norm: group for norm, group in groups.items() if group}


def _by_rate(runs: Iterable[Run]) -> dict[float, Group]:
    by_rate: dict[float, Group] = {}
    for run in sorted(runs, key=lambda run: run.config[RATE]):
        by_rate.setdefault(run.config[RATE], []).append(run)
    return by_rate


def compared(rates: Mapping[float, Group]) -> dict[float, Group]:
    """The runs by which the learning rates of a norm are compared, by rate: those with the seeds that the rates share.

    The rates compared are those with the most seeds, but at least `RATES` of them. If 3 rates have 3 seeds, a fourth
    one with one seed is left out. If only one rate has 3 seeds, the first seed of each rate decides. During a sweep
    only the rates with the fewest unfinished runs are compared. If the rates share no seed, all their runs are
    compared.
    """
    unfinished = {rate: sum(not run.done for run in group) for rate, group in rates.items()}
    able = {rate: group for rate, group in rates.items() if unfinished[rate] == min(unfinished.values())}
    fewest = sorted(map(len, able.values()), reverse=True)[:RATES][-1]
    able = {rate: group for rate, group in able.items() if len(group) >= fewest}
    common = set.intersection(*({run.config["seed"] for run in group} for group in able.values()))
    return {rate: [run for run in group if run.config["seed"] in common] or group for rate, group in able.items()}


def best_rate(rates: Mapping[float, Group], score: Score) -> float:
    """The learning rate with the lowest mean score over the seeds that are compared, among those with the fewest
    diverged runs."""
    lost = {rate: sum(run.diverged is not None for run in group) for rate, group in rates.items()}
    able = compared({rate: group for rate, group in rates.items() if lost[rate] == min(lost.values())})
    return min(able, key=lambda rate: mean_score(able[rate], score))


def mean_score(runs: Group, score: Score) -> float:
    """The mean of a score over seeds; infinity if one of them diverged or has none."""
    if any(run.diverged is not None for run in runs):
        return math.inf
    mean = statistics.fmean(map(score, runs))
    return math.inf if math.isnan(mean) else mean


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean, for numbers that span decades. It is 0 if one of them is 0."""
    return statistics.geometric_mean(values) if min(values) > 0 else 0.0


def curve(
    runs: Sequence[Run], metric: str, label: str, style: Style, x: str = "epoch", geometric: bool = False
) -> Curve:
    """A metric over seeds, at the evaluations that all these runs have made.

    Args:
        runs: runs that differ in the seed alone, each with at least one record.
        metric: the metric's name in the records.
        label, style: of the curve.
        x: "epoch" or "update".
        geometric: whether the line is the geometric mean.
    """
    length = min(len(run.records) for run in runs)
    columns = [[run.records[position][metric] for run in runs] for position in range(length)]
    return Curve(
        label=label,
        style=style,
        x=[record[x] for record in runs[0].records[:length]],
        mean=[(geometric_mean if geometric else statistics.fmean)(column) for column in columns],
        low=[min(column) for column in columns],
        high=[max(column) for column in columns],
    )


def points(line: Curve) -> list[tuple[float, float]]:
    """A curve's mean as points (x, value)."""
    return list(zip(line.x, line.mean, strict=True))


def first_reaching(line: Iterable[tuple[float, float]], goal: float, interpolated: bool = False) -> float | None:
    """The first x at which points (x, value) are at or below a goal; None if they never are.

    Args:
        line: the points.
        goal: the goal.
        interpolated: whether to return the x where the straight line from the point before reaches the goal.
    """
    before: tuple[float, float] | None = None
    for x, value in line:
        if value <= goal:
            if not interpolated or before is None:
                return x
            return x - (x - before[0]) * (goal - value) / (before[1] - value)
        before = (x, value)
    return None


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The mean over seeds and, from two seeds on, the lowest and the highest value."""
    mean, low, high = (f"{value:.{digits}f}" for value in (statistics.fmean(values), min(values), max(values)))
    return mean if len(values) == 1 else f"{mean} ({low}{' to ' if min(values) < 0 else '-'}{high})"


def over_cases(
    block: Block,
    norms: tuple[str, str],
    tested: Mapping[Path, Tested],
    name: str,
    value: Callable[[np.ndarray], np.ndarray],
    what: str,
    digits: int = 2,
) -> list[str]:
    """A line about how much other test cases would change the difference of two norms, by a paired bootstrap.

    Args:
        block: the block.
        norms: the two norms. Without runs of one of them, or without its tests, there is no line.
        tested, name: as in `by_case`.
        value: `[runs, M]` -> the values of the test cases.
        what: the mean of these values, in words.
        digits: the digits after the point.
    """
    if not block.has(*norms):
        return []
    tensors = by_case([block.groups[norm] for norm in norms], tested, name)
    if not tensors:
        return []
    first, second = map(value, tensors)
    names = [block.name(norm) for norm in norms]
    return [
        f"{what}, {names[0]} minus {names[1]}, over other test cases with the networks of these seeds: "
        f"{paired(first, second).text(digits)}."
    ]


def low_to_high(values: Sequence[float], form: str = "g") -> str:
    """The lowest and the highest value over seeds, or their one value if they are equal."""
    low, high = f"{min(values):{form}}", f"{max(values):{form}}"
    return low if low == high else f"{low}-{high}"


def view(curves: Sequence[Curve], part: int, margin: float, floor: float = -math.inf) -> tuple[float, float]:
    """Limits of an axis that show the curves after their first part, where the differences are.

    Args:
        curves: the curves.
        part: the high values in the first 1 / part of each curve are left out.
        margin: the space above and below if all values are equal. Otherwise it is 8 % of the height.
        floor: the lower limit is at least this.
    """
    low = min(value for line in curves for value in line.low)
    high = max(value for line in curves for value in line.high[len(line.high) // part :])
    margin = 0.08 * (high - low) or margin
    return max(floor, low - margin), high + margin


def speed(
    blocks: Sequence[Block], by: str, columns: Mapping[str, Callable[[Block, str], str]], digits: int, note: str
) -> Table:
    """A table with the time of an update for every norm, and other columns.

    Args:
        blocks: as `compare` returns them.
        by: what blocks differ in, the head of the first column.
        columns: by head, (block, norm) -> the cell.
        digits: the digits of the milliseconds after the point.
        note: the table's note.
    """
    rows = []
    for block in blocks:
        for norm in block.groups:
            seconds, ratio = block.pace(norm)
            cells = [column(block, norm) for column in columns.values()]
            rows.append([block.label, block.name(norm), *cells, f"{1000 * seconds:.{digits}f}", ratio])
    return Table("Speed", [by, "norm", *columns, "ms/update", "x baseline"], rows, note)


def pictures(
    groups: Iterable[tuple[Key, Sequence[Run]]], make: Callable[[Run, Key], Iterable[Made]], failed: str
) -> tuple[list[Made], list[str]]:
    """Lets networks draw: in each group that of the first run that has a checkpoint and did not diverge.

    Args:
        groups: pairs of a key and runs.
        make: (run, key) -> pictures, or what they are made from. It raises RunError if it cannot.
        failed: the beginning of the line about a run for which `make` fails.

    Returns:
        what was made, and the lines.
    """
    results: list[Made] = []
    notes = []
    for key, runs in groups:
        able = [run for run in runs if (run.path / CHECKPOINT).exists() and run.diverged is None]
        for run in able[:1]:
            try:
                results += make(run, key)
            except RunError as error:
                notes.append(f"{failed}: {error}")
    return results, notes


def read_tests(blocks: Iterable[Block]) -> tuple[dict[Path, Tested], list[str]]:
    """The tensors that the runs' tests saved, by the runs' folders, and a line for each file that cannot be read."""
    tested: dict[Path, Tested] = {}
    notes = []
    for run in (run for block in blocks for group in block.groups.values() for run in group):
        try:
            tested[run.path] = run.tested()
        except RunError as error:
            notes.append(f"No test: {error}")
    return tested, notes


def by_case(groups: Sequence[Group], tested: Mapping[Path, Tested], name: str) -> list[np.ndarray]:
    """A tensor of the tests of some groups of runs, `[runs, M]` for each group, where M is the number of test cases.

    Empty if a run has no such tensor, or if the runs were not tested on the same number of cases.

    Args:
        groups: the groups of runs.
        tested: as `read_tests` returns it.
        name: the name of the tensor.
    """
    tensors = [[tested.get(run.path, {}).get(name) for run in group] for group in groups]
    shapes = {None if item is None else item.shape for column in tensors for item in column}
    if None in shapes or len(shapes) > 1:
        return []
    return [np.stack([item.numpy() for item in column if item is not None]) for column in tensors]


def seconds_per_update(runs: Sequence[Run]) -> float:
    """The lowest of the evaluations' medians, as other work on the machine can only make the others slower."""
    return min(record["seconds_per_update"] for run in runs for record in run.records)
