"""The report on the tasks: every arm against the plain network, at the programs' own learning rates and the best ones.

An arm is a network that is compared: without a norm, or with a formula and a start of its gains.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence

from ...report.blocks import Group, incomplete
from ...report.curves import banded, view
from ...report.judge import PILOT_SEEDS, VERDICTS, Claim, Ruling, Value, best_rate, decide
from ...report.page import GREYS, STYLES, Deviation, Figure, Panel, Report, Style, Table
from ...report.tables import mean
from ...runs.folder import Run
from . import start
from .claims import (
    ARMS,
    CHOICE_RULE,
    CHOOSING,
    CONFIRMING,
    FAMILIES,
    LAST,
    ROUNDS,
    RULE,
    Against,
    ByTask,
    Round,
    chosen,
    claims_of,
    family,
    measure,
    plains_of,
    recommended,
)
from .config import RECURRENT
from .program import TaskName
from .programs import PROGRAMS
from .start_report import regret_tables, start_findings

_COLOURS = {
    "paper": "#D55E00", "cell": "#0072B2", "sonnet": "#009E73", "RMS": "#CC79A7",
    "sum": "#E69F00", "sum, eps 0.1": "#56B4E9", "sum, eps 1": "#332288",
}  # fmt: skip
_RECURRENT = {
    ("paper", "hh0.1"): "#88CCEE", ("paper", "hh0.3"): "#117733", ("paper", "hh0.6"): "#DDCC77",
    ("paper", "hh0.8"): "#999933",
    ("hidden", "hh0.3"): "#AA4499", ("hidden_cell", "hh0.3"): "#882255",
}  # fmt: skip
_DASHES = {"1": (0, (4, 1.5)), "0.3": (0, (1.5, 1)), "0.1": (0, (1, 2)), "match": "solid"}

Groups = Mapping[TaskName, Mapping[str, Mapping[float, Group]]]
"""The runs by task, arm and multiple of the program's learning rate."""


def report_swaps(runs: Sequence[Run]) -> Report:
    """Writes the report on runs of `swaps`, finished or not."""
    tasks = [name for name in PROGRAMS if any(run.config["task"] == name for run in runs)]
    arms: Groups = {task: _by_arm(task, runs) for task in tasks}
    ruled = [
        (item, {task: rule_on(task, item, runs) for task in tasks if task in item.tasks})
        for item in (*ROUNDS, *start.ROUNDS)
    ]
    by_title = {item.title: by_task for item, by_task in ruled}
    shown = [*start.AT_OWN.shown, *start.AT_BEST.shown]  # in tables of their own
    about = (
        "Evaluations of each task at the program's own learning rate.",
        f"The mean of the last {LAST} evaluations, against the multiple of the program's learning rate. A cross: a "
        "seed diverged.",
    )
    return Report(
        title="The swap at unchanged settings",
        claim="",
        findings=[*_findings(ruled[: len(ROUNDS)]), *start_findings(by_title, runs)],
        status=incomplete(runs),
        figures=[*_figure("curves", about[0], arms, _curves), *_figure("rates", about[1], arms, _against_rates)],
        tables=[
            *(table for item, found in ruled if item not in shown for table in _verdicts(item, found)),
            *regret_tables(by_title, runs),
            _values(arms),
        ],
        deviations=[Deviation(task, "S", f"{PROGRAMS[task].source}: {PROGRAMS[task].settings}") for task in tasks],
        runs=runs,
    )


def _by_arm(task: TaskName, runs: Sequence[Run]) -> dict[str, dict[float, Group]]:
    """Sorts the runs of a task by arm and learning rate: those of its own length, or else of the shortest one.
    Candidates that are one arm appear once."""
    of_task = [run for run in runs if run.config["task"] == task]
    length = min(_length(run) for run in of_task)
    of_task = [run for run in of_task if _length(run) == length]
    found: dict[str, dict[float, Group]] = {}
    sides = [*plains_of(task).items(), *((item.name, item.arm(task)) for item in (*ARMS, *start.ARMS))]
    for place, (name, arm) in enumerate(sides):
        own = [run for run in of_task if arm.has(run)]
        if own and arm not in [other for _, other in sides[:place]]:
            rates = sorted({run.config["learning_rate"] for run in own})
            found[name] = {rate: [run for run in own if run.config["learning_rate"] == rate] for rate in rates}
    return found


def _length(run: Run) -> tuple[int, float]:
    return run.config["updates"], run.config["decay"]


def rule_on(task: TaskName, item: Round, runs: Sequence[Run]) -> dict[str, Against]:
    """Rules on the claims about a task of every arm of a round. Holm's procedure counts each claim once, but none about
    an arm or a plain network of which there are no runs."""
    claims = claims_of(task, item)
    once: list[Claim] = []
    for claim in (claim for of_arm in claims.values() for claim in of_arm):
        if all(claim.arms != other.arms for other in once):
            once.append(claim)
    known = [claim for claim in once if all(claim.trial.runs(arm, runs) for arm in claim.arms)]
    decided = [decide([claim], runs)[0] for claim in known] if item.alone else decide(known, runs)
    ruled = [_at_chosen_rates(ruling, runs) for ruling in decided]
    ruled += [decide([claim], [])[0] for claim in once if claim not in known]
    return {
        name: Against(tuple(next(ruling for ruling in ruled if ruling.claim.arms == claim.arms) for claim in of_arm))
        for name, of_arm in claims.items()
    }


def _at_chosen_rates(ruling: Ruling, runs: Sequence[Run]) -> Ruling:
    """Leaves out the pairs of runs at a learning rate that no pilot chose."""
    chose = all(best_rate(ruling.claim, arm, runs) for arm in ruling.claim.arms)
    return ruling if chose else dataclasses.replace(ruling, pairs={})


def _findings(ruled: Sequence[tuple[Round, ByTask]]) -> list[str]:
    """Counts each arm's verdicts over the tasks, and follows the rules where there are runs of all tasks."""
    lines = []
    for item, by_task in ruled:
        for name in _known(item, by_task):
            for about in FAMILIES if item is CONFIRMING else [""]:
                of_family = [arms[name] for task, arms in by_task.items() if about in ("", family(task))]
                verdicts = [found.verdict for found in of_family if found.enough]
                if verdicts:
                    told = ", ".join(f"{verdict} on {verdicts.count(verdict)}" for verdict in VERDICTS)
                    where = f"{item.title}, {about}" if about else item.title
                    lines.append(f"{where}: {name} is {told} of {len(verdicts)} tasks.")
    if not lines:
        return []
    by_round = {item.title: by_task for item, by_task in ruled}
    choice, decided = chosen(by_round[CHOOSING.title]), recommended(by_round[CONFIRMING.title])
    told = "; ".join(f"for {about} {name}" for about, name in choice.items()) or "these runs are not all that it needs"
    lines.append(f"The choice: {CHOICE_RULE} By it: {told}.")
    if decided is None:
        told = "these runs are not all that it needs"
    else:
        told = "; ".join(f"for {FAMILIES[about]} {name or 'none'}" for about, name in decided.items())
    return [*lines, f"The rule: {RULE} By it: {told}."]


def _known(item: Round, by_task: ByTask) -> list[str]:
    """Returns the arms of a round that have pairs of runs."""
    return [arm.name for arm in item.arms if any(arms[arm.name].known for arms in by_task.values())]


def style_of(name: str) -> Style:
    """Returns the style of an arm's curves: a colour for each formula and eps, dashes for the start."""
    if name.startswith("plain"):
        return STYLES["none"] if name == "plain" else GREYS[1]
    item = next(item for item in (*ARMS, *start.ARMS) if item.name == name)
    if item.start.startswith(RECURRENT):
        return Style(_RECURRENT[item.formula, item.start], "solid" if item.forget_bias == "1" else (0, (4, 1.5)))
    kind = "RMS" if item.norm == "rms" else item.formula + (f", eps {item.eps}" if item.eps != "own" else "")
    return Style(_COLOURS[kind], _DASHES[item.start])


def _figure(
    name: str, about: str, arms: Groups, panel: Callable[[TaskName, Mapping[str, Mapping[float, Group]]], Panel]
) -> list[Figure]:
    """Makes a figure with a panel for each task, three in a row; none if there is nothing to show."""
    panels = [item for task, found in arms.items() if (item := panel(task, found)).curves]
    rows = [panels[start : start + 3] for start in range(0, len(panels), 3)]
    return [Figure(name, about, rows)] if rows else []


def _curves(task: TaskName, arms: Mapping[str, Mapping[float, Group]]) -> Panel:
    """Draws the evaluations at the program's own learning rate: of the trial's arms and seeds, or else the pilot's."""
    metric, lines = PROGRAMS[task].metric, []
    begun = {name: [run for run in by_rate.get(1.0, []) if run.records] for name, by_rate in arms.items()}
    trial = {name: [run for run in group if run.config["seed"] not in PILOT_SEEDS] for name, group in begun.items()}
    for name, shown in (trial if any(trial.values()) else begun).items():
        steps = list(zip(*(run.records for run in shown), strict=False))
        if steps:
            values = [[record[metric.name] for record in step] for step in steps]
            lines.append(banded(name, style_of(name), [step[0]["update"] for step in steps], values))
    limits = view(lines) if lines and not metric.log else None
    return Panel(task, "update", metric.label, lines, log=metric.log, percent=metric.percent, limits=limits)


def _against_rates(task: TaskName, arms: Mapping[str, Mapping[float, Group]]) -> Panel:
    """Draws the last evaluations at all learning rates, where there are several."""
    metric, lines = PROGRAMS[task].metric, []
    for name, by_rate in arms.items():
        ends = {rate: [_end(task, run) for run in group if run.whole] for rate, group in by_rate.items()}
        ends = {rate: values for rate, values in ends.items() if values}
        lost = [rate for rate, group in by_rate.items() if any(run.diverged is not None for run in group)]
        if len(by_rate) > 1 and (ends or lost):
            line = banded(name, style_of(name), list(ends), list(ends.values()))
            lines.append(dataclasses.replace(line, lost=lost))
    label = "multiple of the learning rate"
    return Panel(task, label, metric.label, lines, log=metric.log, log_x=True, percent=metric.percent, dots=True)


def _end(task: TaskName, run: Run) -> float:
    """Returns what a task measures of a run, in the unit of its records."""
    return statistics.fmean(record[measure(PROGRAMS[task]).metric] for record in run.records[-LAST:])


def _verdicts(item: Round, by_task: ByTask) -> list[Table]:
    """Makes a table of tasks by arms: the verdict, and by how much an arm is better than the better plain network."""
    names = _known(item, by_task)
    note = (
        "First the means of the number that is compared, of the networks that others are compared with. Then for "
        "each arm (a formula and a start of its gains) the verdict, which is ahead of all of these or behind one,"
        " and by how much the arm is better than the better one, with the 95 % interval over paired seeds; "
        "negative: worse. In a GRU and an RNN paper stands for formulas that are not defined there."
        + " Each comparison counts by itself." * item.alone
        + " x 4: the arm is at four times the program's learning rate, its best by validation." * (len(item.rates) > 1)
    )
    baselines = {task: {k: v for arm in item.arms for k, v in arm.baselines(task).items()} for task in by_task}
    columns = [*dict.fromkeys(name for of_task in baselines.values() for name in of_task)]
    rows = []
    for task, arms in by_task.items():
        means: dict[str, str] = {}
        seeds: dict[str, int] = {}  # of the mean that is shown: arms that are not done have fewer pairs
        for name in names:
            for ruling in arms[name].known:
                other = next(key for key, arm in baselines[task].items() if arm == ruling.claim.behind)
                if len(ruling.pairs) >= seeds.get(other, 0):
                    seeds[other] = len(ruling.pairs)
                    at = f", x {ruling.rates[1]:g}" if len(item.rates) > 1 else ""
                    means[other] = ruling.claim.measure.shown(ruling.means[1]) + at
        shown = [means.get(other, "-") for other in columns]
        rows.append([task, family(task), *shown, *(_cell(item, arms[name]) for name in names)])
    return [Table(item.title, ["task", "family", *columns, *names], rows, note)] if names else []


def _cell(item: Round, found: Against) -> str:
    """Writes the verdict, which too few pairs do not have, with the effect and its interval."""
    if not found.known:
        return "-"
    ruling = found.better
    assert isinstance(ruling.claim.measure, Value)
    effect, low, high = (f"{value:.{ruling.claim.measure.digits}f}" for value in (ruling.effect, *ruling.interval))
    told = [f"x {ruling.rates[0]:g}:"] * (len(item.rates) > 1) + [found.verdict] * found.enough
    return " ".join([*told, effect, f"({low} to {high})"])


def _values(arms: Groups) -> Table:
    """Makes a table of the last evaluations at every learning rate, and of the time of a run."""
    rates = sorted({rate for found in arms.values() for by_rate in found.values() for rate in by_rate})
    rows = []
    for task, found in arms.items():
        number = measure(PROGRAMS[task])
        for name, by_rate in found.items():
            cells = []
            for rate in rates:
                done = [run for run in by_rate.get(rate, []) if run.done]
                lost = sum(run.diverged is not None for run in done)
                ends = [number.scale * _end(task, run) for run in done if run.whole]
                values = mean(ends, number.digits) if ends else "-"
                cells.append(f"{lost} of {len(done)} diverged" if lost else values)
            seconds = [run.result["seconds"] for group in by_rate.values() for run in group if run.whole]
            rows.append([task, name, *cells, f"{statistics.median(seconds):.0f}" if seconds else "-"])
    note = (
        f"The mean of the last {LAST} evaluations, over all seeds, by the multiple of the program's learning rate; the "
        "figure has the ranges. s: the median of a run's seconds."
    )
    return Table("All learning rates", ["task", "arm", *(f"{rate:g}" for rate in rates), "s"], rows, note)
