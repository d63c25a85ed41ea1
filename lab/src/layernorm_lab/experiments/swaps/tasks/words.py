"""A word model, trained by large steps of SGD with clipped gradients."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from ....data.text import EOS, Sentences, Vocabulary
from ....report.blocks import Metric
from ..language import language_parts
from ..program import Data, Networks, Parts, Program, as_data
from ..text import read_words

BATCH, STEPS, UNITS, VOCABULARY = 20, 35, 128, 2000


class WordModel(nn.Module):
    """An embedding, two layers, and a decoder, with dropout between them."""

    def __init__(self, networks: Networks, units: int = UNITS, drop: float = 0.2) -> None:
        super().__init__()
        self.encoder, self.drop = nn.Embedding(VOCABULARY, units), nn.Dropout(drop)
        self.lstm = networks(units, units, num_layers=2, dropout=drop)
        self.decoder = nn.Linear(units, VOCABULARY)

    def forward(self, ids: Tensor, state: tuple[Tensor, ...] | None = None) -> tuple[Tensor, tuple[Tensor, ...], float]:
        output, state = self.lstm(self.drop(self.encoder(ids)), state)
        return self.decoder(self.drop(output)), state, 0.0


def as_text(name: str, sentences: list[list[str]], tenths: int) -> Data:
    """Makes the data of sentences: words in small letters, and ends of sentences; rare words are one word. Which are
    rare is counted in the first so many tenths of the sentences."""
    small = [[word.lower() for word in sentence] for sentence in sentences]
    vocabulary = Vocabulary.of(small[: len(small) * tenths // 10], VOCABULARY)
    return as_data(name, text=Sentences.of([[*vocabulary.ids(item), EOS] for item in small]).ids)


def load(folder: Path | None) -> Data:
    """Reads the words of a book."""
    return as_text("words of books", read_words(folder, 100_000), tenths=9)


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    model = WordModel(networks)
    for weight in (model.encoder.weight, model.decoder.weight):
        nn.init.uniform_(weight, -0.1, 0.1)
    nn.init.zeros_(model.decoder.bias)
    return language_parts(model, data["text"], BATCH, STEPS)


PROGRAM = Program(
    source="https://github.com/pytorch/examples/tree/main/word_language_model",
    settings="SGD 20, gradient's norm clipped to 0.25, 2 layers, dropout 0.2, 20 columns, 35 steps. Here 128 units for "
    "200, 2,000 words, and the learning rate is not divided by 4 where the validation loss rises.",
    network="LSTM",
    metric=Metric("nll", "NLL, nats a word"),
    chance=7.6,
    margin=0.02,
    optimizer=torch.optim.SGD,
    rate=20.0,
    updates=700,
    load=load,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.25),
)
