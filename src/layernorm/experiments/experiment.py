"""What an experiment is: a configuration with presets, a data set, a training task and a report.

A new experiment is one file that makes an `Experiment`, and one line in `EXPERIMENTS`.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from .errors import unknown

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator

    from .report import Report
    from .run_folder import Run

EXPERIMENTS = {
    "digits": "layernorm.experiments.digits",
    "mnist": "layernorm.experiments.mnist",
    "draw": "layernorm.experiments.draw",
    "handwriting": "layernorm.experiments.handwriting",
}
"""Every experiment's module; it holds the experiment as `EXPERIMENT`."""


def option(
    default: Any, doc: str, *, several: str | None = None, least: float | None = None, above: float | None = None
) -> Any:
    """A field of a configuration.

    Args:
        default: its value unless a preset or the user says otherwise.
        doc: one line; it becomes the option's help.
        several: the command line's name for the option if it takes several values, each of them making runs of its own.
        least, above: a number must be at least the one, and greater than the other.
    """
    return field(default=default, metadata={"doc": doc, "several": several, "least": least, "above": above})


def flag(item: dataclasses.Field) -> str:
    """An option as one types it."""
    return f"--{item.metadata['several'] or item.name.replace('_', '-')}"


def check_ranges(values: Any) -> None:
    """Compares the numbers in a dataclass of options with the ranges that `option` gave them.

    Raises:
        ValueError: one lies outside, or is no finite number; the message names the option.
    """
    for item in dataclasses.fields(values):
        value, least, above = getattr(values, item.name), item.metadata["least"], item.metadata["above"]
        kind = "a finite number, " if isinstance(value, float) else ""
        if least is not None and not least <= value < math.inf:
            raise ValueError(f"{flag(item)} must be {kind}at least {least}, got {value}")
        if above is not None and not above < value < math.inf:
            raise ValueError(f"{flag(item)} must be {kind}greater than {above}, got {value}")


class Data(Protocol):
    """A prepared data set, as far as the shared code looks at it."""

    @property
    def facts(self) -> dict[str, Any]:
        """`name`, `fingerprint` (SHA-256 of the content), `original` (is it the paper's?) and what reports tell."""


@dataclass(frozen=True)
class Preset:
    """A named variant: a configuration, and the values over which `layernorm run` goes when it is given none."""

    summary: str
    config: Any
    several: Mapping[str, tuple]


@dataclass
class Task:
    """One run, ready to train: what the loop in `training.py` needs and no more.

    Attributes:
        model: the network, on any device; the loop moves and wraps it.
        optimizer: over the model's parameters.
        updates: the length of the run.
        evaluate_every: updates between evaluations; the last update is evaluated in any case.
        updates_per_epoch: to tell epochs.
        loss: (the model as wrapped, update from 0) -> this process's part of the global batch's mean loss: the parts of
            all processes add up to it.
        evaluate: (the bare model, in evaluation mode) -> metrics; every process computes all of them by itself.
        seen: updates -> training cases seen.
        before_step: called with the bare model between the backward pass and the step: gradient clipping.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    updates: int
    evaluate_every: int
    updates_per_epoch: int
    loss: Callable[[nn.Module, int], Tensor]
    evaluate: Callable[[nn.Module], dict[str, float]]
    seen: Callable[[int], int]
    before_step: Callable[[nn.Module], None] | None = None


@dataclass(frozen=True)
class Sampler:
    """How an experiment's trained network is made to draw: `layernorm sample NAME RUN`.

    Attributes:
        options: a dataclass whose fields are made by `option`; ValueError from its construction is wrong usage.
        sample: (the run, the options, where to look for data and where to write) -> the files written. It rebuilds the
            network from the run's configuration and fills it by `samples.restore`.
        examples: command lines for the help.
    """

    options: type
    sample: Callable[[Run, Any, SampleSettings], Sequence[Path]]
    examples: Sequence[str]


@dataclass(frozen=True)
class SampleSettings:
    """What every `layernorm sample` takes: where the data set is looked for, and where the files go."""

    data: Path | None = option(None, "folder with the data set's files (else $LAYERNORM_DATA/NAME, cache)")
    out: Path | None = option(None, "folder for the files (else RUN/samples)")


@dataclass(frozen=True)
class Experiment:
    """An experiment of the paper.

    Attributes:
        name: as in `layernorm run NAME`.
        summary: one line for the list of experiments.
        examples: command lines for the help.
        presets: by name; the first is the default.
        load: (configuration, folder given by --data) -> the data set.
        check: (configuration, data set) -> nothing; ValueError, naming the option, if the two do not fit.
        task: (configuration, data set, accelerator) -> what to train.
        report: the runs -> figures, tables, findings, deviations.
        threads: processor threads unless --threads says it; 0: torch's choice.
        embedded: whether the data set is part of a package, so that there is no folder to give.
        sampler: how its network draws; None if there is nothing to draw.
    """

    name: str
    summary: str
    examples: Sequence[str]
    presets: Mapping[str, Preset]
    load: Callable[[Any, Path | None], Any]
    check: Callable[[Any, Any], None]
    task: Callable[[Any, Any, Accelerator], Task]
    report: Callable[[Sequence[Run]], Report]
    threads: int = 0
    embedded: bool = False
    sampler: Sampler | None = None

    @property
    def default_preset(self) -> str:
        """The preset of a bare `layernorm run NAME`."""
        return next(iter(self.presets))

    def run_name(self, config: Any) -> str:
        """The folder name of one run: the experiment and every field that can take several values."""
        values = [getattr(config, field.name) for field in swept(type(config))]
        marks = {"batch_size": "b", "seed": "s"}
        names = [marks.get(field.name, "") for field in swept(type(config))]
        return "-".join([self.name, *(f"{mark}{value}" for mark, value in zip(names, values, strict=True))])


def swept(config: type) -> list[dataclasses.Field]:
    """The fields of a configuration that can take several values on the command line."""
    return [field for field in dataclasses.fields(config) if field.metadata.get("several")]


def find(name: str) -> Experiment:
    """The experiment of this name.

    Raises:
        UsageError: there is none; the nearest name is suggested.
    """
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return importlib.import_module(EXPERIMENTS[name]).EXPERIMENT
