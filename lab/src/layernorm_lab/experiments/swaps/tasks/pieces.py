"""A model of sentences in pieces of words, trained under autocast: numbers of 16 bits."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....data.text import EOS, Sentences, Vocabulary
from ....report.blocks import Metric
from ..program import Data, Networks, Parts, Program, as_data, batched
from ..text import read_middle

BATCH, UNITS, LAYERS, VOCABULARY, LONGEST, WORDS = 32, 192, 3, 500, 60, 100_000


class PieceModel(nn.Module):
    """Three layers over pieces `[T, B]`, whose embedding is also the decoder's weight."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.embedding, self.bias = nn.Embedding(VOCABULARY, UNITS), nn.Parameter(torch.zeros(VOCABULARY))
        self.lstm = networks(UNITS, UNITS, num_layers=LAYERS)

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.lstm(self.embedding(ids))[0], self.embedding.weight, self.bias)


def pieces(words: list[str], whole: set[str]) -> list[str]:
    """Cuts words into pieces: a frequent word is one, of others each letter is one, with a sign before the first."""
    parts: list[str] = []
    for word in words:
        parts += [word] if word in whole else ["_" + word[0], *("-" + letter for letter in word[1:])]
    return parts


def load(folder: Path | None) -> Data:
    """Reads sentences from the middle book on, in small letters, as pieces. Those with more than 60 are left out."""
    sentences = [[word.lower() for word in sentence] for sentence in read_middle(folder, WORDS)]
    train = sentences[: len(sentences) * 7 // 10]
    whole = set(Vocabulary.of(train, VOCABULARY - 80).words)
    cut = [parts for parts in (pieces(words, whole) for words in sentences) if len(parts) < LONGEST]
    vocabulary = Vocabulary.of(cut[: len(cut) * 7 // 10], VOCABULARY)
    rows = Sentences.of([[EOS, *vocabulary.ids(parts), EOS] for parts in cut])
    return as_data("pieces of words of the middle books", ids=rows.ids, ends=rows.ends)


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    sentences = Sentences(data["ids"], data["ends"])

    def batch(rows: Tensor) -> tuple[tuple[Tensor], tuple[Tensor, Tensor]]:
        ids, lengths = sentences.batch(rows.to(data["ends"].device))
        return (ids[:-1],), (ids[1:], torch.arange(len(ids) - 1, device=ids.device).unsqueeze(1) < lengths - 1)

    def mean(scores: Tensor, right: tuple[Tensor, Tensor]) -> Tensor:
        ids, inside = right
        return F.cross_entropy(scores[inside].float(), ids[inside])  # in float32, as autocast has it on a GPU

    def loss(scores: Tensor, right: tuple[Tensor, Tensor]) -> Tensor:
        return mean(scores, right) * right[1].sum()

    train, end = len(sentences) * 7 // 10, len(sentences) * 8 // 10
    cases = train, end - train, len(sentences) - end
    parts = batched(PieceModel(networks), batch, loss, cases, BATCH, seed, mean, sentences.lengths)

    def cast(function: Any) -> Any:
        def run(*arguments: Any) -> Any:
            with torch.autocast(data["ids"].device.type, torch.bfloat16):
                return function(*arguments)

        return run

    return parts._replace(loss=cast(parts.loss), evaluate=cast(parts.evaluate), test=cast(parts.test))


PROGRAM = Program(
    source="https://github.com/k2-fsa/icefall (icefall/rnn_lm/train.py, model.py)",
    settings="Adam 1e-3, weight decay 1e-6, the summed loss of sentences of like lengths, gradient's norm clipped to "
    "5, 3 layers, tied embedding N(0, 1), 500 pieces of words, autocast. Here in bfloat16 for float16, 192 units for "
    "2048, batch 32 for 400, sentences of fewer than 60 pieces, which are frequent words and letters for BPE.",
    network="LSTM",
    metric=Metric("nll", "NLL, nats a piece"),
    chance=6.2,
    margin=0.03,
    optimizer=functools.partial(torch.optim.Adam, weight_decay=1e-6),
    rate=1e-3,
    updates=250,
    load=load,
    build=build,
    clip=lambda parameters: nn.utils.clip_grad_norm_(parameters, 5.0),
    confirms="start",
)
