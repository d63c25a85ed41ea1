"""Plain books in a folder, as paragraphs, sentences and words."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import RunError
from ..runs.files import decoded, names_in, path_text, read_content
from .source import sha256

ASCII_SIGNS = str.maketrans(
    {"‘": "'", "’": "'", "`": "'", "´": "'", "“": '"', "”": '"', "‐": "-", "‑": "-", "…": "...", "\u00ad": None}
)
"""Signs that books print in several ways, each with the one that replaces it."""

_TITLES = "Mr|Mrs|Messrs|Dr|St|Rev|Hon|Capt|Col|Gen|Lieut|Esq|Prof|Sr|Jr|Mme|Mlle"
"""Abbreviations whose full stop is part of the word and does not end a sentence."""

_END = re.compile(r"""(?<=[.!?"')\]])\s+(?=["'(\[]*[A-Z0-9])""")
_NO_END = re.compile(rf"""(?:(?<![\w'])(?:{_TITLES}|[A-Z])\.|[^.!?"')\]]["')\]]*)\Z""")

_WORD = re.compile(
    rf"""(?-i:(?:{_TITLES})\.)
      | \w+?(?=n't\b) | n't\b | '(?:s|m|d|re|ve|ll)\b    # contractions: do n't, it 's
      | \d+(?:[.,]\d+)+
      | \w+(?:-\w+?(?=n't\b) | -\w+ | '(?!(?:s|m|d|re|ve|ll)\b)\w+)*
      | \.\.+ | --+ | [^\w\s]""",
    re.VERBOSE | re.IGNORECASE,
)

_AUTHOR = re.compile(r"^Author:[ \t]*(\S.*)$", re.MULTILINE)

_HEAD = 3000
"""The number of characters, at the start of a file, in which a line `Author: NAME` is looked for."""


@dataclass(frozen=True)
class Novel:
    """A book.

    Attributes:
        title: the file's name without its ending.
        author: the name in a line `Author: NAME` at the start of the file, or else the part of the title after its last
            `_` (`ENG18480_Thackeray`). None: there is neither.
        paragraphs: the text, with plain quotation marks and hyphens.
        digest: the SHA-256 of the file.
    """

    title: str
    author: str | None
    paragraphs: list[str]
    digest: str


def read_novels(folder: Path) -> list[Novel]:
    """Reads all books in a folder: its files `*.txt`, of which there must be one, in the order of their names."""
    paths = [folder / name for name in names_in(folder) if Path(name).suffix == ".txt"]
    if not paths:
        raise RunError(f"{folder} has no book: expected files that end in .txt")
    return [read_novel(path) for path in paths]


def read_novel(path: Path) -> Novel:
    """Reads a book from a UTF-8 file. Paragraphs are separated by empty lines. If there are none, each line is a
    paragraph."""
    content = read_content(path)
    text = decoded(content, path, "utf-8-sig").replace("\r\n", "\n").translate(ASCII_SIGNS).strip()
    if not text or "\0" in text:
        raise RunError(f"{path} {'is no text: it holds a zero byte' if text else 'is empty'}")
    parts = re.split(r"\n\s*\n", text)
    parts = text.split("\n") if len(parts) == 1 else parts
    named = _AUTHOR.search(text[:_HEAD])
    title = path_text(path.stem)
    _, mark, after = title.rpartition("_")
    author = named.group(1).strip() if named else (after if mark and after else None)
    paragraphs = [" ".join(part.split()) for part in parts]
    return Novel(title, author, [paragraph for paragraph in paragraphs if paragraph], sha256(content))


def split_sentences(paragraph: str) -> list[str]:
    """Splits a paragraph at `.`, `!` or `?`, or a closing quotation mark or bracket after one, if a capital letter or a
    digit follows; not at an abbreviation (`Mr.`) or an initial."""
    parts = _END.split(paragraph)
    first = [0, *(i for i in range(1, len(parts)) if not _NO_END.search(parts[i - 1]))]  # of each sentence
    return [" ".join(parts[i:end]) for i, end in itertools.pairwise([*first, len(parts)])]


def split_words(sentence: str) -> list[str]:
    """Splits a sentence into words and marks, contractions as in the Penn Treebank: `do n't`, `it 's`."""
    return _WORD.findall(sentence)
