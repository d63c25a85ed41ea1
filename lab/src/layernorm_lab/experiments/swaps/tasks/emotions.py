"""The emotion of a speaker, told from a clip of speech: one bidirectional layer whose steps are weighted."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....report.blocks import Metric
from ..made import noise, rounded, uniform
from ..program import Data, Networks, Parts, Program, as_data, batched, data_generator, error

BATCH, UNITS, HIDDEN, STEPS, CEPSTRA, CLASSES = 32, 48, 128, 256, 8, 7
TRAIN, TEST = 2500, 700
FEATURES = 2 + CEPSTRA
MANNERS = (
    # level, slope and arch of the pitch, level and swing of the loudness, frames of a phrase and of a syllable
    (0.0, -1.0, 0.0, 0.0, 1.0, 64.0, 12.0),
    (1.0, 1.0, 0.0, 0.0, 1.0, 64.0, 12.0),
    (1.0, 0.0, 1.0, 0.5, 1.0, 64.0, 12.0),
    (0.5, -1.0, 0.0, 1.0, 1.6, 40.0, 9.0),
    (1.0, 1.0, 0.0, -0.5, 1.0, 40.0, 9.0),
    (0.0, 0.0, 1.0, 0.5, 1.6, 40.0, 12.0),
    (-1.0, 0.0, 0.0, -1.0, 0.6, 64.0, 16.0),
)
"""How each emotion is spoken."""


class Listener(nn.Module):
    """Reads features `[T, B, 10]` and scores the emotions of the clips by a weighted mean over the steps."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.hidden = nn.Sequential(
            nn.Linear(FEATURES, HIDDEN),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Dropout(0.5),
        )
        self.lstm = networks(HIDDEN, UNITS, bidirectional=True)
        self.attention, self.scores = nn.Linear(2 * UNITS, 2 * UNITS), nn.Linear(2 * UNITS, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        x = self.hidden(features)
        # Keras's LSTM drops the same inputs at all steps
        states, _ = self.lstm(x * F.dropout(torch.ones_like(x[:1]), 0.5, self.training))
        # what the steps are compared with: in the program a layer behind an input of constants
        asked = self.attention(torch.full_like(states[0, 0], 1 / (2 * UNITS))).softmax(0)
        weights = (states @ asked).softmax(0)
        return self.scores((weights.unsqueeze(2) * states).sum(0))


def load(folder: Path | None) -> Data:
    """Makes clips, features `[T, M, 10]`: the pitch, the loudness and eight cepstra, and emotions, int64 `[M]`.

    Emotions differ in the pitch and how it moves over a phrase, in the loudness and how far it swings with the
    syllables, and in the lengths of both. Each speaker has a pitch, a loudness, a pace and a liveliness. Cepstra change
    with each syllable, and say nothing but when that is.
    """
    generator = data_generator("emotions")
    count = TRAIN + 2 * TEST
    emotion = torch.randint(CLASSES, (count,), generator=generator)
    manners = torch.tensor(MANNERS, dtype=torch.float64)[emotion].unsqueeze(1)
    high, slope, arch, strong, swing, phrase, syllable = manners.unbind(2)  # [M, 1]
    pace, lively = (uniform(generator, count, 1, low=low, high=high) for low, high in ((0.8, 1.25), (0.6, 1.4)))
    step = torch.arange(float(STEPS), dtype=torch.float64) + 256 * uniform(generator, count, 1)  # [M, T]
    place = (step * pace / phrase) % 1.0  # in the phrase, from 0 to 1
    beat = step * pace / syllable
    moved = slope * (place - 0.5) + arch * (4 * place * (1 - place) - 2 / 3)
    pitch = high + 0.7 * noise(generator, count, 1) + 2 * lively * moved
    loud = strong + 0.7 * noise(generator, count, 1) + lively * swing * (2 * math.pi * beat).sin()
    sounds = noise(generator, count, STEPS // 4, CEPSTRA)
    number = (beat - beat[:, :1].floor()).floor().long().unsqueeze(2).expand(-1, -1, CEPSTRA)
    features = torch.cat([pitch.unsqueeze(2), loud.unsqueeze(2), sounds.gather(1, number)], 2)
    features = features + 0.5 * noise(generator, count, STEPS, FEATURES)
    return as_data("emotions in speech", features=rounded(features.transpose(0, 1)), emotion=emotion)


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor], Tensor]:
        return (data["features"][:, rows],), data["emotion"][rows]

    return batched(Listener(networks), batch, F.cross_entropy, (TRAIN, TEST, TEST), BATCH, seed, error)


PROGRAM = Program(
    source="https://github.com/RayanWang/Speech_emotion_recognition_BLSTM (utility/networks.py, model_training.py)",
    settings="Keras's Adam, 1e-3, two layers of ReLU with dropout 0.5, one bidirectional LSTM whose inputs are dropped "
    "by half, the same at all steps, a weighted mean over the steps, 7 classes. Its cell has a forget bias of 1. Here "
    "48 units for 128, 128 for 512 in the other layers, batch 32 for 128, 256 frames for 1024, all clips of one "
    "length, torch's weights, 10 made features for 36.",
    network="LSTM",
    metric=Metric("error", "error", percent=True),
    chance=(CLASSES - 1) / CLASSES,
    margin=0.035,
    optimizer=torch.optim.Adam,
    rate=1e-3,
    updates=300,
    load=load,
    build=build,
    confirms="start",
)
