"""`layernorm report`: finds the runs in some folders and has their experiment report on them."""

from __future__ import annotations

from pathlib import Path

from ..catalogue import find_experiment
from ..errors import LackingError, RunError, UsageError, printable
from ..protocol import Experiment
from ..report import rendering, summary
from ..report.page import Report, environment_lines
from ..report.verdicts import with_verdicts
from ..runs import folder
from ..runs.folder import FoundRuns, Run, without_copies
from ..runs.restore import configuration
from .waiting import waiting


def write_report(paths: list[Path], place: Path) -> None:
    """Writes the report on the runs under some folders, and prints its tables and where it is."""
    with waiting("drawing the report"):
        report = make_report(paths)
        page = rendering.write_report(report, place)
    rendering.print_report(report)
    print(f"\nreport: {printable(str(page))}")


def make_report(paths: list[Path]) -> Report:
    """Makes the report on the runs in some folders and summaries. Its status says which runs were left out, and why."""
    experiment, (runs, notes) = runs_of_one_experiment(paths)
    while runs:
        try:
            report = with_verdicts(experiment.report(runs, experiment.claims), experiment.claims, runs)
            environment_lines(report)  # fails here where the page would fail
        except LackingError as error:
            lost = error.path.parent
            runs = [run for run in runs if run.path != lost]
            notes.append(f"skipped: {error}")
        else:
            report.status[:0] = notes
            return report
    raise RunError("; ".join(notes))


def runs_of_one_experiment(paths: list[Path]) -> tuple[Experiment, FoundRuns]:
    """Finds the runs in some folders and summaries, which must be of one experiment, and that experiment."""
    summaries = [path for path in paths if path.name.endswith(summary.ENDINGS) and not path.is_dir()]
    folders = [path for path in paths if path not in summaries]
    whole, notes = folder.find_runs(folders) if folders else FoundRuns([], [])
    kept = [run for path in summaries for run in summary.read_summary(path)]
    whole, copies = without_copies([*whole, *kept])
    if copies:
        notes.append(f"skipped: runs of summaries that are also elsewhere ({len(copies)})")
    runs: dict[str, list[Run]] = {}
    for run in whole:
        try:
            experiment = find_experiment(run.experiment)
            configuration(experiment.kind, run)
        except UsageError as error:
            notes.append(f"skipped: {run.path}: {error}")
        except RunError as error:
            notes.append(f"skipped: {error}")
        else:
            runs.setdefault(run.experiment, []).append(run)
    if not runs:
        raise RunError("; ".join(notes) or f"there are no runs in {', '.join(map(str, paths))}")
    if len(runs) > 1:
        raise UsageError(f"these are runs of several experiments ({', '.join(sorted(runs))}); give those of one")
    ((name, of_experiment),) = runs.items()
    return find_experiment(name), FoundRuns(of_experiment, notes)
