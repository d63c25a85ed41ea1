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
    initial: Literal["torch", "source"] = option(
        "torch",
        "initial weights: torch's own, uniform on +-1/sqrt(units), with biases of 0; or those of the authors' cell, "
        "uniform on +-1/sqrt(inputs) for each linear map, biases too",
    )
    deviation: float = option(0.0, "standard deviation of normal initial weights in their place (0: none)", least=0)
    clip: float = option(10.0, "largest norm of the whole gradient", above=0)
    evaluate_every: int = option(0, "updates between evaluations (0: one epoch)", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.deviation and self.initial == "source":
            raise ValueError("--deviation takes the place of --initial source; give one of them")
