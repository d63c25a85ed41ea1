"""The options of the experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...config import TrainingConfig, batch_option, decay_option, norm_option, option, rate_option, seed_option


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Options of the experiment. The defaults are the protocol of Salimans and Kingma (2016)."""

    norm: Literal["none", "layer", "layer-shared", "layer-channels", "batch", "weight", "group"] = norm_option(
        "what is done to every convolution: nothing; layer norm over channels and positions, with a gain and a bias "
        "for each unit (layer) or for each channel (layer-shared), or over the channels at each position "
        "(layer-channels); batch, weight or group norm"
    )
    learning_rate: float = rate_option(3e-3, "Adam's learning rate at the start", in_name=True)
    decay: float = decay_option(0.5)
    seed: int = seed_option("seeds of the initial weights, of the order of the images, of dropout and of the noise")
    batch_size: int = batch_option(100, "images")
    epochs: int = option(200, "passes over the training images", least=1)
    width: int = option(96, "channels of the first three convolutions; the others have twice as many", least=2)
    train_cases: int = option(0, "number of images to train on, from the first on (0: all)", least=0)
    held_out: int = option(5000, "images at the end of the training files that are kept for validation", least=1)
    evaluate_cases: int = option(5000, "images of each part to evaluate on after an epoch", least=1)
    dropout: float = option(0.5, "dropout probability after each pooling", least=0, below=1)
    noise: float = option(0.15, "standard deviation of the noise on the images in training", least=0)
