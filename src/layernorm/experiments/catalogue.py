"""Which experiments there are. A new one is its folder and its line here."""

from __future__ import annotations

import importlib

from .errors import unknown
from .protocol import Experiment

EXPERIMENTS = {
    "digits": "mnist.digits",
    "mnist": "mnist.experiment",
    "draw": "draw.experiment",
    "handwriting": "handwriting.experiment",
    "convnets": "convnets.experiment",
}
"""The module of every experiment, in the order of showing; it holds the experiment as `EXPERIMENT`."""


def find(name: str) -> Experiment:
    """The experiment of this name.

    Raises:
        UsageError: there is none; the nearest name is suggested.
    """
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return importlib.import_module(f".{EXPERIMENTS[name]}", __package__).EXPERIMENT
