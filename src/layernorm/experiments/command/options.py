"""An experiment's command line, read by tyro: the fields of its configuration, and the settings of every experiment."""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from ..catalogue import TOOLS
from ..errors import UsageError, unknown
from ..protocol import CheckedOptions, Experiment, Sampler, SampleSettings, Tool, flag, option, swept

Chosen = TypeVar("Chosen")


@dataclass(frozen=True)
class Settings(CheckedOptions):
    """Where and with what to run. Of these only `precision` is part of a run's identity; a resumed run may change the
    others."""

    data: Path | None = option(None, "folder with the data set's files (else $LAYERNORM_DATA/NAME, cache, download)")
    out: Path | None = option(None, "folder for runs and report (else runs/EXPERIMENT-PRESET-CHANGED_VALUES)")
    restart: bool = option(False, "start the runs again, and delete what is left of them in the folder")
    threads: int = option(0, "processor threads (0: torch's choice)", least=0)
    jobs: int = option(0, "runs at a time, each in a worker process of one thread (0: one run, no worker)", least=0)
    device: Literal["auto", "cpu", "cuda"] = option("auto", "where to compute; auto takes a GPU if there is one")
    precision: Literal["float32", "bfloat16"] = option("float32", "bfloat16: mixed precision by autocast")
    checkpoint_seconds: float = option(30.0, "seconds between checkpoints", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.jobs and self.threads > 1:
            raise ValueError(f"--threads must be 0 or 1 where --jobs gives each run one thread, got {self.threads}")


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


def parse_run(experiment: Experiment, arguments: Sequence[str]) -> Request:
    """Reads the options of `layernorm run EXPERIMENT`. (tyro itself exits with 2 on malformed options.)"""
    import tyro

    if experiment.embedded and any(argument.partition("=")[0] == "--data" for argument in arguments):
        raise UsageError(f"{experiment.name} does not take --data: its data come with a package, no folder is needed")
    preset_name = _preset_name(experiment, arguments)
    preset = experiment.presets[preset_name]
    presets = "; ".join(f"{name}: {preset.summary}" for name, preset in experiment.presets.items())
    several = [item.name for item in swept(type(preset.config))]
    defaults = {name: (value,) if name in several else value for name, value in vars(preset.config).items()}
    config_fields = list(_fields(type(preset.config), {**defaults, **preset.several}, several))
    setting_fields = list(_fields(Settings, vars(Settings(threads=experiment.threads))))
    if experiment.embedded:
        setting_fields = [item for item in setting_fields if item[0] != "data"]
    names = Literal[tuple(experiment.presets)]  # type: ignore[valid-type]  # made from data
    preset_field = ("preset", Annotated[names, tyro.conf.arg(help=presets)], preset_name)
    fields = [preset_field, *config_fields, *setting_fields]
    values = _typed(f"run {experiment.name}", _description(experiment), fields, arguments)
    settings = _checked(Settings, values)
    swept_options = tuple(name for name in several if len(set(values[name])) > 1)
    return Request(preset_name, list(_configs(type(preset.config), values)), swept_options, settings)


def parse_sample(experiment: Experiment, sampler: Sampler, arguments: Sequence[str]) -> tuple[Any, SampleSettings]:
    """Reads the options of `layernorm sample EXPERIMENT RUN`: those of the sampler, and the settings."""
    fields = [field for kind in (sampler.options, SampleSettings) for field in _fields(kind, _defaults(kind))]
    head = _head([f"Lets the network of a run of {experiment.name} draw or write."], sampler.examples)
    values = _typed(f"sample {experiment.name} RUN", head, fields, arguments)
    return _checked(sampler.options, values), _checked(SampleSettings, values)


def parse_tool(name: str, tool: Tool, arguments: Sequence[str]) -> tuple[Path, tuple[str, ...], Any]:
    """Reads the arguments of a command of `Tool`: the run's folder, the texts and the options."""
    import tyro

    run = Annotated[
        Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help=f"folder of a run of {tool.experiment}")
    ]
    texts = Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar=f"{tool.texts} ...", help="at least one")
    ]
    summary = TOOLS[name][1]
    positional: list[Any] = [("run", run), ("texts", texts)] if tool.texts else [("run", run)]
    fields = [*positional, *_fields(tool.options, _defaults(tool.options))]
    values = _typed(name, _head([f"{summary[0].upper()}{summary[1:]}."], tool.examples), fields, arguments)
    if tool.texts and not values["texts"]:
        raise UsageError(f"give at least one {tool.texts}: {tool.examples[0]}")
    return values["run"], values.get("texts", ()), _checked(tool.options, values)


def _typed(
    command: str, description: str, fields: Sequence[tuple[str, Any, Any]], arguments: Sequence[str]
) -> Mapping[str, Any]:
    """Reads the typed options of a command by their names. Each field is a name, an annotation and a default."""
    import tyro

    options = dataclasses.make_dataclass("Options", fields)
    _suggest(options, arguments)
    config = (tyro.conf.FlagCreatePairsOff,)
    prog = f"layernorm {command}"
    return vars(tyro.cli(options, prog=prog, description=description, args=list(arguments), config=config))


def _checked(kind: type[Chosen], values: Mapping[str, Any]) -> Chosen:
    """Makes a dataclass of options from typed values, among others. What it refuses is wrong usage."""
    try:
        return kind(**{name: values[name] for name in _defaults(kind) if name in values})
    except ValueError as error:
        raise UsageError(str(error)) from error


def _defaults(kind: Any) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(kind)}


def _description(experiment: Experiment) -> str:
    """Writes the head of an experiment's help."""
    paragraphs = [
        experiment.summary,
        "If options are given several values, there is one run for each combination, whose name has these values. "
        "After an interruption the same command resumes the runs.",
    ]
    sweep = f"layernorm run {experiment.name} --learning-rate 5e-4 1e-3 2e-3 --jobs 2"
    return _head(paragraphs, [*experiment.examples, sweep])


def _head(paragraphs: Sequence[str], examples: Sequence[str]) -> str:
    """Joins paragraphs and examples in 80 columns."""
    # tyro joins lines, except indented ones
    texts = [textwrap.fill(paragraph, 80, subsequent_indent="  ") for paragraph in paragraphs]
    return "\n\n".join([*texts, "\n".join(["Examples:", *(f"  {example}" for example in examples)])])


def _fields(kind: type, defaults: dict[str, Any], several: Sequence[str] = ()) -> Iterator[tuple[str, Any, Any]]:
    """Makes options of a dataclass's fields. A field that takes several values becomes a tuple."""
    import tyro

    types = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        kind_of_value = types[field.name]
        annotation = tuple[kind_of_value, ...] if field.name in several else kind_of_value  # type: ignore[valid-type]
        metavar = "PATH" if kind_of_value == Path | None else None  # tyro would write {None}|PATH
        if field.name in several and kind_of_value in (int, float):
            metavar = f"{kind_of_value.__name__.upper()} ..."  # and here [INT [INT ...]]
        about = tyro.conf.arg(name=field.metadata["several"], metavar=metavar, help=field.metadata["doc"])
        yield field.name, Annotated[annotation, about], defaults[field.name]


def _configs(kind: type, values: Mapping[str, Any]) -> Iterator[Any]:
    """Makes one configuration for each combination of the values, in the order in which they run. Configurations may
    set an option without a meaning for them to a fixed value; equal ones make one run."""
    several = swept(kind)
    for field in several:
        if not values[field.name]:
            raise UsageError(f"{flag(field)} needs at least one value")
    order = [field.name for field in sorted(several, key=lambda field: not field.metadata["outermost"])]
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
    name = experiment.default_preset
    for position, argument in enumerate(arguments):
        if argument == "--preset" and position + 1 < len(arguments):
            name = arguments[position + 1]
        elif argument.startswith("--preset="):
            name = argument.partition("=")[2]
    if name not in experiment.presets:
        raise unknown("preset", name, experiment.presets)
    return name


def _suggest(options: type, arguments: Sequence[str]) -> None:
    """Checks options with a fixed choice of values, and suggests the nearest value, which tyro does not."""
    choices: dict[str, tuple] = {}
    for name, hint in typing.get_type_hints(options).items():
        several = typing.get_origin(hint) is tuple
        literal = typing.get_args(hint)[0] if several else hint
        if typing.get_origin(literal) is Literal:
            choices[f"--{name.replace('_', '-')}"] = typing.get_args(literal)
    current = ""
    for argument in arguments:
        if argument.startswith("--"):
            current, _, value = argument.partition("=")
            current = current.replace("_", "-")
        else:
            value = argument
        if value and current in choices and value not in choices[current]:
            raise unknown(current.removeprefix("--"), value, choices[current])
