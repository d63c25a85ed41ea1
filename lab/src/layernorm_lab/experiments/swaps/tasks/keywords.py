"""Keywords told from features of a second of sound."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....report.blocks import Metric
from ..made import noise, rounded, uniform
from ..program import Data, Networks, Parts, Program, as_data, batched, data_generator, error

BATCH, UNITS, STEPS, FEATURES, CLASSES = 100, 118, 49, 10, 12
TRAIN, TEST = 4000, 1500
PHONES, SPOKEN, LASTING = 14, 3, 11
"""Phones there are, phones in a word, and the most frames of a phone."""


class Listener(nn.Module):
    """Reads features `[T, B, 10]` and scores the classes after the last ones."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.lstm = networks(FEATURES, UNITS)
        self.scores = nn.Linear(UNITS, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        return self.scores(self.lstm(features)[0][-1])


def load(folder: Path | None) -> Data:
    """Makes features `[T, M, 10]` as cepstra have them, and classes: 0 is only noise, 1 any other word.

    A phone is a place in the ten features, of which the first is loudness. A word is three phones of some length, with
    smooth transitions; it begins at any time. Each speaker has a shift of his own, and each second its noise.
    """
    generator = data_generator("keywords")
    count = TRAIN + 2 * TEST
    scale = 12.0 / (1 + torch.arange(float(FEATURES), dtype=torch.float64))
    phones = torch.cat([torch.zeros(1, FEATURES, dtype=torch.float64), scale * noise(generator, PHONES, FEATURES)])
    words = 1 + torch.randint(PHONES, (CLASSES, SPOKEN), generator=generator)
    classes = torch.randint(CLASSES, (count,), generator=generator)
    spoken = words[classes]
    spoken = torch.where(
        (classes == 1).unsqueeze(1), 1 + torch.randint(PHONES, spoken.shape, generator=generator), spoken
    )
    spoken[classes == 0] = 0
    lasting = torch.randint(5, LASTING + 1, (count, SPOKEN), generator=generator)
    start = torch.randint(STEPS - SPOKEN * LASTING, (count, 1), generator=generator)
    ends = torch.cat([start, start + lasting.cumsum(1)], 1)
    place = (torch.arange(STEPS).unsqueeze(1) >= ends.unsqueeze(1)).sum(2)  # [M, T]: 0 before, 4 after the word
    silent = torch.zeros(count, 1, dtype=torch.int64)
    sounds = phones[torch.cat([silent, spoken, silent], 1).gather(1, place)]  # [M, T, 10]
    smooth = F.avg_pool1d(sounds.transpose(1, 2), 5, 1, 2).transpose(1, 2)
    speaker = 0.3 * scale * noise(generator, count, 1, FEATURES)
    loud = uniform(generator, count, 1, 1, low=0.5, high=1.2)
    level = torch.zeros(FEATURES, dtype=torch.float64)
    level[0] = -20.0
    features = level + loud * smooth + speaker + 0.5 * scale * noise(generator, count, STEPS, FEATURES)
    return as_data("keyword-like features", features=rounded(features.transpose(0, 1)), classes=classes)


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor], Tensor]:
        return (data["features"][:, rows],), data["classes"][rows]

    return batched(Listener(networks), batch, F.cross_entropy, (TRAIN, TEST, TEST), BATCH, seed, error)


PROGRAM = Program(
    source="https://github.com/ARM-software/ML-KWS-for-MCU (train_commands.txt, basic_lstm 118)",
    settings="Adam 5e-4, batch 100, 118 units, 49 steps of 10 cepstra as they are. Its cell has a forget bias of 1. "
    "Here made features, and the learning rate stays as it is.",
    network="LSTM",
    metric=Metric("error", "error", percent=True),
    chance=11 / 12,
    margin=0.02,
    optimizer=torch.optim.Adam,
    rate=5e-4,
    updates=600,
    load=load,
    build=build,
    confirms="line",
)
