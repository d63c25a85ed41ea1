"""A claim of one arm over another, and the trial that decides it: data, which an experiment's `claims.py` holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...runs.folder import Run
from ..arms import RATE, Arm, has
from .measure import Measure, Robustness

PILOT_SEEDS = (0, 1)
"""The seeds of a pilot. They choose a rate, and count in no comparison that the rate is chosen for."""

SEEDS = 5
"""The least number of pairs that a verdict by the earlier rule needs."""

TRIAL_SEEDS = tuple(range(10, 10 + SEEDS))
"""The seeds of a trial as it is planned by the earlier rule."""

LEVELS = {1: (0.05,), 2: (0.02, 0.03)}
"""The levels of a trial's looks, by their number."""


@dataclass(frozen=True)
class Rung:
    """One stage of a pilot: all rates that are left are trained with the pilot's seeds.

    Attributes:
        options: the options by which its runs differ from the trial's, such as fewer epochs.
        keep: the number of rates that it keeps.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    keep: int = 1


WHOLE = Rung()
"""The runs of a trial as they are."""


@dataclass(frozen=True)
class Plan:
    """How a trial follows the rule of 2026-11-25 (docs/results/trials.md).

    Attributes:
        rungs: the stages of the pilot.
        seeds: the seeds of the pairs.
        looks: the numbers of pairs at which there is a look.
        tried: for a norm the rates that its pairs are trained at, of which the one that is better in the pairs counts.
            A norm that is not here has the rate that the pilot chooses.
    """

    rungs: tuple[Rung, ...] = (WHOLE,)
    seeds: tuple[int, ...] = tuple(range(20, 30))
    looks: tuple[int, ...] = (5, 10)
    tried: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """The runs that decide some claims of an experiment, planned before they are made.

    Attributes:
        options: the options that its runs share.
        rates: the learning rates of the grid, the same for all arms, from low to high, in factors of 2. A single one
            is not chosen by a pilot.
        updates, paper: the updates of a run, and of the paper's runs.
        whose: whose number of updates ``paper`` is, where the paper names none.
        about: the choice by which this trial differs from the main one, for a table of sensitivity; empty for the main
            one.
        note: what the table says after "no pair yet", such as that shorter runs exist; may be empty.
        plan: how it follows the rule of 2026-11-25; None: it was decided by the earlier rule.
        pilot: the seeds of the pilot.
        closed: whether the grid is all that there is, so that the best rate may be its lowest or its highest.
    """

    options: Mapping[str, Any]
    rates: tuple[float, ...]
    updates: int
    paper: int
    about: str = ""
    note: str = ""
    plan: Plan | None = None
    pilot: tuple[int, ...] = PILOT_SEEDS
    closed: bool = False
    whose: str = "the paper's"

    def runs(self, arm: Arm, runs: Iterable[Run], options: Mapping[str, Any] | None = None) -> list[Run]:
        """Returns the finished runs of an arm, in float32; those of a rung if its options are given."""
        wanted = {"precision": "float32", **self.options, **(options or {})}
        return [run for run in runs if run.done and arm.has(run) and has(run, wanted)]

    @property
    def of_the_paper(self) -> str:
        """The share of the paper's updates, with two digits."""
        return f"{float(f'{100 * self.updates / self.paper:.2g}'):g} % of {self.whose}"

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the pairs, as they are planned."""
        return self.plan.seeds if self.plan else TRIAL_SEEDS

    @property
    def tried(self) -> Mapping[str, tuple[float, ...]]:
        """For a norm the rates of which its pairs choose one."""
        return self.plan.tried if self.plan else {}

    @property
    def shorter_pilot(self) -> bool:
        """Whether the runs of the pilot's last rung differ from the trial's, such as by fewer updates."""
        return self.plan is not None and bool(self.plan.rungs[-1].options)

    def pairs_with(self, seed: int) -> bool:
        """Tells whether runs with a seed count as a pair: with those of a plan, or, without one, all but the
        pilot's."""
        return seed in self.plan.seeds if self.plan else seed not in self.pilot


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
        said: whether the paper says it in words; False: only the curves of a figure show it.
        about: the choice by which it differs from the main claim, if not by its trial's.
    """

    text: str
    where: str
    ahead: Arm
    behind: Arm
    measure: Measure
    trial: Trial
    figure: str = ""
    said: bool = True
    about: str = ""

    @property
    def choice(self) -> str:
        """The choice by which it differs from the main claim; empty for the main one."""
        return self.about or self.trial.about

    @property
    def arms(self) -> tuple[Arm, Arm]:
        """Both arms, the one that the claim puts first at the beginning."""
        return self.ahead, self.behind

    @property
    def over_rates(self) -> bool:
        """Whether the claim is about the whole grid of learning rates."""
        return isinstance(self.measure, Robustness)

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of pairs at which there is a look. By the earlier rule, and over a whole grid, it is one number,
        the least that a verdict needs."""
        plan = self.trial.plan
        return plan.looks if plan and not self.over_rates else (SEEDS,)


def shared(config: Any, *apart: str) -> dict[str, Any]:
    """Returns the options of a configuration, for `Trial.options`, without norm, learning rate, seed and those in
    `apart`."""
    return {name: value for name, value in vars(config).items() if name not in ("norm", RATE, "seed", *apart)}
