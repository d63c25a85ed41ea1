"""The experiments, and the commands that ask their trained networks something. A new one is a folder and a line."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .errors import UsageError, unknown

if TYPE_CHECKING:
    from .protocol import Experiment, Sampler, Tool

EXPERIMENTS = {
    "digits": ("mnist.digits", "the experiment `mnist` on scikit-learn's small digits: no download, a few minutes"),
    "mnist": (
        "mnist.experiment",
        "permutation-invariant MNIST (6.6, Figure 6): layer norm against batch norm at batch sizes 128 and 4",
    ),
    "draw": (
        "draw.experiment",
        "DRAW, a generative model of binarised MNIST (6.4, Figure 4): layer norm on the LSTMs' cells against none",
    ),
    "handwriting": (
        "handwriting.experiment",
        "handwriting synthesis on IAM-OnDB (6.5, Figure 5): layer norm in three LSTMs against none",
    ),
    "order-embeddings": (
        "order_embeddings.experiment",
        "order embeddings of images and sentences (6.1, Table 2, Figure 1): layer norm in the GRU against none",
    ),
    "reader": (
        "reader.experiment",
        "the attentive reader (6.2, Figure 2): layer norm in its LSTMs against none and recurrent batch norm",
    ),
    "skip-thoughts": (
        "skip_thoughts.experiment",
        "skip-thoughts (6.3, Table 3, Figure 3): layer norm in the encoder and the decoders against none",
    ),
    "convnets": (
        "convnets.experiment",
        "ConvPool-CNN-C on CIFAR-10 (6.7): layer norm against the baseline and batch norm, units near the border",
    ),
    "swaps": (
        "swaps.experiment",
        "recurrent networks swapped at unchanged settings: tasks of public programs, plain and under a norm",
    ),
}
"""Every experiment, in the order in which they are shown: its module, whose `EXPERIMENT` it is, and a line for the
help."""

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
    return importlib.import_module(f".experiments.{EXPERIMENTS[name][0]}", __package__).EXPERIMENT


def find_sampler(experiment: Experiment) -> Sampler:
    """Finds an experiment's sampler. The error for one without names the experiments that have one."""
    if experiment.sampler is None:
        able = [name for name in EXPERIMENTS if find_experiment(name).sampler is not None]
        raise UsageError(f"{experiment.name} has nothing to sample; experiments that have: {', '.join(able) or 'none'}")
    return experiment.sampler


def find_tool(name: str) -> Tool:
    """Finds the command of this name, one of `TOOLS`."""
    return importlib.import_module(f".experiments.{TOOLS[name][0]}", __package__).TOOL
