"""Names told from other words by their letters."""

from __future__ import annotations

import functools
import itertools
import string
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data.text import Sentences
from ...report.blocks import Metric
from ...train.batches import Shuffled
from ..program import Data, Networks, Parts, Program, as_data, batched, data_generator, error
from ..text import read_words

BATCH, UNITS, LETTERS = 64, 128, 27


class Classifier(nn.Module):
    """Reads letters, one-hot, and scores the two classes after the last one."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.rnn = networks(LETTERS, UNITS)
        self.scores = nn.Linear(UNITS, 2)

    def forward(self, letters: Tensor, lengths: Tensor) -> Tensor:
        _, state = self.rnn(F.one_hot(letters, LETTERS).float(), lengths=lengths)
        return self.scores(state[-1])


def load(folder: Path | None) -> Data:
    """Finds words that stand inside sentences, without those that a sentence or a speech begins with: as many names,
    printed with a capital, as other words. A word that is printed both ways is left out."""
    inside: Counter[str] = Counter()
    for sentence in read_words(folder, 600_000):
        inside.update(word for before, word in itertools.pairwise(sentence) if before.isalpha())
    usable = sorted(word for word in inside if len(word) > 3 and set(word.lower()) <= set(string.ascii_lowercase))
    names = [word for word in usable if word.istitle() and word.lower() not in inside]
    others = [word for word in usable if word.islower() and word.title() not in inside]
    generator = data_generator("names")
    for group in (names, others):
        group[:] = [group[place] for place in torch.randperm(len(group), generator=generator).tolist()]
    words = [word for pair in zip(names, others, strict=False) for word in pair]
    letters = Sentences.of([[ord(letter) - ord("a") + 1 for letter in word.lower()] for word in words])
    padded, lengths = letters.batch(torch.arange(len(words)))
    return as_data("names of books", letters=padded, lengths=lengths, names=1 - torch.arange(len(words)) % 2)


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        return (data["letters"][:, rows], data["lengths"][rows]), data["names"][rows]

    words = len(data["names"])
    train = words * 4 // 5
    summed = functools.partial(F.cross_entropy, reduction="sum")
    batches = Shuffled(train, BATCH, seed)
    return batched(Classifier(networks), batches, batch, summed, torch.arange(train, words), error)


PROGRAM = Program(
    source="https://pytorch.org/tutorials/intermediate/char_rnn_classification_tutorial.html",
    settings="SGD 0.15 on the sum over 64 words, gradient's norm clipped to 3, one layer of 128 units. Here names "
    "against other words of books, for 18 languages.",
    network="RNN",
    metric=Metric("error", "error", percent=True),
    chance=0.5,
    margin=0.01,
    optimizer=torch.optim.SGD,
    rate=0.15,
    updates=3000,
    load=load,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_norm_(parameters, 3.0),
)
