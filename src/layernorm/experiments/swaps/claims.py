"""The arms that may become what a swap does, the claims that one is ahead of the plain network, and the trials.

These are claims of ours about tasks of our own size. They stand on the experiment's page alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..report.judge import AHEAD, BEHIND, Arm, Claim, Ruling, Trial, Value
from .network import Config, FormulaName
from .program import Program, TaskName
from .programs import PROGRAMS

RULE = (
    "The arm that is behind the plain network on no task at the task's own settings and ahead on most is what "
    "`convert` does by default and what the docs recommend for a swap; among several the one that is ahead on more "
    "tasks. If no arm is such, the docs show this table and the rates, and recommend none."
)
"""The rule of the decision, written before the runs that decide."""


@dataclass(frozen=True)
class Candidate:
    """An arm by its name in tables, and its options."""

    name: str
    formula: FormulaName
    start: Literal["1", "0.3", "0.1", "match"] = "1"
    norm: Literal["layer", "rms"] = "layer"
    forget_bias: Literal["torch", "1"] = "torch"

    def arm(self, task: TaskName) -> Arm:
        """Returns the arm as the runs of a task have it."""
        config = Config(task, self.norm, self.formula, self.start, self.forget_bias)
        return Arm(config.norm, {name: getattr(config, name) for name in ("formula", "start", "forget_bias")})


PLAIN = Arm("none", {"forget_bias": "torch"})
"""The plain network, as the program has it."""

CANDIDATES = (
    Candidate("paper", "paper"),
    Candidate("paper, matched", "paper", "match"),
    Candidate("cell", "cell"),
    Candidate("cell, matched", "cell", "match"),
    Candidate("sonnet", "sonnet"),
    Candidate("sonnet, matched", "sonnet", "match"),
    Candidate("RMS", "paper", "1", "rms"),
    Candidate("RMS, matched", "paper", "match", "rms"),
)
"""The arms of the screening."""

TRIAL = tuple(item for item in CANDIDATES if item.name in ("paper", "cell, matched", "sonnet, matched"))
"""The arms of the trial, chosen by the screening before the trial's runs: ``paper``, which `layernorm.LSTM` is, and the
two that lost least. In a GRU or an RNN the last two are ``paper, matched``."""

OWN, BEST = (1.0,), (1 / 16, 1 / 4, 1.0, 4.0, 16.0)
"""The multiples of the program's rate: its own alone, and the grid from which each arm takes its best."""


LAST = 3
"""The evaluations, of ten in a run, whose mean counts. With steps this large a single one is half noise."""


def measure(program: Program) -> Value:
    """Makes the measure of a task: the mean of the last evaluations, of a diverged run what has learned nothing."""
    metric, scale = program.metric, 100.0 if program.metric.percent else 1.0
    margin = scale * program.margin
    digits = max(0, 1 - math.floor(math.log10(margin)))
    label = f"{metric.label}, %" if metric.percent else metric.label
    return Value(
        metric.name,
        label,
        rising=metric.rising,
        margin=margin,
        last=LAST,
        lost=program.chance,
        scale=scale,
        digits=digits,
    )


def claims_of(task: TaskName, rates: tuple[float, ...]) -> Mapping[str, Claim]:
    """Makes the claims about a task by the trial's arms. Arms that are one there share a claim."""
    program = PROGRAMS[task]
    options = {"task": task, "updates": 0, "decay": 0.0}
    trial = Trial(
        options, rates, program.updates, program.updates, hours=0.01, command=f"layernorm run swaps --task {task}"
    )
    return {
        item.name: Claim(f"{item.name} on {task}", "ours", item.arm(task), PLAIN, measure(program), trial)
        for item in TRIAL
    }


def recommended(by_task: Iterable[Mapping[str, Ruling]]) -> str | None:
    """Follows the rule on the rulings of all tasks at their own settings, by arm. None: there is no such arm."""
    verdicts: dict[str, Sequence[str]] = {}
    by_task = list(by_task)
    for item in TRIAL:
        verdicts[item.name] = [rulings[item.name].verdict for rulings in by_task]
    fit = [name for name, found in verdicts.items() if BEHIND not in found and 2 * found.count(AHEAD) > len(found)]
    return max(fit, key=lambda name: verdicts[name].count(AHEAD), default=None)
