"""A run whose trained network draws: its options, and its drawings."""

from __future__ import annotations

import dataclasses
import reprlib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import catalogue
from ..errors import UsageError
from ..protocol import Drawn, Experiment
from ..runs import folder
from ..runs.restore import read_run_of
from ..runs.schema import type_name


@dataclass(frozen=True)
class Trained:
    """The network of one run. Whenever it draws, it is read again from the run's newest checkpoint.

    Attributes:
        path: the run's folder.
        experiment: the run's experiment, whose sampler draws.
    """

    path: Path
    experiment: Experiment

    @property
    def fields(self) -> tuple[dataclasses.Field, ...]:
        """The options of the experiment's sampler."""
        return dataclasses.fields(catalogue.find_sampler(self.experiment).options)

    def draw(self, texts: Mapping[str, str]) -> Drawn:
        """Lets the network draw by the texts that were typed for its options, by their names. What is refused is a
        UsageError."""
        sampler = catalogue.find_sampler(self.experiment)
        options = parsed(sampler.options, texts)
        return sampler.draw(read_run_of(self.experiment.name, self.path), options, None)


def find_trained(path: Path) -> Trained:
    """Finds the trained network of the run in a folder, which must have a checkpoint and an experiment that draws."""
    run = folder.read_run(path)
    experiment = catalogue.find_experiment(run.experiment)
    catalogue.find_sampler(experiment)
    run.checkpoint()
    return Trained(path, experiment)


def parsed(options: type, texts: Mapping[str, str]) -> Any:
    """Reads options, made by `option`, from the texts that were typed for them. A UsageError begins with the name of
    the field."""
    values = {}
    for name, kind in typing.get_type_hints(options).items():
        try:
            values[name] = kind(texts[name])
        except ValueError:
            raise UsageError(f"{name} must be {type_name(kind)}, got {reprlib.repr(texts[name])}") from None
    try:
        return options(**values)
    except ValueError as error:
        raise UsageError(str(error).removeprefix("--")) from error
