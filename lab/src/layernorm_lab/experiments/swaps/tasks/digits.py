"""Handwritten digits, read row by row."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....data.digits import load_digits
from ....report.blocks import Metric
from ..program import Data, Networks, Parts, Program, as_data, batched, error

BATCH, UNITS, SIDE, TRAIN = 100, 128, 8, 1397


class Reader(nn.Module):
    """Reads the rows of images `[B, 8, 8]` and scores the digits after the last one."""

    def __init__(self, networks: Networks, units: int) -> None:
        super().__init__()
        self.lstm = networks(SIDE, units, num_layers=2, batch_first=True)
        self.scores = nn.Linear(units, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.scores(self.lstm(images)[0][:, -1])


def load(folder: Path | None) -> Data:
    """Loads scikit-learn's digits. Those for validation, the last ones, are mostly by other writers."""
    digits = load_digits()
    images, labels = (torch.cat([getattr(part, name) for part in (digits.train, digits.test)]) for name in
                      ("images", "labels"))  # fmt: skip
    return as_data("digits", images=images.float().view(-1, SIDE, SIDE) / digits.white, labels=labels)


def build(data: Data, networks: Networks, seed: int, updates: int, units: int = UNITS) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor], Tensor]:
        return (data["images"][rows],), data["labels"][rows]

    cases = TRAIN, len(data["labels"]) - TRAIN
    return batched(Reader(networks, units), batch, F.cross_entropy, cases, BATCH, seed, error)


PROGRAM = Program(
    source="https://github.com/yunjey/pytorch-tutorial (02-intermediate/recurrent_neural_network)",
    settings="Adam 0.01, 2 layers of 128 units, batch 100. Here scikit-learn's digits of 8 rows for MNIST.",
    network="LSTM",
    metric=Metric("error", "error", percent=True),
    chance=0.9,
    margin=0.01,
    optimizer=torch.optim.Adam,
    rate=0.01,
    updates=300,
    load=load,
    build=build,
)
