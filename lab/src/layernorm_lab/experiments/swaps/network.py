"""The options of an arm, and the recurrent networks that they make: alike in everything but the norm."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from layernorm import nn as networks
from layernorm.formula import PRESETS, Network

from ...protocol import CheckedOptions, decay_option, option, seed_option
from .program import TaskName
from .programs import PROGRAMS

FormulaName = Literal[
    "none", "paper", "sum", "cell", "kiros", "haste", "torchscript", "keras", "tf1", "sonnet", "dreamer"
]
Start = Literal["1", "0.3", "0.1", "match"]
Eps = Literal["own", "0.1", "1"]

_KINDS: dict[Network, Any] = {"LSTM": networks.LSTM, "GRU": networks.GRU, "RNN": networks.RNN}


@dataclass(frozen=True)
class Config(CheckedOptions):
    """Options of the experiment. The defaults are the class of the network swapped, and nothing else."""

    task: TaskName = option("adding", "the task, with a public program's settings", several="task", outermost=True)
    norm: Literal["none", "layer", "rms"] = option("layer", "the norm in the recurrent networks", several="norm")
    formula: FormulaName = option(
        "paper",
        "where the norm sits; paper, where this formula is not defined for the task's network",
        several="formula",
    )
    start: Start = option(
        "1",
        "the initial gain, or match: gains matched to the plain network",
        several="start",
        mark="gain",
    )
    forget_bias: Literal["torch", "1"] = option(
        "torch", "the initial forget bias: as in torch's network, or 1", several="forget-bias", mark="forget"
    )
    eps: Eps = option(
        "own",
        "what is added to the variance: own, that of the formula, 0.1 or 1",
        several="eps",
        mark="eps",
    )
    seed: int = seed_option("seeds of the initial weights, of the batches and of exploration")
    learning_rate: float = option(1.0, "the learning rate, as a multiple of the program's own", mark="lr", above=0)
    decay: float = decay_option()
    updates: int = option(0, "updates of a run (0: the task's own number)", least=0)

    def __post_init__(self) -> None:
        """Gives options that mean nothing to an arm a fixed value, so that no run is made twice."""
        super().__post_init__()
        network = PROGRAMS[self.task].network
        if self.norm == "none":
            object.__setattr__(self, "formula", "none")
            object.__setattr__(self, "start", "1")
            object.__setattr__(self, "eps", "own")
        elif self.formula == "none":
            raise ValueError(f"--formula none is for --norm none, got --norm {self.norm}")
        elif network not in PRESETS[self.formula]:
            object.__setattr__(self, "formula", "paper")
        if network == "RNN":  # it has no forget gate
            object.__setattr__(self, "forget_bias", "torch")


class Maker:
    """Makes recurrent networks as an arm says. All arms of a seed start from the same weights and biases."""

    def __init__(self, config: Config) -> None:
        self.config, self.kind = config, _KINDS[PROGRAMS[config.task].network]

    def __call__(self, input_size: int, hidden_size: int, **options: Any) -> nn.Module:
        """Makes a network with the options of torch's."""
        config = self.config
        if config.forget_bias != "torch":
            options["forget_bias"] = float(config.forget_bias)
        if config.norm == "none":
            return self.kind(input_size, hidden_size, norm=None, **options)
        options["gain_init"] = 1.0 if config.start == "match" else float(config.start)
        if config.eps != "own":
            options["eps"] = float(config.eps)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*input_size=1")  # a task has one input, and shows what follows
            return self.kind(input_size, hidden_size, norm=config.norm, formula=config.formula, **options)
