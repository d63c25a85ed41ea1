"""Punctuation put back between words: a bidirectional tagger with a conditional random field."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....data.text import Vocabulary
from ....report.blocks import Metric
from ..program import Data, Networks, Parts, Program, as_data, batched
from ..text import read_middle
from .tagger import field_nll

BATCH, UNITS, EMBEDDING, VOCABULARY, STEPS, WORDS = 32, 128, 100, 3000, 50, 180_000
NOTHING, COMMA, STOP = range(3)
TAGS = 3
"""What stands after a word."""
MARKS = {",": COMMA, ";": COMMA, ":": COMMA, ".": STOP, "!": STOP, "?": STOP}


class Tagger(nn.Module):
    """Reads words `[T, B]` and returns scores of the tags `[T, B, 3]`, and of pairs of them `[3, 3]`."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.embedding, self.project = nn.Embedding(VOCABULARY, EMBEDDING), nn.Linear(EMBEDDING, EMBEDDING)
        nn.init.xavier_uniform_(self.embedding.weight)
        self.lstm = networks(EMBEDDING, UNITS, bidirectional=True)
        self.scores = nn.Linear(2 * UNITS, TAGS)
        self.transitions = nn.Parameter(torch.randn(TAGS, TAGS))

    def locked(self, x: Tensor) -> Tensor:
        """Drops half of the units, the same at all steps of `[T, B, H]`."""
        return x * F.dropout(torch.ones_like(x[:1]), 0.5, self.training)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embedding(words)
        if self.training:  # words are dropped without a larger weight for the rest, as in the program
            x = x * (torch.rand_like(x[..., :1]) >= 0.05)
        states, _ = self.lstm(self.project(self.locked(x)))
        return self.scores(self.locked(states)), self.transitions


def tag(words: list[str]) -> tuple[list[str], list[int]]:
    """Takes the marks out of a text, and tags each word by what stands after it, the stronger of two marks."""
    kept: list[str] = []
    tags: list[int] = []
    for word in words:
        if word[0].isalnum() or (word[0] == "'" and len(word) > 1):
            kept.append(word.lower())
            tags.append(NOTHING)
        elif word in MARKS and tags:
            tags[-1] = max(tags[-1], MARKS[word])
    return kept, tags


def load(folder: Path | None) -> Data:
    """Reads passages of 50 words from the middle book on, int64 `[T, M]`, with their tags. They begin and end anywhere
    in a sentence."""
    kept, tags = tag([word for sentence in read_middle(folder, WORDS) for word in sentence])
    count = len(kept) // STEPS
    vocabulary = Vocabulary.of([kept[: count * 7 // 10 * STEPS]], VOCABULARY)
    words, tagged = (torch.tensor(row[: count * STEPS]).view(count, STEPS).T for row in (vocabulary.ids(kept), tags))
    return as_data("words of the middle books without marks", words=words.contiguous(), tags=tagged.contiguous())


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    def batch(rows: Tensor) -> tuple[tuple[Tensor], Tensor]:
        return (data["words"][:, rows],), data["tags"][:, rows]

    def loss(scores: tuple[Tensor, Tensor], tags: Tensor) -> Tensor:
        return field_nll(*scores, tags, torch.full_like(tags[0], STEPS))

    def mean(scores: tuple[Tensor, Tensor], tags: Tensor) -> Tensor:
        return loss(scores, tags) / tags.numel()

    count = data["words"].shape[1]
    train, end = count * 7 // 10, count * 8 // 10
    return batched(Tagger(networks), batch, loss, (train, end - train, count - end), min(BATCH, train), seed, mean)


PROGRAM = Program(
    source="https://github.com/flairNLP/flair (flair/models/sequence_tagger_model.py, and the script for parts of "
    "speech in docs/tutorial/tutorial-training/how-to-train-sequence-tagger.md)",
    settings="SGD 0.1 on the summed loss of 32 sentences, gradient's norm clipped to 5, one bidirectional layer, CRF "
    "with transitions N(0, 1), 5 % of the words dropped, half of the units the same at all steps, a linear layer "
    "behind the embedding. Here 128 units for 256, flair's OneHotEmbeddings of 100 numbers for pretrained ones, 50 "
    "words for a sentence, no scores for the first and the last tag, and the learning rate stays.",
    network="LSTM",
    metric=Metric("nll", "NLL, nats a word"),
    chance=0.5,
    margin=0.01,
    optimizer=torch.optim.SGD,
    rate=0.1,
    updates=500,
    load=load,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_norm_(parameters, 5.0),
    confirms="start",
)
