"""Which of two authors wrote a passage of 200 words: two bidirectional layers."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....data.text import Vocabulary
from ....report.blocks import Metric
from ..program import Data, Networks, Parts, Program, as_data, batched
from ..text import read_authors

BATCH, UNITS, EMBEDDING, VOCABULARY, STEPS = 32, 32, 128, 5000, 200


class Classifier(nn.Module):
    """Reads words `[T, B]` and scores the passages by the last state of both directions, `[B]`."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, EMBEDDING)
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)
        self.lstm = networks(EMBEDDING, UNITS, num_layers=2, bidirectional=True)
        self.score = nn.Linear(2 * UNITS, 1)

    def forward(self, words: Tensor) -> Tensor:
        _, (state, _) = self.lstm(self.embedding(words))
        return self.score(state[-2:].transpose(0, 1).flatten(1)).squeeze(1)


def split(words: list[str], count: int) -> tuple[list[list[str]], list[list[str]], list[list[str]]]:
    """Cuts the first `count` passages of 200 words, in small letters. Those of the last fifth are for validation and
    test by turns: a later part of the author's books."""
    passages = [words[STEPS * place : STEPS * (place + 1)] for place in range(count)]
    train = count * 4 // 5
    return passages[:train], passages[train::2], passages[train + 1 :: 2]


def load(folder: Path | None) -> Data:
    """Reads passages of the two authors with the most text, int64 `[T, M]`, the same number of each, and the author of
    each, int64 `[M]`. All words with a capital are one word, because names would tell the books."""
    texts = read_authors(folder, 2)
    texts = [["" if word[0].isupper() else word for word in words] for words in texts]
    count = min(len(words) // STEPS for words in texts)
    parts = [split(words, count) for words in texts]
    vocabulary = Vocabulary.of([[word for word in item if word] for part in parts for item in part[0]], VOCABULARY)
    rows = [
        (vocabulary.ids(item), author) for place in range(3) for author in range(2) for item in parts[author][place]
    ]
    sizes = torch.tensor([sum(len(part[place]) for part in parts) for place in range(3)])
    passages = torch.tensor([ids for ids, _ in rows]).T.contiguous()
    return as_data(
        "passages of two authors", passages=passages, author=torch.tensor([author for _, author in rows]), sizes=sizes
    )


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor], Tensor]:
        return (data["passages"][:, rows],), data["author"][rows].float()

    def wrong(scores: Tensor, author: Tensor) -> Tensor:
        return ((scores > 0) != (author > 0.5)).double().mean()

    cases, loss = data["sizes"].tolist(), F.binary_cross_entropy_with_logits
    return batched(Classifier(networks), batch, loss, cases, min(BATCH, cases[0]), seed, wrong)


PROGRAM = Program(
    source="https://github.com/keras-team/keras (examples/keras_io/nlp/bidirectional_lstm_imdb.py)",
    settings="Adam 1e-3, Keras's own, batch 32, the first 200 words, words of 128 numbers U(+-0.05), 2 bidirectional "
    "layers, the last state of each direction. Its cells have a forget bias of 1. Here two authors for two opinions of "
    "a film, 32 units for 64, 5,000 words for 20,000, torch's weights.",
    network="LSTM",
    metric=Metric("error", "error", percent=True),
    chance=0.5,
    margin=0.025,
    optimizer=torch.optim.Adam,
    rate=1e-3,
    updates=400,
    load=load,
    build=build,
    confirms="start",
)
