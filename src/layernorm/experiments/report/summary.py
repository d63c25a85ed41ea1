"""Some runs of one experiment as one small JSON file: what verdicts are computed from, long after the runs are gone.

A summary holds runs as `Run` does, without checkpoints and tests, their records thinned. So whatever takes runs takes
what is read from one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..runs.files import read_json, write_atomic
from ..runs.folder import Run
from ..runs.schema import sealed

RECORDS = 60
"""At most about so many records of a run are kept: evenly spread, the first and the last among them."""

DIGITS = 6
"""Numbers keep so many."""


def write(path: Path, runs: Sequence[Run]) -> None:
    """Writes the summary of some runs: configurations, environments, seeds, thinned curves, results.

    The commands are left out, since they name folders of the machine; the configurations say the same.

    Raises:
        RunError: the file cannot be written.
    """
    found = [
        {
            "name": run.path.name,
            "config": run.config,
            "data": {name: run.environment["data"].get(name) for name in ("name", "fingerprint", "original")},
            "start": {name: value for name, value in run.environment["starts"][-1].items() if name != "command"},
            "done": run.done,
            "result": _rounded(run.result),
            "records": [_rounded(record) for record in _thinned(run.records)],
        }
        for run in sorted(runs, key=lambda run: run.path.name)
    ]
    kept = sealed({"experiment": runs[0].experiment, "runs": found})
    lines = ",\n".join(map(json.dumps, found))  # a line a run, so that a change is seen as one
    head, end = (f'"{name}": {json.dumps(kept[name])}' for name in ("experiment", "sha256"))
    write_atomic(path, f'{{{head}, "runs": [\n{lines}\n], {end}}}\n'.encode())


def read(path: Path) -> list[Run]:
    """The runs in a summary.

    Raises:
        RunError: the file cannot be read, or is not as it was written.
    """
    kept = read_json(path, "make it again with layernorm report RUNS --summary FILE")
    return [
        Run(
            path=path.parent / item["name"],
            experiment=kept["experiment"],
            config=item["config"],
            environment={"data": item["data"], "starts": [item["start"]]},
            records=item["records"],
            done=item["done"],
            result=item["result"],
        )
        for item in kept["runs"]
    ]


def _thinned(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    step = -(-len(records) // RECORDS)
    return [record for place, record in enumerate(records) if place % step == 0 or place == len(records) - 1]


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.{DIGITS}g}") if type(value) is float else value for name, value in values.items()}
