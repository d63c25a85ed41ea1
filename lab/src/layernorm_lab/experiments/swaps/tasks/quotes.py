"""Words tagged as quoted or not: two bidirectional layers over paragraphs without their quotation marks."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....data.text import Sentences, Vocabulary
from ....report.blocks import Metric
from ..program import Data, Networks, Parts, Program, as_data, batched
from ..text import read_quoted

BATCH, UNITS, EMBEDDING, VOCABULARY, LONGEST = 32, 64, 100, 3000, 60


class Tagger(nn.Module):
    """Scores of each word, `[T, B]`, above 0 where it is quoted."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.embedding, self.drop = nn.Embedding(VOCABULARY, EMBEDDING), nn.Dropout(0.25)
        self.lstm = networks(EMBEDDING, UNITS, num_layers=2, bidirectional=True, dropout=0.25)
        self.score = nn.Linear(2 * UNITS, 1)
        nn.init.normal_(self.embedding.weight, 0, 0.1)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        return self.score(self.drop(self.lstm(self.drop(self.embedding(words)), lengths=lengths)[0])).squeeze(2)


def tag(words: list[str]) -> tuple[list[str], list[int]]:
    """Takes the quotation marks out of a paragraph, and tags each word by whether it stood between two of them."""
    kept, tags, inside = [], [], 0
    for word in words:
        if word == '"':
            inside = 1 - inside
        else:
            kept.append(word.lower())
            tags.append(inside)
    return kept, tags


def load(folder: Path | None) -> Data:
    """Reads paragraphs in which something is quoted, from the last book on, up to their 60th word."""
    tagged = [tag(words) for words in read_quoted(folder, 260_000)]
    tagged = [(words[:LONGEST], tags[:LONGEST]) for words, tags in tagged if words]
    vocabulary = Vocabulary.of([words for words, _ in tagged[: len(tagged) * 7 // 10]], VOCABULARY)
    words, tags = (Sentences.of(rows) for rows in ([vocabulary.ids(w) for w, _ in tagged], [t for _, t in tagged]))
    return as_data("tagged paragraphs of books", words=words.ids, ends=words.ends, tags=tags.ids)


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    words, tags = Sentences(data["words"], data["ends"]), Sentences(data["tags"], data["ends"])

    def batch(rows: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        rows = rows.to(data["ends"].device)
        right, lengths = tags.batch(rows)
        return words.batch(rows), (right, torch.arange(len(right), device=right.device).unsqueeze(1) < lengths)

    def loss(scores: Tensor, right: tuple[Tensor, Tensor]) -> Tensor:
        tags, inside = right
        return F.binary_cross_entropy_with_logits(scores[inside], tags[inside].float())

    def wrong(scores: Tensor, right: tuple[Tensor, Tensor]) -> Tensor:
        tags, inside = right
        return ((scores > 0) != (tags > 0))[inside].double().mean()

    train, end = len(words) * 7 // 10, len(words) * 8 // 10
    cases = train, end - train, len(words) - end
    return batched(Tagger(networks), batch, loss, cases, BATCH, seed, wrong)


PROGRAM = Program(
    source="https://github.com/bentrevett/pytorch-pos-tagging (1, BiLSTM for PoS Tagging)",
    settings="Adam 1e-3, 2 bidirectional layers, dropout 0.25, words of 100 numbers N(0, 0.1). Here 64 units for 128, "
    "batch 32 for 128, and two tags: whether a word is quoted.",
    network="LSTM",
    metric=Metric("error", "error", percent=True),
    chance=0.5,
    margin=0.015,
    optimizer=torch.optim.Adam,
    rate=1e-3,
    updates=700,
    load=load,
    build=build,
    confirms="line",
)
