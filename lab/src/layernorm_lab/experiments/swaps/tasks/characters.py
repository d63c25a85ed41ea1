"""A character model."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....data.text import Vocabulary
from ....report.blocks import Metric
from ..language import language_parts
from ..program import Data, Networks, Parts, Program, as_data
from ..text import read_words

BATCH, STEPS, UNITS, SIGNS = 50, 50, 128, 70


class CharacterModel(nn.Module):
    """Two layers over characters, one-hot."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.gru = networks(SIGNS, UNITS, num_layers=2)
        self.decoder = nn.Linear(UNITS, SIGNS)

    def forward(self, ids: Tensor, state: tuple[Tensor, ...] | None = None) -> tuple[Tensor, tuple[Tensor, ...], float]:
        output, new = self.gru(F.one_hot(ids, SIGNS).float(), None if state is None else state[0])
        return self.decoder(output), (new,), 0.0


def load(folder: Path | None) -> Data:
    """Reads the characters of a book, words parted by spaces."""
    text = "\n".join(map(" ".join, read_words(folder, 50_000)))
    return as_data("characters of books", text=torch.tensor(Vocabulary.of([text], SIGNS).ids(text)))


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    return language_parts(CharacterModel(networks), data["text"], BATCH, STEPS)


PROGRAM = Program(
    source="https://github.com/karpathy/char-rnn (train.lua, model gru)",
    settings="RMSprop 2e-3, decay 0.95, each gradient clipped to 5, 2 layers of 128 units, 50 columns, 50 steps. Here "
    "with torch's initial weights.",
    network="GRU",
    metric=Metric("nll", "NLL, nats a character"),
    chance=4.2,
    margin=0.01,
    optimizer=functools.partial(torch.optim.RMSprop, alpha=0.95),
    rate=2e-3,
    updates=700,
    load=load,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_value_(parameters, 5.0),
)
