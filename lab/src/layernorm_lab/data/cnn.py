"""Questions about passages of text, in files as Hermann et al. (2015) made them of CNN's articles.

A file has five parts separated by empty lines: the address, the passage, the question with `@placeholder` in place of
the answer, the answer, and a line `@entityN:name` for every entity. Words are separated by spaces.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import RunError
from ..runs.files import decoded

PLACEHOLDER = "@placeholder"

KEPT = 4
"""The number of sentences that a passage is cut to."""

RULES = ("random entity", "most frequent entity", "most frequent, not in the question")
"""Rules for answers that need no reading. `guesses` returns how often each is right."""

_ENTITY = re.compile(r"@entity(?:0|[1-9][0-9]{0,3})")
_PARTS = "address, passage, question, answer, entities"
_ENDS = {".", "!", "?"}


@dataclass(frozen=True)
class Question:
    """The question in one file.

    Attributes:
        sentences: the sentences of the passage, each a list of words.
        question: the words of the question, one of which is `@placeholder`.
        answer: an entity.
        names: the names of the entities.
    """

    sentences: list[list[str]]
    question: list[str]
    answer: str
    names: dict[str, str]

    @property
    def passage(self) -> list[str]:
        """Joins the passage's words."""
        return [word for sentence in self.sentences for word in sentence]


def is_entity(word: str) -> bool:
    """Tells whether a word is `@entityN`."""
    return _ENTITY.fullmatch(word) is not None


def parse_question(content: bytes, path: Path) -> Question:
    """Reads a question from its file. A passage of one line is split into sentences; of several lines each is a
    sentence."""
    text = decoded(content, path).replace("\r\n", "\n").strip("\n")
    if not text.strip():
        raise RunError(f"{path} is empty")
    parts = text.split("\n\n")
    if len(parts) != 5:
        raise RunError(f"{path} has {len(parts)} parts separated by empty lines; expected 5: {_PARTS}")
    names = _entity_names(parts[4], path)
    sentences = [line.split() for line in parts[1].split("\n") if line.strip()]
    question, answer = parts[2].split(), parts[3].strip()
    if not sentences:
        raise RunError(f"{path} has no passage")
    if PLACEHOLDER not in question:
        raise RunError(f"{path} has no {PLACEHOLDER} in its question")
    if answer not in names:
        raise RunError(f"{path}: the answer {answer[:60]!r} is not among its entities")
    parsed = Question(sentences if len(sentences) > 1 else _split(sentences[0]), question, answer, names)
    foreign = next((word for word in (*parsed.passage, *question) if is_entity(word) and word not in names), None)
    if foreign is not None:
        raise RunError(f"{path}: {foreign} is in its text, but not among its entities")
    return parsed


def _entity_names(text: str, path: Path) -> dict[str, str]:
    """Reads the names of the entities from the last part of a file."""
    names = {}
    for line in text.split("\n"):
        entity, colon, name = line.strip().partition(":")
        if not (is_entity(entity) and colon):
            raise RunError(f"{path}: expected @entityN:name in each line of its last part, got {line[:60]!r}")
        names[entity] = name
    return names


def _split(words: Sequence[str]) -> list[list[str]]:
    """Splits a passage of one line into sentences, after each full stop, exclamation or question mark."""
    sentences: list[list[str]] = [[]]
    for word in words:
        sentences[-1].append(word)
        if word in _ENDS:
            sentences.append([])
    return [sentence for sentence in sentences if sentence]


def cut(sentences: Sequence[list[str]], question: Sequence[str]) -> list[list[str]]:
    """Cuts a passage to the `KEPT` sentences, in its order, that share most words with the question: the first of
    those that share as many. An entity counts twice, the placeholder and punctuation do not count."""
    counted = [word for word in question if word != PLACEHOLDER and any(map(str.isalnum, word))]
    asked = {word: 1 + is_entity(word) for word in counted}
    shared = [sum(asked.get(word, 0) for word in set(sentence)) for sentence in sentences]
    best = sorted(range(len(sentences)), key=lambda number: -shared[number])[:KEPT]
    return [sentences[number] for number in sorted(best)]


def guesses(item: Question) -> list[float]:
    """Computes how probable a right answer by each of `RULES` is. Of equally frequent entities one is drawn."""
    counts = Counter(filter(is_entity, item.passage))
    others = {word: count for word, count in counts.items() if word not in item.question}
    probabilities = []
    for candidates in (dict.fromkeys(counts, 1), counts, others or counts):
        most = max(candidates.values(), default=0)
        best = [word for word, count in candidates.items() if count == most]
        probabilities.append(1 / len(best) if item.answer in best else 0.0)
    return probabilities
