"""A run's folder: its configuration, environment, records, checkpoint and result.

config.json             the experiment's name and the configuration
environment.json        versions, CPU, commit, data set fingerprint, command; one entry for each start
records.jsonl           one line for each evaluation; like the other files it carries its SHA-256
checkpoint.safetensors  the newest state
test.safetensors        the results of a finished run's test for every case, if its experiment saves them
result.json             is written last and shows that the run is done; it has `diverged` if the run diverged
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ..errors import RunError, failing
from . import checkpoint, records
from .files import ADVICE, locked, make_folder, names_in, read_json, remove_leftovers, write_json
from .schema import Values, check_numbers, filled, fits, type_name

CONFIG, ENVIRONMENT, RECORDS = "config.json", "environment.json", "records.jsonl"
CHECKPOINT, TEST, RESULT = "checkpoint.safetensors", "test.safetensors", "result.json"
FILES = (RESULT, TEST, CHECKPOINT, RECORDS, ENVIRONMENT, CONFIG)
"""The files that a run writes, in the order in which they are removed: the result first, the configuration last."""


@dataclass(frozen=True)
class Environment:
    """The content of environment.json: the facts of the data set, and one entry for each start."""

    data: dict[str, Any]
    starts: list[dict[str, Any]]

    def __post_init__(self) -> None:
        """Checks what the library reads of it, with a ValueError whose message follows the name of the file."""
        for name, hint in _FACTS.items():
            if name in self.data and not fits(self.data[name], hint):
                raise ValueError(f"{name} is {self.data[name]!r}, not {type_name(hint)}")
        for start in self.starts:
            for name, value in start.items():
                hint = _START.get(name, _SCALAR)
                if not fits(value, hint):
                    raise ValueError(f"{name} of a start is {value!r}, not {type_name(hint)}")


_SCALAR: Any = str | float | bool | None
_START: Mapping[str, Any] = {"command": str, "update": int}
_FACTS: Mapping[str, Any] = {"name": str, "fingerprint": str, "original": bool}


@dataclass(frozen=True)
class Run:
    """A run as read from its folder, finished or not."""

    path: Path
    experiment: str
    config: dict[str, Any]
    environment: dict[str, Any]
    records: list[records.Record]
    done: bool
    result: dict[str, Any]

    @property
    def diverged(self) -> int | None:
        """The update whose evaluation showed that the run had diverged, which ended it. None: it did not diverge."""
        return self.result.get("diverged")

    @property
    def whole(self) -> bool:
        """Whether it has made all its updates and was tested after them, that is, it is done and did not diverge."""
        return self.done and self.diverged is None

    def checkpoint(self) -> Path:
        """Returns the path of the newest checkpoint, which must exist. A run in a summary has none."""
        path = self.path / CHECKPOINT
        if not path.exists():
            raise RunError(f"the run in {self.path} has no checkpoint yet")
        return path

    def tested(self) -> dict[str, Tensor]:
        """Reads the tensors that the test at the run's end saved, by name; empty if there are none."""
        path = self.path / TEST
        return checkpoint.load_checkpoint(path)[0] if self.done and path.exists() else {}


class FoundRuns(NamedTuple):
    """The runs in some folders, and a line for each run that was left out."""

    runs: list[Run]
    notes: list[str]


class RunFolder:
    """A run's folder, opened for training.

    Args:
        path: the folder. It is created if it is missing.
        writes: whether this process writes, as the main process does.
    """

    def __init__(self, path: Path, writes: bool = True) -> None:
        self.path, self.writes = path, writes
        self.checkpoint = path / CHECKPOINT

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Locks the folder. Another process that wants it is refused."""
        if not self.writes:
            yield
            return
        make_folder(self.path)
        with locked(self.path):
            remove_leftovers(self.path, FILES)
            yield

    @property
    def done(self) -> bool:
        """Whether the run has reached its end."""
        return (self.path / RESULT).exists()

    def clear(self) -> None:
        """Removes the run: the files that this package wrote, and no others."""
        for name in FILES:  # in this order, a kill in between leaves a folder with its configuration
            with failing(f"remove {self.path / name}"):
                (self.path / name).unlink(missing_ok=True)

    def check_config(self, wanted: dict[str, Any], flags: Mapping[str, str]) -> None:
        """Refuses a folder that holds a run of another configuration. The error says what differs, a value that is an
        option by its flag."""
        if _config_exists(self.path):
            _refuse_other(self.path, read_json(self.path / CONFIG), wanted, flags)

    def finished(self, wanted: dict[str, Any]) -> bool:
        """Tells whether the folder holds a run of exactly this configuration that has reached its end."""
        return _config_exists(self.path) and self.done and read_json(self.path / CONFIG) == wanted

    def check_data(self, facts: dict[str, Any]) -> None:
        """Refuses to resume with another data set than the run began with."""
        if data := _environment(self.path).data:
            _refuse_other(self.path, data, facts, {}, only=("name", "fingerprint"))

    def start(self, config: dict[str, Any]) -> None:
        """Writes the configuration."""
        if self.writes:
            write_json(self.path / CONFIG, config)

    def started(self, environment: dict[str, Any], facts: dict[str, Any], update: int) -> None:
        """Writes that training starts or resumes from an update, and in which environment."""
        if not self.writes:
            return
        starts = _environment(self.path).starts if update else []
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        start = {"update": update, "time": now, **environment}
        write_json(self.path / ENVIRONMENT, asdict(Environment(facts, [*starts, start])))

    def cut_back(self, update: int, count: int) -> None:
        """Drops the records after the checkpoint's update, which will be made again. `count` records must be left."""
        if not self.writes:
            return
        kept = len(records.cut_back(self.path / RECORDS, update))
        if kept != count:
            raise _records_missing(self.path, kept, update, count)

    def record(self, record: records.Record) -> None:
        """Adds one record."""
        if self.writes:
            records.append_record(self.path / RECORDS, record)

    def keep_test(self, tensors: Mapping[str, Tensor]) -> None:
        """Writes the results of the test at the run's end for every case."""
        if self.writes and tensors:
            checkpoint.save_checkpoint(self.path / TEST, tensors, {})

    def finish(self, result: dict[str, Any]) -> None:
        """Marks the run as done."""
        if self.writes:
            write_json(self.path / RESULT, result)


def read_run(path: Path) -> Run:
    """Reads a run's folder."""
    if not _config_exists(path):
        raise RunError(f"there is no run in {path}")
    config = read_json(path / CONFIG)
    experiment = config.pop("experiment", None)
    if not isinstance(experiment, str):
        raise RunError(f"{path / CONFIG} names no experiment")
    result, lines = _result_and_records(path)
    made_with = _environment(path)
    environment = {"data": Values(made_with.data, path / ENVIRONMENT), "starts": made_with.starts}
    return Run(path, experiment, config, environment, lines, bool(result), result)


def find_runs(paths: list[Path]) -> FoundRuns:
    """Finds the runs in some folders, each of which is a run's folder or a folder of such folders. Returns the
    undamaged runs without copies, and a line for each run that is not among them."""
    by_folder: dict[Path, Run] = {}
    notes = []
    for path in paths:
        for folder in _folders(path):
            try:
                run = read_run(folder)
            except RunError as error:
                notes.append(f"skipped: {error}")
                continue
            if run.environment["starts"]:
                by_folder[folder.resolve()] = run
            else:
                notes.append(f"skipped: {folder} has not begun")
    if not by_folder:
        raise RunError("; ".join(dict.fromkeys(notes)))
    runs, copies = without_copies(list(by_folder.values()))
    return FoundRuns(runs, [*dict.fromkeys(notes), *copies])


def _folders(path: Path) -> list[Path]:
    """Lists the folder itself if it holds files of a run, else the folders in it, and in its folders, that do: `runs`
    holds a folder for each experiment, which holds one for each run."""
    if not path.is_dir():
        raise RunError(f"{path} is not a folder; give run folders or a folder of them")
    names = names_in(path)  # raises an error if this folder cannot be read
    if _begun(path):
        return [path]
    inside = [folder for name in names for folder in _one_level(path / name)]
    if not inside:
        raise RunError(f"there are no runs in {path}")
    return inside


def _one_level(path: Path) -> list[Path]:
    if _begun(path):
        return [path]
    return [path / name for name in names_in(path) if _begun(path / name)] if path.is_dir() else []


def _begun(path: Path) -> bool:
    try:
        return bool(_run_files_in(path))
    except RunError:
        return True  # `read_run` will then say why it cannot be read


def _run_files_in(path: Path) -> list[str]:
    """Lists the files of a run that are in a folder."""
    names = names_in(path, missing_ok=True)
    return [name for name in (CONFIG, RESULT, CHECKPOINT, RECORDS) if name in names]


def _config_exists(path: Path) -> bool:
    """Tells whether a folder has a configuration. If it has none, it must not have other files of a run either."""
    made = _run_files_in(path)
    if made and CONFIG not in made:
        raise RunError(f"{path} has {' and '.join(made)} but no {CONFIG}; put it back, or delete that folder")
    return bool(made)


def _environment(path: Path) -> Environment:
    """Reads the environment of a run; empty if the run has not begun yet."""
    place = path / ENVIRONMENT
    if not place.exists():
        # the empty file of records is made first, and the run may be killed in between
        later = [name for name in (RESULT, CHECKPOINT, RECORDS) if (path / name).exists()]
        if later and (later != [RECORDS] or (path / RECORDS).stat().st_size):
            raise RunError(f"{place} is missing, although there is a {later[0]}; {ADVICE}")
        return Environment({}, [])
    try:
        environment = filled(Environment, read_json(place))
        if not all("command" in start for start in environment.starts):  # early summaries have none
            raise ValueError("has a start without its command")
        return environment
    except ValueError as error:
        raise RunError(f"{place} {error}; {ADVICE}") from error


def _result_and_records(path: Path) -> tuple[Values, list[records.Record]]:
    """Reads a run's result, empty if it is not done, and its records, of which none may be missing."""
    # these are read before the records, which a run in progress may be adding to
    state = checkpoint.read_state(path / CHECKPOINT)
    place = path / RESULT
    result = checked_result(read_json(place), place) if place.exists() else Values({}, place)
    lines = records.read_records(path / RECORDS)
    counts = [(state.update, state.records)] if state else []
    counts += [(result["update"], result["records"])] if result else []
    for update, count in counts:
        if len(lines) < count:
            raise _records_missing(path, len(lines), update, count)
    # the last update of a run that did not diverge is evaluated
    if result and "diverged" not in result and not (lines and lines[-1]["update"] == result["update"]):
        raise RunError(f"{path / RECORDS} does not end with update {result['update']}, as {RESULT} does; {ADVICE}")
    return result, lines


def checked_result(result: dict[str, Any], path: Path) -> Values:
    """Checks what a file has of a run's result. A RunError tells what is damaged."""
    try:
        check_numbers(result, whole=("update", "records", *({"diverged"} & result.keys())))
    except ValueError as error:
        raise RunError(f"{path} {error}; {ADVICE}") from error
    return Values(result, path)


def _records_missing(path: Path, kept: int, update: int, count: int) -> RunError:
    return RunError(f"{path / RECORDS} holds {kept} records up to update {update} instead of {count}; {ADVICE}")


def without_copies(runs: Sequence[Run]) -> FoundRuns:
    """Keeps one of the runs that have the same configuration, seed and data set: a finished one, or else that with the
    most records."""
    kept: dict[str, Run] = {}
    notes = []
    for run in runs:
        same = json.dumps([run.experiment, run.config, run.environment["data"].get("fingerprint")], sort_keys=True)
        first = kept.setdefault(same, run)
        if run is not first:
            better = (run.done, len(run.records)) > (first.done, len(first.records))
            kept[same], copy = (run, first) if better else (first, run)
            notes.append(f"skipped: {copy.path} has the configuration and seed of {kept[same].path}")
    return FoundRuns(list(kept.values()), notes)


def _refuse_other(
    path: Path, there: dict[str, Any], asked: dict[str, Any], flags: Mapping[str, str], only: tuple[str, ...] = ()
) -> None:
    names = only or tuple(dict.fromkeys([*there, *asked]))
    differing = [
        f"{flags.get(name, name)} is {there.get(name)} there, {asked.get(name)} here"
        for name in names
        if there.get(name) != asked.get(name)
    ]
    if differing:
        raise RunError(f"{path} holds another run: {'; '.join(differing)}. Choose another --out, or delete that folder")
