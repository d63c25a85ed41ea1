"""The options of the experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...config import TrainingConfig, batch_option, decay_option, norm_option, option, rate_option, seed_option
from ...report.arms import GAINED


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Options of the experiment. The defaults are the paper's protocol."""

    norm: Literal["none", "layer", "rms", "weight"] = norm_option(
        "what is normalised in the LSTMs: nothing; the summed inputs and the cells (layer, rms); the weights (weight)"
    )
    seed: int = seed_option("seeds of the initial weights and of the order of the training lines")
    updates: int = option(20000, "updates of the weights", least=1)
    batch_size: int = batch_option(8, "training lines")
    points: int = option(500, "points of a line; longer lines are cut", least=1)
    units: int = option(400, "units in each of the three LSTMs", least=1)
    mixtures: int = option(20, "Gaussians in the density of the next point", least=1)
    learning_rate: float = rate_option(1e-3)
    decay: float = decay_option()
    gain_init: float | Literal["steady"] = option(
        1.0,
        "initial gains of layer and RMS norm, or steady: 0.6 for that of W_hh h, 1 for all others; other norms are "
        "named 1",
        above=0,
    )
    forget_bias: float = option(0.0, "added to the initial biases of the LSTMs' forget gates", least=0)
    clip: Literal["gates", "inputs"] = option(
        "gates", "where the LSTMs' gradients are clipped: at the gates' summed inputs, as by Graves, or at the inputs"
    )
    lines: Literal["cleaned", "raw"] = option(
        "cleaned", "cleaned: missing readings are filled in and over-long steps removed; raw: lines as published"
    )
    evaluate_every: int = option(200, "updates between evaluations", least=1)
    valid_lines: int = option(0, "lines to evaluate on, spread over all 1438 (0: all)", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm not in GAINED:  # a fixed value, so that several gains do not make the same run several times
            object.__setattr__(self, "gain_init", 1.0)
