"""The adding problem: 100 steps of two numbers, and the sum of the two that are marked."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....report.blocks import Metric
from ..program import Data, Networks, Parts, Program, as_data, batched, data_generator

STEPS, BATCH, UNITS = 100, 20, 64
TRAIN, TEST = 20_000, 1000


class Adder(nn.Module):
    """Reads a sequence `[T, B, 2]` and returns the sum `[B]`."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.lstm = networks(2, UNITS)
        self.sum = nn.Linear(UNITS, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.sum(self.lstm(x)[0][-1]).squeeze(1)


def load(folder: Path | None) -> Data:
    """Makes the sequences `[T, M, 2]`, with a mark in either half, and the sums `[M]`."""
    generator = data_generator("adding")
    rows = torch.arange(TRAIN + TEST)
    marks = torch.zeros(STEPS, len(rows))
    for half in (0, STEPS // 2):
        marks[half + torch.randint(STEPS // 2, (len(rows),), generator=generator), rows] = 1
    x = torch.stack([torch.rand(STEPS, len(rows), generator=generator), marks], 2)
    return as_data("adding", x=x, y=x.prod(2).sum(0))


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor], Tensor]:
        return (data["x"][:, rows],), data["y"][rows]

    return batched(Adder(networks), batch, F.mse_loss, (TRAIN, TEST), BATCH, seed)


PROGRAM = Program(
    source="https://github.com/amarshah/complex_RNN (adding_problem.py, model LSTM)",
    settings="RMSprop 1e-3, each gradient clipped to 1, batch 20. Here 100 steps for 200, 64 units for 512.",
    network="LSTM",
    metric=Metric("mse", "squared error", log=True),
    chance=1 / 6,
    margin=0.005,
    optimizer=functools.partial(torch.optim.RMSprop, alpha=0.9),
    rate=1e-3,
    updates=6000,
    load=load,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_value_(parameters, 1.0),
)
