"""Forecasts of the loads of many customers: a distribution for each hour, whose mean is fed back for the next one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....report.blocks import Metric
from ..made import noise, rounded, uniform
from ..program import Data, Networks, Parts, Program, as_data, batched, data_generator

BATCH, UNITS, LAYERS, EMBEDDING, DROP = 64, 40, 3, 20, 0.1
CUSTOMERS, STEPS, AHEAD, WEEKS = 60, 192, 24, 20
"""Of each window the last 24 of 192 hours are forecast. The last week is for the test, that before for validation."""
DAYS = 7 * WEEKS


class Forecaster(nn.Module):
    """Reads the loads of the hours before and covariates `[T, B, 5]`, and customers `[B]`. Returns means and deviations
    `[T, B]`, from the outputs of all layers, and the state."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.embedding, self.drop = nn.Embedding(CUSTOMERS, EMBEDDING), nn.Dropout(DROP)
        sizes = (5 + EMBEDDING, *[UNITS] * (LAYERS - 1))
        self.lstms = nn.ModuleList(networks(size, UNITS) for size in sizes)
        self.mean, self.deviation = nn.Linear(LAYERS * UNITS, 1), nn.Linear(LAYERS * UNITS, 1)

    def forward(self, x: Tensor, customers: Tensor, states: Any = None) -> tuple[Tensor, Tensor, Any]:
        x = torch.cat([x, self.embedding(customers).expand(len(x), -1, -1)], 2)
        outputs: list[Tensor] = []
        new: list[Any] = []
        for layer, lstm in enumerate(self.lstms):
            output, state = lstm(self.drop(outputs[-1]) if layer else x, states and states[layer])
            outputs.append(output)
            new.append(state)
        joined = torch.cat(outputs, 2)
        return self.mean(joined).squeeze(2), F.softplus(self.deviation(joined)).squeeze(2), new


def load(folder: Path | None) -> Data:
    """Makes loads `[hours, customers]`, and covariates `[hours, 4]`: age, weekday, hour and month, of deviation 1.

    A customer has a level, which grows, peaks at hours of his own, other days at the end of the week, and a share of a
    season and of cold spells that are the same for all; and noise that remembers.
    """
    generator = data_generator("loads")

    def draw(low: float, high: float) -> Tensor:
        return uniform(generator, CUSTOMERS, low=low, high=high)

    hours = torch.arange(24 * DAYS).double().unsqueeze(1)
    hour, weekday, month = hours % 24, (hours // 24) % 7, hours // (24 * 30)
    level, growth = (3 * draw(0, 1)).exp(), draw(-0.1, 0.3)
    day = torch.zeros(24 * DAYS, CUSTOMERS, dtype=torch.float64)
    for low, high in ((5, 11), (16, 22)):
        peak, width = draw(low, high) + 2 * (weekday >= 5) * draw(0, 1), draw(1.5, 4)
        day += draw(0.2, 1.5) * (1 - 0.7 * (weekday >= 5) * draw(0, 1)) * (-(((hour - peak) / width) ** 2)).exp()
    cold, spells, rest, noises = torch.zeros(1).double(), [], torch.zeros(CUSTOMERS).double(), []
    memory, size = draw(0.5, 0.95), draw(0.03, 0.12)
    for _ in range(24 * DAYS):
        cold = 0.98 * cold + 0.1 * noise(generator, 1)
        rest = memory * rest + size * noise(generator, CUSTOMERS)
        spells.append(cold)
        noises.append(rest)
    season = draw(-0.3, 0.3) * (2 * math.pi * hours / (24 * DAYS)).sin() + draw(0, 0.4) * torch.stack(spells)
    shares = 0.3 + day + season * (0.3 + day) + torch.stack(noises)
    loads = level * (1 + growth * hours / (24 * DAYS)) * shares.clamp(min=0.02)
    covariates = torch.cat([hours, weekday, hour, month], 1)
    covariates = (covariates - covariates.mean(0)) / covariates.std(0)
    return as_data("loads of customers", loads=rounded(loads), covariates=rounded(covariates))


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    loads, covariates = data["loads"], data["covariates"]
    days = DAYS - STEPS // 24 + 1  # windows begin at midnight
    train, held_out = CUSTOMERS * (days - 14), CUSTOMERS * 7

    def batch(rows: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        day, customers = rows.to(loads.device) // CUSTOMERS, rows.to(loads.device) % CUSTOMERS
        hours = 24 * day + torch.arange(STEPS, device=loads.device).unsqueeze(1)
        window = loads[hours, customers]
        window = window / (1 + window[: STEPS - AHEAD - 1].mean(0))
        before = torch.cat([torch.zeros_like(window[:1]), window[:-1]])
        return (torch.cat([before.unsqueeze(2), covariates[hours]], 2), customers), window

    def nll(found: Any, right: Tensor) -> Tensor:
        mean, deviation, _ = found
        return -torch.distributions.Normal(mean, deviation, False).log_prob(right).mean(1).sum()

    def deviation(rows: Tensor) -> Any:
        """Computes the sum of the absolute errors of the last day over that of the loads."""

        def evaluate(model: Any) -> float:
            (x, customers), right = batch(rows)
            mean, _, states = model(x[: 1 - AHEAD], customers)
            means = [mean[-1]]
            for step in x[1 - AHEAD :]:
                step = torch.cat([means[-1].unsqueeze(1), step[:, 1:]], 1)
                mean, _, states = model(step.unsqueeze(0), customers, states)
                means.append(mean[0])
            right = right[-AHEAD:]
            return float((torch.stack(means) - right).abs().sum() / right.abs().sum())

        return evaluate

    parts = batched(Forecaster(networks), batch, nll, (train, held_out, held_out), BATCH, seed)
    _, valid, test = torch.arange(train + 2 * held_out).split([train, held_out, held_out])
    return parts._replace(evaluate=deviation(valid), test=deviation(test))


PROGRAM = Program(
    source="https://github.com/zhykoties/TimeSeries (experiments/param_search/params.json, model/net.py)",
    settings="DeepAR: 3 layers of 40 units, dropout 0.1, Adam 1e-3, batch 64, windows of 192 hours, customers as 20 "
    "numbers, a normal distribution. Its LSTM has two forget biases of 1. Here 60 made customers for 370, and large "
    "customers are drawn as often as small ones.",
    network="LSTM",
    metric=Metric("deviation", "error over load", percent=True),
    chance=0.45,
    margin=0.01,
    optimizer=torch.optim.Adam,
    rate=1e-3,
    updates=300,
    load=load,
    build=build,
    confirms="start",
    inputs="numbers",
)
