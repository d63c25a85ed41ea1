"""An experiment's command line: the fields of its configuration, and the settings of every experiment."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import os
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar

from ..catalogue import EXPERIMENTS, TOOLS
from ..config import CheckedOptions, field_of, flag, option, swept
from ..errors import UsageError
from ..protocol import Experiment, Sampler, SampleSettings, Tool
from ..runs.schema import Precision
from .parser import Parser

Chosen = TypeVar("Chosen")


@dataclass(frozen=True)
class Settings(CheckedOptions):
    """The options that say where and with what to run. Only `precision` is part of a run's identity; a resumed run may
    change the others."""

    data: Path | None = option(
        None, "folder with the data set's files (else $LAYERNORM_DATA/NAME, cache, or a download where there is one)"
    )
    out: Path | None = option(
        None,
        "folder for runs and report (else runs/EXPERIMENT, with a preset and values that are not the default)",
    )
    restart: bool = option(
        False,
        "start all runs of this command again, also finished ones, and delete what their folders hold, also a run of "
        "other options",
    )
    threads: int = option(0, "CPU threads (0: torch's choice)", least=0)
    jobs: int | None = option(
        None,
        "runs at a time, each in a worker process of one thread (else one run, without a worker); with --on, jobs at "
        "a time (else all)",
        least=1,
    )
    on: Literal["here", "slurm", "local"] = option(
        "here", "slurm: make each run as a job of Slurm; local: try that without Slurm, with processes on this machine"
    )
    ask: str = option("", "what a job asks Slurm for, in submitit's words: 'timeout_min=60 slurm_partition=gpu'")
    device: Literal["auto", "cpu", "cuda"] = option("auto", "where to compute; auto takes a GPU if there is one")
    precision: Precision = option("float32", "bfloat16: mixed precision by autocast")
    track: Literal["none", "tensorboard", "mlflow", "trackio", "wandb"] = option(
        "none", "also send the records to a tracker; tensorboard writes to OUT/tensorboard"
    )
    checkpoint_seconds: float = option(30.0, "seconds between checkpoints", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.jobs and self.threads > 1 and self.on == "here":
            raise ValueError(f"--threads must be 0 or 1 where --jobs gives each run one thread, got {self.threads}")
        if self.ask and self.on == "here":
            raise ValueError("--ask is for jobs: also give --on slurm")
        if self.track != "none" and not importlib.util.find_spec(self.track):
            raise ValueError(f"--track {self.track} needs a package: pip install {self.track}")
        most = None if self.on == "slurm" else os.cpu_count()
        if most and self.threads > most:  # where OpenMP cannot start so many, it ends the process
            raise ValueError(f"--threads must be at most {most}, the CPU cores of this machine, got {self.threads}")


@dataclass(frozen=True)
class Request:
    """What a command asks for: the runs in their order, and how to make them.

    Attributes:
        preset: the preset's name.
        configs: the configurations of the runs.
        swept_options: the fields that are given several values. They are part of the runs' names.
        settings: how to make the runs.
    """

    preset: str
    configs: list[Any]
    swept_options: tuple[str, ...]
    settings: Settings

    @property
    def sizes(self) -> list[float]:
        """For each run a number in proportion to its updates; 1 where their number is the task's own."""
        return [getattr(config, "relative_updates", 1.0) for config in self.configs]


def parse_run(experiment: Experiment, arguments: Sequence[str]) -> Request:
    """Reads the options of `layernorm run EXPERIMENT`."""
    if experiment.embedded and any(argument.partition("=")[0] == "--data" for argument in arguments):
        raise UsageError(f"{experiment.name} does not take --data: its data need no folder")
    preset_name = _preset_name(experiment, arguments)
    preset = experiment.presets[preset_name]
    several = [item.name for item in swept(type(preset.config))]
    rate = flag(field_of(preset.config, "learning_rate"))
    rates = " ".join(f"{factor * preset.config.learning_rate:g}" for factor in (0.5, 1, 2))
    parser = Parser(
        f"run {experiment.name}",
        [
            sentence(EXPERIMENTS[experiment.name][1]),
            "An option with ... takes several values. There is one run for each combination of values, and the run's "
            "name has these values. After an interruption the same command resumes the runs.",
        ],
        examples=[*experiment.examples, f"layernorm run {experiment.name} {rate} {rates} --jobs 2"],
        lists=[("presets", [(name, preset.summary) for name, preset in experiment.presets.items()])],
    )
    parser.option("--preset", tuple(experiment.presets), "the defaults of the options below", preset_name)
    defaults = {name: (value,) if name in several else value for name, value in vars(preset.config).items()}
    _add_options(parser, type(preset.config), {**defaults, **preset.sweep}, several)
    settings = vars(Settings(threads=experiment.threads))
    _add_options(
        parser, Settings, settings, leave=["data"] if experiment.embedded else [], title="where and how to run"
    )
    values = vars(parser.read(arguments))
    swept_options = tuple(name for name in several if len(set(values[name])) > 1)
    return Request(preset_name, list(_configs(type(preset.config), values)), swept_options, _checked(Settings, values))


def parse_sample(
    experiment: Experiment, sampler: Sampler, arguments: Sequence[str]
) -> tuple[Path, Any, SampleSettings]:
    """Reads the words of `layernorm sample EXPERIMENT`: the run's folder, the sampler's options, and the settings."""
    about = [f"Lets the network of a run of {experiment.name} draw or write."]
    parser = Parser(f"sample {experiment.name}", about, "RUN", sampler.examples)
    parser.word("run", "RUN", f"folder of a run of {experiment.name}", type=Path)
    for kind in (sampler.options, SampleSettings):
        _add_options(parser, kind, _defaults(kind))
    values = vars(parser.read(arguments))
    return values["run"], _checked(sampler.options, values), _checked(SampleSettings, values)


def parse_tool(name: str, tool: Tool, arguments: Sequence[str]) -> tuple[Path, tuple[str, ...], Any]:
    """Reads the words of a command of `Tool`: the run's folder, the texts and the options."""
    parser = Parser(name, [sentence(TOOLS[name][1])], f"RUN {tool.texts} ..." if tool.texts else "RUN", tool.examples)
    parser.word("run", "RUN", f"folder of a run of {tool.experiment}", type=Path)
    if tool.texts:
        parser.word("texts", tool.texts, "one or more", nargs="+")
    _add_options(parser, tool.options, _defaults(tool.options))
    values = vars(parser.read(arguments))
    return values["run"], tuple(values.get("texts", ())), _checked(tool.options, values)


def sentence(summary: str) -> str:
    """Makes a line of a list a sentence."""
    return f"{summary[0].upper()}{summary[1:]}."


def _add_options(
    parser: Parser,
    kind: type,
    defaults: Mapping[str, Any],
    several: Sequence[str] = (),
    leave: Sequence[str] = (),
    title: str = "options",
) -> None:
    """Makes options of a dataclass's fields, but of those to leave out."""
    types = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.name in leave:
            continue
        hint = types[field.name]
        if typing.get_origin(hint) is Literal:
            hint = typing.get_args(hint)
        elif NoneType in typing.get_args(hint):
            (hint,) = (item for item in typing.get_args(hint) if item is not NoneType)
        parser.option(
            flag(field), hint, field.metadata["doc"], defaults[field.name],
            field=field.name, several=field.name in several, title=title,
        )  # fmt: skip


def _checked(kind: type[Chosen], values: Mapping[str, Any]) -> Chosen:
    """Makes a dataclass of options from typed values, among others. What it refuses is wrong usage."""
    try:
        return kind(**{name: values[name] for name in _defaults(kind) if name in values})
    except ValueError as error:
        raise UsageError(str(error)) from error


def _defaults(kind: Any) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(kind)}


def _configs(kind: type, values: Mapping[str, Any]) -> Iterator[Any]:
    """Makes one configuration for each combination of the values, in the order in which they run. Configurations may
    set an option without a meaning for them to a fixed value; equal ones make one run."""
    several = swept(kind)
    order = [field.name for field in sorted(several, key=lambda field: not field.metadata["outer_loop"])]
    single = {field.name: values[field.name] for field in dataclasses.fields(kind) if field.name not in order}
    made = []
    for combination in itertools.product(*(dict.fromkeys(values[name]) for name in order)):
        try:
            config = kind(**single, **dict(zip(order, combination, strict=True)))
        except ValueError as error:
            raise UsageError(str(error)) from error
        if config not in made:
            made.append(config)
            yield config


def _preset_name(experiment: Experiment, arguments: Sequence[str]) -> str:
    """Reads the preset's name, before the other options because it sets their defaults."""
    parser = Parser("", [])
    parser.option("--preset", tuple(experiment.presets), "", experiment.default_preset)
    return parser.parse_known_args(arguments)[0].preset
