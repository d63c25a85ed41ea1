"""A word model with much dropout, trained by large steps of SGD: the medium model of Zaremba et al. 2014."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from ....data.text import EOS, Sentences, Vocabulary
from ....report.blocks import Metric
from ..language import language_parts
from ..program import Data, Networks, Parts, Program, as_data
from ..text import read_words

BATCH, STEPS, UNITS, VOCABULARY = 20, 35, 160, 2000


class WordModel(nn.Module):
    """An embedding, two layers, and a decoder, with dropout before, between and after the layers."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.encoder, self.drop = nn.Embedding(VOCABULARY, UNITS), nn.Dropout(0.5)
        self.lstm = networks(UNITS, UNITS, num_layers=2, dropout=0.5)
        self.decoder = nn.Linear(UNITS, VOCABULARY)
        for name, parameter in self.named_parameters():
            if "weight" in name:
                nn.init.uniform_(parameter, -0.05, 0.05)

    def forward(self, ids: Tensor, state: tuple[Tensor, ...] | None = None) -> tuple[Tensor, tuple[Tensor, ...], float]:
        output, state = self.lstm(self.drop(self.encoder(ids)), state)
        return self.decoder(self.drop(output)), state, 0.0


def load(folder: Path | None) -> Data:
    """Reads the words of the last books, in small letters, and ends of sentences; rare words are one word."""
    sentences = [[word.lower() for word in sentence] for sentence in read_words(folder, 130_000, last=True)]
    vocabulary = Vocabulary.of(sentences[: len(sentences) * 8 // 10], VOCABULARY)
    return as_data(
        "words of the last books", text=Sentences.of([[*vocabulary.ids(item), EOS] for item in sentences]).ids
    )


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    return language_parts(WordModel(networks), data["text"], BATCH, STEPS, confirms=True)


PROGRAM = Program(
    source="https://github.com/tensorflow/models (tutorials/rnn/ptb/ptb_word_lm.py, MediumConfig)",
    settings="SGD 1 on the loss summed over 35 steps, gradient's norm clipped to 5: of the mean loss 35 and 1/7. 2 "
    "layers, dropout 0.5, weights U(+-0.05), 20 columns. Here 160 units for 650, 2,000 words, and the rate stays.",
    network="LSTM",
    metric=Metric("nll", "NLL, nats a word"),
    chance=7.6,
    margin=0.04,
    optimizer=torch.optim.SGD,
    rate=35.0,
    updates=700,
    load=load,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_norm_(parameters, 5 / 35),
    confirms=True,
)
