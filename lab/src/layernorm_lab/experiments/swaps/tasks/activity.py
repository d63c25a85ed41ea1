"""What a person does, told from nine signals of a telephone in the pocket."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....report.blocks import Metric
from ..made import noise, rounded, uniform
from ..program import Data, Networks, Parts, Program, as_data, batched, data_generator, error

BATCH, UNITS, STEPS, SIGNALS, CLASSES, PEOPLE = 200, 32, 64, 9, 6, 60
TRAIN, TEST = 3000, 1500
DECAY = 0.0015


class Watcher(nn.Module):
    """Reads signals `[T, B, 9]` and scores the activities after the last step."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.hidden = nn.Linear(SIGNALS, UNITS)
        self.lstm = networks(UNITS, UNITS, num_layers=2)
        self.scores = nn.Linear(UNITS, CLASSES)

    def forward(self, signals: Tensor) -> Tensor:
        return self.scores(self.lstm(F.relu(self.hidden(signals)))[0][-1])


def load(folder: Path | None) -> Data:
    """Makes signals `[T, M, 9]`, in units of gravity and radians a second, and activities: three ways to walk, three to
    rest. Of 60 people, the last 15 each are those of validation and test.

    Each person has a pace and a strength, and wears the telephone at an angle of his own. Walking is a wave with its
    overtone, whose shape depends on the way; at rest only the direction of gravity tells the activities apart.
    """
    generator = data_generator("activity")
    count = TRAIN + 2 * TEST
    person = torch.cat([
        torch.randint(low, high, (part,), generator=generator)
        for part, low, high in ((TRAIN, 0, 30), (TEST, 30, 45), (TEST, 45, PEOPLE))
    ])  # fmt: skip
    activity = torch.randint(CLASSES, (count,), generator=generator)
    walks, way = activity < 3, activity % 3
    pace, strength = uniform(generator, PEOPLE, low=0.8, high=1.25)[person], uniform(generator, PEOPLE, low=0.6)[person]
    angle = 0.35 * noise(generator, PEOPLE, 2)[person] + 0.12 * noise(generator, count, 2)
    tilt = (
        torch.tensor([[0.0, 0.15], [0.5, 0.0], [1.35, 0.2]], dtype=torch.float64)[way] * (~walks).unsqueeze(1) + angle
    )
    gravity = torch.stack([tilt.cos().prod(1), tilt[:, 0].sin(), tilt[:, 1].sin()], 1)  # [M, 3]
    period = torch.tensor([13.0, 15.5, 11.5], dtype=torch.float64)[way] / pace
    phase = uniform(generator, count, high=2 * math.pi)
    turn = 2 * math.pi * torch.arange(float(STEPS), dtype=torch.float64).unsqueeze(1) / period + phase  # [T, M]
    overtone = torch.tensor([0.5, 0.8, 1.2], dtype=torch.float64)[way]
    size = 0.25 * strength * walks
    waves = torch.stack(
        [turn.sin() + overtone * (2 * turn).sin(), 0.6 * (turn + 1).sin(), 0.4 * (2 * turn + 2).cos()], 2
    )
    body = size.unsqueeze(1) * waves + 0.08 * noise(generator, STEPS, count, 3)
    gyro = 2 * size.unsqueeze(1) * waves.roll(1, 2) + 0.15 * noise(generator, STEPS, count, 3)
    return as_data("activities", signals=rounded(torch.cat([body, gyro, body + gravity], 2)), activity=activity)


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor], Tensor]:
        return (data["signals"][:, rows],), data["activity"][rows]

    parts = batched(Watcher(networks), batch, F.cross_entropy, (TRAIN, TEST, TEST), BATCH, seed, error)

    def loss(model: Any, update: int) -> Tensor:
        squares = [parameter.square().sum() for parameter in model.parameters()]
        return parts.loss(model, update) + DECAY / 2 * torch.stack(squares).sum()

    return parts._replace(loss=loss)


PROGRAM = Program(
    source="https://github.com/guillaume-chevalier/LSTM-Human-Activity-Recognition",
    settings="Adam 0.0025, 2 layers of 32 units, 9 signals, 0.00075 of the sum of all parameters' squares "
    "in the loss. Its cells have a forget bias of 1. Here 64 steps for 128, batch 200 for 1500, torch's "
    "weights, made signals.",
    network="LSTM",
    metric=Metric("error", "error", percent=True),
    chance=5 / 6,
    margin=0.03,
    optimizer=torch.optim.Adam,
    rate=0.0025,
    updates=400,
    load=load,
    build=build,
    confirms="line",
)
