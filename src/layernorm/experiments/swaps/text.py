"""Text for the tasks: the first sentences of the books, as words in the case of print."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..data.books import BOOKS
from ..data.novels import read_novel, split_sentences, split_words
from ..data.source import places
from ..errors import RunError


def read_words(folder: Path | None, count: int) -> list[list[str]]:
    """Reads sentences with `count` words, or somewhat more, in the order of the books, which are in the folder `books`
    of the given one."""
    looked_at = places(BOOKS, None if folder is None else folder / BOOKS.name)
    found = [place for place in looked_at if any(place.glob("*.txt"))]
    if not found:
        looked = ", ".join(map(str, looked_at))
        raise RunError(f"tasks on text need books, files *.txt, in one of {looked}; {BOOKS.terms}")
    sentences: list[list[str]] = []
    words = 0
    for sentence in _sentences(found[0]):
        if words >= count:
            break
        sentences.append(sentence)
        words += len(sentence)
    return sentences


def _sentences(folder: Path) -> Iterator[list[str]]:
    """Reads the sentences of all books, one after the other."""
    for path in sorted(folder.glob("*.txt")):
        for paragraph in read_novel(path).paragraphs:
            yield from filter(None, map(split_words, split_sentences(paragraph)))
