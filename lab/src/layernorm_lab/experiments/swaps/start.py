"""The decision on the start of a network with layer norm: its arms, the choice, the rounds that confirm it, as data.

The rule is on docs/results/swaps/start.md. It was written before the runs.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from layernorm.formula import Network

from ...report.judge import AHEAD, BEHIND, PILOT_SEEDS, TRIAL_SEEDS, Measure
from ...runs.folder import Run
from .claims import OWN, Against, ByTask, Candidate, Round, family, measure, plains_of
from .config import RECURRENT, FormulaName, Start
from .program import TaskName
from .programs import PROGRAMS

BEST = (1 / 4, 1.0, 4.0, 16.0)
"""The multiples of the program's learning rate from which each arm takes its best."""

CHOICE_SEEDS = TRIAL_SEEDS[:2]
"""The seeds of the choice."""

ONES = Candidate("gains of 1", "paper")


def recurrent(gain: float | str, formula: FormulaName = "paper", forget: bool = True) -> Candidate:
    """Makes the arm with this gain of W_hh h, all other gains at 1."""
    where = {"paper": "", "hidden": "only W_hh h, ", "hidden_cell": "only W_hh h and cell, "}[formula]
    name = f"{where}recurrent gain {gain}" + ", forget bias 1" * forget
    return Candidate(name, formula, cast(Start, f"{RECURRENT}{gain}"), forget_bias="1" if forget else "torch")


def tasks_of(network: Network, confirms: str | None) -> tuple[TaskName, ...]:
    """Returns the tasks with a kind of network: those that confirm the start, or the ones before them."""
    return tuple(
        task
        for task, program in PROGRAMS.items()
        if program.network == network and (program.confirms == "start") == (confirms == "start")
    )


class Choice(NamedTuple):
    """Arms of which one is chosen by its mean regret on some tasks, and the others that the best arm may be."""

    tasks: tuple[TaskName, ...]
    arms: tuple[Candidate, ...]
    beside: tuple[Candidate, ...]


_LSTM_STARTS = tuple(recurrent(gain) for gain in (0.1, 0.3, 0.6, 0.8))
_ALONE = (recurrent(0.3, "hidden"), recurrent(0.3, "hidden_cell"))
_GRU_STARTS = (ONES, *(recurrent(gain, forget=False) for gain in (0.1, 0.3, 0.6)))

CHOICES: Mapping[str, Choice] = {
    "the start of an LSTM": Choice(tasks_of("LSTM", None), _LSTM_STARTS, (*_ALONE, ONES)),
    "the start of a GRU": Choice(tasks_of("GRU", None), _GRU_STARTS, ()),
    "a norm of only W_hh h": Choice(tasks_of("LSTM", None), _ALONE, (*_LSTM_STARTS, ONES)),
}
"""What is chosen, by name."""


def numbers(
    task: TaskName,
    arms: Sequence[Candidate],
    runs: Sequence[Run],
    rate: float,
    seeds: Sequence[int],
    by: Measure | None = None,
) -> dict[str, float]:
    """Returns by name the mean number of each arm and plain network on a task, of which lower is better.

    Arms without all seeds are left out. ``by``: the measure; None: that of the task.
    """
    found: dict[str, float] = {}
    value = by or measure(PROGRAMS[task])
    wanted = {"task": task, "updates": 0, "decay": 0.0, "learning_rate": rate}
    sides = {**plains_of(task), **{item.name: item.arm(task) for item in arms}}
    for name, arm in sides.items():
        own = {
            run.config["seed"]: value.value(run, value.metric)
            for run in runs
            if run.done and arm.has(run) and all(run.config[key] == item for key, item in wanted.items())
        }
        if set(seeds) <= own.keys():
            found[name] = statistics.fmean(own[seed] for seed in seeds)
    return found


def regrets(task: TaskName, of: Mapping[str, float]) -> dict[str, float]:
    """Returns each arm's share of the way from the best arm's number to what is reached without learning."""
    value, program = measure(PROGRAMS[task]), PROGRAMS[task]
    best = min(of.values(), default=0.0)
    room = value.scale * program.chance * (-1 if value.rising else 1) - best
    return {name: min(1.0, (number - best) / room) if room > 0 else 0.0 for name, number in of.items()}


def mean_regrets(choice: Choice, runs: Sequence[Run]) -> dict[str, float] | None:
    """Returns the mean regret of each arm of a choice; None unless there are all runs of all tasks."""
    of_tasks = []
    for task in choice.tasks:
        of = numbers(task, (*choice.arms, *choice.beside), runs, 1.0, CHOICE_SEEDS)
        if {*plains_of(task), *(item.name for item in (*choice.arms, *choice.beside))} - of.keys():
            return None
        of_tasks.append(regrets(task, of))
    return {item.name: statistics.fmean(of[item.name] for of in of_tasks) for item in choice.arms}


START, GRU_START, ALONE = recurrent(0.6), ONES, recurrent(0.3, "hidden_cell")
CHOSEN = dict(zip(CHOICES, (START, GRU_START, ALONE), strict=True))
"""What was chosen, by name: the start of an LSTM and of a GRU, and the form with a norm of only W_hh h."""


def _torchs(item: Candidate) -> Candidate:
    """The same arm with torch's forget bias."""
    return dataclasses.replace(item, name=item.name.removesuffix(", forget bias 1"), forget_bias="torch")


_DECIDES = dataclasses.replace(_torchs(START), over=ONES)
_FRESH = {network: tasks_of(network, "start") for network in ("LSTM", "GRU")}
_LINES: Mapping[Network, tuple[Candidate, ...]] = {
    "LSTM": (START, ALONE),
    "GRU": tuple({item.name: item for item in (GRU_START, _torchs(ALONE))}.values()),
}
_EVERY_ARM: Mapping[Network, tuple[Candidate, ...]] = {
    "LSTM": (ONES, _torchs(START), START, ALONE),
    "GRU": tuple({item.name: item for item in (ONES, GRU_START, _torchs(ALONE))}.values()),
}


class Rounds(NamedTuple):
    """The comparisons on the fresh tasks, at one choice of rates.

    Attributes:
        start: of the chosen start with gains of 1, which decides.
        lines: of the lines with the plain networks, in LSTMs and in GRUs.
        shown: of every arm with the plain networks, each comparison by itself.
    """

    start: Round
    lines: tuple[Round, ...]
    shown: tuple[Round, ...]


def _rounds(where: str, rates: tuple[float, ...], pilot: tuple[int, ...]) -> Rounds:
    def compared(what: str, network: Network, arms: tuple[Candidate, ...], alone: bool = False) -> Round:
        return Round(f"{what}, {where}", _FRESH[network], arms, rates, pilot, alone=alone, closed=True)

    return Rounds(
        compared("The start of an LSTM", "LSTM", (_DECIDES,)),
        tuple(compared(f"Layer norm in {network}s", network, arms) for network, arms in _LINES.items()),
        tuple(compared(f"Every arm in {network}s", network, arms, alone=True) for network, arms in _EVERY_ARM.items()),
    )


AT_OWN = _rounds("at the programs' own learning rates", OWN, PILOT_SEEDS)
AT_BEST = _rounds("each arm at its best learning rate", BEST, PILOT_SEEDS[:1])
ROUNDS = tuple(item for of in (AT_OWN, AT_BEST) for item in (of.start, *of.lines, *of.shown))
_ALL_ARMS = (*_LSTM_STARTS, *_ALONE, *_GRU_STARTS, *_EVERY_ARM["LSTM"], *_EVERY_ARM["GRU"])
ARMS = tuple({item.name: item for item in _ALL_ARMS}.values())
"""All arms of the decision."""


def _whole(by_task: ByTask, of: Round) -> bool:
    return all(task in by_task and all(item.whole for item in by_task[task].values()) for task in of.tasks)


def is_default(own: ByTask, best: ByTask) -> bool | None:
    """Follows the decision on the start, but for the test of growth. None without all runs of all tasks."""
    if not _whole(own, AT_OWN.start) or not _whole(best, AT_BEST.start):
        return None
    at_own, at_best = ([arms[_DECIDES.name].verdict for arms in by_task.values()] for by_task in (own, best))
    is_ahead = 2 * at_own.count(AHEAD) >= len(at_own)
    return is_ahead and all(verdicts.count(BEHIND) <= 1 for verdicts in (at_own, at_best))


Family = tuple[str, Network, str]
"""An optimiser, a network and a kind of input."""


def families(tasks: Sequence[TaskName]) -> dict[Family, list[TaskName]]:
    """Sorts tasks by family."""
    found: dict[Family, list[TaskName]] = {}
    for task in tasks:
        program = PROGRAMS[task]
        found.setdefault((family(task), program.network, program.inputs), []).append(task)
    return found


def far_behind(found: Against) -> bool:
    """Whether an arm is behind a plain network, by more than twice the margin."""
    return any(ruling.verdict == BEHIND and ruling.effect < -2 * ruling.claim.measure.margin for ruling in found.known)


def recommended(own: ByTask, best: ByTask, of: Round) -> dict[Family, list[str]]:
    """Follows the decision on layer norm: the lines of a round that are recommended for each family of two tasks or
    more. Empty without all runs of all tasks."""
    if not _whole(own, of) or not _whole(best, of):
        return {}
    names = [item.name for item in of.arms]
    return {
        kind: [name for name in names if all(_helps(name, tasks, by_task) for by_task in (own, best))]
        for kind, tasks in families(of.tasks).items()
        if len(tasks) > 1
    }


def _helps(name: str, tasks: Sequence[TaskName], by_task: ByTask) -> bool:
    found = [by_task[task][name] for task in tasks]
    ahead = sum(item.verdict == AHEAD for item in found)
    return 2 * ahead >= len(tasks) and not any(map(far_behind, found))
