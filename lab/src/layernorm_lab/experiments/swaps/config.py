"""The options of an arm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from layernorm.formula import PRESETS, Formula, Network

from ...config import CheckedOptions, decay_option, norm_option, option, seed_option
from .program import TaskName
from .programs import PROGRAMS

FormulaName = Literal[
    "none", "paper", "sum", "cell", "kiros", "haste", "torchscript", "keras", "tf1", "sonnet", "dreamer",
    "hidden", "hidden_cell",
]  # fmt: skip
Start = Literal["1", "0.3", "0.1", "match", "hh0.1", "hh0.3", "hh0.6", "hh0.8"]
RECURRENT = "hh"
"""What the name of a start begins with that sets only the gain of W_hh h; all other gains start at 1."""

FORMULAS: Mapping[str, Mapping[Network, Formula]] = {
    **PRESETS,
    "hidden": dict.fromkeys(("LSTM", "GRU", "RNN"), Formula(gates="hidden", cell=None)),
    "hidden_cell": {"LSTM": Formula(gates="hidden"), "GRU": Formula(gates="hidden", cell=None)},
}
"""Where the norm sits, by name: the library's presets, and W_ih x + LN(W_hh h) without and with the cell's norm."""

Eps = Literal["own", "0.1", "1"]


@dataclass(frozen=True)
class Config(CheckedOptions):
    """Options of the experiment. The defaults are the class of the network swapped, and nothing else."""

    task: TaskName = option("adding", "the task, with a public program's settings", in_name=True, outer_loop=True)
    norm: Literal["none", "layer", "rms"] = norm_option("the norm in the recurrent networks")
    formula: FormulaName = option(
        "paper", "where the norm sits; paper, where this formula is not defined for the task's network", in_name=True
    )
    start: Start = option(
        "1",
        "the initial gain; hh and a number: only that of W_hh h; match: gains matched to the plain network, as by "
        "ln.match",
        in_name=True,
        prefix="gain",
    )
    forget_bias: Literal["torch", "1"] = option(
        "torch", "the initial forget bias: as in torch's network, or 1", in_name=True, prefix="forget"
    )
    eps: Eps = option(
        "own", "what is added to the variance: own, that of the formula, 0.1 or 1", in_name=True, prefix="eps"
    )
    seed: int = seed_option("seeds of the initial weights, of the batches and of exploration")
    learning_rate: float = option(
        1.0, "what the program's own learning rate is multiplied by", flag="rate-multiple", prefix="lr", above=0
    )
    decay: float = decay_option(more="; at least the task's own")
    updates: int = option(0, "updates of a run (0: the task's own number)", least=0)

    def __post_init__(self) -> None:
        """Gives options that mean nothing to an arm a fixed value, so that no run is made twice."""
        super().__post_init__()
        network = PROGRAMS[self.task].network
        if self.decay < PROGRAMS[self.task].decay:
            object.__setattr__(self, "decay", 0.0)
        if self.norm == "none":
            object.__setattr__(self, "formula", "none")
            object.__setattr__(self, "start", "1")
            object.__setattr__(self, "eps", "own")
        elif self.formula == "none":
            raise ValueError(f"--formula none is for --norm none, got --norm {self.norm}")
        elif network not in FORMULAS[self.formula]:
            object.__setattr__(self, "formula", "paper")
        if self.start.startswith(RECURRENT) and FORMULAS[self.formula][network].gates not in ("split", "hidden"):
            object.__setattr__(self, "start", "1")  # W_hh h has no gain of its own
        if network == "RNN":  # it has no forget gate
            object.__setattr__(self, "forget_bias", "torch")
