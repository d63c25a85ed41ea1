"""Text for the tasks: sentences and paragraphs of the books, as words in the case of print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ...data.books import BOOKS
from ...data.novels import read_novel, split_sentences, split_words
from ...data.source import places
from ...errors import RunError


def read_words(folder: Path | None, count: int, last: bool = False) -> list[list[str]]:
    """Reads sentences with `count` words, or somewhat more, in the order of the books, which are in the folder `books`
    of the given one. `last`: the last book comes first."""
    return _enough((words for part in read_paragraphs(folder, last) for words in map(split_words, part)), count)


def read_middle(folder: Path | None, count: int) -> list[list[str]]:
    """Reads sentences with `count` words, or somewhat more, from the middle book on."""
    paths = book_paths(folder)
    paragraphs = (part for path in paths[len(paths) // 2 :] for part in read_novel(path).paragraphs)
    return _enough((split_words(sentence) for part in paragraphs for sentence in split_sentences(part)), count)


def read_authors(folder: Path | None, count: int) -> list[list[str]]:
    """Reads the words of the `count` authors with the most text, each one's books in their order."""
    texts: dict[str, list[str]] = {}
    for path in book_paths(folder):
        novel = read_novel(path)
        texts.setdefault(novel.author or novel.title, []).extend(novel.paragraphs)
    longest = sorted(texts.values(), key=lambda paragraphs: sum(map(len, paragraphs)), reverse=True)[:count]
    return [[word for paragraph in paragraphs for word in split_words(paragraph)] for paragraphs in longest]


def read_quoted(folder: Path | None, count: int) -> list[list[str]]:
    """Reads paragraphs with `count` words, or somewhat more, in which something is quoted, from the last book on."""
    paragraphs = ([word for part in parts for word in split_words(part)] for parts in read_paragraphs(folder, True))
    return _enough((words for words in paragraphs if '"' in words), count)


def read_paragraphs(folder: Path | None, last: bool) -> Iterator[list[str]]:
    """Reads the paragraphs of all books as lists of sentences, one book after the other."""
    for path in sorted(book_paths(folder), reverse=last):
        yield from map(split_sentences, read_novel(path).paragraphs)


def book_paths(folder: Path | None) -> list[Path]:
    """Finds the books, in the order of their names."""
    looked_at = places(BOOKS, None if folder is None else folder / BOOKS.name)
    found = [place for place in looked_at if any(place.glob("*.txt"))]
    if not found:
        looked = ", ".join(map(str, looked_at))
        raise RunError(f"tasks on text need books, files *.txt, in one of {looked}; {BOOKS.terms}")
    return sorted(found[0].glob("*.txt"))


def _enough(parts: Iterable[list[str]], count: int) -> list[list[str]]:
    """Takes parts with words until there are `count` words."""
    taken: list[list[str]] = []
    words = 0
    for part in filter(None, parts):
        if words >= count:
            break
        taken.append(part)
        words += len(part)
    return taken
