"""A character told from the forty before it."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....data.text import Vocabulary
from ....report.blocks import Metric
from ..program import Data, Networks, Parts, Program, as_data, batched
from ..text import read_middle

BATCH, UNITS, STEPS, STRIDE, SIGNS, WORDS = 128, 128, 40, 3, 57, 90_000
SPREAD = 3
"""Of the windows for validation and test one in so many is taken."""


class CharacterModel(nn.Module):
    """Reads characters `[T, B]`, one-hot, and scores the next one, `[B, 57]`."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.lstm = networks(SIGNS, UNITS)
        self.decoder = nn.Linear(UNITS, SIGNS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.decoder(self.lstm(F.one_hot(ids, SIGNS).float())[0][-1])


def load(folder: Path | None) -> Data:
    """Reads the characters of the middle books in small letters, words parted by spaces."""
    text = "\n".join(map(" ".join, read_middle(folder, WORDS))).lower()
    return as_data("characters of the middle books", text=torch.tensor(Vocabulary.of([text], SIGNS).ids(text)))


def split(count: int) -> list[Tensor]:
    """Numbers the windows of training, validation and test, of so many in the order of the text. The last tenth is for
    the test, the one before it for validation, and no window reaches into another part."""
    ends = [count * tenths // 10 for tenths in (8, 9, 10)]
    apart = STEPS // STRIDE + 1
    return [
        torch.arange(ends[0] - apart),
        torch.arange(ends[0], ends[1] - apart, SPREAD),
        torch.arange(ends[1], ends[2], SPREAD),
    ]


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    windows = data["text"].unfold(0, STEPS + 1, STRIDE)
    parts = split(len(windows))
    places = torch.cat(parts)

    def batch(rows: Tensor) -> tuple[tuple[Tensor], Tensor]:
        chosen = windows[places[rows].to(windows.device)].T
        return (chosen[:-1],), chosen[-1]

    return batched(CharacterModel(networks), batch, F.cross_entropy, [*map(len, parts)], BATCH, seed)


PROGRAM = Program(
    source="https://github.com/keras-team/keras (examples/lstm_text_generation.py)",
    settings="Keras's RMSprop, 0.01, decay 0.9, eps 1e-7, batch 128, 128 units, windows of 40 one-hot characters, 3 "
    "apart, and the character after each. Its cell has a forget bias of 1. Here torch's weights, and novels.",
    network="LSTM",
    metric=Metric("nll", "NLL, nats a character"),
    chance=4.0,
    margin=0.05,
    optimizer=functools.partial(torch.optim.RMSprop, alpha=0.9, eps=1e-7),
    rate=0.01,
    updates=400,
    load=load,
    build=build,
    confirms="start",
)
