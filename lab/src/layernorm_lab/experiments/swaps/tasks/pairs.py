"""How related two sentences are: one network reads both."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....data.sick import HIGHEST, LOWEST, SICK
from ....data.text import Sentences, Vocabulary
from ....report.blocks import Metric
from ..program import Data, Networks, Parts, Program, as_data, batched

BATCH, UNITS, VOCABULARY, EMBEDDING = 256, 50, 2000, 100


class Siamese(nn.Module):
    """Reads two sentences and returns exp(-the distance of their last states), `[B]`."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(VOCABULARY, EMBEDDING), networks(EMBEDDING, UNITS)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        """For both sentences of all pairs in one batch, first those that come first: `[T, 2 B]`."""
        _, (state, _) = self.lstm(self.embedding(words), lengths=lengths)
        first, second = state[0].chunk(2)
        return (second - first).abs().sum(1).neg().exp()


def load(folder: Path | None) -> Data:
    """Reads SICK's pairs from the folder `sick` in the given one, in its three parts, with relatedness from 0 to 1."""
    sick = SICK.load(None if folder is None else folder / SICK.name)
    splits = (sick.train, sick.trial, sick.test)
    vocabulary = Vocabulary.of([text.lower().split() for text in (*sick.train.first, *sick.train.second)], VOCABULARY)
    texts = [text for side in ("first", "second") for split in splits for text in getattr(split, side)]
    sentences = Sentences.of([vocabulary.ids(text.lower().split()) for text in texts])
    scores = torch.cat([torch.from_numpy(split.scores) for split in splits])
    ends = torch.tensor([len(split) for split in splits]).cumsum(0)
    related = ((scores - LOWEST) / (HIGHEST - LOWEST)).float()
    return as_data("sick", ids=sentences.ids, ends=sentences.ends, related=related, parts=ends)


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    sentences, related = Sentences(data["ids"], data["ends"]), data["related"]

    def batch(rows: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        rows = rows.to(related.device)
        return sentences.batch(torch.cat([rows, rows + len(related)])), related[rows]

    train, trial, test = data["parts"].tolist()
    cases = train, trial - train, test - trial
    return batched(Siamese(networks), batch, F.mse_loss, cases, min(BATCH, train), seed)


PROGRAM = Program(
    source="https://github.com/likejazz/Siamese-LSTM (train.py)",
    settings="MaLSTM: 50 units, Adam 1e-3, batch 256, squared error of exp(-Manhattan distance). Here SICK for Quora's "
    "questions, words drawn at random and trained for word2vec.",
    network="LSTM",
    metric=Metric("mse", "squared error"),
    chance=0.0635,
    margin=0.002,
    optimizer=torch.optim.Adam,
    rate=1e-3,
    updates=500,
    load=load,
    build=build,
    confirms="line",
)
