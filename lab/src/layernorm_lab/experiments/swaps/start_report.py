"""The report's part on the start of a network with layer norm: what was chosen, and what the rule decides."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from ...report.judge import TRIAL_SEEDS
from ...report.page import Table
from ...runs.folder import Run
from .claims import OWN, Against, ByTask, Round, measure, plains_of
from .program import TaskName
from .programs import PROGRAMS
from .start import (
    AT_BEST,
    AT_OWN,
    BEST,
    CHOICES,
    CHOSEN,
    families,
    is_default,
    mean_regrets,
    numbers,
    recommended,
    regrets,
)

Ruled = Mapping[str, ByTask]
"""What the judge says, by the title of a round."""

_PAGE = "docs/results/swaps/start.md"


def start_findings(ruled: Ruled, runs: Sequence[Run]) -> list[str]:
    """Follows the rule of the start where there are runs enough."""
    lines = []
    for what, choice in CHOICES.items():
        if means := mean_regrets(choice, runs):
            best = min(means, key=lambda name: means[name])
            told = "; ".join(f"{name} {mean:.3f}" for name, mean in means.items())
            other = "" if best == CHOSEN[what].name else f" The rounds are those of {CHOSEN[what].name}."
            lines.append(f"The choice of {what} ({_PAGE}): {best}. Mean regret: {told}.{other}")
    of_start = is_default(ruled[AT_OWN.start.title], ruled[AT_BEST.start.title])
    if of_start is not None:
        told = "becomes the default, if it passes the test of growth" if of_start else "does not become the default"
        lines.append(f"The start of an LSTM by the rule ({_PAGE}): it {told}.")
    for own, at_best in zip(AT_OWN.lines, AT_BEST.lines, strict=True):
        for of, names in recommended(ruled[own.title], ruled[at_best.title], own).items():
            lines.append(f"Layer norm for {', '.join(of)}: {' or '.join(names) or 'none'} is recommended ({_PAGE}).")
    return lines


def regret_tables(ruled: Ruled, runs: Sequence[Run]) -> list[Table]:
    """Makes a table for each way to choose the learning rate: for each arm and family how often it is better than both
    plain networks and how often worse than one, its mean regret and its worst."""
    tables = []
    for item in (*AT_OWN.shown, *AT_BEST.shown):
        by_task = ruled[item.title]
        rows = []
        for of, tasks in families([*by_task]).items():
            found = {task: regrets(task, _means(task, item, runs)) for task in tasks}
            for name in (*plains_of(tasks[0]), *(arm.name for arm in item.arms)):
                known = [of_task[name] for of_task in found.values() if name in of_task]
                if known:
                    told = _counts([by_task[task][name] for task in tasks if name in by_task[task]])
                    row = [f"{statistics.fmean(known):.3f}", f"{max(known):.3f}", str(len(known))]
                    rows.append([", ".join(of), name, *told, *row])
        note = (
            "Better: on how many tasks the arm is ahead of both plain networks; worse: behind one of them. It is if "
            "the 95 % interval of the difference, paired by seeds, leaves out 0, each comparison by itself. Regret: "
            "the share of the way from the best of these arms to what is reached without learning."
        )
        header = ["family", "arm", "better", "worse", "mean regret", "worst regret", "tasks"]
        tables += [Table(item.title, header, rows, note)] if rows else []
    return tables


def _counts(found: Sequence[Against]) -> list[str]:
    """Counts on how many tasks an arm is better than both plain networks, and worse than one; of these a dash."""
    if not found:
        return ["-", "-"]
    better = [all(ruling.interval[0] > 0 for ruling in item.known) for item in found if item.known]
    worse = [any(ruling.interval[1] < 0 for ruling in item.known) for item in found if item.known]
    return [str(sum(better)), str(sum(worse))]


def _means(task: TaskName, item: Round, runs: Sequence[Run]) -> dict[str, float]:
    """Returns the mean number of each arm: at the program's own learning rate, or at the one that the pilot chose."""
    if item.rates == OWN:
        return numbers(task, item.arms, runs, 1.0, TRIAL_SEEDS)
    chooses, found = measure(PROGRAMS[task]).chooses, dict[str, float]()
    at_rates = {rate: numbers(task, item.arms, runs, rate, item.pilot, chooses) for rate in BEST}
    for name in {name for of in at_rates.values() for name in of}:
        if all(name in of for of in at_rates.values()):
            best = min(BEST, key=lambda rate: at_rates[rate][name])
            found |= {n: v for n, v in numbers(task, item.arms, runs, best, TRIAL_SEEDS).items() if n == name}
    return found
