"""Subjective sentences told from objective ones: two bidirectional layers on packed sentences."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from ....data.sentences import SENTENCES
from ....data.text import Sentences, Vocabulary
from ....report.blocks import Metric
from ..program import Data, Networks, Parts, Program, as_data, batched, data_generator

BATCH, UNITS, VOCABULARY, EMBEDDING = 64, 64, 5000, 100


class Classifier(nn.Module):
    """Reads words, packed, and scores a sentence by the last state of both directions."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.embedding, self.drop = nn.Embedding(VOCABULARY, EMBEDDING), nn.Dropout(0.5)
        self.lstm = networks(EMBEDDING, UNITS, num_layers=2, bidirectional=True, dropout=0.5)
        self.score = nn.Linear(2 * UNITS, 1)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.drop(self.embedding(words)), lengths.cpu(), enforce_sorted=False)
        _, (state, _) = self.lstm(packed)
        return self.score(self.drop(state[-2:].transpose(0, 1).flatten(1))).squeeze(1)


def load(folder: Path | None) -> Data:
    """Reads the sentences of SUBJ, from the folder `sentences` in the given one, in an order of their own. The last
    fifth is for validation."""
    labelled = SENTENCES.load(None if folder is None else folder / SENTENCES.name).sets["subj"]
    order = torch.randperm(len(labelled), generator=data_generator("sentences"))
    texts = [labelled.texts[place].split() for place in order.tolist()]
    vocabulary = Vocabulary.of(texts[: len(texts) * 4 // 5], VOCABULARY)
    sentences = Sentences.of([vocabulary.ids(text) for text in texts])
    classes = torch.from_numpy(labelled.classes)[order].float()
    return as_data("subj", ids=sentences.ids, ends=sentences.ends, classes=classes)


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    sentences, classes = Sentences(data["ids"], data["ends"]), data["classes"]

    def batch(rows: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        rows = rows.to(classes.device)
        return sentences.batch(rows), classes[rows]

    def wrong(scores: Tensor, classes: Tensor) -> Tensor:
        return ((scores > 0) != (classes > 0.5)).double().mean()

    train, loss = len(sentences) * 4 // 5, F.binary_cross_entropy_with_logits
    cases = train, len(sentences) - train
    return batched(Classifier(networks), batch, loss, cases, BATCH, seed, wrong, sentences.lengths)


PROGRAM = Program(
    source="https://github.com/bentrevett/pytorch-sentiment-analysis (2, Upgraded Sentiment Analysis)",
    settings="Adam 1e-3, 2 bidirectional layers, dropout 0.5, batch 64, like lengths together. Here SUBJ for IMDB, 64 "
    "units for 256, words drawn at random for GloVe.",
    network="LSTM",
    metric=Metric("error", "error", percent=True),
    chance=0.5,
    margin=0.005,
    optimizer=torch.optim.Adam,
    rate=1e-3,
    updates=700,
    load=load,
    build=build,
)
