"""A forecast of the traffic on many roads: a convolution, and two GRUs, one of which goes by days."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....report.blocks import Metric
from ..made import noise, rounded, uniform
from ..program import Data, Networks, Parts, Program, as_data, batched, data_generator

BATCH, UNITS, SKIPPING, WIDTH, SKIP, AGO, DROP = 128, 50, 10, 6, 24, 24, 0.2
ROADS, STEPS, AHEAD, WEEKS = 20, 168, 3, 40
HOURS = 24 * 7 * WEEKS


class Forecaster(nn.Module):
    """Reads the traffic of a week `[T, B, roads]` and returns that of three hours later `[B, roads]`."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.conv, self.drop = nn.Conv1d(ROADS, UNITS, WIDTH), nn.Dropout(DROP)
        self.gru, self.skipping = networks(UNITS, UNITS), networks(UNITS, SKIPPING)
        self.linear, self.highway = nn.Linear(UNITS + SKIP * SKIPPING, ROADS), nn.Linear(AGO, 1)

    def forward(self, x: Tensor) -> Tensor:
        filtered = self.drop(F.relu(self.conv(x.permute(1, 2, 0)))).permute(2, 0, 1)
        size, days = x.shape[1], len(filtered) // SKIP
        daily = filtered[-days * SKIP :].reshape(days, SKIP * size, UNITS)  # the same hour of each day is a sequence
        last = self.gru(filtered)[1][0], *self.skipping(daily)[1][0].view(SKIP, size, SKIPPING)
        return (self.linear(self.drop(torch.cat(last, 1))) + self.highway(x[-AGO:].movedim(0, 2)).squeeze(2)).sigmoid()


def load(folder: Path | None) -> Data:
    """Makes the share of time `[hours, roads]` in which a road is occupied, each divided by its highest.

    Two rush hours of each road's own and another course at the end of the week make a demand, which a mood of the whole
    town and the road's own noise change. What a road cannot take stays in a queue for the next hour, and slows the next
    road down. At times half of a road is closed for some hours.
    """
    generator = data_generator("traffic")

    def draw(low: float, high: float) -> Tensor:
        return uniform(generator, ROADS, low=low, high=high)

    peaks, widths, sizes = ([draw(*limits) for limits in pair] for pair in (
        ((6.5, 9), (15, 18.5)), ((1, 2.5), (1.5, 3.5)), ((0.3, 0.9), (0.3, 0.9))
    ))  # fmt: skip
    base, weekend, able = draw(0.1, 0.3), draw(0.3, 0.7), draw(0.6, 0.85)
    mood, own = torch.zeros(1, dtype=torch.float64), torch.zeros(ROADS, dtype=torch.float64)
    queue, closed = torch.zeros_like(own), torch.zeros_like(own)
    found = []
    for hour in range(HOURS):
        mood = 0.98 * mood + 0.03 * noise(generator, 1)
        own = 0.8 * own + 0.05 * noise(generator, ROADS)
        time, free = hour % 24, hour // 24 % 7 >= 5
        course = base * math.sin(math.pi * time / 24)
        for peak, width, size in zip(peaks, widths, sizes, strict=True):
            course = course + size * (-(((time - peak - 3 * free) / width) ** 2)).exp()
        demand = (base * 0.2 + course * (weekend if free else 1.0)) * (1 + mood + own).clamp(min=0.1)
        begins = uniform(generator, ROADS) < 0.004
        closed = torch.where(begins, uniform(generator, ROADS, low=2, high=6), (closed - 1).clamp(min=0))
        room = able * (1 - 0.5 * (closed > 0).double()) * (1 - 0.4 * (queue.roll(-1) / able).clamp(max=1))
        waiting = queue + demand
        queue = (waiting - room).clamp(min=0, max=2)
        found.append((waiting.minimum(room) + 0.5 * queue) * (1 + 0.03 * noise(generator, ROADS)))
    traffic = torch.stack(found)
    return as_data("traffic-like hours", traffic=rounded(traffic / traffic.amax(0)))


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    traffic = data["traffic"]
    count = HOURS - STEPS - AHEAD + 1
    train, held_out = count * 6 // 10, count * 2 // 10

    def batch(rows: Tensor) -> tuple[tuple[Tensor], Tensor]:
        hours = rows.to(traffic.device) + torch.arange(STEPS, device=traffic.device).unsqueeze(1)
        return (traffic[hours],), traffic[hours[-1] + AHEAD]

    def absolute(found: Tensor, right: Tensor) -> Tensor:
        return (found - right).abs().sum()

    def relative(found: Tensor, right: Tensor) -> Tensor:
        """Computes the root of the squared error over that of the mean."""
        return ((found - right).square().sum() / (right - right.mean()).square().sum()).sqrt()

    cases = train, held_out, count - train - held_out
    return batched(Forecaster(networks), batch, absolute, cases, min(BATCH, train), seed, relative)


PROGRAM = Program(
    source="https://github.com/laiguokun/LSTNet (main.py, models/LSTNet.py, traffic.sh)",
    settings="LSTNet: a convolution over 6 hours, a GRU over a week and one of 10 units over each hour of the days, a "
    "linear way around them, Adam 1e-3, batch 128, dropout 0.2, the sum of absolute errors, gradient's norm clipped to "
    "10. Here 50 filters and units for 100, three hours ahead for twelve, 20 made roads for 862.",
    network="GRU",
    metric=Metric("rse", "relative squared error"),
    chance=1.0,
    margin=0.01,
    optimizer=torch.optim.Adam,
    rate=1e-3,
    updates=200,
    load=load,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_norm_(parameters, 10.0),
    confirms="start",
)
