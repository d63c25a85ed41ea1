"""Translation with attention, trained by large steps of SGD: dates in words to their signs."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....report.blocks import Metric
from ..language import nll
from ..program import Data, Networks, Parts, Program, as_data, batched, data_generator
from .translation import END, START, in_words

BATCH, UNITS = 64, 64
TRAIN, TEST = 6000, 1000
_LINES = """END the of in year day on , and zero one two three four five six seven eight nine ten eleven twelve
thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
hundred thousand
january february march april may june july august september october november december
monday tuesday wednesday thursday friday saturday sunday"""
WORDS = _LINES.split()
_MONTHS, _DAYS = (line.split() for line in _LINES.split("\n")[-2:])


class Translator(nn.Module):
    """An encoder and a decoder of two layers each. The decoder's output looks at the encoder's."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.words, self.signs = nn.Embedding(len(WORDS), UNITS), nn.Embedding(START + 1, UNITS)
        self.encoder, self.decoder = (networks(UNITS, UNITS, num_layers=2, dropout=0.3) for _ in range(2))
        self.asked, self.mixed = nn.Linear(UNITS, UNITS, bias=False), nn.Linear(2 * UNITS, UNITS, bias=False)
        self.drop, self.scores = nn.Dropout(0.3), nn.Linear(UNITS, START)
        for name, parameter in self.named_parameters():
            if "weight" in name:
                nn.init.uniform_(parameter, -0.1, 0.1)

    def forward(self, words: Tensor, signs: Tensor, lengths: Tensor) -> Tensor:
        """Returns scores of the next signs `[T, B, 11]` for words `[S, B]` with their lengths and signs `[T, B]`."""
        seen, state = self.encoder(self.words(words), lengths=lengths)
        output = self.decoder(self.signs(signs), state)[0]
        match = torch.einsum("tbh,sbh->tbs", self.asked(output), seen)
        beyond = torch.arange(len(words), device=words.device) >= lengths.unsqueeze(1)
        looked_at = torch.einsum("tbs,sbh->tbh", match.masked_fill(beyond, -torch.inf).softmax(2), seen)
        return self.scores(self.drop(self.mixed(torch.cat([looked_at, output], 2)).tanh()))


def phrase(day: int, weekday: int, month: int, year: int, form: int) -> list[str]:
    """Writes a date in words, in one of four forms."""
    number, name, years = in_words(day), _MONTHS[month], in_words(year)
    return {
        0: [_DAYS[weekday], ",", "the", *number, "of", name, *years],
        1: [name, "the", *number, ",", *years],
        2: ["in", "the", "year", *years, ",", "on", _DAYS[weekday], ",", *number, name],
        3: ["the", *number, "day", "of", name, "in", "the", "year", *years],
    }[form]


def load(folder: Path | None) -> Data:
    """Makes dates as words and as signs, int64 `[T, M]`: year, month and day, padded with their end."""
    drawn = [
        torch.randint(most, (TRAIN + 2 * TEST,), generator=data_generator(f"dates {name}")).tolist()
        for name, most in (("day", 28), ("weekday", 7), ("month", 12), ("year", 800), ("form", 4))
    ]
    words, signs = [], []
    for day, weekday, month, year, form in zip(*drawn, strict=True):
        words.append(torch.tensor([*map(WORDS.index, phrase(day + 1, weekday, month, year + 1300, form)), 0]))
        digits = f"{year + 1300}{month + 1:02}{day + 1:02}"
        signs.append(torch.tensor([START, *map(int, digits), END]))
    lengths = torch.tensor([len(row) for row in words])
    return as_data("dates", words=nn.utils.rnn.pad_sequence(words), signs=torch.stack(signs, 1), lengths=lengths)


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        signs, lengths = data["signs"][:, rows], data["lengths"][rows]
        return (data["words"][: int(lengths.max()), rows], signs[:-1], lengths), signs[1:]

    def summed(scores: Tensor, signs: Tensor) -> Tensor:
        return F.cross_entropy(scores.flatten(0, 1), signs.flatten(), reduction="sum") / signs.shape[1]

    return batched(Translator(networks), batch, summed, (TRAIN, TEST, TEST), BATCH, seed, nll)


PROGRAM = Program(
    source="https://github.com/OpenNMT/OpenNMT-py (defaults of opts.py)",
    settings="SGD 1 on the loss summed over a sentence, batch 64, gradient's norm clipped to 5, weights U(+-0.1), "
    "dropout 0.3, 2 layers each, general attention. Here 64 units for 500, without input feeding, on made pairs.",
    network="LSTM",
    metric=Metric("nll", "NLL, nats a sign"),
    chance=2.4,
    margin=0.02,
    optimizer=torch.optim.SGD,
    rate=1.0,
    updates=900,
    load=load,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_norm_(parameters, 5.0),
    confirms="line",
)
