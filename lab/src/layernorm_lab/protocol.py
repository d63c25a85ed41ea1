"""What an experiment is: a configuration with presets, a data set, a training task and a report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .config import option, values_in_name

if TYPE_CHECKING:
    from .report.judge import Claim
    from .report.page import Picture, Report
    from .runs.folder import Run
    from .train.task import Accelerator, Task


@dataclass(frozen=True)
class Preset:
    """A named variant: a configuration, and the values that `layernorm run` goes over unless it is given others."""

    summary: str
    config: Any
    sweep: Mapping[str, tuple]


class Drawn(NamedTuple):
    """What a trained network drew: pictures in the order in which they are shown, those with the same name being one
    picture in several formats, the best first; and notes for the user, such as that the network stopped early."""

    pictures: Sequence[Picture]
    notes: Sequence[str] = ()


class StoppedError(Exception):
    """Nobody waits for a drawing any more."""


stop_asked: ContextVar[Callable[[], bool]] = ContextVar("stop_asked", default=lambda: False)
"""Says whether the drawing that is being made is to stop."""


def go_on() -> None:
    """Raises `StoppedError` if nobody waits for the drawing. A network that draws calls this before each step."""
    if stop_asked.get()():
        raise StoppedError


@dataclass(frozen=True)
class Sampler:
    """How an experiment's trained network is made to draw: `layernorm sample NAME RUN`, and in `layernorm play RUN`.

    Attributes:
        options: a dataclass whose fields are made by `option`. A ValueError while it is constructed is wrong usage.
        draw: (the run, the options, where to look for data) -> pictures. It builds the network by the run's
            configuration and loads the weights by `runs.restore`.
        examples: command lines for the help.
    """

    options: type
    draw: Callable[[Run, Any, Path | None], Drawn]
    examples: Sequence[str]


@dataclass(frozen=True)
class SampleSettings:
    """What every `layernorm sample` takes: where the data set is looked for, and where the files go."""

    data: Path | None = option(None, "folder with the data set's files (else $LAYERNORM_DATA/NAME, cache)")
    out: Path | None = option(None, "folder for the files (else RUN/samples)")


@dataclass(frozen=True)
class Tool:
    """A command that asks a trained network something: `layernorm NAME RUN [TEXT ...] [OPTIONS]`.

    Attributes:
        experiment: the name of the experiment whose runs it takes.
        texts: what a text is, for the help. At least one must be given. None: it takes no texts.
        options: a dataclass whose fields are made by `option`. A ValueError while it is constructed is wrong usage.
        ask: (the run, the texts, the options) -> lines to print.
        examples: command lines for the help.
    """

    experiment: str
    texts: str | None
    options: type
    ask: Callable[[Run, Sequence[str], Any], Sequence[str]]
    examples: Sequence[str]


@dataclass(frozen=True)
class Experiment:
    """An experiment of the paper.

    Attributes:
        name: as in `layernorm run NAME`, and in `catalogue.py`.
        examples: command lines for the help.
        presets: by name. The first is the default.
        load: (configuration, folder given by --data) -> the data set.
        check: (configuration, data set) -> None. It raises ValueError, naming the option, if they do not fit together.
        task: (configuration, data set, accelerator) -> what to train.
        report: (the runs, the claims) -> figures, tables, findings, deviations.
        threads: CPU threads unless --threads is given. 0: torch's choice.
        embedded: whether the data set is part of a package, so that --data does not exist.
        sampler: how its network draws. None: there is nothing to draw.
        claims: what the judge decides from its runs.
    """

    name: str
    examples: Sequence[str]
    presets: Mapping[str, Preset]
    load: Callable[[Any, Path | None], Any]
    check: Callable[[Any, Any], None]
    task: Callable[[Any, Any, Accelerator], Task]
    report: Callable[[Sequence[Run], Sequence[Claim]], Report]
    threads: int = 0
    embedded: bool = False
    sampler: Sampler | None = None
    claims: Sequence[Claim] = ()

    @property
    def default_preset(self) -> str:
        """Names the preset of `layernorm run NAME` without --preset."""
        return next(iter(self.presets))

    @property
    def kind(self) -> type[Any]:
        """The class of its configurations."""
        return type(self.presets[self.default_preset].config)

    def run_name(self, config: Any, swept_options: Collection[str]) -> str:
        """Names the folder of a run: the experiment and the values by which its runs differ in one command."""
        return "-".join([self.name, *values_in_name(config, swept_options)])
