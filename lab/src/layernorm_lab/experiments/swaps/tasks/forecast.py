"""Forecasting of one variable: the distribution of a series' next value."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....report.blocks import Metric
from ..program import Data, Networks, Parts, Program, as_data, batched, data_generator

LENGTH, BATCH, UNITS = 72, 32, 40
TRAIN, TEST = 4000, 500


class Forecaster(nn.Module):
    """Reads values `[T, B]` and returns Student's t of the next one: degrees of freedom, place and scale, `[T, B]`."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.lstm = networks(1, UNITS, num_layers=2, dropout=0.1)
        self.parameters_of = nn.Linear(UNITS, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        freedom, place, scale = self.parameters_of(self.lstm(x.unsqueeze(2))[0]).unbind(2)
        return 2 + F.softplus(freedom), place, F.softplus(scale)


def load(folder: Path | None) -> Data:
    """Makes series `[T, M]`: a level, a season and its overtone, noise that remembers, and rare jumps of the level. As
    in the program, each is divided by its mean size."""
    generator = data_generator("forecast")
    count = TRAIN + TEST

    def draw(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=generator)

    time = torch.arange(LENGTH + 1.0).unsqueeze(1)
    phase, period = draw(0, 2 * math.pi), draw(6, 24)
    angle = 2 * math.pi * time / period + phase
    season = draw(0.2, 1.5) * angle.sin() + draw(0, 0.7) * (2 * angle).sin()
    memory, noise = draw(0, 0.9), torch.zeros(count)
    noises = []
    for step in draw(0.05, 0.3) * torch.randn(LENGTH + 1, count, generator=generator):
        noise = memory * noise + step
        noises.append(noise)
    jumps = torch.randn(LENGTH + 1, count, generator=generator)
    jumps *= torch.rand(LENGTH + 1, count, generator=generator) < 0.03
    series = draw(0, 2) + season + torch.stack(noises) + jumps.cumsum(0)
    return as_data("forecast", series=series / series.abs().mean(0))


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor], Tensor]:
        series = data["series"][:, rows]
        return (series[:-1],), series[1:]

    def nll(of_next: tuple[Tensor, Tensor, Tensor], series: Tensor) -> Tensor:
        freedom, place, scale = of_next
        return -torch.distributions.StudentT(freedom, place, scale, False).log_prob(series).mean()

    return batched(Forecaster(networks), batch, nll, (TRAIN, TEST), BATCH, seed)


PROGRAM = Program(
    source="https://github.com/awslabs/gluonts (torch/model/deepar)",
    settings="DeepAR: 2 layers of 40 units, dropout 0.1, Adam 1e-3, gradient's norm clipped to 10, batch 32, Student's "
    "t. Here the last value is the only input.",
    network="LSTM",
    metric=Metric("nll", "NLL, nats a step"),
    chance=1.5,
    margin=0.01,
    optimizer=functools.partial(torch.optim.Adam, weight_decay=1e-8),
    rate=1e-3,
    updates=1500,
    load=load,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_norm_(parameters, 10.0),
)
