"""The options of the experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...config import TrainingConfig, batch_option, decay_option, norm_option, option, rate_option, seed_option


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Options of the experiment. The defaults are the paper's protocol."""

    norm: Literal["none", "layer", "rms", "weight"] = norm_option(
        "what is normalised in both LSTMs: nothing; the cell on its way to h (layer, rms); the weights (weight)"
    )
    seed: int = seed_option("seeds of the initial weights, of the order of the training cases and of the noise")
    epochs: int = option(200, "passes over the training set", least=1)
    glimpses: int = option(64, "steps of reading and writing an image", least=1)
    hidden: int = option(256, "units in each LSTM", least=2)
    latent: int = option(100, "size of z at each glimpse", least=1)
    read_size: int = option(2, "filters along each side of the grid that reads", least=2)
    write_size: int = option(5, "filters along each side of the grid that writes", least=2)
    batch_size: int = batch_option(128, "training cases")
    learning_rate: float = rate_option(1e-3)
    decay: float = decay_option()
    deviation: float = option(
        0.0, "standard deviation of the initial weights (0: torch's own, uniform on +-1/sqrt(units))", least=0
    )
    clip: float = option(10.0, "largest norm of the whole gradient", above=0)
    evaluate_every: int = option(0, "updates between evaluations (0: one epoch)", least=0)
