"""What an experiment is: a configuration with presets, a data set, a training task and a report."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from accelerate import Accelerator

    from .report.judge import Claim
    from .report.page import Picture, Report
    from .runs.folder import Run


COMPARED = ("norm", "learning_rate", "seed")
"""The options of every configuration, by which reports and the judge compare runs."""


def option(
    default: Any,
    doc: str,
    *,
    several: str | None = None,
    mark: str = "",
    outermost: bool = False,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> Any:
    """Makes a field of a configuration, which is an option on the command line.

    Args:
        default: its value, unless a preset or the user sets another.
        doc: the option's help, in one line.
        several: the option's name on the command line, for an option whose value is part of every run's name. It takes
            several values, each of which makes runs of its own. Every number takes several values, too; it is part of
            the runs' names only where several are given.
        mark: the text before the value in the name of a run's folder, such as `s` in `-s0`. The default for a number is
            the option's name.
        outermost: whether all runs with one of its values are made before those with the next. For example, all norms
            of one seed are run before the next seed. The first such field of a configuration changes last.
        least, above, most, below: a number must be at least `least`, greater than `above`, at most `most`, and less
            than `below`. `CheckedOptions` checks it.
    """
    about = {"doc": doc, "several": several, "mark": mark, "outermost": outermost}
    limits = {"least": least, "above": above, "most": most, "below": below}
    return field(default=default, metadata={**about, **limits})


def seed_option(doc: str) -> Any:
    """Makes the field `seed` of a configuration: the option `--seeds`, and `-s0` in the name of a run's folder."""
    return option(0, doc, several="seeds", mark="s", outermost=True, least=0)


def decay_option(default: float = 0.0) -> Any:
    """Makes the field `decay` of a configuration, which `Task.decay` takes."""
    doc = "share of the updates, at the end of the run, in which the step size falls linearly to 0"
    return option(default, doc, least=0, most=1)


def flag(item: dataclasses.Field) -> str:
    """Writes an option as it is typed on the command line."""
    return f"--{item.metadata['several'] or item.name.replace('_', '-')}"


@dataclass(frozen=True)
class CheckedOptions:
    """Options, made by `option`, whose numbers are checked.

    Raises:
        ValueError: a number lies outside its range, or is not finite. The message names the option.
    """

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if value is None:
                continue
            least, above, most, below = (item.metadata[name] for name in ("least", "above", "most", "below"))
            kind = "a finite number, " if isinstance(value, float) else ""
            if least is not None and not least <= value < math.inf:
                raise ValueError(f"{flag(item)} must be {kind}at least {least}, got {value}")
            if above is not None and not above < value < math.inf:
                raise ValueError(f"{flag(item)} must be {kind}greater than {above}, got {value}")
            if most is not None and value > most:
                raise ValueError(f"{flag(item)} must be at most {most}, got {value}")
            if below is not None and value >= below:
                raise ValueError(f"{flag(item)} must be less than {below}, got {value}")


def check_most(values: Any, name: str, most: int, what: str) -> None:
    """Raises a ValueError that names the option if it is larger than the number of ``what`` in the data."""
    item = next(item for item in dataclasses.fields(values) if item.name == name)
    value = getattr(values, name)
    if value > most:
        raise ValueError(f"{flag(item)} must be at most {most}, the number of {what}, got {value}")


@dataclass(frozen=True)
class Preset:
    """A named variant: a configuration, and the values that `layernorm run` goes over unless it is given others."""

    summary: str
    config: Any
    several: Mapping[str, tuple]


Loss: TypeAlias = "tuple[Tensor, int | None]"
"""The loss of some cases: its sum, and their number. None in the place of the number: the sum itself is the loss of a
batch, whatever its size."""


@dataclass
class Task:
    """One run, ready to train: exactly what the loop in `train/` needs.

    Attributes:
        model: the network, on any device. The loop moves and wraps it.
        optimizer: over the model's parameters.
        updates: the length of the run.
        evaluate_every: updates between evaluations. There is always an evaluation after the last update.
        updates_per_epoch: updates in one epoch.
        loss: (the wrapped model, the update's number from 0) -> the loss of this process's share of a batch, as its sum
            over cases and their number. The loop divides the sum over all processes by the number over all processes.
        evaluate: (the bare model, in evaluation mode) -> metrics. Every process computes all of them by itself.
        seen: updates -> training cases seen.
        shown: for each metric, how the progress display shows it: `test error {:.2%}`. Where there is room for one, it
            shows the last.
        before_step: called with the bare model between the backward pass and the step, for gradient clipping.
        keep: the metric by whose highest value the model to keep is chosen, the first one among equals. None: the last
            model is kept.
        decay: the share of the updates, at the end of the run, in which the step size falls linearly to 0.
        test: (the bare model with the kept weights, in evaluation mode) -> metrics, and tensors to save with the run,
            such as one value for each test case. It is called once, at the end, unless the run has diverged.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    updates: int
    evaluate_every: int
    updates_per_epoch: int
    loss: Callable[[nn.Module, int], Loss]
    evaluate: Callable[[nn.Module], dict[str, float]]
    seen: Callable[[int], int]
    shown: Mapping[str, str]
    before_step: Callable[[nn.Module], None] | None = None
    keep: str | None = None
    decay: float = 0.0
    test: Callable[[nn.Module], tuple[dict[str, float], dict[str, Tensor]]] | None = None

    def mean_loss(self, model: nn.Module, update: int) -> Tensor:
        """Computes the loss of a batch that this process has alone."""
        total, count = self.loss(model, update)
        return total if count is None else total / count


class Drawn(NamedTuple):
    """What a trained network drew: pictures in the order in which they are shown, those with the same name being one
    picture in several formats, the best first; and notes for the user, such as that the network stopped early."""

    pictures: Sequence[Picture]
    notes: Sequence[str] = ()


class StoppedError(Exception):
    """Nobody waits for a drawing any more."""


def _never() -> bool:
    return False


stop_asked: ContextVar[Callable[[], bool]] = ContextVar("stop_asked", default=_never)
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
        report: the runs -> figures, tables, findings, deviations.
        threads: processor threads unless --threads is given. 0: torch's choice.
        embedded: whether the data set is part of a package, so that --data does not exist.
        sampler: how its network draws. None: there is nothing to draw.
        claims: what the judge decides from its runs.

    Raises:
        TypeError: a preset's configuration lacks an option of `COMPARED`.
    """

    name: str
    examples: Sequence[str]
    presets: Mapping[str, Preset]
    load: Callable[[Any, Path | None], Any]
    check: Callable[[Any, Any], None]
    task: Callable[[Any, Any, Accelerator], Task]
    report: Callable[[Sequence[Run]], Report]
    threads: int = 0
    embedded: bool = False
    sampler: Sampler | None = None
    claims: Sequence[Claim] = ()

    def __post_init__(self) -> None:
        for preset in self.presets.values():
            if lacking := [name for name in COMPARED if not hasattr(preset.config, name)]:
                raise TypeError(
                    f"experiment {self.name}: {type(preset.config).__name__} lacks {', '.join(lacking)}; every "
                    f"configuration has the options {', '.join(COMPARED)}"
                )

    @property
    def default_preset(self) -> str:
        """Names the preset of `layernorm run NAME` without --preset."""
        return next(iter(self.presets))

    def run_name(self, config: Any, swept_options: Collection[str] = ()) -> str:
        """Names the folder of a run: the experiment and the values of the fields that are in every name, or to which
        this command gives several values; the seed last."""
        items = [item for item in dataclasses.fields(config) if item.metadata["several"] or item.name in swept_options]
        items.sort(key=lambda item: item.name == "seed")
        return "-".join([self.name, *(f"{_mark(item)}{getattr(config, item.name)}" for item in items)])


def swept(config: type) -> list[dataclasses.Field]:
    """Lists the fields of a configuration that take several values on the command line."""
    return [
        item for item in dataclasses.fields(config) if item.metadata["several"] or type(item.default) in (int, float)
    ]


def _mark(item: dataclasses.Field) -> str:
    """Returns the text before a field's value in the name of a run."""
    return item.metadata["mark"] or ("" if item.metadata["several"] else flag(item).lstrip("-"))
