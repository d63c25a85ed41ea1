"""Questions made from plain books, in the form of CNN's: a sentence with a missing name, which is in the passage.

A question is a sentence of a book, and its passage is the 20 sentences before it. The names in both become entities of
the question. One that is also in the passage becomes the placeholder.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import RunError
from . import novels
from .cnn import PLACEHOLDER, cut, is_entity
from .novels import Novel

CONTEXT = 20
"""The sentences of a passage."""

MOST, LONGEST = 10, 120
"""The most names of a question, and words of its cut passage. CNN's have 7.8 and 110 in the mean."""

HELD_OUT = 0.1
"""The least share of the books in validation, and in test."""

_NAME = re.compile(r"(?![IVXLC][ivxlc]*\b)[A-Z][a-z]+(?:-[A-Z][a-z]+)*")
"""A capitalised word that is no Roman number."""

_NO_NAMES = set(
    "Mr Mrs Dr Miss Lady Lord Sir Madam Madame God Heaven Captain Colonel General Major Doctor Professor Prince "  # noqa: SIM905
    "Princess Duke Duchess Count Countess Earl Baron King Queen Bishop Father Mother Brother Sister Uncle Aunt Sunday "
    "Monday Tuesday Wednesday Thursday Friday Saturday January February March April May June July August September "
    "October November December Christmas Easter Chapter Book Volume".split()
)


def make_questions(folder: Path) -> Iterator[tuple[str, str]]:
    """Makes the questions of all books in a folder: the path and the text of each `.question` file. Every split must
    get some."""
    books = novels.read_novels(folder)
    split_of = splits(books)
    counts: Counter[str] = Counter()
    for book in books:
        split = split_of[book.title]
        for number, text in questions(book):
            counts[split] += 1
            yield f"{split}/{book.title}-{number:06}.question", text
    for split in ("training", "validation", "test"):
        if not counts[split]:
            raise RunError(f"the books in {folder} give no question for {split}")


def splits(books: Sequence[Novel]) -> dict[str, str]:
    """Assigns each book, by title, to a split. An author's books are in one split, chosen by a hash of the name."""
    by_author: dict[str, list[str]] = {}
    for book in books:
        by_author.setdefault(book.author or f"unknown, {book.title}", []).append(book.title)
    if len(by_author) < 3:
        raise RunError(f"expected books of at least 3 authors, one for each split; got {len(by_author)}")
    by_title: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for author in sorted(by_author, key=lambda name: hashlib.sha256(name.encode()).digest()):
        full = (split for split in ("test", "validation") if counts[split] < HELD_OUT * len(books))
        split = next(full, "training")
        counts[split] += len(by_author[author])
        by_title |= dict.fromkeys(by_author[author], split)
    return by_title


def questions(book: Novel) -> Iterator[tuple[int, str]]:
    """Makes the questions of a book: yields the number of the sentence, and the `.question` file's text.

    A question is left out if its answer is lost when its passage is cut to four sentences, if no other entity remains,
    or if it has more than `MOST` names or `LONGEST` words. Each name becomes another of the entities `@entity0` to
    `@entity9`, chosen at random, so that all of these are equally frequent. Names are recognised from the whole book. A
    name that the book has only at the beginning of sentences stays a word.
    """
    texts = [text for paragraph in book.paragraphs for text in novels.split_sentences(paragraph)]
    sentences = [[_only_first_capital(word) for word in novels.split_words(text)] for text in texts]
    names = names_of(sentences)
    for number in range(CONTEXT, len(sentences)):
        context, asked = sentences[number - CONTEXT : number], sentences[number]
        inside = {word for sentence in context for word in _capitalised(sentence) & names}
        candidates = sorted(inside & set(asked))
        if not candidates:
            continue
        chance = random.Random(f"{book.title} {number}")
        answer = chance.choice(candidates)
        present = sorted(names & {word for sentence in (*context, asked) for word in sentence})
        if len(present) > MOST:
            continue
        places = chance.sample(range(MOST), len(present))
        entities = {name: f"@entity{place}" for name, place in zip(present, places, strict=True)}
        passage = [[entities.get(word, word.lower()) for word in sentence] for sentence in context]
        question = [entities.get(word, word.lower()) for word in asked]
        hidden = [PLACEHOLDER if word == entities[answer] else word for word in question]
        words = [word for sentence in cut(passage, hidden) for word in sentence]
        left = set(filter(is_entity, words))
        if entities[answer] in left and len(left) > 1 and len(words) <= LONGEST:
            parts = [
                f"book://{book.title}/{number}",
                "\n".join(map(" ".join, passage)),
                " ".join(hidden),
                entities[answer],
                "\n".join(f"{entity}:{name}" for name, entity in entities.items()),
            ]
            yield number, "\n\n".join(parts) + "\n"


def _only_first_capital(word: str) -> str:
    """Writes a word in capital letters with only the first one capital: a name that someone shouts is the same name."""
    return word.capitalize() if word.isupper() and len(word) > 1 else word


def names_of(sentences: Sequence[Sequence[str]]) -> set[str]:
    """Finds the names in a book: words that are capitalised inside a sentence more often than they are in small letters
    anywhere."""
    capitalised = Counter(word for sentence in sentences for word in _capitalised(sentence))
    small = Counter(word for sentence in sentences for word in sentence if word.islower())
    return {word for word, count in capitalised.items() if count > small[word.lower()]}


def _capitalised(sentence: Sequence[str]) -> set[str]:
    """Finds the capitalised words that begin neither a sentence nor direct speech: those after a word or a comma."""
    pairs = itertools.pairwise(sentence)
    inside = {word for before, word in pairs if before[0].isalnum() or before == ","}
    return {word for word in inside if _NAME.fullmatch(word) and word not in _NO_NAMES}
