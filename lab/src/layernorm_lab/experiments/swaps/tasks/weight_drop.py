"""A word model whose recurrent weights are dropped, trained by large steps of SGD: AWD-LSTM."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import register_parametrization

from ....report.blocks import Metric
from ..language import language_parts
from ..program import Data, Networks, Parts, Program
from .words import BATCH, STEPS, VOCABULARY, load

SIZES = (100, 150, 150, 100)
"""The units of the embedding and of the three layers. The last is as wide as the embedding, which also decodes."""


class WeightDrop(nn.Module):
    """Drops half of a weight matrix, once for all steps of a sequence."""

    def forward(self, weight: Tensor) -> Tensor:
        return F.dropout(weight, 0.5, self.training)


class DroppedModel(nn.Module):
    """A tied embedding and three layers with dropout of words, of weights, and of units alike at all steps."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.embedding, self.bias = nn.Embedding(VOCABULARY, SIZES[0]), nn.Parameter(torch.zeros(VOCABULARY))
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.layers = nn.ModuleList(networks(size, units) for size, units in itertools.pairwise(SIZES))
        for layer in self.layers:
            register_parametrization(layer, "weight_hh_l0", WeightDrop())

    def drop(self, x: Tensor, share: float) -> Tensor:
        """Drops the same units at all steps of `[T, B, H]`."""
        return x * F.dropout(torch.ones_like(x[:1]), share, self.training)

    def forward(self, ids: Tensor, state: tuple[Tensor, ...] | None = None) -> tuple[Tensor, tuple[Tensor, ...], Any]:
        kept = F.dropout(torch.ones_like(self.embedding.weight[:, :1]), 0.1, self.training)
        output = self.drop(F.embedding(ids, self.embedding.weight * kept), 0.65)
        new: list[Tensor] = []
        for place, layer in enumerate(self.layers):
            raw, after = layer(output, state[2 * place : 2 * place + 2] if state else None)
            output = self.drop(raw, 0.3 if place + 1 < len(self.layers) else 0.4)
            new += after
        penalty = 2 * output.square().mean() + (raw[1:] - raw[:-1]).square().mean()
        return F.linear(output, self.embedding.weight, self.bias), tuple(new), penalty


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    return language_parts(DroppedModel(networks), data["text"], BATCH, STEPS)


PROGRAM = Program(
    source="https://github.com/salesforce/awd-lstm-lm",
    settings="SGD 30, gradient's norm clipped to 0.25, weight decay 1.2e-6, 3 layers, half of each W_hh dropped, "
    "dropout 0.65, 0.3, 0.4 and 0.1 of the words, penalties 2 and 1. Here 150 units for 1150, 20 columns for 80, 35 "
    "steps for 70, all windows of one length.",
    network="LSTM",
    metric=Metric("nll", "NLL, nats a word"),
    chance=7.6,
    margin=0.02,
    optimizer=functools.partial(torch.optim.SGD, weight_decay=1.2e-6),
    rate=30.0,
    updates=600,
    load=load,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.25),
)
