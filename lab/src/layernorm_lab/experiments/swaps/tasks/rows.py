"""Handwritten digits, read row by row, with batch norm and dropout behind the network."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....data.mnist import MNIST
from ....report.blocks import Metric
from ..program import Data, Networks, Parts, Program, as_data, batched, error

BATCH, UNITS, SIDE, MEAN, DEVIATION = 64, 64, 28, 0.1307, 0.3081
TRAIN, HELD_OUT, TEST = 55_000, 5000, 10_000


class Reader(nn.Module):
    """Reads the rows of images `[T, B, 28]` and scores the digits after the last one."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.lstm, self.norm = networks(SIDE, UNITS), nn.BatchNorm1d(UNITS)
        self.hidden, self.scores = nn.Linear(UNITS, 32), nn.Linear(32, 10)
        self.first, self.second = nn.Dropout(0.25), nn.Dropout(0.5)

    def forward(self, images: Tensor) -> Tensor:
        features = self.first(self.norm(self.lstm(images)[0][-1]))
        return self.scores(self.second(F.relu(self.hidden(features))))


def load(folder: Path | None) -> Data:
    """Loads MNIST from the folder `mnist` in the given one, uint8 `[T, M, 28]`."""
    mnist = MNIST.load(None if folder is None else folder / MNIST.name)
    parts = mnist.train[: TRAIN + HELD_OUT], mnist.test[:TEST]
    images = torch.cat([part.images for part in parts]).view(-1, SIDE, SIDE).transpose(0, 1).contiguous()
    return as_data("mnist by rows", images=images, labels=torch.cat([part.labels for part in parts]))


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor], Tensor]:
        return ((data["images"][:, rows] / 255 - MEAN) / DEVIATION,), data["labels"][rows]

    cases = TRAIN, HELD_OUT, TEST
    return batched(Reader(networks), batch, F.cross_entropy, cases, BATCH, seed, error)


PROGRAM = Program(
    source="https://github.com/pytorch/examples (mnist_rnn/main.py)",
    settings="Adadelta 0.1, batch 64, 64 units, then batch norm, dropout 0.25, 32 units, dropout 0.5. Here a shorter "
    "training, 5,000 training images held out, and the learning rate stays as it is.",
    network="LSTM",
    metric=Metric("error", "error", percent=True),
    chance=0.9,
    margin=0.005,
    optimizer=torch.optim.Adadelta,
    rate=0.1,
    updates=2000,
    load=load,
    build=build,
    confirms="start",
)
