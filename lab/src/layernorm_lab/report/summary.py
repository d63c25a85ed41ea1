"""Some runs of one experiment as one small file, from which verdicts can be computed after the runs are deleted.

A summary has the fields of `Run`, without checkpoints and tests; of the records it has a list of values for each
metric, rounded to `DIGITS` significant digits. Nothing is thinned. Every function that takes runs also takes those that
are read from a summary.
"""

from __future__ import annotations

import gzip
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import RunError
from ..runs.files import parse_values, read_content, write_atomic
from ..runs.folder import ENVIRONMENT, RECORDS, RESULT, Environment, Run, checked_result
from ..runs.records import Record, checked
from ..runs.schema import Values, filled, sealed

ENDINGS = (".json", ".json.gz")
"""How the name of a summary ends."""

DIGITS = 6
"""Of a record's numbers: more than verdicts and figures print. float32, in which they are computed, has 7."""

FOLDERS = ("--out", "--data")
"""The options of commands that name folders of the machine."""


def write_summary(path: Path, runs: Sequence[Run]) -> None:
    """Writes the summary of some runs: configurations, environments, seeds, curves, results. It is compressed if the
    name ends in .gz, to about a fifth. Folders of the machine are left out of the data's facts and of the commands."""
    items = [
        {
            "name": run.path.name,
            "config": run.config,
            "data": {name: value for name, value in run.environment["data"].items() if not name.startswith("folder")},
            "start": _elsewhere(run.environment["starts"][-1]),
            "done": run.done,
            "result": run.result,
            "records": _columns(run.records),
        }
        for run in sorted(runs, key=lambda run: run.path.name)
    ]
    kept = sealed({"experiment": runs[0].experiment, "runs": items})
    lines = ",\n".join(map(json.dumps, items))  # one line for each run, for those who read it
    head, end = (f'"{name}": {json.dumps(kept[name])}' for name in ("experiment", "sha256"))
    content = f'{{{head}, "runs": [\n{lines}\n], {end}}}\n'.encode()
    write_atomic(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def read_summary(path: Path) -> list[Run]:
    """Reads the runs in a summary."""
    kept = parse_values(read_content(path), str(path), _ADVICE)
    if not {"experiment", "runs"} <= kept.keys():
        raise RunError(f"{path} is no summary of runs; layernorm report RUNS --summary FILE writes one")
    try:
        summary = filled(_Summary, kept)
        return [_run(path.parent, summary.experiment, filled(_Item, item)) for item in summary.runs]
    except ValueError as error:
        raise RunError(f"{path} {error}; {_ADVICE}") from error


_ADVICE = "make it again with layernorm report RUNS --summary FILE"


@dataclass(frozen=True)
class _Summary:
    experiment: str
    runs: list[Any]


@dataclass(frozen=True)
class _Item:
    """What a summary has of a run."""

    name: str
    config: dict[str, Any]
    data: dict[str, Any]
    start: dict[str, Any]
    done: bool
    result: dict[str, Any]
    records: dict[str, list[float | None]]

    def __post_init__(self) -> None:
        if len({len(column) for column in self.records.values()}) > 1:
            raise ValueError(f"the records of {self.name} have columns of several lengths")


def _run(folder: Path, experiment: str, item: _Item) -> Run:
    """Makes a run of what a summary has of it. What is lacking is told by the file that it was in."""
    path = folder / item.name
    try:
        made_with = Environment(item.data, [item.start])
    except ValueError as error:
        raise ValueError(f"has an impossible value in {item.name}: {error}") from error
    environment = {"data": Values(made_with.data, path / ENVIRONMENT), "starts": made_with.starts}
    result = checked_result(item.result, path / RESULT) if item.done else Values({}, path / RESULT)
    return Run(
        path, experiment, item.config, environment, checked(_rows(item.records), path / RECORDS), item.done, result
    )


def _elsewhere(start: dict[str, Any]) -> dict[str, Any]:
    """Removes the folders of this machine from the command of a start."""
    if "command" not in start:
        return start
    words = iter(shlex.split(start["command"]))
    kept: list[str] = []
    for word in words:
        if word in FOLDERS:
            next(words, None)
        elif not word.startswith(tuple(f"{option}=" for option in FOLDERS)):
            kept.append(word)
    return {**start, "command": shlex.join(kept)}


def _columns(records: Sequence[Record]) -> dict[str, list[Any]]:
    """Returns for each metric its value in every record, None in one without it."""
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [_rounded(record.get(name)) for record in records] for name in names}


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[Record]:
    """Returns the records: the reverse of `_columns`."""
    rows = (zip(columns, row, strict=True) for row in zip(*columns.values(), strict=True))
    return [{name: value for name, value in row if value is not None} for row in rows]
