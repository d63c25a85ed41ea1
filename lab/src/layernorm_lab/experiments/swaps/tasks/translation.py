"""Translation with teacher forcing: numbers in words to their digits."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....report.blocks import Metric
from ..language import nll
from ..program import Data, Networks, Parts, Program, as_data, batched, data_generator

BATCH, UNITS = 32, 128
TRAIN, TEST = 8000, 1000
_WORDS = """END zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand and"""
WORDS = _WORDS.split()
END, START = 10, 11
"""Signs after the ten digits."""


def in_words(number: int) -> list[str]:
    """Writes a number below a million in words: six hundred and forty two thousand and nine."""
    thousands, rest = divmod(number, 1000)
    hundreds, below = divmod(rest, 100)
    words = [*in_words(thousands), "thousand"] if thousands else []
    words += [WORDS[hundreds + 1], "hundred"] if hundreds else []
    words += ["and"] if below and words else []
    if below < 20:
        return [*words, WORDS[below + 1]] if below or not words else words
    tens, ones = divmod(below, 10)
    return [*words, WORDS[tens + 19], *([WORDS[ones + 1]] if ones else [])]


class Translator(nn.Module):
    """An encoder and a decoder, which starts from the encoder's last state and reads the right digits."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.words, self.digits = nn.Embedding(len(WORDS), UNITS), nn.Embedding(START + 1, UNITS)
        self.encoder, self.decoder = networks(UNITS, UNITS), networks(UNITS, UNITS)
        self.drop, self.scores = nn.Dropout(0.1), nn.Linear(UNITS, START)

    def forward(self, words: Tensor, digits: Tensor) -> Tensor:
        """Returns scores of the next digits `[T, B, 11]` for words and digits `[T, B]`."""
        _, state = self.encoder(self.drop(self.words(words)))
        return self.scores(self.decoder(F.relu(self.digits(digits)), state)[0])


def load(folder: Path | None) -> Data:
    """Makes numbers as words and as digits, int64 `[T, M]`, digits from the right and padded with their end."""
    lengths = torch.randint(1, 7, (TRAIN + TEST,), generator=data_generator("translation lengths"))
    drawn = torch.rand(TRAIN + TEST, generator=data_generator("translation"), dtype=torch.float64)
    numbers = (10**lengths * drawn).long().tolist()
    words = [torch.tensor([*map(WORDS.index, in_words(number)), 0]) for number in numbers]
    digits = [torch.tensor([START, *map(int, str(number)), END]) for number in numbers]
    return as_data(
        "numbers", words=nn.utils.rnn.pad_sequence(words), digits=nn.utils.rnn.pad_sequence(digits, padding_value=END)
    )


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        digits = data["digits"][:, rows]
        return (data["words"][:, rows], digits[:-1]), digits[1:]

    return batched(Translator(networks), batch, nll, (TRAIN, TEST), BATCH, seed)


PROGRAM = Program(
    source="https://pytorch.org/tutorials/intermediate/seq2seq_translation_tutorial.html",
    settings="Encoder and decoder GRU of 128 units, dropout 0.1, batch 32, Adam 1e-3, teacher forcing. Here without "
    "attention, on made pairs; padding counts in the NLL.",
    network="GRU",
    metric=Metric("nll", "NLL, nats a digit"),
    chance=2.0,
    margin=0.02,
    optimizer=torch.optim.Adam,
    rate=1e-3,
    updates=1000,
    load=load,
    build=build,
)
