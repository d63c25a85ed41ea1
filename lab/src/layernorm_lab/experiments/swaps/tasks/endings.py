"""The last letter of a word, told from those before it."""

from __future__ import annotations

import functools
import string
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....data.text import Sentences
from ....report.blocks import Metric
from ..program import Data, Networks, Parts, Program, as_data, batched, data_generator, error
from ..text import read_words

BATCH, UNITS, LETTERS = 64, 128, 26


class Classifier(nn.Module):
    """Reads letters, one-hot, and scores the letter after the last one."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.rnn = networks(LETTERS, UNITS)
        self.scores = nn.Linear(UNITS, LETTERS)

    def forward(self, letters: Tensor, lengths: Tensor) -> Tensor:
        _, state = self.rnn(F.one_hot(letters, LETTERS).float(), lengths=lengths)
        return self.scores(state[-1])


def load(folder: Path | None) -> Data:
    """Reads the words of books that have four letters or more, each word once, in an order of their own."""
    known = {word for sentence in read_words(folder, 600_000) for word in sentence}
    words = sorted(word for word in known if len(word) > 3 and set(word) <= set(string.ascii_lowercase))
    order = torch.randperm(len(words), generator=data_generator("endings")).tolist()
    numbers = [[string.ascii_lowercase.index(letter) for letter in words[place]] for place in order]
    letters, lengths = Sentences.of([word[:-1] for word in numbers]).batch(torch.arange(len(words)))
    return as_data(
        "words of books", letters=letters, lengths=lengths, last=torch.tensor([word[-1] for word in numbers])
    )


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        return (data["letters"][:, rows], data["lengths"][rows]), data["last"][rows]

    words = len(data["last"])
    train = words * 4 // 5
    summed = functools.partial(F.cross_entropy, reduction="sum")
    return batched(Classifier(networks), batch, summed, (train, words - train), BATCH, seed, error)


PROGRAM = Program(
    source="https://pytorch.org/tutorials/intermediate/char_rnn_classification_tutorial.html",
    settings="SGD 0.15 on the sum over 64 words, gradient's norm clipped to 3, one layer of 128 units. Here the last "
    "letter of words for the language of names.",
    network="RNN",
    metric=Metric("error", "error", percent=True),
    chance=0.8,
    margin=0.01,
    optimizer=torch.optim.SGD,
    rate=0.15,
    updates=3000,
    load=load,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_norm_(parameters, 3.0),
)
