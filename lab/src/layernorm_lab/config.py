"""Options as the fields of a dataclass, their checks, and what every training has among them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from .runs.schema import largest


def option(
    default: Any,
    doc: str,
    *,
    flag: str = "",
    in_name: bool = False,
    prefix: str = "",
    outer_loop: bool = False,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> Any:
    """Makes a field of a configuration, which is an option on the command line.

    Args:
        default: its value, unless a preset or the user sets another.
        doc: the option's help, in one line.
        flag: the option's name on the command line, without dashes. The default is the field's name.
        in_name: whether its value is part of every run's name. Such an option takes several values on the command line,
            each of which makes runs of its own. Every number also takes several values; it is part of the runs' names
            only where several are given.
        prefix: the text before the value in the name of a run's folder, such as `s` in `-s0`. The default for a number
            that is not in every name is the option's name.
        outer_loop: whether all runs with one of its values are made before those with the next. For example, all norms
            of one seed are run before the next seed. The first such field of a configuration changes last.
        least, above, most, below: a number must be at least `least`, greater than `above`, at most `most`, and less
            than `below`. `CheckedOptions` checks it.
    """
    about = {"doc": doc, "flag": flag, "in_name": in_name, "prefix": prefix, "outer_loop": outer_loop}
    limits = {"least": least, "above": above, "most": most, "below": below}
    return field(default=default, metadata={**about, **limits})


def norm_option(doc: str) -> Any:
    """Makes the field `norm` of a configuration."""
    return option("layer", doc, in_name=True)


def rate_option(default: float, doc: str = "Adam's learning rate", in_name: bool = False) -> Any:
    """Makes the field `learning_rate` of a configuration: `-lr0.001` in the name of a run's folder."""
    return option(default, doc, in_name=in_name, prefix="lr", above=0)


def seed_option(doc: str) -> Any:
    """Makes the field `seed` of a configuration: the option `--seeds`, and `-s0` in the name of a run's folder."""
    return option(0, doc, flag="seeds", in_name=True, prefix="s", outer_loop=True, least=0)


def batch_option(default: int, what: str, least: int = 1, in_name: bool = False) -> Any:
    """Makes the field `batch_size` of a configuration. If it is in every name, all runs of a size are made together."""
    doc = f"{what} in a batch, over all processes together"
    return option(default, doc, in_name=in_name, prefix="b" * in_name, outer_loop=in_name, least=least)


def decay_option(default: float = 0.0, more: str = "") -> Any:
    """Makes the field `decay` of a configuration, which `Task.decay` takes; ``more`` is added to its help."""
    doc = "share of the updates, at the end of the run, in which the learning rate falls linearly to 0"
    return option(default, doc + more, least=0, most=1)


def flag(item: dataclasses.Field) -> str:
    """Writes an option as it is typed on the command line."""
    return f"--{item.metadata['flag'] or item.name.replace('_', '-')}"


def field_of(config: Any, name: str) -> dataclasses.Field:
    """Finds the field of this name of a configuration, or of its class."""
    return next(item for item in dataclasses.fields(config) if item.name == name)


@dataclass(frozen=True)
class CheckedOptions:
    """Options, made by `option`, whose numbers are checked.

    Raises:
        ValueError: a number lies outside its range, or is not finite. The message names the option.
    """

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if value is None or isinstance(value, str):
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
            if isinstance(value, (int, float)) and not abs(value) <= largest(value):  # no file of the run may have it
                raise ValueError(f"{flag(item)} must be a finite number of at most {largest(value):g}, got {value}")


class TrainingConfig(CheckedOptions):
    """What the `Config` of an experiment has whose cases come in batches (`Task.of`, `Batches.of`).

    The experiment gives each option a default and a place among its own: the order of the fields is that of the help
    page and of the values in the names of runs.

    The length of a run is an option `updates` or `epochs`. Without `evaluate_every`, or where that is 0, there is an
    evaluation after each epoch. Without `optimizer`, that is Adam.
    """

    norm: str
    learning_rate: float
    seed: int
    batch_size: int
    decay: float

    @property
    def optimizer_name(self) -> str:
        """The optimiser, one of `OPTIMIZERS`."""
        return vars(self).get("optimizer", "adam")

    def updates_of_run(self, updates_per_epoch: int) -> int:
        """Counts the updates of a run."""
        values = vars(self)
        return values["updates"] if "updates" in values else values["epochs"] * updates_per_epoch

    @property
    def relative_updates(self) -> float:
        """A number in proportion to the updates of a run, among runs on the same training cases."""
        values = vars(self)
        return values["updates"] if "updates" in values else values["epochs"] / self.batch_size

    def updates_to_evaluation(self, updates_per_epoch: int) -> int:
        """Counts the updates between two evaluations."""
        return vars(self).get("evaluate_every") or updates_per_epoch


def check_most(values: Any, name: str, most: int, what: str) -> None:
    """Raises a ValueError that names the option if it is larger than the number of ``what`` in the data."""
    value = getattr(values, name)
    if value > most:
        raise ValueError(f"{flag(field_of(values, name))} must be at most {most}, the number of {what}, got {value}")


def swept(config: type) -> list[dataclasses.Field]:
    """Lists the fields of a configuration that take several values on the command line."""
    return [
        item for item in dataclasses.fields(config) if item.metadata["in_name"] or type(item.default) in (int, float)
    ]


def values_in_name(config: Any, swept_options: Collection[str]) -> list[str]:
    """Writes the values that a run's name has: those of the fields that are in every name, and of those to which a
    command gives several values; the seed last."""
    items = [item for item in dataclasses.fields(config) if item.metadata["in_name"] or item.name in swept_options]
    items.sort(key=lambda item: item.name == "seed")
    return [f"{_prefix(item)}{getattr(config, item.name)}" for item in items]


def _prefix(item: dataclasses.Field) -> str:
    return item.metadata["prefix"] or ("" if item.metadata["in_name"] else flag(item).lstrip("-"))
