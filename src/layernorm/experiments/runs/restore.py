"""What a run has learned, back in memory: its configuration as a dataclass, its newest weights in a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import nn

from ..errors import RunError
from . import checkpoint
from .folder import CHECKPOINT, CONFIG, Run
from .schema import filled

Config = TypeVar("Config")
Data = TypeVar("Data", bound="HasFacts")
Model = TypeVar("Model", bound=nn.Module)


def configuration(kind: type[Config], run: Run) -> Config:
    """A run's configuration, as its folder keeps it.

    Raises:
        RunError: an option is missing, unknown or has an impossible value.
    """
    values = {name: value for name, value in run.config.items() if name != "precision"}
    try:
        return filled(kind, values)
    except ValueError as error:
        raise RunError(f"{run.path / CONFIG} {error}") from error


class HasFacts(Protocol):
    """A data set with the facts that records and reports tell about it."""

    @property
    def facts(self) -> dict[str, Any]: ...


def training_data(run: Run, folder: Path | None, load: Callable[[Path | None], Data], part: str | None = None) -> Data:
    """The data of a run's training: from the folder given, else from where they were then, else wherever they are.

    Args:
        load: (folder; None: wherever it is found) -> the data set.
        part: the name of one of several data sets, which is also that of its folder in the one given.

    Raises:
        RunError: they are missing or damaged, or are others than the run's.
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


def restore(model: Model, run: Run) -> tuple[Model, int]:
    """Fills a network with a run's weights and puts it into evaluation mode.

    Where the run keeps the weights of its best evaluation it is these, else the newest checkpoint's. Of a run that
    diverged, only kept weights are worth anything.

    Returns:
        the network, and the update from which the weights are.

    Raises:
        RunError: there is no checkpoint, it is damaged, it does not fit the network, or the run diverged and kept none.
    """
    path = run.path / CHECKPOINT
    if not path.exists():
        raise RunError(f"the run in {run.path} has no checkpoint yet")
    tensors, header = checkpoint.load_run(path)
    kept, state = checkpoint.under("kept", tensors), header.state
    if run.diverged is not None and not kept:
        raise RunError(f"the run in {run.path} diverged at update {run.diverged}: it left no weights to use")
    try:
        model.load_state_dict(kept or checkpoint.under("model", tensors))
    except RuntimeError as error:
        raise RunError(f"{path} does not fit this model ({' '.join(str(error).split())[:200]})") from error
    return model.eval(), state.kept_update if kept else state.update
