"""Plain books as numbered words: sentences of word ids, split by author into training, validation and test."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import RunError
from . import novels, packed, source
from .progress import followed
from .text import EOS, UNKNOWN, Sentences, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

SPLITS = ("train", "valid", "test")

HELD_OUT = 0.05
"""The least share of all text, in characters, in validation, and in test."""

LONGEST = 29
"""The most words of a sentence in a triple, without its end."""


@dataclass(frozen=True)
class Books:
    """All sentences of some books.

    Attributes:
        words: every word in small letters, from id 2 on, ordered by the count in the training books, and words with the
            same count by the alphabet.
        ids: int32 `[sum of lengths]`, each sentence's word ids followed by those of the next, without ends.
        ends: int64 `[S + 1]`: sentence s is `ids[ends[s]:ends[s + 1]]`.
        book: int64 `[S]`, the number of each sentence's book.
        split: int64 `[number of books]`, a place in `SPLITS`.
        titles: the titles of the books.
        facts: facts for records and reports.
    """

    words: list[str]
    ids: Tensor
    ends: Tensor
    book: Tensor
    split: Tensor
    titles: list[str]
    facts: dict[str, Any]

    @functools.cached_property
    def _limited(self) -> dict[int, Sentences]:
        return {}

    def vocabulary(self, size: int) -> Vocabulary:
        """Makes the vocabulary of the most frequent words, with `size` ids in all, which include the first two."""
        return Vocabulary(self.words[: max(size - 2, 0)])

    def sentences(self, size: int) -> Sentences:
        """Numbers the sentences by the ids of `vocabulary(size)`, each with its end."""
        import torch

        if size not in self._limited:
            count = len(self.ends) - 1
            ids = torch.full((len(self.ids) + count,), EOS)
            sentence = torch.arange(count).repeat_interleave(self.ends.diff())
            known = self.ids.long()
            ids[torch.arange(len(known)) + sentence] = known.where(known < size, UNKNOWN)
            self._limited.clear()
            self._limited[size] = Sentences(ids, self.ends + torch.arange(count + 1))
        return self._limited[size]

    def triples(self, split: str) -> Tensor:
        """Numbers the sentences that are the middle of three contiguous sentences of a book, int64 `[M]`. All three
        have at most `LONGEST` words."""
        short = self.ends.diff() <= LONGEST
        whole = short[:-2] & short[1:-1] & short[2:] & (self.book[:-2] == self.book[2:])
        return (whole & (self.split[self.book[1:-1]] == SPLITS.index(split))).nonzero().squeeze(1) + 1

    def text(self, sentence: int) -> str:
        """Joins a sentence's words by spaces."""
        ids = self.ids[self.ends[sentence] : self.ends[sentence + 1]].tolist()
        return " ".join(self.words[number - 2] for number in ids)


def tokens(text: str) -> list[str]:
    """Splits a text into words in small letters, in the form of the books' words."""
    return [word.lower() for word in novels.split_words(text.translate(novels.ASCII_SIGNS))]


def pack_books(folder: Path) -> bytes:
    """Parses the books in a folder, which must be of at least three authors."""
    novels_read = novels.read_novels(folder)
    split = _by_author(novels_read)
    numbers: dict[str, int] = {}
    counts: list[Counter[int]] = [Counter() for _ in novels_read]
    ids: list[np.ndarray] = []
    lengths: list[int] = []
    book: list[int] = []
    for place, novel in enumerate(followed(novels_read, f"reading {BOOKS.name}")):
        for sentence in (item for paragraph in novel.paragraphs for item in novels.split_sentences(paragraph)):
            row = [numbers.setdefault(word.lower(), len(numbers)) for word in novels.split_words(sentence)]
            if row:
                counts[place].update(row)
                ids.append(np.array(row, np.int32))
                lengths.append(len(row))
                book.append(place)
    train = sum((count for count, part in zip(counts, split, strict=True) if part == 0), Counter[int]())
    words = list(numbers)
    order = sorted(range(len(words)), key=lambda number: (-train[number], words[number]))
    rank = np.empty(len(words), np.int32)
    rank[order] = np.arange(2, len(words) + 2, dtype=np.int32)
    arrays = {
        "ids": rank[np.concatenate(ids)],
        "lengths": np.array(lengths, np.int64),
        "book": np.array(book, np.int64),
        "split": np.array(split, np.int64),
    }
    about = {
        "words": [words[number] for number in order],
        "titles": [novel.title for novel in novels_read],
        "digests": [novel.digest for novel in novels_read],
    }
    return packed.packed_content(arrays, about)


def _by_author(novels_read: Sequence[novels.Novel]) -> list[int]:
    """Chooses each book's place in `SPLITS`. Authors, each in one split, are taken by their names' SHA-256: into the
    test set until that has its share of the text, then into validation, then into training."""
    authors = [novel.author or f"the author of {novel.title}" for novel in novels_read]
    sizes: Counter[str] = Counter()
    for author, novel in zip(authors, novels_read, strict=True):
        sizes[author] += sum(map(len, novel.paragraphs))
    if len(sizes) < len(SPLITS):
        raise RunError(f"expected books of at least {len(SPLITS)} authors, one for each split, got {len(sizes)}")
    rest = sorted(sizes, key=lambda author: hashlib.sha256(author.encode()).hexdigest())
    place = dict.fromkeys(sizes, 0)
    for split in (2, 1):
        taken = 0
        while taken < HELD_OUT * sizes.total() and len(rest) > split:
            author = rest.pop(0)
            place[author], taken = split, taken + sizes[author]
    return [place[author] for author in authors]


_ARRAYS = {"ids": "int32 N", "lengths": "int64 S", "book": "int64 S", "split": "int64 B"}
"""The arrays of the packed file."""


def read_books(folder: Path) -> Books:
    """Reads the books in a folder, or their packed form."""
    import torch

    kept, path = source.parsed(BOOKS, folder, _ARRAYS)
    words, titles, digests = (kept.about[name] for name in ("words", "titles", "digests"))
    ids, lengths, book, split = (torch.from_numpy(kept.arrays[name].copy()) for name in _ARRAYS)
    fits = len(titles) == len(digests) == len(split) and int(lengths.sum()) == len(ids)
    inside = ((lengths, 1, len(ids) + 1), (ids, 2, len(words) + 2), (book, 0, len(titles)), (split, 0, len(SPLITS)))
    if not (fits and all(bool(((low <= part) & (part < high)).all()) for part, low, high in inside)):
        raise packed.damaged(path, BOOKS.name, "its arrays do not fit together")
    ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    facts = source.facts_of(
        BOOKS,
        folder,
        source.fingerprint(dict(zip(titles, digests, strict=True))),
        books={name: int((split == number).sum()) for number, name in enumerate(SPLITS)},
        sentences={name: int((split[book] == number).sum()) for number, name in enumerate(SPLITS)},
        words=len(ids),
    )
    return Books(words, ids, ends, book, split, titles, facts)


BOOKS = source.Source(
    name="books",
    summary="plain books, any files *.txt, instead of BookCorpus",
    files={"*.txt": ""},
    read=read_books,
    spellings=lambda name: (name,),
    form="UTF-8, named TITLE_AUTHOR.txt",
    packed=f"books{packed.ENDING}",
    pack=pack_books,
    terms="the 99 English novels of ELTeC are at https://github.com/COST-ELTeC/ELTeC-eng, and any other books will do",
)
