"""The options of the experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...config import TrainingConfig, batch_option, decay_option, norm_option, option, rate_option, seed_option


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Options of the experiment. The defaults are the paper's protocol."""

    similarity: Literal["order", "cosine"] = option(
        "order", "order: the order embedding; cosine: the symmetric baseline (Sym)", in_name=True
    )
    norm: Literal["none", "layer", "rms", "weight", "batch"] = norm_option(
        "what the GRU's summed inputs are normalised by"
    )
    learning_rate: float = rate_option(1e-3, "learning rate", in_name=True)
    seed: int = seed_option("seeds of the initial weights, of the order of the images and of the choice of captions")
    epochs: int = option(100, "passes over the training images, each with one of its captions", least=1)
    batch_size: int = batch_option(128, "images", least=2)
    decay: float = decay_option()
    words: int = option(300, "size of a word's embedding", least=1)
    hidden: int = option(1024, "units of the GRU, and the size of the embedding of sentences and images", least=1)
    margin: float = option(0.0, "margin of the loss (0: 0.05 for order, 0.2 for cosine)", least=0)
    optimizer: Literal["legacy_adam", "adam"] = option(
        "legacy_adam", "legacy_adam: the original code's Adam, with nearly no bias correction; adam: torch's"
    )
    clip: float = option(2.0, "largest norm of each parameter's gradient", above=0)
    evaluate_every: int = option(300, "updates between evaluations on the validation set", least=1)
    valid_images: int = option(1000, "number of validation images to use, from the first on", least=1)
    fold: int = option(1000, "images in a test fold", least=1)
