"""What an experiment is: a configuration with presets, a data set, a training task and a report.

Every configuration has an option `seed`, and `norm` if norms are compared.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch import Tensor, nn

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator

    from .report.page import Picture, Report
    from .runs.folder import Run


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
) -> Any:
    """A field of a configuration.

    Args:
        default: its value unless a preset or the user says otherwise.
        doc: one line; it becomes the option's help.
        several: the command line's name for the option if the name of every run tells its value. Such options take
            several values on the command line, each of them making runs of its own, and so do all numbers; the name of
            a run tells a number of which several values are given.
        mark: what stands before the value in the name of a run's folder, `s` for `-s0`; a number's, unless given, is
            the option's name.
        outermost: whether all runs with one of its values are made before those with the next, as all norms of one seed
            are before the next seed starts. The first such field of a configuration changes last.
        least, above, most: a number must be at least the first, greater than the second, at most the third.
    """
    about = {"doc": doc, "several": several, "mark": mark, "outermost": outermost}
    return field(default=default, metadata={**about, "least": least, "above": above, "most": most})


def seed_option(doc: str) -> Any:
    """The field `seed` of a configuration: given by `--seeds`, told by `-s0` in the name of a run's folder."""
    return option(0, doc, several="seeds", mark="s", outermost=True, least=0)


def flag(item: dataclasses.Field) -> str:
    """An option as one types it."""
    return f"--{item.metadata['several'] or item.name.replace('_', '-')}"


def check_ranges(values: Any) -> None:
    """Compares the numbers in a dataclass of options with the ranges that `option` gave them.

    Raises:
        ValueError: one lies outside, or is no finite number; the message names the option.
    """
    for item in dataclasses.fields(values):
        value = getattr(values, item.name)
        least, above, most = (item.metadata[name] for name in ("least", "above", "most"))
        kind = "a finite number, " if isinstance(value, float) else ""
        if least is not None and not least <= value < math.inf:
            raise ValueError(f"{flag(item)} must be {kind}at least {least}, got {value}")
        if above is not None and not above < value < math.inf:
            raise ValueError(f"{flag(item)} must be {kind}greater than {above}, got {value}")
        if most is not None and value > most:
            raise ValueError(f"{flag(item)} must be at most {most}, got {value}")


def check_most(values: Any, name: str, most: int, what: str) -> None:
    """Compares an option with the number that there are of something in the data.

    Raises:
        ValueError: it is greater; the message names the option.
    """
    item = next(item for item in dataclasses.fields(values) if item.name == name)
    value = getattr(values, name)
    if value > most:
        raise ValueError(f"{flag(item)} must be at most {most}, all {what}, got {value}")


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
    """One run, ready to train: what the loop in `train/` needs and no more.

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
        shown: by metric, how the progress display shows it: `test error {:.2%}`. Where there is room for one, the last.
        before_step: called with the bare model between the backward pass and the step: gradient clipping.
        keep: the metric whose highest value's model is kept, the first of equals; None: the last model is.
        test: (the bare model with the kept weights, in evaluation mode) -> metrics, and tensors that stay with the run,
            such as one value a test case. Called once, at the end, unless the run has diverged.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    updates: int
    evaluate_every: int
    updates_per_epoch: int
    loss: Callable[[nn.Module, int], Tensor]
    evaluate: Callable[[nn.Module], dict[str, float]]
    seen: Callable[[int], int]
    shown: Mapping[str, str]
    before_step: Callable[[nn.Module], None] | None = None
    keep: str | None = None
    test: Callable[[nn.Module], tuple[dict[str, float], dict[str, Tensor]]] | None = None


class Drawn(NamedTuple):
    """What a trained network drew.

    Attributes:
        pictures: in the order of showing; those with one name are one picture in several formats, the best first.
        notes: what the user should know about them, such as that the network stopped early; often none.
    """

    pictures: Sequence[Picture]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Sampler:
    """How an experiment's trained network is made to draw: `layernorm sample NAME RUN`, and in `layernorm play RUN`.

    Attributes:
        options: a dataclass whose fields are made by `option`; ValueError from its construction is wrong usage.
        draw: (the run, the options, where to look for data) -> pictures. It rebuilds the network from the run's
            configuration and fills it by `runs.restore`.
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
    """What a trained network can be asked on the command line: `layernorm NAME RUN [TEXT ...] [OPTIONS]`.

    Attributes:
        experiment: whose runs it takes.
        summary: one line for the help.
        texts: what a text is, for the help; at least one is given. None: it takes none.
        options: a dataclass whose fields are made by `option`; ValueError from its construction is wrong usage.
        ask: (the run, the texts, the options) -> lines to print.
        examples: command lines for the help.
    """

    experiment: str
    summary: str
    texts: str | None
    options: type
    ask: Callable[[Run, Sequence[str], Any], Sequence[str]]
    examples: Sequence[str]


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

    def run_name(self, config: Any, told: Collection[str] = ()) -> str:
        """The folder name of one run: the experiment, and the values of the fields that all names tell and of others.

        Args:
            config: of the run.
            told: names of fields that this command gives several values; of the others, the seed stands last.
        """
        items = [item for item in dataclasses.fields(config) if item.metadata["several"] or item.name in told]
        items.sort(key=lambda item: item.name == "seed")
        return "-".join([self.name, *(f"{_mark(item)}{getattr(config, item.name)}" for item in items)])


def swept(config: type) -> list[dataclasses.Field]:
    """The fields of a configuration that take several values on the command line."""
    return [item for item in dataclasses.fields(config) if item.metadata["several"] or _is_number(item)]


def _is_number(item: dataclasses.Field) -> bool:
    return type(item.default) in (int, float)


def _mark(item: dataclasses.Field) -> str:
    """What stands before a field's value in the name of a run."""
    return item.metadata["mark"] or ("" if item.metadata["several"] else flag(item).lstrip("-"))
