"""A forecast of the next measurements at irregular times, most of which are missing."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn

from ....report.blocks import Metric
from ..made import noise, rounded, uniform
from ..program import Data, Networks, Parts, Program, as_data, batched, data_generator

BATCH, UNITS, STEPS, CHANNELS = 50, 64, 40, 6
TRAIN, TEST = 4000, 1000


class Forecaster(nn.Module):
    """Reads the time to the next step, what was measured, and what was not, `[T, B, 13]`; returns `[T, B, 6]`."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.gru = networks(1 + 2 * CHANNELS, UNITS)
        self.decoder = nn.Sequential(nn.Linear(UNITS, 100), nn.Tanh(), nn.Linear(100, CHANNELS))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.gru(x)[0])


def load(folder: Path | None) -> Data:
    """Makes streams: the times between steps `[T, M, 1]`, values and masks `[T, M, 6]`.

    Two hidden quantities swing and drift. Six channels measure mixtures of them with noise, at times with gaps of any
    length, and each with a chance of its own.
    """
    generator = data_generator("irregular")
    count = TRAIN + 2 * TEST
    gaps = uniform(generator, STEPS, count) ** 3 * 3 + 0.05
    time = gaps.cumsum(0)
    period, phase = uniform(generator, 2, count, low=5, high=20), uniform(generator, 2, count, high=2 * math.pi)
    drift, size = 0.06 * noise(generator, 2, count), uniform(generator, 2, count, low=0.3, high=1.0)
    hidden = size * (2 * math.pi * time.unsqueeze(1) / period + phase).sin() + drift * time.unsqueeze(1)  # [T, 2, M]
    mixture = noise(generator, CHANNELS, 2)
    channels = (mixture @ hidden).transpose(1, 2) + 0.3 * noise(generator, STEPS, count, CHANNELS)
    often = uniform(generator, CHANNELS, low=0.1, high=0.5)
    measured = (uniform(generator, STEPS, count, CHANNELS) < often).double()
    return as_data(
        "irregular streams",
        gaps=rounded(gaps.unsqueeze(2)),
        values=rounded(channels * measured),
        measured=measured.float(),
    )


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor], tuple[Tensor, Tensor]]:
        gaps, values, measured = (data[name][:, rows] for name in ("gaps", "values", "measured"))
        return (torch.cat([gaps[1:], values[:-1], measured[:-1]], 2),), (values[1:], measured[1:])

    def squared(found: Tensor, right: tuple[Tensor, Tensor]) -> Tensor:
        values, measured = right
        return (measured * (found - values).square()).sum() / measured.sum()

    return batched(Forecaster(networks), batch, squared, (TRAIN, TEST, TEST), BATCH, seed)


PROGRAM = Program(
    source="https://github.com/YuliaRubanova/latent_ode (run_models.py --classic-rnn)",
    settings="Adamax 0.01, batch 50, a GRU over times, values and a mask, which forecasts the next values. Here 64 "
    "units, made streams, and the learning rate stays as it is.",
    network="GRU",
    metric=Metric("mse", "squared error"),
    chance=2.1,
    margin=0.01,
    optimizer=torch.optim.Adamax,
    rate=0.01,
    updates=800,
    load=load,
    build=build,
    confirms="line",
)
