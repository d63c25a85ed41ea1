"""Sorts runs for figures and tables: into blocks of one configuration, their arms, and the learning rates shown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import RunError
from ..runs.folder import Run
from .arms import GAINED, NORMS, RATE, Arm, has, in_order
from .deviations import option_text
from .judge import Claim, Value, best_rate
from .page import STYLES, Style

Group = list[Run]
"""Runs that differ only in the seed."""

FIRST_GRADIENT = "first_gradient_norm"
"""The name, in a run's first record, of the norm of update 0's gradient."""

FAR_APART = 100
"""If the first gradients of two arms differ by this factor, the comparison is not fair."""


@dataclass(frozen=True)
class Metric:
    """A metric of the records, as figures and tables show it.

    Attributes:
        name: its name in the records.
        label: the label of its axis, with the unit.
        chosen: the metric, on validation data, by which a learning rate is chosen; empty: this one.
        rising: whether higher values are better.
        percent: whether its axis is in percent.
        log, log_x: whether the axes of its curves are logarithmic. With `log` means are geometric.
        sparse: whether only some evaluations have it.
        levels: values to compare curves with, by their labels. Those of norms that were not run are left out.
    """

    name: str
    label: str
    chosen: str = ""
    rising: bool = False
    percent: bool = False
    log: bool = False
    log_x: bool = False
    sparse: bool = False
    levels: Mapping[str, float] = field(default_factory=dict)

    def best(self, run: Run, name: str) -> float:
        """Finds the best value, among a run's evaluations, of a metric that is better in the same direction."""
        return (max if self.rising else min)(record[name] for record in run.records)


class Shown(NamedTuple):
    """The runs of an arm that are shown, all at one learning rate, and how the rate was chosen."""

    rate: float
    runs: Group
    how: str


Choice = Mapping[Arm, Shown]
"""What is shown of each arm."""


@dataclass(frozen=True)
class Block:
    """Runs of one configuration: they differ only in arm, learning rate and seed.

    Attributes:
        options: the options in which blocks differ, with this one's values; empty if there is one block.
        arms: every arm's runs by learning rate, from low to high. They have records, or diverged before the first one.
        claims: those whose trial has runs of this configuration.
        every: the runs of all blocks. A pilot's may be shorter than the trial's, and so in another one.
        of_pilot: whether its runs are only such a shorter pilot, of a trial whose own runs are in another block.
    """

    options: Mapping[str, str]
    arms: Mapping[Arm, Mapping[float, Group]]
    claims: Sequence[Claim] = ()
    every: Sequence[Run] = ()
    of_pilot: bool = False

    @property
    def label(self) -> str:
        """The values of the options, for a table's first column, whose head is `heading`."""
        return ", ".join(self.options.values())

    @property
    def title(self) -> str:
        """The options with their values; empty if there is one block."""
        return ", ".join(f"{name} {value}" for name, value in self.options.items())

    def runs(self, arm: Arm) -> Group:
        """Returns an arm's runs at all learning rates."""
        return [run for group in self.arms[arm].values() for run in group]

    def style(self, arm: Arm) -> Style:
        """Returns the style of an arm's curves. Arms that differ only in the gain differ in their dashes."""
        colour, dashes = STYLES[arm.key]
        place = [item for item in self.arms if item.key == arm.key].index(arm)
        return Style(colour, (0, (*dashes[1], *[1] * 2 * place)) if place else dashes)

    def choices(self, metric: Metric) -> dict[str, Choice]:
        """Chooses what a panel of a metric shows: each arm at the best learning rate of the pilot.

        The pilot is judged in the measure of the claim about this metric. Without such a claim, or a whole pilot, an
        arm is shown at the rate of `best_tried`.

        Returns:
            the choices by what the rates are best in; several if claims about this metric have chosen other rates.
        """
        about = [claim for claim in self.claims if not claim.over_rates and not claim.trial.tried]
        exact = [claim for claim in about if claim.measure.metric == metric.name]
        exact.sort(key=lambda claim: not isinstance(claim.measure.chooses, Value))  # a speed's rate may end worse
        like = [claim for claim in about if claim.measure.chosen and claim.measure.chosen.metric == metric.chosen]
        like = like or [claim for claim in about if claim.measure.metric == metric.chosen]
        choices: dict[str, Choice] = {}
        decided: Sequence[Claim | None] = exact or like[:1] or [None]
        for claim in decided:
            choice = {arm: self._shown(arm, metric, claim) for arm in self.arms}
            choice = {arm: shown for arm, shown in choice.items() if shown.runs}
            if choice not in choices.values():
                name = claim.measure.about if claim else ""
                choices[f"{name}, with {claim.choice}" if claim and name in choices else name] = choice
        return choices

    def shown(self, metric: Metric) -> Choice:
        """Returns what the first panel of a metric shows."""
        return next(iter(self.choices(metric).values()))

    def _shown(self, arm: Arm, metric: Metric, claim: Claim | None) -> Shown:
        by_rate = self.arms[arm]
        rate = best_rate(claim, arm, self.every) if claim else None
        if claim is None or rate is None or rate not in by_rate:  # the rate's runs may be still to come
            rate, how = best_tried(by_rate, metric, arm.prefix), "without a pilot, the best of those with the most runs"
            how = how if len(by_rate) > 1 else "the only one tried"
            return Shown(rate, [run for run in by_rate[rate] if run.records], how)
        runs = [run for run in claim.trial.runs(arm, by_rate[rate]) if run.records]
        fresh = [run for run in runs if claim.trial.pairs_with(run.config["seed"])]
        return Shown(rate, fresh or runs, "the pilot's best" if fresh else "the pilot's best, with the pilot's runs")


def heading(blocks: Sequence[Block]) -> str:
    """Makes the head of a table's first column, which has the blocks' labels: the options in which they differ."""
    return ", ".join(blocks[0].options) if blocks else ""


def compare(
    runs: Sequence[Run], claims: Sequence[Claim] = (), prefixes: Collection[str] = ()
) -> tuple[list[Block], list[str]]:
    """Sorts the runs of an experiment into blocks. No mean is taken over different configurations, and none compared.
    Metrics with the `prefixes`, such as `exact_`, make an arm of its own.

    Returns the blocks that have records and the status lines: which runs are unfinished, diverged, or start unequally.
    First are the blocks that claims are about, in the order of the claims; among others the largest value is first.
    """
    facts = [{**run.config, "data set": str(run.environment["data"].get("fingerprint"))[:12]} for run in runs]
    names = [
        name
        for name in dict.fromkeys(name for item in facts for name in item)
        if name not in ("norm", RATE, "seed", "gain_init") and len({str(item.get(name)) for item in facts}) > 1
    ]
    groups: dict[tuple[Any, ...], Group] = {}
    for run, item in zip(runs, facts, strict=True):
        groups.setdefault(tuple(item.get(name) for name in names), []).append(run)
    begun = [claim.trial for claim in claims if any(has(run, claim.trial.options) for run in runs)]
    pilots = [{**trial.options, **rung.options} for trial in begun if trial.plan for rung in trial.plan.rungs]
    blocks = []
    for values in sorted(groups, key=_in_order)[::-1]:
        group = groups[values]
        own = [claim for claim in claims if any(has(run, claim.trial.options) for run in group)]
        of_pilot = not own and any(has(run, options) for options in pilots for run in group)
        options = dict(zip(names, map(option_text, values), strict=True))
        blocks.append(Block(options, _runs_by_arm(group, prefixes), own, runs, of_pilot))
    blocks.sort(key=lambda block: min(map(claims.index, block.claims), default=len(claims)))
    status = [*incomplete(runs), *(line for block in blocks for line in _unequal_starts(block))]
    return [block for block in blocks if any(run.records for arm in block.arms for run in block.runs(arm))], status


def _in_order(values: tuple[Any, ...]) -> list[tuple[str, Any]]:
    """The key by which groups are sorted: values of one type with each other."""
    return [(type(value).__name__, 0 if value is None else value) for value in values]


def best_tried(by_rate: Mapping[float, Group], metric: Metric, prefix: str = "") -> float:
    """Finds the learning rate with the best mean of a metric, among those with the most finished runs."""
    name = prefix + (metric.chosen or metric.name)

    def rank(rate: float) -> tuple[float, ...]:
        whole = [run for run in by_rate[rate] if run.whole]
        begun = [run for run in by_rate[rate] if run.records]
        mean = statistics.fmean(metric.best(run, name) for run in whole) if whole else math.nan
        return -len(whole), -len(begun), math.inf if math.isnan(mean) else -mean if metric.rising else mean

    return min(by_rate, key=rank)


def _runs_by_arm(runs: Iterable[Run], prefixes: Collection[str]) -> dict[Arm, dict[float, Group]]:
    """Sorts the runs that have records or diverged before the first one, by arm and learning rate."""
    by_arm: dict[Arm, dict[float, Group]] = {}
    for run in sorted(runs, key=lambda run: run.config[RATE]):
        if not run.records and run.diverged is None:
            continue
        norm = run.config["norm"]
        if norm not in NORMS:  # no table would have it
            raise RunError(f"{run.path} has the norm {norm!r}, not one of {', '.join(NORMS)}")
        gain = run.config.get("gain_init", 1.0) if norm in GAINED else 1.0
        for prefix in ("", *prefixes):
            if not prefix or (run.records and any(name.startswith(prefix) for name in run.records[0])):
                arm = Arm(norm, {"gain_init": gain} if gain != 1.0 else {}, prefix)
                by_arm.setdefault(arm, {}).setdefault(run.config[RATE], []).append(run)
    order = list(NORMS)
    return dict(sorted(by_arm.items(), key=lambda item: (order.index(item[0].norm), item[0].gain != 1.0,
                                                        in_order(item[0].gain), item[0].prefix)))  # fmt: skip


def incomplete(runs: Sequence[Run]) -> list[str]:
    """Says which of some runs are unfinished, and which diverged."""
    notes = []
    open_runs = [run.path.name for run in runs if not run.done]
    if open_runs:
        names = ", ".join(open_runs[:6]) + (", ..." if len(open_runs) > 6 else "")
        notes.append(f"Unfinished: {len(open_runs)} of {len(runs)} runs ({names}).")
    lost = [f"{run.path.name} at update {run.diverged}" for run in runs if run.diverged is not None]
    if lost:
        names = ", ".join(lost[:6]) + (", ..." if len(lost) > 6 else "")
        notes.append(f"Diverged: {len(lost)} of {len(runs)} runs ({names}).")
    return [f"{note} Curves end where the shortest seed ends." for note in notes]


def _unequal_starts(block: Block) -> list[str]:
    """Warns if the first gradients of two arms differ a lot, which is a defect of the initial weights, not of a norm.
    Each arm's is the median over its runs at all learning rates, on which it does not depend."""
    starts = {}
    for arm in block.arms:
        records = [run.records[0] for run in block.runs(arm) if run.records]
        gradients = [record[FIRST_GRADIENT] for record in records if FIRST_GRADIENT in record]
        if gradients:
            starts[arm] = statistics.median(gradients)
    if not starts or max(starts.values()) < FAR_APART * min(starts.values()):
        return []
    gradients_text = ", ".join(f"{arm.name} {value:.3g}" for arm, value in starts.items())
    where = f"With {block.title} the" if block.title else "The"
    return [
        f"{where} gradient's norms at update 0 differ by {FAR_APART} times or more ({gradients_text}): the initial "
        "weights are not fair to all norms."
    ]
