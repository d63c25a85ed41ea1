"""The network of experiment 6.1, a GRU for sentences and a linear map for images, and the experiment's options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layernorm.nn import GRU

from ...protocol import CheckedOptions, decay_option, option, seed_option
from ...train.batches import INIT, derive_seed
from ...train.initial import draw_gru

MARGINS = {"order": 0.05, "cosine": 0.2}
"""The margin of each similarity's loss."""


@dataclass(frozen=True)
class Config(CheckedOptions):
    """Options of the experiment. The defaults are the paper's protocol."""

    similarity: Literal["order", "cosine"] = option(
        "order", "order: the order embedding; cosine: the symmetric baseline (Sym)", several="similarity"
    )
    norm: Literal["none", "layer", "rms", "weight", "batch"] = option(
        "layer", "what the GRU's summed inputs are normalised by", several="norm"
    )
    learning_rate: float = option(1e-3, "step size", several="learning-rate", mark="lr", above=0)
    seed: int = seed_option("seeds of the initial weights, of the order of the images and of the choice of captions")
    epochs: int = option(100, "passes over the training images, each with one of its captions", least=1)
    batch_size: int = option(128, "images in a batch, over all processes together", least=2)
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


class Embedding(nn.Module):
    """Sentences and images as points of one space.

    Args:
        vocabulary: number of word ids.
        features: the number of features of an image.
        config: sizes, norm and similarity.
    """

    def __init__(self, vocabulary: int, features: int, config: Config) -> None:
        super().__init__()
        norm = None if config.norm == "none" else config.norm
        self.words = nn.Embedding(vocabulary, config.words)
        self.gru = GRU(config.words, config.hidden, norm=norm)
        self.image = nn.Linear(features, config.hidden)
        self.absolute = config.similarity == "order"

    def forward(self, ids: Tensor, lengths: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Embeds `[T, B]`, `[B]` and `[V, F]` -> sentences `[B, D]` and images `[V, D]`."""
        return self.sentences(ids, lengths), self.images(features)

    def sentences(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Computes the GRU's last state, scaled to length 1: `[T, B]`, `[B]` -> `[B, D]`. The order embedding has no
        signs."""
        _, state = self.gru(self.words(ids), lengths=lengths)
        return self._point(state[0])

    def images(self, features: Tensor) -> Tensor:
        """Maps features to points, scaled to length 1: `[V, F]` -> `[V, D]`. The order embedding has no signs."""
        return self._point(self.image(features))

    def _point(self, rows: Tensor) -> Tensor:
        rows = F.normalize(rows, dim=1)
        return rows.abs() if self.absolute else rows


def build_embedding(config: Config, vocabulary: int, features: int) -> Embedding:
    """Builds the network with its initial weights. One seed gives every norm the same weights."""
    model = Embedding(vocabulary, features, config)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(derive_seed(config.seed, INIT))
        model.words.weight.uniform_(-0.1, 0.1)
        draw_gru(model.gru)
        nn.init.xavier_uniform_(model.image.weight)
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter.zero_()
    return model
