"""The report on the tasks: every arm against the plain network, at the programs' own rates and at the best ones."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence

from ..report.blocks import Group, incomplete
from ..report.curves import banded, view
from ..report.judge import PILOT, Ruling, Value, best_rate, counts, decide
from ..report.page import STYLES, Deviation, Figure, Panel, Report, Style, Table
from ..report.tables import mean_and_range
from ..runs.folder import Run
from .claims import BEST, CANDIDATES, OWN, PLAIN, RULE, claims_of, measure, recommended
from .program import Program
from .programs import PROGRAMS

COLUMNS = 4
"""The most arms in a table, which is to fit a terminal."""

_COLOURS = {"paper": "#D55E00", "cell": "#0072B2", "sonnet": "#009E73", "RMS": "#CC79A7"}

Arms = Mapping[str, Mapping[float, Group]]
"""The runs of a task by arm and by multiple of the program's rate."""


def report_swaps(runs: Sequence[Run]) -> Report:
    """Writes the report on runs of `swaps`, finished or not."""
    tasks = {name: program for name, program in PROGRAMS.items() if any(run.config["task"] == name for run in runs)}
    arms = {name: _by_arm(program, runs) for name, program in tasks.items()}
    own, best = ({name: _rulings(program, rates, runs) for name, program in tasks.items()} for rates in (OWN, BEST))
    return Report(
        title="The swap at unchanged settings",
        claim="",
        findings=_findings(own, best),
        status=incomplete(runs),
        figures=[
            *_figure("curves", "Evaluations of each task at the program's own learning rate.", tasks, arms, _curves),
            *_figure("rates", "The last evaluation, against the multiple of the program's learning rate. A cross: a "
                     "seed diverged.", tasks, arms, _against_rates),
        ],
        tables=[
            *_verdicts("At the programs' own settings", tasks, own),
            *_verdicts("Each arm at its best rate", tasks, best),
            *_values(tasks, arms),
            _times(arms),
        ],
        deviations=[Deviation(name, "S", f"{program.source}: {program.settings}") for name, program in tasks.items()],
        runs=runs,
    )  # fmt: skip


def _by_arm(program: Program, runs: Sequence[Run]) -> Arms:
    """Sorts the runs of a task by arm and rate: those of its own length, or else of the shortest one. Candidates that
    are one arm appear once."""
    of_task = [run for run in runs if run.config["task"] == program.name]
    length = min(_length(run) for run in of_task)
    of_task = [run for run in of_task if _length(run) == length]
    found: dict[str, dict[float, Group]] = {}
    sides = [("plain", PLAIN), *((item.name, item.arm(program.name)) for item in CANDIDATES)]
    for place, (name, arm) in enumerate(sides):
        if arm not in [other for _, other in sides[:place]]:
            by_rate: dict[float, Group] = {}
            for run in sorted((run for run in of_task if arm.has(run)), key=lambda run: run.config["learning_rate"]):
                by_rate.setdefault(run.config["learning_rate"], []).append(run)
            if by_rate:
                found[name] = by_rate
    return found


def _length(run: Run) -> tuple[int, float]:
    return run.config["updates"], run.config["decay"]


def _rulings(program: Program, rates: tuple[float, ...], runs: Sequence[Run]) -> dict[str, Ruling]:
    """Rules on every candidate's claim about a task. Holm's procedure counts an arm once."""
    claims = claims_of(program.name, rates)
    alike = {name: next(other for other in claims if claims[other].ahead == claim.ahead)
             for name, claim in claims.items()}  # fmt: skip
    once = list(dict.fromkeys(alike.values()))
    ruled = {}
    for name, ruling in zip(once, decide([claims[name] for name in once], runs), strict=True):
        chosen = all(best_rate(claims[name], arm, runs) for arm in claims[name].arms)
        ruled[name] = ruling if chosen else dataclasses.replace(ruling, pairs={})  # runs at a rate that nothing chose
    return {name: ruled[alike[name]] for name in claims}


def _findings(own: Mapping[str, dict[str, Ruling]], best: Mapping[str, dict[str, Ruling]]) -> list[str]:
    """Counts each arm's verdicts over the tasks, and follows the rule where all tasks are decided or may be."""
    lines = []
    for where, rulings in (("at the programs' own settings", own), ("each at its best rate", best)):
        for item in CANDIDATES:
            known = [found[item.name] for found in rulings.values() if len(found[item.name].pairs) > 1]
            if known:
                told = ", ".join(f"{verdict} on {count}" for verdict, count in counts(known).items())
                lines.append(f"{item.name}, {where}: {told} of {len(known)} tasks.")
    if lines:
        whole = len(own) == len(PROGRAMS)
        name = recommended(own.values()) if whole else None
        told = f"By it the recommended arm is {name}." if name else "By it no arm is recommended."
        lines.append(f"The rule: {RULE} {told if whole else 'These runs are not of all tasks.'}")
    return lines


def _style(name: str) -> Style:
    """Returns the style of an arm's curves: a colour for each formula; a start at gain 1 is dashed."""
    if name == "plain":
        return STYLES["none"]
    formula, _, start = name.partition(", ")
    return Style(_COLOURS[formula], "solid" if start else (0, (4, 1.5)))


def _shown(by_rate: Mapping[float, Group], rate: float) -> Group:
    """Returns the runs at a rate that are shown: those of the trial, or else the pilot's."""
    begun = [run for run in by_rate.get(rate, []) if run.records]
    return [run for run in begun if run.config["seed"] not in PILOT] or begun


def _figure(
    name: str,
    about: str,
    tasks: Mapping[str, Program],
    arms: Mapping[str, Arms],
    panel: Callable[[Program, Arms], Panel],
) -> list[Figure]:
    """Makes a figure with a panel for each task, three in a row."""
    panels = [panel(program, arms[task]) for task, program in tasks.items()]
    panels = [item for item in panels if item.curves]
    rows = [panels[start : start + 3] for start in range(0, len(panels), 3)]
    return [Figure(name, about, rows)] if rows else []


def _curves(program: Program, arms: Arms) -> Panel:
    metric, lines = program.metric, []
    for name, by_rate in arms.items():
        steps = list(zip(*(run.records for run in _shown(by_rate, 1.0)), strict=False))
        if steps:
            values = [[record[metric.name] for record in step] for step in steps]
            lines.append(banded(name, _style(name), [step[0]["update"] for step in steps], values))
    limits = view(lines) if lines else None
    return Panel(program.name, "update", metric.label, lines, percent=metric.percent, limits=limits)


def _against_rates(program: Program, arms: Arms) -> Panel:
    metric, lines = program.metric, []
    for name, by_rate in arms.items():
        ends = {rate: [run.records[-1][metric.name] for run in group if run.whole] for rate, group in by_rate.items()}
        ends = {rate: values for rate, values in ends.items() if values}
        lost = [rate for rate, group in by_rate.items() if any(run.diverged is not None for run in group)]
        if len(ends) > 1:
            line = banded(name, _style(name), list(ends), list(ends.values()))
            lines.append(dataclasses.replace(line, lost=lost))
    return Panel(program.name, "multiple of the rate", metric.label, lines, log_x=True, percent=metric.percent,
                 dots=True)  # fmt: skip


def _chunks(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[start : start + COLUMNS] for start in range(0, len(names), COLUMNS)]


def _verdicts(title: str, tasks: Mapping[str, Program], rulings: Mapping[str, dict[str, Ruling]]) -> list[Table]:
    """Makes tables of tasks by arms: the verdict, and by how much an arm is better than the plain network."""
    tables = []
    known = [item.name for item in CANDIDATES if any(len(found[item.name].pairs) > 1 for found in rulings.values())]
    for names in _chunks(known):
        rows = []
        for task, found in rulings.items():
            plain = next((_mean(found[name], 1) for name in names if found[name].pairs), "-")
            rows.append([task, plain, *(_cell(found[name]) for name in names)])
        note = (
            "Plain: the mean of the measure that the figures name. Others: the verdict, and by how much the arm is "
            "better than the plain network, with the 95 % interval over paired seeds; negative: worse."
        )
        tables.append(Table(title, ["task", "plain", *names], rows, note))
    return tables


def _mean(ruling: Ruling, side: int) -> str:
    return ruling.claim.measure.shown(ruling.means[side])


def _cell(ruling: Ruling) -> str:
    if len(ruling.pairs) < 2:
        return "-"
    measure = ruling.claim.measure
    assert isinstance(measure, Value)
    numbers = [f"{value:.{measure.digits}f}" for value in (ruling.effect, *ruling.interval)]
    return f"{ruling.verdict} {numbers[0]} ({numbers[1]} to {numbers[2]})"


def _values(tasks: Mapping[str, Program], arms: Mapping[str, Arms]) -> list[Table]:
    """Makes a table of the last evaluations at every rate."""
    rates = sorted({rate for found in arms.values() for by_rate in found.values() for rate in by_rate})
    rows = []
    for task, found in arms.items():
        number = measure(tasks[task])
        for name, by_rate in found.items():
            cells = []
            for rate in rates:
                group = [run for run in by_rate.get(rate, []) if run.done]
                lost = sum(run.diverged is not None for run in group)
                values = [number.scale * run.records[-1][number.metric] for run in group if run.whole]
                cells.append(f"{lost} of {len(group)} diverged" if lost else
                             mean_and_range(values, number.digits) if values else "-")  # fmt: skip
            rows.append([task, name, *cells])
    note = "The last evaluation, mean over all seeds (lowest to highest), by the multiple of the program's rate."
    return [Table("All rates", ["task", "arm", *(f"{rate:g}" for rate in rates)], rows, note)] if rows else []


def _times(arms: Mapping[str, Arms]) -> Table:
    """Makes a table of the time of a run, with its evaluations, and of an update."""
    rows = []
    for task, found in arms.items():
        base = None
        for name, by_rate in found.items():
            runs = [run for group in by_rate.values() for run in group if run.whole]
            if runs:
                seconds = statistics.median(run.records[-1]["seconds"] for run in runs)
                update = min(record["seconds_per_update"] for run in runs for record in run.records)
                base = update if name == "plain" else base
                ratio = f"{update / base:.2f}" if base else "-"
                rows.append([task, name, f"{seconds:.0f}", f"{1000 * update:.1f}", ratio])
    note = "Seconds: the median of whole runs. Milliseconds of an update: of the fastest stretch between evaluations."
    return Table("Time", ["task", "arm", "s a run", "ms an update", "x plain"], rows, note)
