"""Reads a run back into memory: its configuration as a dataclass, its newest weights in a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import nn

from ..errors import RunError
from . import checkpoint
from .folder import CONFIG, Run, read_run
from .schema import Precision, filled

Config = TypeVar("Config")
Data = TypeVar("Data", bound="HasFacts")
Model = TypeVar("Model", bound=nn.Module)


def configuration(kind: type[Config], run: Run) -> Config:
    """Makes a run's configuration of the values saved in its folder."""
    values = {name: value for name, value in run.config.items() if name != "precision"}
    try:
        filled(_Apart, {"precision": run.config.get("precision")})
        return filled(kind, values)
    except ValueError as error:
        raise RunError(f"{run.path / CONFIG} {error}") from error


def read_run_of(experiment: str, path: Path) -> Run:
    """Reads the run in a folder, which must be of this experiment and have a checkpoint."""
    if not path.is_dir():
        raise RunError(f"{path} is not a folder; give the folder of one run")
    run = read_run(path)
    if run.experiment != experiment:
        raise RunError(f"{path} holds a run of {run.experiment}, not of {experiment}")
    run.checkpoint()
    return run


@dataclass(frozen=True)
class _Apart:
    """What a run's configuration has beside the experiment's."""

    precision: Precision


class HasFacts(Protocol):
    """A data set."""

    @property
    def facts(self) -> dict[str, Any]:
        """`name`, `fingerprint` (SHA-256 of the content), `original` (is it the paper's?) and facts for reports."""


def training_data(run: Run, folder: Path | None, load: Callable[[Path | None], Data], part: str | None = None) -> Data:
    """Loads the data of a run's training: from the given folder, else from where they were then, else from anywhere.
    Other data are a RunError.

    Args:
        run: the run.
        folder: the given folder.
        load: (folder; None: wherever it is found) -> the data set.
        part: the name of one of several data sets. It is also the name of its folder in the given one.
    """
    known = run.environment["data"]
    place, fingerprint = known.get("folder"), known.get("fingerprint")
    if part is not None:
        place, fingerprint = (known.get(name, {}).get(part) for name in ("folders", "fingerprints"))
        folder = None if folder is None else folder / part
    if folder is None and place and Path(place).is_dir():
        folder = Path(place)
    data = load(folder)
    if data.facts["fingerprint"] != fingerprint:
        what, where = part or "data", data.facts.get("folder")
        raise RunError(f"the {what} in {where} are not those of the run in {run.path}; give their folder with --data")
    return data


def restore_model(model: Model, run: Run) -> tuple[Model, int]:
    """Loads a run's weights into a network and puts it into evaluation mode: those of the best evaluation if the run
    keeps them, otherwise those of the newest checkpoint. Of a run that diverged, only kept weights can be used. Returns
    the network, and the update that the weights are from."""
    path = run.checkpoint()
    tensors, header = checkpoint.load_run_checkpoint(path)
    kept, state = checkpoint.under("kept", tensors), header.state
    if run.diverged is not None and not kept:
        raise RunError(f"the run in {run.path} diverged at update {run.diverged}: it left no weights to use")
    try:
        model.load_state_dict(kept or checkpoint.under("model", tensors))
    except RuntimeError as error:
        raise RunError(f"{path} does not fit this model ({' '.join(str(error).split())[:200]})") from error
    return model.eval(), state.kept_update if kept else state.update
