"""Handwritten digits, read pixel by pixel."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....data.mnist import MNIST
from ....report.blocks import Metric
from ..program import Data, Networks, Parts, Program, as_data, batched, error

BATCH, UNITS, SIDE, MEAN, DEVIATION = 100, 64, 28, 0.1307, 0.3081
TRAIN, HELD_OUT, TEST = 20_000, 1000, 2000


class Reader(nn.Module):
    """Reads pixels `[T, B, 1]` and scores the digits after the last one."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.lstm = networks(1, UNITS)
        self.scores = nn.Linear(UNITS, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.scores(self.lstm(pixels)[1][0][0])


def load(folder: Path | None) -> Data:
    """Loads MNIST from the folder `mnist` in the given one. A pixel, int64 `[T, M]`, is the sum of four."""
    mnist = MNIST.load(None if folder is None else folder / MNIST.name)
    parts = mnist.train[: TRAIN + HELD_OUT], mnist.test[:TEST]
    images = torch.cat([part.images for part in parts]).long().view(-1, SIDE // 2, 2, SIDE // 2, 2).sum((2, 4))
    labels = torch.cat([part.labels for part in parts])
    return as_data("mnist by pixels", pixels=images.flatten(1).T.contiguous(), labels=labels)


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor], Tensor]:
        pixels = data["pixels"][:, rows].unsqueeze(2)
        return ((pixels / (4 * 255) - MEAN) / DEVIATION,), data["labels"][rows]

    cases = TRAIN, HELD_OUT, TEST
    return batched(Reader(networks), batch, F.cross_entropy, cases, BATCH, seed, error)


PROGRAM = Program(
    source="https://github.com/V0XNIHILI/LSTM-Sequential-MNIST (README.md, utils/train.py)",
    settings="RMSprop 1e-3 with momentum 0.9, each gradient clipped to 1, batch 100, pixels less 0.1307 and "
    "divided by 0.3081. Here 64 units for 128, and 20,000 images of 14 x 14 pixels, which makes 196 steps for 784.",
    network="LSTM",
    metric=Metric("error", "error", percent=True),
    chance=0.9,
    margin=0.02,
    optimizer=functools.partial(torch.optim.RMSprop, momentum=0.9),
    rate=1e-3,
    updates=400,
    load=load,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_value_(parameters, 1.0),
    confirms="start",
    inputs="numbers",
)
