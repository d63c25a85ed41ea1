"""What runs are compared by: norms in blocks, curves over seeds, and when one norm reaches another's best."""

from __future__ import annotations

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
from .page import STYLES, Curve, Style, Table
from .variants import incomplete, unequal, variants
from .verdicts import RATES

NORMS = {
    "none": "baseline",
    "layer": "layer norm",
    "layer-channels": "layer norm over channels",
    "layer-gain": "layer norm (other gain)",
    "batch": "batch norm",
    "batch-exact": "batch norm, exact statistics",
    "batch-everywhere": "batch norm everywhere",
    "rms": "RMS norm",
    "weight": "weight norm",
    "group": "group norm",
}
"""The norms in the order of showing, with their names in figures and tables."""

GAINED = ("layer", "rms")
"""The norms whose initial gain `gain_init` is: the baseline has none, batch norm's is always the same."""

Group = list[Run]
"""Runs that differ in the seed alone."""

RATE = "learning_rate"
"""The option of which each norm may be given its own best value."""

FIRST_GRADIENT = "first_gradient_norm"
"""In a run's first record: the norm of update 0's gradient."""

FAR_APART = 100
"""Norms whose first gradients differ by such a factor do not start alike."""

Score = Callable[[Run], float]
"""What a learning rate is chosen by: lower is better. It must not look at test cases."""

Tested = Mapping[str, Tensor]
"""What the test of one run left, by name."""

Key = TypeVar("Key")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Block:
    """Runs that are compared with one another: alike but for norm and seed.

    Attributes:
        label: the value of the option that blocks differ in, and the mark; may be empty.
        mark: of the variant, `(a)`, `(b)` and so on; empty if there is one.
        groups: runs that have records, by norm; if learning rates are compared, those at the norm's best one.
        rates: if learning rates are compared, every norm's runs by learning rate, from low to high: those that have
            records or diverged before the first.
    """

    label: str
    mark: str
    groups: dict[str, Group]
    rates: dict[str, dict[float, Group]] = field(default_factory=dict)

    def has(self, *norms: str) -> bool:
        """Whether it has runs of all these norms."""
        return set(norms) <= set(self.groups)

    def name(self, norm: str) -> str:
        """What figures, tables and findings call a norm: with its initial gain where that is not 1."""
        bare = norm.removesuffix("-gain")
        gain = self.all_runs(norm)[0].config.get("gain_init", 1.0) if bare in GAINED else 1.0
        return NORMS[norm] if gain == 1.0 else f"{NORMS[bare]} with gain {gain:g}"

    def curve(self, norm: str, metric: str, x: str = "epoch", geometric: bool = False) -> Curve:
        """A norm's metric over seeds; `geometric` where it spans decades."""
        return curve(self.groups[norm], metric, self.name(norm), STYLES[norm], x, geometric)

    def curves(self, metric: str, x: str = "epoch", geometric: bool = False) -> list[Curve]:
        """A metric over seeds, of every norm."""
        return [self.curve(norm, metric, x, geometric) for norm in self.groups]

    def reached(self, norm: str, metric: str, x: str = "epoch", geometric: bool = False) -> str:
        """When the mean of a norm's runs is first at or below the lowest mean of the baseline's, as text."""
        if "none" not in self.groups:
            return "-"
        best = min(self.curve("none", metric, geometric=geometric).mean)
        found = first_reaching(points(self.curve(norm, metric, x, geometric)), best)
        return "not reached" if found is None else f"{found:g}"

    def to_best(
        self, norm: str, metric: str, what: Literal["updates", "share", "time"] = "updates", rising: bool = False
    ) -> str:
        """When the mean of a norm's runs is at the baseline's best, as text.

        Args:
            what: the updates until then, their share of those that the baseline took, or the share of its time.
            rising: higher values of the metric are better.
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
        """Seconds an update, and as text how many times the baseline's that is; of the runs at all learning rates."""
        seconds = seconds_per_update(self.all_runs(norm))
        return seconds, f"{seconds / seconds_per_update(self.all_runs('none')):.2f}" if self.has("none") else "-"

    def all_runs(self, norm: str) -> Group:
        """A norm's runs at all learning rates."""
        return [run for group in self.rates.get(norm, {}).values() for run in group] or self.groups[norm]

    def epochs(self, norm: str, form: str = "g") -> str:
        """How many epochs a norm's runs have made, and of how many unless all have made them."""
        runs = self.groups[norm]
        made = f"{min(run.records[-1]['epoch'] for run in runs):{form}}"
        whole = all(run.done and run.diverged is None for run in runs)
        return made if whole else f"{made} of {runs[0].config['epochs']}"

    def ends(self, metric: str, *norms: str) -> tuple[int, list[list[float]]]:
        """The update of the last evaluation that all runs of some norms have made, and each norm's values there."""
        count = min(len(run.records) for norm in norms for run in self.groups[norm])
        values = [[run.records[count - 1][metric] for run in self.groups[norm]] for norm in norms]
        return self.groups[norms[0]][0].records[count - 1]["update"], values


def compare(
    runs: Sequence[Run],
    by: str | None = None,
    descending: bool = False,
    choose: Score | None = None,
    told: Sequence[str] = (),
) -> tuple[list[Block], list[str]]:
    """Sorts runs into blocks.

    Args:
        by: an option besides norm and seed whose values are apart in tables and figures.
        descending: the block with its largest value first.
        choose: if given, runs at several learning rates are compared each norm at its own best one: the rate with the
            lowest mean of this over the seeds that its rates have in common (see `best_rate`). Without it, runs at
            different rates are different variants.
        told: options that the norm's name tells: no status line says that runs differ in them.

    Returns:
        the blocks that have records, and the status lines: what is unfinished, diverged or unequal, and what the marks
        mean.
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
                here = [run for found in rates.values() for run in found[best_rate(found, choose)]]
            groups = _by_norm(run for run in here if run.records)
            blocks.append(Block(f"{value} {item.mark}".strip(), item.mark, groups, rates))
    status = [*incomplete(runs), *unequal(runs, apart=(*row, *told, "seed"))]
    status += [f"Rows marked {item.mark}: {item.options}." for item in apart if item.mark]
    status += [line for block in blocks for line in unequal_starts(block)]
    return [block for block in blocks if block.groups], status


def first_gradients(runs: Iterable[Run]) -> list[float]:
    """The gradient's norm at update 0, before anything is clipped, of the runs that tell it."""
    return [run.records[0][FIRST_GRADIENT] for run in runs if run.records and FIRST_GRADIENT in run.records[0]]


def unequal_starts(block: Block) -> list[str]:
    """A line if the first gradients of two norms are far apart: that is a defect of the initial weights, not of a norm.

    Each norm's is the median over its runs at all learning rates, which do not enter it.
    """
    found = {norm: first_gradients(block.all_runs(norm)) for norm in block.groups}
    starts = {norm: statistics.median(values) for norm, values in found.items() if values}
    if not starts or max(starts.values()) < FAR_APART * min(starts.values()):
        return []
    told = ", ".join(f"{NORMS[norm]} {value:.3g}" for norm, value in starts.items())
    rows = f"Rows {block.label}: the" if block.label else "The"
    return [
        f"{rows} gradient's norms at update 0 differ by {FAR_APART} times or more ({told}): the initial weights are "
        "not fair to all norms."
    ]


def _by_norm(runs: Iterable[Run]) -> dict[str, Group]:
    """The runs that have records or diverged before the first, by norm; a norm without such a run is left out."""
    able = [run for run in runs if run.records or run.diverged is not None]
    for run in able:
        if run.config["norm"] not in NORMS:  # it would be in no table
            raise RunError(f"{run.path} has the norm {run.config['norm']!r}, not one of {', '.join(NORMS)}")
    groups = {norm: [run for run in able if run.config["norm"] == norm] for norm in NORMS}
    return {norm: group for norm, group in groups.items() if group}


def _by_rate(runs: Iterable[Run]) -> dict[float, Group]:
    found: dict[float, Group] = {}
    for run in sorted(runs, key=lambda run: run.config[RATE]):
        found.setdefault(run.config[RATE], []).append(run)
    return found


def compared(rates: Mapping[float, Group]) -> dict[float, Group]:
    """The runs by which the learning rates of a norm are compared, by rate: those with the seeds that the rates share.

    The rates are those with the most seeds, but 3 of them at least: where 3 rates have 3 seeds, a fourth with one seed
    is left out; where only one rate has 3, the first seed of each decides. In the middle of a sweep only the rates with
    the fewest unfinished runs are compared. Where the rates share no seed, all their runs are.
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
    found = compared({rate: group for rate, group in rates.items() if lost[rate] == min(lost.values())})
    return min(found, key=lambda rate: mean_score(found[rate], score))


def mean_score(runs: Group, score: Score) -> float:
    """The mean of a score over seeds; infinity if one of them diverged or has none."""
    if any(run.diverged is not None for run in runs):
        return math.inf
    mean = statistics.fmean(map(score, runs))
    return math.inf if math.isnan(mean) else mean


def geometric_mean(values: Sequence[float]) -> float:
    """Of numbers that span decades; 0 if one of them is 0."""
    return statistics.geometric_mean(values) if min(values) > 0 else 0.0


def curve(
    runs: Sequence[Run], metric: str, label: str, style: Style, x: str = "epoch", geometric: bool = False
) -> Curve:
    """A metric over seeds, at the evaluations that all these runs have made.

    Args:
        runs: alike but for the seed, each with a record at least.
        x: against what, "epoch" or "update".
        geometric: the line is the geometric mean.
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
        interpolated: where the straight line from the point before comes down to the goal.
    """
    before: tuple[float, float] | None = None
    for x, value in line:
        if value <= goal:
            if not interpolated or before is None:
                return x
            return x - (x - before[0]) * (goal - value) / (before[1] - value)
        before = (x, value)
    return None


def reaching(
    goals: Iterable[float], runs: Sequence[Run], metric: str, x: str, interpolated: bool = False, rising: bool = False
) -> list[list[float]]:
    """For each goal the x at which each run first reaches it, infinity where it never does.

    Args:
        rising: higher values of the metric are better.
    """
    sign = -1 if rising else 1
    lines = [[(record[x], sign * record[metric]) for record in run.records] for run in runs]
    found = [[first_reaching(line, sign * goal, interpolated) for line in lines] for goal in goals]
    return [[math.inf if place is None else place for place in places] for places in found]


def lowest_of_all(runs: Iterable[Run], metric: str) -> float:
    """The lowest value of a metric that all runs reach."""
    return max(min(record[metric] for record in run.records) for run in runs)


def low_to_high(values: Sequence[float], form: str = "g") -> str:
    """The lowest and the highest over seeds, or their one value."""
    low, high = f"{min(values):{form}}", f"{max(values):{form}}"
    return low if low == high else f"{low}-{high}"


def view(curves: Sequence[Curve], part: int, margin: float, floor: float = -math.inf) -> tuple[float, float]:
    """Limits of an axis that show what follows the first part of the curves, where the differences are.

    Args:
        part: leave out the highest values of the first so-many-th of each curve.
        margin: above and below where all values are one; else it is 8 % of the height.
        floor: the lower limit is no lower.
    """
    low = min(value for line in curves for value in line.low)
    high = max(value for line in curves for value in line.high[len(line.high) // part :])
    margin = 0.08 * (high - low) or margin
    return max(floor, low - margin), high + margin


def speed(
    blocks: Sequence[Block], by: str, columns: Mapping[str, Callable[[Block, str], str]], digits: int, note: str
) -> Table:
    """The time of an update for every norm, beside other columns.

    Args:
        by: what blocks differ in, the first column's head.
        columns: by head, (block, norm) -> the cell.
        digits: of the milliseconds, after the point.
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
    """What the networks of some runs draw: of each group the first run that has a checkpoint and did not diverge.

    Args:
        groups: runs, and what `make` is to know of them.
        make: (run, that) -> pictures, or what they are made from; RunError if it cannot.
        failed: how the line about a run that cannot begins.

    Returns:
        what was made, and the lines.
    """
    found: list[Made] = []
    notes = []
    for key, runs in groups:
        able = [run for run in runs if (run.path / CHECKPOINT).exists() and run.diverged is None]
        for run in able[:1]:
            try:
                found += make(run, key)
            except RunError as error:
                notes.append(f"{failed}: {error}")
    return found, notes


def read_tests(blocks: Iterable[Block]) -> tuple[dict[Path, Tested], list[str]]:
    """What the tests of the runs left, by the runs' folders, and a line for each file that cannot be read."""
    found: dict[Path, Tested] = {}
    notes = []
    for run in (run for block in blocks for group in block.groups.values() for run in group):
        try:
            found[run.path] = run.tested()
        except RunError as error:
            notes.append(f"No test: {error}")
    return found, notes


def by_case(groups: Sequence[Group], tested: Mapping[Path, Tested], name: str) -> list[np.ndarray]:
    """A tensor of the tests of some groups of runs, `[runs, M]` for each group, M being the test cases.

    Nothing if a run has no such tensor, or if the runs were not tested on equally many cases.

    Args:
        tested: as `read_tests` returns it.
        name: of the tensor.
    """
    found = [[tested.get(run.path, {}).get(name) for run in group] for group in groups]
    shapes = {None if item is None else item.shape for column in found for item in column}
    if None in shapes or len(shapes) > 1:
        return []
    return [np.stack([item.numpy() for item in column if item is not None]) for column in found]


def seconds_per_update(runs: Sequence[Run]) -> float:
    """The lowest of the evaluations' medians: other work on the machine can only slow the rest."""
    return min(record["seconds_per_update"] for run in runs for record in run.records)
