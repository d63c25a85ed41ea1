"""The arms, the rounds in which they are compared with plain networks, and the rule that recommends one: data.

These claims are not the paper's. They are about small tasks, and stand only on the experiment's page.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ...report.judge import AHEAD, BEHIND, EQUAL, PILOT_SEEDS, SEEDS, UNDECIDED, Arm, Claim, Ruling, Trial, Value
from .config import Config, Eps, FormulaName, Start
from .program import TEST, Program, TaskName
from .programs import PROGRAMS

RULE = (
    "A candidate is recommended for a family of optimisers if on the confirming tasks of that family, by their test "
    "cases and at the programs' own learning rates, it is behind the better plain network on none and ahead of it on "
    "at least half; among several the one that is ahead on more, and among equals the one that comes first in the "
    "list. There are two plain networks, one with torch's forget bias and one with 1. Ahead of the better one means "
    "ahead of both, behind it means behind one of them. If no candidate is such, none is recommended."
)
"""The rule of the decision, written before the runs that choose and those that confirm."""

CHOICE_RULE = (
    "Candidates are chosen on the other tasks, at the programs' own learning rates with five pairs, each comparison by "
    "itself: for all optimisers, for Adam and its like, and for SGD the arm that is behind the better plain network on "
    "the fewest tasks; among several the one that is ahead on more, then the one that comes first in the list, which "
    "begins with those that look at no data. So there are three candidates at most."
)
"""How the candidates are chosen, written before the runs that choose."""

FAMILIES: Mapping[str, str] = {"Adam": "Adam, AdamW, Adamax and RMSprop", "SGD": "SGD"}
"""The families of optimisers: those whose steps hardly depend on the size of the gradient, and SGD."""


@dataclass(frozen=True)
class Candidate:
    """An arm by its name in tables, its options, and the arm that it is compared with; None: the plain networks."""

    name: str
    formula: FormulaName
    start: Start = "1"
    norm: Literal["layer", "rms"] = "layer"
    forget_bias: Literal["torch", "1"] = "torch"
    eps: Eps = "own"
    over: Candidate | None = None

    def baselines(self, task: TaskName) -> dict[str, Arm]:
        """Returns by name the arms that it is compared with."""
        return plains_of(task) if self.over is None else {self.over.name: self.over.arm(task)}

    def arm(self, task: TaskName) -> Arm:
        """Returns the arm as the runs of a task have it."""
        return _arm(Config(task, self.norm, self.formula, self.start, self.forget_bias, self.eps))


def _arm(config: Config) -> Arm:
    return Arm(config.norm, {name: getattr(config, name) for name in ("formula", "start", "forget_bias", "eps")})


def plains_of(task: TaskName) -> dict[str, Arm]:
    """Returns a task's plain networks by name: with torch's forget bias and with one of 1. An RNN has none."""
    arms = {"plain": Config(task, "none"), "plain, forget bias 1": Config(task, "none", forget_bias="1")}
    return {name: _arm(config) for name, config in arms.items() if name == "plain" or config != arms["plain"]}


TRIAL = (
    Candidate("paper", "paper"),
    Candidate("cell, matched", "cell", "match"),
    Candidate("sonnet, matched", "sonnet", "match"),
)
"""The arms of the first trial: ``paper``, which `layernorm.LSTM` is, and the two that lost least in a screening. In a
GRU or an RNN the last two are ``paper, matched``."""

CHOICE = (
    Candidate("sum", "sum"),
    Candidate("sum, 0.3", "sum", "0.3"),
    Candidate("sum, eps 0.1, 0.3", "sum", "0.3", eps="0.1"),
    Candidate("sum, eps 1", "sum", eps="1"),
    Candidate("sonnet, 0.3", "sonnet", "0.3"),
    Candidate("sum, matched", "sum", "match"),
    TRIAL[2],
)
"""The arms among which candidates are chosen: the norm of the sum, with gains of 1, of 0.3 or matched, with an eps of
its own or one with which it starts nearly as the plain network, and with a constant forget bias (``sonnet``)."""

CHOSEN = tuple(item for item in CHOICE if item.name in ("sum, eps 1", "sonnet, matched"))
"""The candidates: what the rule chose for SGD, and for Adam and all optimisers."""

ARMS = tuple(
    {
        item.name: item
        for item in (
            TRIAL[0],
            Candidate("paper, matched", "paper", "match"),  # in a GRU the next ones are this one
            *TRIAL[1:],
            Candidate("cell", "cell"),
            Candidate("sonnet", "sonnet"),
            Candidate("RMS", "paper", "1", "rms"),
            Candidate("RMS, matched", "paper", "match", "rms"),
            *CHOICE,
            Candidate("sum, eps 0.1, matched", "sum", "match", eps="0.1"),
            Candidate("sum, eps 1, matched", "sum", "match", eps="1"),
            *CHOSEN,
        )
    }.values()
)
"""All arms that are shown where there are runs of them."""

OWN, BEST, THREE = (1.0,), (1 / 16, 1 / 4, 1.0, 4.0, 16.0), (1 / 4, 1.0, 4.0)
"""The multiples of the program's learning rate: only its own, and the grids from which each arm takes its best."""

CHOOSING_TASKS = tuple(task for task, program in PROGRAMS.items() if not program.confirms)
CONFIRMING_TASKS = tuple(task for task, program in PROGRAMS.items() if program.confirms == "line")
"""The tasks on which candidates are chosen, and those that confirm the lines."""


@dataclass(frozen=True)
class Round:
    """Tasks and arms that are compared with plain networks.

    Attributes:
        title: the heading of its table.
        tasks, arms: what is compared. Holm's procedure is over the arms and plain networks of one task.
        rates: the multiples of the program's learning rate from which each arm takes its best.
        pilot: the seeds that choose it. They count in no comparison.
        alone: whether each comparison counts by itself, without Holm's procedure, because it chooses and decides
            nothing.
        closed: whether an arm's best learning rate may be the lowest or the highest of these.
    """

    title: str
    tasks: tuple[TaskName, ...]
    arms: tuple[Candidate, ...]
    rates: tuple[float, ...] = OWN
    pilot: tuple[int, ...] = PILOT_SEEDS
    alone: bool = False
    closed: bool = False


TRIED = Round("At the programs' own settings", CHOOSING_TASKS, (*TRIAL, CHOSEN[0]))
CHOOSING = Round("The choice of candidates", CHOOSING_TASKS, CHOICE, alone=True)
CONFIRMING = Round("The confirmation, by test cases", CONFIRMING_TASKS, (TRIAL[0], *CHOSEN))
ROUNDS = (
    TRIED,
    CHOOSING,
    CONFIRMING,
    Round("Each arm at its best learning rate", CHOOSING_TASKS, TRIAL, BEST),
    Round(
        "Candidates at the best of three learning rates, by test cases", CONFIRMING_TASKS, CONFIRMING.arms, THREE, (10,)
    ),
)
"""The comparisons that a report shows."""

LAST = 3
"""The evaluations, of ten in a run, whose mean counts. With steps this large a single one is half noise."""


def family(task: TaskName) -> str:
    """Returns the family of a task's optimiser, one of `FAMILIES`."""
    kind: Any = PROGRAMS[task].optimizer
    return "SGD" if issubclass(getattr(kind, "func", kind), torch.optim.SGD) else "Adam"


def measure(program: Program) -> Value:
    """Makes the measure of a task: the mean of the last evaluations, of a diverged run what has learned nothing. A task
    that confirms is measured on its test cases, and learning rates are chosen on its validation."""
    metric, scale = program.metric, 100.0 if program.metric.percent else 1.0
    margin = scale * program.margin
    digits = max(0, 1 - math.floor(math.log10(margin)))
    label = f"{metric.label}, %" if metric.percent else metric.label
    validated = Value(
        metric.name,
        label,
        rising=metric.rising,
        margin=margin,
        last=LAST,
        lost=program.chance,
        scale=scale,
        digits=digits,
    )
    if not program.confirms:
        return validated
    return dataclasses.replace(validated, metric=TEST + metric.name, chosen=validated)


def claims_of(task: TaskName, of: Round) -> dict[str, tuple[Claim, ...]]:
    """Makes a round's claims about a task, by arms, each over every arm that it is compared with. Arms that are one
    there share claims."""
    program = PROGRAMS[task]
    options = {"task": task, "updates": 0, "decay": 0.0}
    trial = Trial(options, of.rates, program.updates, program.updates, pilot=of.pilot, closed=of.closed)
    return {
        item.name: tuple(
            Claim(f"{item.name} over {name} on {task}", "ours", item.arm(task), baseline, measure(program), trial)
            for name, baseline in item.baselines(task).items()
        )
        for item in of.arms
    }


@dataclass(frozen=True)
class Against:
    """What the judge says of an arm on a task, against each plain network."""

    rulings: tuple[Ruling, ...]

    @property
    def known(self) -> list[Ruling]:
        """The rulings that have two pairs of runs or more."""
        return [ruling for ruling in self.rulings if len(ruling.pairs) > 1]

    @property
    def whole(self) -> bool:
        """Whether there are runs enough against every plain network."""
        return self.enough and self.known == [*self.rulings]

    @property
    def enough(self) -> bool:
        """Whether these have pairs enough for a verdict."""
        return bool(self.known) and all(len(ruling.pairs) >= SEEDS for ruling in self.known)

    @property
    def better(self) -> Ruling:
        """The ruling against the better plain network, by the pairs."""
        return min(self.known, key=lambda ruling: ruling.effect)

    @property
    def verdict(self) -> str:
        """The verdict against the plain networks: ahead of both, behind one of them, equal, or undecided."""
        verdicts = [ruling.verdict for ruling in self.known]
        if BEHIND in verdicts:
            return BEHIND
        if not verdicts or UNDECIDED in verdicts:
            return UNDECIDED
        return EQUAL if EQUAL in verdicts else AHEAD


ByTask = Mapping[TaskName, Mapping[str, Against]]
"""What the judge says, by task and arm."""


def _counted(by_task: ByTask, name: str, families: Sequence[str]) -> tuple[int, int, int]:
    """Counts on how many tasks of some families an arm is behind and ahead, and how many there are."""
    verdicts = [arms[name].verdict for task, arms in by_task.items() if family(task) in families]
    return verdicts.count(BEHIND), verdicts.count(AHEAD), len(verdicts)


def chosen(by_task: ByTask) -> dict[str, str]:
    """Follows the rule of the choice: for all optimisers and for each family the name of an arm. Empty without runs of
    all arms on all tasks."""
    if set(by_task) < set(CHOOSING.tasks) or not _whole(by_task, CHOOSING):
        return {}
    found = {}
    for about, families in (("all", [*FAMILIES]), *((name, [name]) for name in FAMILIES)):
        counts = {item.name: _counted(by_task, item.name, families) for item in CHOICE}
        found[about] = min(counts, key=lambda name: (counts[name][0], -counts[name][1]))
    return found


def recommended(by_task: ByTask) -> dict[str, str | None] | None:
    """Follows the rule: for each family the name of the recommended candidate, or None. Without candidates, or without
    runs of all of them on all tasks, nothing is decided, which is also None."""
    if not CHOSEN or set(by_task) < set(CONFIRMING.tasks) or not _whole(by_task, CONFIRMING):
        return None
    decided: dict[str, str | None] = {}
    for name in FAMILIES:
        counts = {item.name: _counted(by_task, item.name, [name]) for item in CHOSEN}
        fit = {item: ahead for item, (behind, ahead, of) in counts.items() if not behind and 2 * ahead >= of}
        decided[name] = max(fit, key=lambda item: fit[item], default=None)
    return decided


def _whole(by_task: ByTask, of: Round) -> bool:
    return all(by_task[task][item.name].whole for task in of.tasks for item in of.arms)
