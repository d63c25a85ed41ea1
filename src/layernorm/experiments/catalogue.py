"""The experiments, and the commands that ask their trained networks something. A new one is a folder and a line."""

from __future__ import annotations

import importlib

from .errors import unknown
from .protocol import Experiment, Tool

EXPERIMENTS = {
    "digits": "mnist.digits",
    "mnist": "mnist.experiment",
    "draw": "draw.experiment",
    "handwriting": "handwriting.experiment",
    "order-embeddings": "order_embeddings.experiment",
    "reader": "reader.experiment",
    "skip-thoughts": "skip_thoughts.experiment",
    "convnets": "convnets.experiment",
    "swaps": "swaps.experiment",
}
"""The module of every experiment, in the order in which they are shown. Its `EXPERIMENT` is the experiment."""


TOOLS = {
    "search": ("order_embeddings.search", "find test images for a sentence with a run of order-embeddings"),
    "encode": ("skip_thoughts.encode", "turn a file of sentences into vectors with a run of skip-thoughts"),
    "neighbours": ("skip_thoughts.neighbours", "print the nearest sentences of the books with a run of skip-thoughts"),
    "evaluate": ("skip_thoughts.evaluate", "evaluate a run of skip-thoughts on SICK, MR, CR, SUBJ and MPQA"),
    "answer": ("reader.answer", "let a run of reader answer questions from .question files"),
}
"""Every command that asks a trained network something: its module, whose `TOOL` it is, and a line for the help."""


def find_experiment(name: str) -> Experiment:
    """Finds the experiment of this name. An unknown one is a UsageError that suggests the nearest name."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return importlib.import_module(f".{EXPERIMENTS[name]}", __package__).EXPERIMENT


def find_tool(name: str) -> Tool:
    """Finds the command of this name, one of `TOOLS`."""
    return importlib.import_module(f".{TOOLS[name][0]}", __package__).TOOL
