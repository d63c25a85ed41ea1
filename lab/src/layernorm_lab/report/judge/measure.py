"""What the judge compares: a number of each run, of which lower is better, and how it is said."""

from __future__ import annotations

import dataclasses
import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...runs.folder import Run

SHARES = (0.25, 0.5, 0.75)
"""The shares of the fall of the baseline's curve at which there are goals. The claim is decided at the second."""

LEAST = 1e-7
"""Of a metric that falls over powers of ten, lower values count as this one."""


@dataclass(frozen=True)
class Measure(ABC):
    """What is compared.

    Attributes:
        metric: its name in the records.
        name: its name in sentences, with its unit.
        chosen: the measure, on validation data, by which the learning rate is chosen; None: this one.
        rising: whether higher values are better.
        margin: two arms are equal if their effect is known to be smaller.
        lost: the value of the metric that a run counts with that has diverged. None: a verdict lacks such a run.
    """

    metric: str
    name: str
    chosen: Measure | None = None
    rising: bool = False
    margin: float = math.log(1.1)
    lost: float | None = None

    @abstractmethod
    def value(self, run: Run, metric: str) -> float:
        """Computes the number that is compared, of which lower is better."""

    @abstractmethod
    def shown(self, mean: float) -> str:
        """Writes the mean of an arm's numbers, as text."""

    @abstractmethod
    def compared(self, effect: float, low: float, high: float) -> str:
        """Writes an effect with its interval, as text."""

    @property
    def about(self) -> str:
        """What is compared, in words."""
        return self.name

    @property
    def margin_text(self) -> str:
        """The margin, as text."""
        return f"{self.margin:g}"

    @property
    def chooses(self) -> Measure:
        """The measure by which the learning rate is chosen."""
        return self.chosen or self

    def values(self, run: Run, metric: str) -> list[float]:
        """Returns the metric at each evaluation, with the sign with which lower is better."""
        sign = -1 if self.rising else 1
        if self.lost is not None and run.diverged is not None:
            return [sign * self.lost]
        return [sign * record[metric] for record in run.records]

    def fails(self, run: Run, metric: str) -> str:
        """Says why a run has no number; empty if it has one. A run that diverged has one if `lost` is given."""
        if run.diverged is not None:
            return "" if self.lost is not None else "diverged"
        if not run.records or any(metric not in record for record in run.records):
            return f"has no {metric}"
        return "" if all(map(math.isfinite, self.values(run, metric))) else f"has a {metric} that is not finite"

    @property
    def known(self) -> bool:
        """Whether a run's number can be computed."""
        return True

    def flag(self, run: Run, metric: str) -> str:
        """Says why a run's number is a bound: `short`, as it ended before the goal, or `early`, as it was there at its
        first evaluation; empty if it is none."""
        return ""


class _Updates(Measure):
    """The logarithm of a number of updates. `how`: what a lower number is called, in "twice as fast"."""

    how: ClassVar[str]

    @property
    def margin_text(self) -> str:
        return f"{100 * math.expm1(self.margin):.0f} % of the updates"

    def shown(self, mean: float) -> str:
        return f"{math.exp(mean):.0f}"

    def compared(self, effect: float, low: float, high: float) -> str:
        return f"{math.exp(effect):.2f} times as {self.how} ({math.exp(low):.2f} to {math.exp(high):.2f})"


@dataclass(frozen=True)
class UpdatesToGoal(_Updates):
    """The logarithm of the updates until a metric first reaches a goal, on the line between two evaluations.

    A run that does not reach the goal counts with its last update, and one that is there at its first evaluation with
    that one. Then the number may be too high or too low (`Ruling.skew`), and two arms are not called equal.

    Attributes:
        goal: a value of the metric. None: goals are computed from the baseline's runs, as shares of their fall; then
            the trial has a plan, and `chosen` is given.
        log: whether the metric falls over powers of ten: all is computed with its logarithm.
        unit, scale: the unit in which the goal is shown, with the space before it, and what the goal is multiplied by.
    """

    how: ClassVar[str] = "fast"

    goal: float | None = None
    log: bool = False
    unit: str = ""
    scale: float = 1.0

    @property
    def known(self) -> bool:
        return self.goal is not None

    def values(self, run: Run, metric: str) -> list[float]:
        return [self._scale(value) for value in super().values(run, metric)]

    def value(self, run: Run, metric: str) -> float:
        reached = self._reached(run, metric)
        return math.log(run.records[-1]["update"] if reached is None else reached)

    def flag(self, run: Run, metric: str) -> str:
        reached = self._reached(run, metric)
        if reached is None:
            return "short"
        return "early" if reached <= run.records[0]["update"] else ""

    def with_goal(self, share: float, curves: Sequence[Sequence[float]]) -> UpdatesToGoal:
        """Returns the measure with the goal at a share of the fall of some curves, which `values` returned: from the
        mean of their first values to the mean of their best ones."""
        start, best = statistics.fmean(curve[0] for curve in curves), statistics.fmean(map(min, curves))
        goal = start + share * (best - start)
        return dataclasses.replace(self, goal=math.exp(goal) if self.log else -goal if self.rising else goal)

    @property
    def about(self) -> str:
        return f"updates to {self.name}" + ("" if self.goal is None else f" of {goal_text(self)}")

    def _reached(self, run: Run, metric: str) -> float | None:
        assert self.goal is not None
        line = zip((record["update"] for record in run.records), self.values(run, metric), strict=True)
        return first_reaching(line, self._scale(-self.goal if self.rising else self.goal))

    def _scale(self, value: float) -> float:
        """Returns what is computed with in place of a value of the metric."""
        return math.log(max(value, LEAST)) if self.log else value


@dataclass(frozen=True)
class Kept(_Updates):
    """The logarithm of the updates until the model that a run keeps: its best one on validation data."""

    how: ClassVar[str] = "soon"

    def value(self, run: Run, metric: str) -> float:
        return math.log(run.result[metric])

    def fails(self, run: Run, metric: str) -> str:
        return "diverged" if run.diverged is not None else "" if run.result.get(metric) else f"has no {metric}"


@dataclass(frozen=True)
class NearBest(_Updates):
    """The logarithm of the updates until a rising metric first has a share of the best value that it has in the run, on
    the line between two evaluations. It depends less on which of many good evaluations is the best one than `Kept`."""

    how: ClassVar[str] = "soon"

    rising: bool = True
    share: float = 0.98

    def value(self, run: Run, metric: str) -> float:
        return math.log(self._reached(run, metric))

    def flag(self, run: Run, metric: str) -> str:
        return "early" if self._reached(run, metric) <= run.records[0]["update"] else ""

    def _reached(self, run: Run, metric: str) -> float:
        assert self.rising, "a share of a falling metric's best value is better than that value"
        values = self.values(run, metric)
        line = zip((record["update"] for record in run.records), values, strict=True)
        return first_reaching(line, self.share * min(values)) or math.nan


@dataclass(frozen=True)
class Value(Measure):
    """A metric's value after the last update, or its best value.

    Attributes:
        best: whether the best value counts.
        last: the number of last evaluations whose mean counts, where the best value does not.
        scale: what the value is multiplied by, such as 100 for percent.
        digits: the digits after the point.
    """

    best: bool = False
    last: int = 1
    scale: float = 1.0
    digits: int = 2

    def value(self, run: Run, metric: str) -> float:
        line = self.values(run, metric)
        return self.scale * (min(line) if self.best else statistics.fmean(line[-self.last :]))

    def shown(self, mean: float) -> str:
        return f"{-mean if self.rising else mean:.{self.digits}f}"

    def compared(self, effect: float, low: float, high: float) -> str:
        digits = self.digits
        word = "higher" if self.rising == (effect >= 0) else "lower"
        effect, low, high = (effect, low, high) if effect >= 0 else (-effect, -high, -low)
        return f"{word} by {effect:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


@dataclass(frozen=True)
class Summed(Value):
    """The sum of some numbers of the test at a run's end, of the model that it kept.

    Attributes:
        names: their names in `result.json`. `metric` is the metric of the records whose figure shows the claim.
    """

    names: tuple[str, ...] = ()

    def value(self, run: Run, metric: str) -> float:
        return (-1 if self.rising else 1) * self.scale * sum(run.result[name] for name in self.names)

    def fails(self, run: Run, metric: str) -> str:
        if run.diverged is not None:
            return "diverged"
        lost = [name for name in self.names if not math.isfinite(run.result.get(name, math.nan))]
        return f"has no {lost[0]}" if lost else ""


@dataclass(frozen=True)
class Robustness(Value):
    """The area of the trapezoids under the best value against the logarithm of the learning rate, divided by the grid's
    width. A run that diverged counts with the worst first evaluation of all runs."""

    best: bool = True


def goal_text(measure: Measure) -> str:
    """Writes the goal of a measure of speed, with its unit."""
    assert isinstance(measure, UpdatesToGoal)
    assert measure.goal is not None
    return f"{measure.scale * measure.goal:.4g}{measure.unit}"


def first_reaching(line: Iterable[tuple[float, float]], goal: float) -> float | None:
    """Finds the first x at which the straight lines between points (x, value) are at or below a goal; None if none
    is."""
    before: tuple[float, float] | None = None
    for x, value in line:
        if value <= goal:
            return x if before is None else x - (x - before[0]) * (goal - value) / (before[1] - value)
        before = (x, value)
    return None
