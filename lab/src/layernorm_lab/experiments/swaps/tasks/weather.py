"""A forecast of the temperature from five days of hourly weather."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....report.blocks import Metric
from ..made import noise, rounded, uniform
from ..program import Data, Networks, Parts, Program, as_data, batched, data_generator

BATCH, UNITS, STEPS, AHEAD = 256, 32, 120, 12
HOURS, STATIONS, TRAIN, HELD_OUT = 720, 112, 64, 24
"""Of each station, a month. Stations of the training and of the validation; the others are of the test."""


class Forecaster(nn.Module):
    """Reads features `[T, B, 7]` and returns the temperature `[B]`."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.lstm = networks(7, UNITS)
        self.temperature = nn.Linear(UNITS, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.temperature(self.lstm(x)[0][-1]).squeeze(1)


def load(folder: Path | None) -> Data:
    """Makes the weather of stations, `[hours, stations, 7]`: pressure, temperature, the most vapour that air can hold
    and what it lacks of it, moisture, density and wind. Each is divided by its deviation, its mean is taken off.

    Pressure and moisture wander. The temperature follows the hour, less under clouds, and the air that the wind
    brings as the pressure falls.
    """
    generator = data_generator("weather")
    start, mean, spread = (uniform(generator, STATIONS, low=low, high=high) for low, high in ((0, 24), (2, 20), (3, 8)))
    pressure, slope, clouds, front = (torch.zeros(STATIONS, dtype=torch.float64) for _ in range(4))
    hours = []
    for hour in range(HOURS):
        slope = 0.95 * slope + 0.12 * noise(generator, STATIONS)
        pressure = 0.995 * pressure + slope
        clouds = 0.97 * clouds - 0.05 * slope + 0.1 * noise(generator, STATIONS)
        front = 0.98 * front - 0.12 * slope + 0.08 * noise(generator, STATIONS)
        cover = clouds.clamp(-1, 1) / 2 + 0.5
        day = -(2 * math.pi * (hour + start) / 24).cos()
        temperature = mean + spread * (1 - 0.7 * cover) * day + 3 * front + 0.3 * noise(generator, STATIONS)
        most = 6.1 * (0.065 * temperature).exp()
        moisture = (0.45 + 0.5 * cover) * most * (0.95 - 0.1 * day)
        wind = (2.5 + 4 * slope.abs() + noise(generator, STATIONS)).clamp(min=0)
        density = (1000 + 8 * pressure) / (2.87 * (273 + temperature)) * 1000
        hours.append([pressure, temperature, most, most - moisture, moisture, density, wind])
    weather = torch.stack([torch.stack(features, 1) for features in hours])
    known = weather[:, :TRAIN].flatten(0, 1)
    return as_data("weather-like hours", weather=rounded((weather - known.mean(0)) / known.std(0)))


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    weather = data["weather"]
    starts = HOURS - STEPS - AHEAD
    train, held_out, test = (count * starts for count in (TRAIN, HELD_OUT, STATIONS - TRAIN - HELD_OUT))

    def batch(rows: Tensor) -> tuple[tuple[Tensor], Tensor]:
        rows = rows.to(weather.device)
        rows = torch.where(rows < train, rows, train + AHEAD * (rows - train))  # of the other stations every 12th start
        station, start = rows // starts, rows % starts
        steps = start + torch.arange(STEPS, device=weather.device).unsqueeze(1)
        return (weather[steps, station],), weather[start + STEPS - 1 + AHEAD, station, 1]

    cases = train, held_out // AHEAD, test // AHEAD
    return batched(Forecaster(networks), batch, F.mse_loss, cases, BATCH, seed)


PROGRAM = Program(
    source="https://keras.io/examples/timeseries/timeseries_weather_forecasting",
    settings="32 units, Adam 1e-3, batch 256, 7 features of 120 hours, the temperature 12 hours later. Its LSTM has a "
    "forget bias of 1. Here made weather, torch's weights, and a shorter training.",
    network="LSTM",
    metric=Metric("mse", "squared error"),
    chance=1.0,
    margin=0.01,
    optimizer=torch.optim.Adam,
    rate=1e-3,
    updates=600,
    load=load,
    build=build,
    confirms="line",
)
