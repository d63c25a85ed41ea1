"""What the judge compares: a number of each run, of which lower is better, and how it is said."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from ...runs.folder import Run


@dataclass(frozen=True)
class Measure(ABC):
    """What is compared.

    Attributes:
        metric: its name in the records.
        name: its name in sentences, with its unit.
        chosen: the metric, on validation data, by which the learning rate is chosen; None: `metric`.
        rising: whether higher values are better.
        margin: two arms are equal if their effect is known to be smaller.
        lost: the value of the metric that a run counts with that has diverged. None: a verdict lacks such a run.
    """

    metric: str
    name: str
    chosen: str | None = None
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

    def values(self, run: Run, metric: str) -> list[float]:
        """Returns the metric at each evaluation, with the sign with which lower is better."""
        sign = -1 if self.rising else 1
        if self.lost is not None and run.diverged is not None:
            return [sign * self.lost]
        return [sign * record[metric] for record in run.records]

    def open(self) -> str:
        """Says what must be fixed before a trial can be run; empty if nothing."""
        return ""

    def short(self, run: Run, metric: str) -> bool:
        """Tells whether the run ended before its number was known, which then is a bound."""
        return False


@dataclass(frozen=True)
class Sooner(Measure):
    """The logarithm of the updates until a metric first reaches a goal, on the line between two evaluations.

    A run that does not reach the goal counts with its last update. This makes the difference smaller than it is, so
    that two arms are not called equal if it happens.

    Attributes:
        goal: a value of the metric, fixed before the trial. None: not fixed yet.
        unit, scale: the unit in which the goal is shown, with the space before it, and what the goal is multiplied by.
    """

    goal: float | None = None
    unit: str = ""
    scale: float = 1.0

    def value(self, run: Run, metric: str) -> float:
        reached = self._reached(run, metric)
        return math.log(run.records[-1]["update"] if reached is None else reached)

    def short(self, run: Run, metric: str) -> bool:
        return self._reached(run, metric) is None

    def open(self) -> str:
        return "a goal, which the pilot gives" if self.goal is None else ""

    @property
    def about(self) -> str:
        goal = "" if self.goal is None else f" of {self.scale * self.goal:g}{self.unit}"
        return f"updates to {self.name}{goal}"

    def shown(self, mean: float) -> str:
        return f"{math.exp(mean):.0f}"

    def compared(self, effect: float, low: float, high: float) -> str:
        return f"{math.exp(effect):.2f} times as fast ({math.exp(low):.2f} to {math.exp(high):.2f})"

    def _reached(self, run: Run, metric: str) -> float | None:
        assert self.goal is not None
        line = zip((record["update"] for record in run.records), self.values(run, metric), strict=True)
        return first_reaching(line, -self.goal if self.rising else self.goal)


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
        better, digits = "higher" if self.rising else "lower", self.digits
        return f"{better} by {effect:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


@dataclass(frozen=True)
class Robustness(Value):
    """The area of the trapezoids under the best value against the logarithm of the learning rate, divided by the grid's
    width. A run that diverged counts with the worst first evaluation of all runs."""

    best: bool = True


def first_reaching(line: Iterable[tuple[float, float]], goal: float) -> float | None:
    """Finds the first x at which the straight lines between points (x, value) are at or below a goal; None if none
    is."""
    before: tuple[float, float] | None = None
    for x, value in line:
        if value <= goal:
            return x if before is None else x - (x - before[0]) * (goal - value) / (before[1] - value)
        before = (x, value)
    return None
