"""A run whose trained network draws: its options, and its drawings."""

from __future__ import annotations

import dataclasses
import reprlib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..experiments import catalogue
from ..experiments.command import sample
from ..experiments.errors import UsageError
from ..experiments.protocol import Drawn, Experiment
from ..experiments.runs import folder

_KINDS: dict[Any, tuple[str, type]] = {int: ("a whole number", int), float: ("a number", float), str: ("a text", str)}


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
        return dataclasses.fields(sample.sampler(self.experiment).options)

    def draw(self, texts: Mapping[str, str]) -> Drawn:
        """Lets the network draw.

        Args:
            texts: the text that was typed for each option, by its name.

        Raises:
            UsageError: a text is no value that the option can have.
            RunError: the run, or the data set that an option asks for, cannot be used.
        """
        sampler = sample.sampler(self.experiment)
        options = parsed(sampler.options, texts)
        return sampler.draw(sample.find_run(self.experiment, self.path), options, None)


def find(path: Path) -> Trained:
    """The trained network of the run in a folder.

    Raises:
        RunError: there is no run, or it has no checkpoint yet.
        UsageError: the networks of its experiment do not draw.
    """
    experiment = catalogue.find(folder.read(path).experiment)
    sample.sampler(experiment)
    sample.find_run(experiment, path)
    return Trained(path, experiment)


def parsed(options: type, texts: Mapping[str, str]) -> Any:
    """Reads options from the texts that were typed for them.

    Args:
        options: a dataclass whose fields are made by `option`: whole numbers, numbers and texts.
        texts: by the name of the field.

    Raises:
        UsageError: a text is no such number, or the options refuse the value. The message begins with the field's name.
    """
    values = {}
    for name, hint in typing.get_type_hints(options).items():
        kind, read = _KINDS[hint]
        try:
            values[name] = read(texts[name])
        except ValueError:
            raise UsageError(f"{name} must be {kind}, got {reprlib.repr(texts[name])}") from None
    try:
        return options(**values)
    except ValueError as error:
        raise UsageError(str(error).removeprefix("--")) from error
