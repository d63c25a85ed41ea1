"""A character model, trained by large steps of SGD as in a textbook."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....data.text import Vocabulary
from ....report.blocks import Metric
from ..language import language_parts
from ..program import Data, Networks, Parts, Program, as_data
from ..text import read_words

BATCH, STEPS, UNITS, SIGNS = 32, 35, 192, 29


class CharacterModel(nn.Module):
    """One layer over characters, one-hot."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.lstm = networks(SIGNS, UNITS)
        self.decoder = nn.Linear(UNITS, SIGNS)

    def forward(self, ids: Tensor, state: tuple[Tensor, ...] | None = None) -> tuple[Tensor, tuple[Tensor, ...], float]:
        output, state = self.lstm(F.one_hot(ids, SIGNS).float(), state)
        return self.decoder(output), state, 0.0


def load(folder: Path | None) -> Data:
    """Reads the small letters of the last book, words parted by spaces."""
    words = (word.lower() for sentence in read_words(folder, 30_000, last=True) for word in sentence)
    text = " ".join(word for word in words if word.isascii() and word.isalpha())
    return as_data("letters of the last book", text=torch.tensor(Vocabulary.of([text], SIGNS).ids(text)))


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    return language_parts(CharacterModel(networks), data["text"], BATCH, STEPS, confirms=True)


PROGRAM = Program(
    source="https://d2l.ai (chapter_recurrent-modern/lstm, train_ch8 on The Time Machine)",
    settings="SGD 1, gradient's norm clipped to 1, batch 32, 35 steps, one-hot letters. Here 192 units for 256, and "
    "another book.",
    network="LSTM",
    metric=Metric("nll", "NLL, nats a letter"),
    chance=3.3,
    margin=0.03,
    optimizer=torch.optim.SGD,
    rate=1.0,
    updates=1500,
    load=load,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0),
    confirms="line",
)
