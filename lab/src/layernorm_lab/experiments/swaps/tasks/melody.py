"""A model of melodies: the next event in a piece of music."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....report.blocks import Metric
from ....train.batches import derive_seed
from ..language import nll
from ..program import Data, Networks, Parts, Program, as_data, batched

BATCH, UNITS, EVENTS = 64, 80, 38
HOLD, REST = 36, 37
"""Events that are no note: the last note sounds on, and nothing sounds."""
TRAIN, TEST = 3000, 500
_SCALE = (0, 2, 4, 5, 7, 9, 11)
_CHORDS = ((0, 4, 5, 3), (0, 5, 3, 4), (5, 3, 0, 4), (0, 3, 4, 0), (1, 4, 0, 0))
_RHYTHMS = ((4, 4), (2, 2, 4), (4, 2, 2), (2, 2, 2, 2), (3, 1, 4), (6, 2), (8,), (1, 1, 2, 4))


class MelodyModel(nn.Module):
    """Two layers over events, one-hot."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.lstm = networks(EVENTS, UNITS, num_layers=2, dropout=0.5)
        self.drop, self.decoder = nn.Dropout(0.5), nn.Linear(UNITS, EVENTS)

    def forward(self, events: Tensor) -> Tensor:
        return self.decoder(self.drop(self.lstm(F.one_hot(events, EVENTS).float())[0]))


def melody(chance: random.Random) -> list[int]:
    """Makes eight bars of eight events: two motifs in the order AABA, on four chords, in a key, with some variation."""
    key, chords = chance.randrange(12), chance.choice(_CHORDS)
    events: list[int] = []
    motifs = [[(rhythm := chance.choice(_RHYTHMS), _steps(chance, len(rhythm))) for _ in range(2)] for _ in range(2)]
    for place, part in enumerate("AABA"):
        for bar, (rhythm, steps) in enumerate(motifs["AB".index(part)]):
            if chance.randrange(6) == 0:
                steps = _steps(chance, len(rhythm))
            root = chords[(2 * place + bar) % 4]
            for length, step in zip(rhythm, steps, strict=True):
                octave, degree = divmod(root + step, 7)
                note = REST if chance.randrange(24) == 0 else key + _SCALE[degree] + 12 * octave
                events += [note, *[HOLD] * (length - 1)]
    return [event if event in (HOLD, REST) else event % 36 for event in events]


def _steps(chance: random.Random, count: int) -> list[int]:
    """Walks over the scale, from a note of the chord."""
    steps = [chance.choice((0, 2, 4))]
    for _ in range(count - 1):
        steps.append(min(max(steps[-1] + chance.choice((-2, -1, -1, 1, 1, 2)), 0), 9))
    return steps


def load(folder: Path | None) -> Data:
    """Makes melodies, int64 `[T, M]`."""
    chance = random.Random(derive_seed(*b"melody"))
    return as_data("melodies", events=torch.tensor([melody(chance) for _ in range(TRAIN + 2 * TEST)]).T.contiguous())


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor], Tensor]:
        events = data["events"][:, rows]
        return (events[:-1],), events[1:]

    return batched(MelodyModel(networks), batch, nll, (TRAIN, TEST, TEST), BATCH, seed)


PROGRAM = Program(
    source="https://github.com/magenta/magenta (models/melody_rnn, basic_rnn)",
    settings="Adam 1e-3, 2 layers, dropout 0.5, gradient's norm clipped to 5, one-hot events. Here 80 units and batch "
    "64 for 128 and 128, on made melodies.",
    network="LSTM",
    metric=Metric("nll", "NLL, nats an event"),
    chance=3.6,
    margin=0.02,
    optimizer=torch.optim.Adam,
    rate=1e-3,
    updates=700,
    load=load,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_norm_(parameters, 5.0),
    confirms="line",
)
