"""The report on the tasks: every arm against the plain network, at the programs' own rates and at the best ones."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence

from ..report.blocks import Group, incomplete
from ..report.curves import banded, view
from ..report.judge import PILOT, Ruling, Value, best_rate, counts, decide
from ..report.page import STYLES, Deviation, Figure, Panel, Report, Style, Table
from ..report.tables import mean
from ..runs.folder import Run
from .claims import BEST, CANDIDATES, LAST, OWN, PLAIN, RULE, TRIAL, claims_of, measure, recommended
from .program import TaskName
from .programs import PROGRAMS

_COLOURS = {"paper": "#D55E00", "cell": "#0072B2", "sonnet": "#009E73", "RMS": "#CC79A7"}

ByTask = Mapping[TaskName, Mapping[str, Mapping[float, Group]]]
"""The runs by task, arm and multiple of the program's rate."""

Rulings = Mapping[TaskName, Mapping[str, Ruling]]
"""What the judge says on each task of each arm of the trial."""


def report_swaps(runs: Sequence[Run]) -> Report:
    """Writes the report on runs of `swaps`, finished or not."""
    tasks = [name for name in PROGRAMS if any(run.config["task"] == name for run in runs)]
    arms: ByTask = {task: _by_arm(task, runs) for task in tasks}
    own, best = ({task: _rulings(task, rates, runs) for task in tasks} for rates in (OWN, BEST))
    about = (
        "Evaluations of each task at the program's own learning rate.",
        f"The mean of the last {LAST} evaluations, against the multiple of the program's learning rate. A cross: a "
        "seed diverged.",
    )
    return Report(
        title="The swap at unchanged settings",
        claim="",
        findings=_findings(own, best),
        status=incomplete(runs),
        figures=[*_figure("curves", about[0], arms, _curves), *_figure("rates", about[1], arms, _against_rates)],
        tables=[
            *_verdicts("At the programs' own settings", own),
            *_verdicts("Each arm at its best rate", best),
            _values(arms),
        ],
        deviations=[Deviation(task, "S", f"{PROGRAMS[task].source}: {PROGRAMS[task].settings}") for task in tasks],
        runs=runs,
    )


def _by_arm(task: TaskName, runs: Sequence[Run]) -> dict[str, dict[float, Group]]:
    """Sorts the runs of a task by arm and rate: those of its own length, or else of the shortest one. Candidates that
    are one arm appear once."""
    of_task = [run for run in runs if run.config["task"] == task]
    length = min(_length(run) for run in of_task)
    of_task = [run for run in of_task if _length(run) == length]
    found: dict[str, dict[float, Group]] = {}
    sides = [("plain", PLAIN), *((item.name, item.arm(task)) for item in CANDIDATES)]
    for place, (name, arm) in enumerate(sides):
        own = [run for run in of_task if arm.has(run)]
        if own and arm not in [other for _, other in sides[:place]]:
            rates = sorted({run.config["learning_rate"] for run in own})
            found[name] = {rate: [run for run in own if run.config["learning_rate"] == rate] for rate in rates}
    return found


def _length(run: Run) -> tuple[int, float]:
    return run.config["updates"], run.config["decay"]


def _rulings(task: TaskName, rates: tuple[float, ...], runs: Sequence[Run]) -> dict[str, Ruling]:
    """Rules on the claim about a task of every arm of the trial. Holm's procedure counts an arm once."""
    claims = claims_of(task, rates)
    first = {name: next(other for other in claims if claims[other].ahead == claims[name].ahead) for name in claims}
    once = list(dict.fromkeys(first.values()))
    ruled = {}
    for name, ruling in zip(once, decide([claims[name] for name in once], runs), strict=True):
        chosen = all(best_rate(claims[name], arm, runs) for arm in claims[name].arms)
        ruled[name] = ruling if chosen else dataclasses.replace(ruling, pairs={})  # runs at a rate that nothing chose
    return {name: ruled[first[name]] for name in claims}


def _findings(own: Rulings, best: Rulings) -> list[str]:
    """Counts each arm's verdicts over the tasks, and follows the rule where there are runs of all tasks."""
    lines = []
    for where, rulings in (("at the programs' own settings", own), ("each at its best rate", best)):
        for name in _known(rulings):
            known = [found[name] for found in rulings.values() if len(found[name].pairs) > 1]
            told = ", ".join(f"{verdict} on {count}" for verdict, count in counts(known).items())
            lines.append(f"{name}, {where}: {told} of {len(known)} tasks.")
    if lines and len(own) < len(PROGRAMS):
        lines.append(f"The rule: {RULE} These runs are not of all tasks.")
    elif lines:
        best_arm = recommended(own.values())
        told = f"the recommended arm is {best_arm}" if best_arm else "no arm is recommended"
        lines.append(f"The rule: {RULE} By it {told}.")
    return lines


def _known(rulings: Rulings) -> list[str]:
    """Returns the arms of the trial that have pairs of runs."""
    return [item.name for item in TRIAL if any(len(found[item.name].pairs) > 1 for found in rulings.values())]


def _style(name: str) -> Style:
    """Returns the style of an arm's curves: a colour for each formula; a start at gain 1 is dashed."""
    if name == "plain":
        return STYLES["none"]
    formula, _, start = name.partition(", ")
    return Style(_COLOURS[formula], "solid" if start else (0, (4, 1.5)))


def _figure(
    name: str, about: str, arms: ByTask, panel: Callable[[TaskName, Mapping[str, Mapping[float, Group]]], Panel]
) -> list[Figure]:
    """Makes a figure with a panel for each task, three in a row; none if there is nothing to show."""
    panels = [item for task, found in arms.items() if (item := panel(task, found)).curves]
    rows = [panels[start : start + 3] for start in range(0, len(panels), 3)]
    return [Figure(name, about, rows)] if rows else []


def _curves(task: TaskName, arms: Mapping[str, Mapping[float, Group]]) -> Panel:
    """Draws the evaluations at the program's own rate: of the arms and seeds of the trial, or else of the pilot's."""
    metric, lines = PROGRAMS[task].metric, []
    begun = {name: [run for run in by_rate.get(1.0, []) if run.records] for name, by_rate in arms.items()}
    trial = {name: [run for run in group if run.config["seed"] not in PILOT] for name, group in begun.items()}
    for name, shown in (trial if any(trial.values()) else begun).items():
        steps = list(zip(*(run.records for run in shown), strict=False))
        if steps:
            values = [[record[metric.name] for record in step] for step in steps]
            lines.append(banded(name, _style(name), [step[0]["update"] for step in steps], values))
    limits = view(lines) if lines and not metric.log else None
    return Panel(task, "update", metric.label, lines, log=metric.log, percent=metric.percent, limits=limits)


def _against_rates(task: TaskName, arms: Mapping[str, Mapping[float, Group]]) -> Panel:
    """Draws the last evaluations at all rates, where there are several."""
    metric, lines = PROGRAMS[task].metric, []
    for name, by_rate in arms.items():
        ends = {rate: [_end(task, run) for run in group if run.whole] for rate, group in by_rate.items()}
        ends = {rate: values for rate, values in ends.items() if values}
        lost = [rate for rate, group in by_rate.items() if any(run.diverged is not None for run in group)]
        if len(by_rate) > 1 and (ends or lost):
            line = banded(name, _style(name), list(ends), list(ends.values()))
            lines.append(dataclasses.replace(line, lost=lost))
    label = "multiple of the rate"
    return Panel(task, label, metric.label, lines, log=metric.log, log_x=True, percent=metric.percent, dots=True)


def _end(task: TaskName, run: Run) -> float:
    """Returns what a task measures of a run, in the unit of its records."""
    return statistics.fmean(record[PROGRAMS[task].metric.name] for record in run.records[-LAST:])


def _verdicts(title: str, rulings: Rulings) -> list[Table]:
    """Makes a table of tasks by arms: the verdict, and by how much an arm is better than the plain network."""
    names = _known(rulings)
    note = (
        "Plain: the mean of the number that the figures show. Others: the verdict, and by how much the arm is better "
        "than the plain network, with the 95 % interval over paired seeds; negative: worse. In a GRU and an RNN paper "
        "stands for formulas that are not defined there."
    )
    rows = []
    for task, found in rulings.items():
        plain = [found[name].claim.measure.shown(found[name].means[1]) for name in names if found[name].pairs]
        rows.append([task, *(plain or ["-"])[:1], *(_cell(found[name]) for name in names)])
    return [Table(title, ["task", "plain", *names], rows, note)] if names else []


def _cell(ruling: Ruling) -> str:
    """Writes the verdict with the effect and its interval."""
    if len(ruling.pairs) < 2:
        return "-"
    assert isinstance(ruling.claim.measure, Value)
    effect, low, high = (f"{value:.{ruling.claim.measure.digits}f}" for value in (ruling.effect, *ruling.interval))
    return f"{ruling.verdict} {effect} ({low} to {high})"


def _values(arms: ByTask) -> Table:
    """Makes a table of the last evaluations at every rate, and of the time of a run."""
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
        f"The mean of the last {LAST} evaluations, over all seeds, by the multiple of the program's rate; the figure "
        "has the ranges. s: the median of a run's seconds."
    )
    return Table("All rates", ["task", "arm", *(f"{rate:g}" for rate in rates), "s"], rows, note)
