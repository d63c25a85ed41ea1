"""Handwritten digits, read row by row."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data.digits import load_digits
from ...report.blocks import Metric
from ...train.batches import Shuffled
from ..program import Data, Networks, Parts, Program, as_data

BATCH, UNITS, SIDE = 100, 128, 8


class Reader(nn.Module):
    """Reads the rows of images `[B, 8, 8]` and scores the digits after the last one."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.lstm = networks(SIDE, UNITS, num_layers=2, batch_first=True)
        self.scores = nn.Linear(UNITS, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.scores(self.lstm(images)[0][:, -1])


def load(folder: Path | None) -> Data:
    """Loads scikit-learn's digits. The test digits are mostly by other writers."""
    digits = load_digits()
    images = {
        name: cases.images.float().view(-1, SIDE, SIDE) / digits.white
        for name, cases in (("train", digits.train), ("test", digits.test))
    }
    return as_data("digits", **images, train_labels=digits.train.labels, test_labels=digits.test.labels)


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    images, labels = data["train"], data["train_labels"]
    batches = Shuffled(len(images), BATCH, seed)

    def loss(model: nn.Module, update: int) -> Tensor:
        rows = batches.share(update)[0]
        return F.cross_entropy(model(images[rows]), labels[rows])

    def evaluate(model: nn.Module) -> float:
        return float((model(data["test"]).argmax(1) != data["test_labels"]).double().mean())

    return Parts(Reader(networks), loss, evaluate, (images[batches.share(0)[0]],))


PROGRAM = Program(
    name="digits",
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
