"""The network of experiment 6.1, a GRU for sentences and a linear map for images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layernorm.nn import GRU

from ...train.batches import INIT, derive_seed
from ...train.initial import draw_gru
from .config import Config

MARGINS = {"order": 0.05, "cosine": 0.2}
"""The margin of each similarity's loss."""


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
