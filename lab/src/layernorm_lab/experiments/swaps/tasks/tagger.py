"""A tagger with a conditional random field: which words of a sentence, in small letters, are parts of names."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ....data.text import Sentences, Vocabulary
from ....report.blocks import Metric
from ..program import Data, Networks, Parts, Program, as_data, batched
from ..text import read_words

BATCH, UNITS, VOCABULARY, EMBEDDING, LONGEST = 10, 100, 2000, 50, 40
OTHER, FIRST, NEXT = range(3)
TAGS = 3
"""Of no name; the first word of a name; a further one."""
STOPS = set("\"'.!?:;()[]-") | {"--"}
"""Signs after which any word may have a capital."""


class Tagger(nn.Module):
    """Reads words `[T, B]`, packed, and returns scores of the tags `[T, B, 3]`, and of pairs of them `[3, 3]`."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.embedding, self.drop = nn.Embedding(VOCABULARY, EMBEDDING), nn.Dropout(0.5)
        self.lstm = networks(EMBEDDING, UNITS, bidirectional=True)
        self.scores = nn.Linear(2 * UNITS, TAGS)
        self.transitions = nn.Parameter(torch.zeros(TAGS, TAGS))

    def forward(self, words: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        packed = pack_padded_sequence(self.drop(self.embedding(words)), lengths.cpu(), enforce_sorted=False)
        return self.scores(self.drop(pad_packed_sequence(self.lstm(packed)[0])[0])), self.transitions


def field_nll(scores: Tensor, transitions: Tensor, tags: Tensor, lengths: Tensor) -> Tensor:
    """Sums the negative log-likelihood of tags `[T, B]` over sentences."""
    inside = torch.arange(len(tags), device=tags.device).unsqueeze(1) < lengths
    chosen = scores.gather(2, tags.unsqueeze(2)).squeeze(2)
    chosen[1:] += transitions[tags[:-1], tags[1:]]
    ways = scores[0]
    for step in range(1, len(scores)):
        longer = (ways.unsqueeze(2) + transitions).logsumexp(1) + scores[step]
        ways = torch.where(inside[step].unsqueeze(1), longer, ways)
    return ways.logsumexp(1).sum() - chosen[inside].sum()


def best_tags(scores: Tensor, transitions: Tensor, lengths: Tensor) -> Tensor:
    """Finds the most likely tags `[T, B]`, by Viterbi's algorithm."""
    inside = torch.arange(len(scores), device=scores.device).unsqueeze(1) < lengths
    ways, before = scores[0], []
    stay = torch.arange(TAGS, device=scores.device).expand_as(ways)
    for step in range(1, len(scores)):
        longer, last = (ways.unsqueeze(2) + transitions).max(1)
        ways = torch.where(inside[step].unsqueeze(1), longer + scores[step], ways)
        before.append(torch.where(inside[step].unsqueeze(1), last, stay))
    tags = [ways.argmax(1)]
    for last in reversed(before):
        tags.append(last.gather(1, tags[-1].unsqueeze(1)).squeeze(1))
    return torch.stack(tags[::-1])


def name_spans(tags: Tensor, lengths: Tensor) -> set[tuple[int, int, int]]:
    """Lists names: the sentence, the first word and the end."""
    spans = set()
    for row, (line, length) in enumerate(zip(tags.T.tolist(), lengths.tolist(), strict=True)):
        start = -1
        for place, tag in enumerate([*line[:length], OTHER]):
            if start >= 0 and tag != NEXT:
                spans.add((row, start, place))
                start = -1
            if tag != OTHER and start < 0:
                start = place
    return spans


def tag(sentence: list[str]) -> list[int]:
    """Tags words with a capital, but not where any word has one."""
    tags = [OTHER]
    for before, word in itertools.pairwise(sentence):
        capital = word[:1].isupper() and len(word) > 1 and before not in STOPS
        tags.append((NEXT if tags[-1] else FIRST) if capital else OTHER)
    return tags


def load(folder: Path | None) -> Data:
    """Reads sentences of books with the tags of their words. The tagger gets the words in small letters."""
    sentences = [item for item in read_words(folder, 100_000) if 1 < len(item) <= LONGEST]
    small = [[word.lower() for word in sentence] for sentence in sentences]
    vocabulary = Vocabulary.of(small[: len(small) * 9 // 10], VOCABULARY)
    words, tags = Sentences.of(list(map(vocabulary.ids, small))), Sentences.of(list(map(tag, sentences)))
    return as_data("tagged sentences of books", words=words.ids, ends=words.ends, tags=tags.ids)


def build(data: Data, networks: Networks, seed: int, updates: int) -> Parts:
    words, tags = Sentences(data["words"], data["ends"]), Sentences(data["tags"], data["ends"])

    def batch(rows: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        rows = rows.to(data["ends"].device)
        return words.batch(rows), tags.batch(rows)

    def loss(scores: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Tensor:
        return field_nll(*scores, *right)

    def f1(scores: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> float:
        lengths = right[1]
        found, wanted = name_spans(best_tags(*scores, lengths), lengths), name_spans(*right)
        return 2 * len(found & wanted) / max(1, len(found) + len(wanted))

    train = len(words) * 9 // 10
    return batched(Tagger(networks), batch, loss, (train, len(words) - train), BATCH, seed, f1)


PROGRAM = Program(
    source="https://github.com/jiesutd/NCRFpp (demo.train.config)",
    settings="SGD 0.015 on the summed loss of 10 sentences, weight decay 1e-8, dropout 0.5, 100 units each way, CRF. "
    "Here without characters and pretrained words; the names are those that books print with a capital.",
    network="LSTM",
    metric=Metric("f1", "F1", rising=True, percent=True),
    chance=0.0,
    margin=0.01,
    optimizer=functools.partial(torch.optim.SGD, weight_decay=1e-8),
    rate=0.015,
    updates=1500,
    load=load,
    build=build,
)
