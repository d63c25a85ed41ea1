"""What `layernorm sample` does: a run's network, rebuilt from its configuration and newest checkpoint, draws."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from torch import nn

from . import checkpoint, run_folder
from .errors import RunError, UsageError
from .experiment import EXPERIMENTS, Experiment, Sampler, SampleSettings, find
from .files import make_folder
from .run_folder import Run

Config = TypeVar("Config")
Model = TypeVar("Model", bound=nn.Module)


def sampler(experiment: Experiment) -> Sampler:
    """An experiment's sampler.

    Raises:
        UsageError: it has none; the message says which have.
    """
    if experiment.sampler is None:
        able = [name for name in EXPERIMENTS if find(name).sampler is not None]
        raise UsageError(f"{experiment.name} has nothing to sample; there are: {', '.join(able) or 'none'}")
    return experiment.sampler


def find_run(experiment: Experiment, path: Path) -> Run:
    """The run in a folder.

    Raises:
        RunError: it is no run's folder, holds a run of another experiment, or the run has no checkpoint yet.
    """
    if not path.is_dir():
        raise RunError(f"{path} is not a folder; give the folder of one run")
    run = run_folder.read(path)
    if run.experiment != experiment.name:
        raise RunError(f"{path} holds a run of {run.experiment}, not of {experiment.name}")
    if not (path / run_folder.CHECKPOINT).exists():
        raise RunError(f"the run in {path} has no checkpoint yet")
    return run


def configuration(kind: type[Config], run: Run) -> Config:
    """A run's configuration, as its folder keeps it.

    Raises:
        RunError: an option is missing or has an impossible value.
    """
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    path = run.path / run_folder.CONFIG
    missing = [name for name in names if name not in run.config]
    if missing:
        raise RunError(f"{path} lacks {', '.join(missing)}")
    for name, hint in typing.get_type_hints(kind).items():
        if typing.get_origin(hint) is Literal and run.config[name] not in typing.get_args(hint):
            known = ", ".join(typing.get_args(hint))
            raise RunError(f"{path} has an impossible value: {name} is {run.config[name]!r}, not one of {known}")
    try:
        return kind(**{name: run.config[name] for name in names})
    except (TypeError, ValueError) as error:
        raise RunError(f"{path} has an impossible value: {error}") from error


def restore(model: Model, run: Run) -> tuple[Model, int]:
    """Fills a network with the weights of a run's newest checkpoint and puts it into evaluation mode.

    Returns:
        the network, and the update from which the weights are.

    Raises:
        RunError: there is no checkpoint, it is damaged, or it does not fit the network.
    """
    path = run.path / run_folder.CHECKPOINT
    if not path.exists():
        raise RunError(f"the run in {run.path} has no checkpoint yet")
    tensors, header = checkpoint.load(path)
    try:
        model.load_state_dict(checkpoint.under("model", tensors))
    except RuntimeError as error:
        raise RunError(f"{path} does not fit this model ({' '.join(str(error).split())[:200]})") from error
    return model.eval(), header["state"]["update"]


def draw(experiment: Experiment, path: Path, options: Any, settings: SampleSettings) -> Sequence[Path]:
    """Lets the network of the run in a folder draw.

    Returns:
        the files written.

    Raises:
        RunError, UsageError: as the message says.
    """
    run = find_run(experiment, path)
    settings = dataclasses.replace(settings, out=make_folder(settings.out or path / "samples"))
    return sampler(experiment).sample(run, options, settings)
