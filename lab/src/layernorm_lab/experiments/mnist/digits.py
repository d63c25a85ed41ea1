"""Experiment 6.6 on scikit-learn's embedded digits: the same code, small enough to run anywhere in minutes."""

from __future__ import annotations

from dataclasses import dataclass

from ...config import option
from ...data.digits import load_digits
from ...protocol import Experiment, Preset
from . import config, experiment, report


@dataclass(frozen=True)
class Config(config.Config):
    """The options of `mnist`, sized for 1200 training cases of 64 pixels."""

    epochs: int = option(30, "passes over the training set", least=1)
    hidden: int = option(256, "units in each of the two hidden layers", least=2)
    held_out: int = option(197, "cases at the end of the training set kept for validation", least=1)


_NORMS, _SIZES = ("none", "layer", "batch"), (128, 4)

EXPERIMENT = Experiment(
    name="digits",
    examples=("layernorm run digits", "layernorm run digits --norm none layer --batch-size 4 --out runs/small-batches"),
    presets={
        "laptop": Preset("30 epochs, three seeds", Config(), {"norm": _NORMS, "batch_size": _SIZES, "seed": (0, 1, 2)}),
        "smoke": Preset("2 epochs, one seed", Config(epochs=2), {"norm": _NORMS, "batch_size": _SIZES, "seed": (0,)}),
        "paper": Preset(
            "60 epochs as in the paper, three seeds",
            Config(epochs=60),
            {"norm": _NORMS, "batch_size": _SIZES, "seed": (0, 1, 2)},
        ),
    },
    load=lambda config, data: load_digits().holding_out(config.held_out),
    check=experiment.check_mnist,
    task=experiment.mnist_task,
    report=report.OF_DIGITS.report,
    # One thread is as fast as two on idle cores. On busy cores two threads that wait for each other are a hundred times
    # slower (0.5 ms an update became 90 ms with two trainings on the same two cores).
    threads=1,
    embedded=True,
)
