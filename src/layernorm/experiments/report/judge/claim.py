"""A claim of one arm over another, and the trial that decides it: data, which an experiment's `claims.py` holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...runs.folder import Run
from ..arms import RATE, Arm, has
from .measure import Measure, Robustness

PILOT = (0, 1)
"""The seeds of a pilot. They choose a rate, and count in no comparison that the rate is chosen for."""

SEEDS = 5
"""The least number of pairs that a verdict needs."""

FRESH = tuple(range(10, 10 + SEEDS))
"""The seeds of a trial as it is planned."""

FACTOR = 2.0
"""The ratio of neighbouring learning rates in a grid."""


@dataclass(frozen=True)
class Trial:
    """The runs that decide some claims of an experiment, planned before they are made.

    Attributes:
        options: the options that its runs share.
        rates: the learning rates of the grid, the same for all arms, from low to high, in factors of 2. A single one
            is not chosen by a pilot.
        updates, paper: the updates of a run, and of the paper's runs.
        hours: an estimate of the hours that a run takes on one core, until there are runs.
        command: the command of its pilot; with other seeds and rates, that of its runs.
        about: the choice by which this trial differs from the main one, for a table of sensitivity; empty for the main
            one.
    """

    options: Mapping[str, Any]
    rates: tuple[float, ...]
    updates: int
    paper: int
    hours: float
    command: str = ""
    about: str = ""

    def runs(self, arm: Arm, runs: Iterable[Run]) -> list[Run]:
        """Returns the finished runs of an arm, in float32."""
        wanted = {"precision": "float32", **self.options}
        return [run for run in runs if run.done and arm.has(run) and has(run, wanted)]


@dataclass(frozen=True)
class Claim:
    """A claim that one arm is ahead of another.

    Attributes:
        text: the claim, in words close to the paper's.
        where: the section, figure or table of the paper, or "ours".
        ahead, behind: the arm that the claim puts first, and the one that it is compared with.
        measure: what is compared.
        trial: the runs that decide.
        figure: the figure of the runs, in the folder of the experiment's results.
    """

    text: str
    where: str
    ahead: Arm
    behind: Arm
    measure: Measure
    trial: Trial
    figure: str = ""

    @property
    def arms(self) -> tuple[Arm, Arm]:
        """Both arms, the one that the claim puts first at the beginning."""
        return self.ahead, self.behind

    @property
    def over_rates(self) -> bool:
        """Whether the claim is about the whole grid of learning rates."""
        return isinstance(self.measure, Robustness)


def shared(config: Any, *apart: str) -> dict[str, Any]:
    """Returns the options of a configuration, for `Trial.options`, without norm, learning rate, seed and those in
    `apart`."""
    return {name: value for name, value in vars(config).items() if name not in ("norm", RATE, "seed", *apart)}
