"""Questions about passages as ids, read from `.question` files and saved in one file with a fingerprint."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import RunError
from ..runs.files import names_in, path_text, read_content
from . import cloze, packed, source
from .cnn import PLACEHOLDER, RULES, Question, cut, guesses, parse_question
from .progress import followed
from .text import UNKNOWN, Sentences, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

FIRST_ENTITY = UNKNOWN + 1
"""The id of `@entity0`. The other entities, the placeholder and the words follow, the most frequent word first."""

SPLITS = {"train": "training", "valid": "validation", "test": "test"}
"""The folder of each split."""

PACKED = f"questions{packed.ENDING}"

_CNN = (380_298, 3_924, 3_198)
"""The number of questions in each published split of CNN."""


@dataclass(frozen=True)
class Split:
    """M questions as ids.

    Attributes:
        passages, questions: the words of the passages and of the questions.
        answers: int64 `[M]`.
    """

    passages: Sentences
    questions: Sentences
    answers: Tensor

    @classmethod
    def of(cls, items: Sequence[Question], vocabulary: Vocabulary) -> Split:
        """Numbers the words of questions by the ids of a vocabulary."""
        import torch

        passages = Sentences.of([vocabulary.ids(item.passage) for item in items])
        questions = Sentences.of([vocabulary.ids(item.question) for item in items])
        return cls(passages, questions, torch.tensor(vocabulary.ids(item.answer for item in items)))

    def __len__(self) -> int:
        return len(self.answers)

    def first(self, count: int) -> Split:
        """Takes the first `count` questions, or all if `count` is 0 or larger than their number."""
        count = min(count, len(self)) or len(self)
        passages, questions = (Sentences(part.ids, part.ends[: count + 1]) for part in (self.passages, self.questions))
        return Split(passages, questions, self.answers[:count])

    def limited(self, vocabulary: int) -> Split:
        """Puts `UNKNOWN` in place of all ids from a number on."""
        import torch

        passages, questions = (
            Sentences(torch.where(part.ids < vocabulary, part.ids, UNKNOWN), part.ends)
            for part in (self.passages, self.questions)
        )
        return Split(passages, questions, self.answers)


@dataclass(frozen=True)
class Questions:
    """A data set.

    Attributes:
        train, valid, test: the splits, their passages cut.
        vocabulary: the words of the training split.
        entities: the number of its first words that are entities.
        readable: for every validation question `passage` and `question` as lists of words, and `names` of entities.
        facts: facts for records and reports.
    """

    train: Split
    valid: Split
    test: Split
    vocabulary: Vocabulary
    entities: int
    readable: list[dict[str, Any]]
    facts: dict[str, Any]


def read_questions(corpus: str, folder: Path) -> Questions:
    """Reads the questions of a data set, one of `CORPORA`, from their files in a folder or from the packed file."""
    kept, path = source.parsed(CORPORA[corpus], folder, _ARRAYS)
    about = kept.about
    splits = {split: _split(kept.arrays, split) for split in SPLITS}
    if not all(_split_fits(split, about["entities"], len(about["words"]) + FIRST_ENTITY) for split in splits.values()):
        raise packed.damaged(path, corpus, "its arrays do not fit together")
    counts = {split: len(item) for split, item in splits.items()}
    more = {
        "original": tuple(counts.values()) == _CNN,
        "questions": counts,
        "words": len(about["words"]),
        "entities": about["entities"],
        "answer lost by the cut": about["lost"],
        "guesses": about["guesses"],
    }
    return Questions(
        **splits,
        vocabulary=Vocabulary(about["words"]),
        entities=about["entities"],
        readable=about["readable"],
        facts=source.facts_of(CORPORA[corpus], folder, kept.digest, **more),
    )


def _split(arrays: Mapping[str, np.ndarray], split: str) -> Split:
    import torch

    def tensor(name: str) -> Tensor:
        return torch.from_numpy(arrays[f"{split}.{name}"].astype(np.int64))

    passages, questions = (Sentences(tensor(kind), tensor(f"{kind}.ends")) for kind in ("passages", "questions"))
    return Split(passages, questions, tensor("answers"))


def _split_fits(split: Split, entities: int, words: int) -> bool:
    """Tells whether the sentences are contiguous, their words in the vocabulary and the answers entities."""
    for part in (split.passages, split.questions):
        whole = (
            len(part) == len(split) > 0
            and part.ends[0] == 0
            and part.ends[-1] == len(part.ids)
            and (part.lengths > 0).all()
        )
        if not (whole and ((part.ids >= UNKNOWN) & (part.ids < words)).all()):
            return False
    return bool(((split.answers >= FIRST_ENTITY) & (split.answers < FIRST_ENTITY + entities)).all())


# The packed form.

_ARRAYS = {
    f"{split}.{name}": f"{kind} {split}.{name}"
    for split in SPLITS
    for name, kind in (
        ("passages", "int32"), ("passages.ends", "int64"), ("questions", "int32"), ("questions.ends", "int64"),
        ("answers", "int32"),
    )
}  # fmt: skip


def pack_questions(corpus: str, folder: Path) -> bytes:
    """Parses the files of the questions in a folder."""
    places = {split: source.required_file(CORPORA[corpus], folder, name) for split, name in SPLITS.items()}
    whole = {split: read_question_folder(place) for split, place in places.items()}
    questions = {split: [shortened(item) for item in items] for split, items in whole.items()}
    entities, words = _words(questions)
    vocabulary = Vocabulary(words)
    arrays: dict[str, np.ndarray] = {}
    for split, items in questions.items():
        of_split = Split.of(items, vocabulary)
        for kind, sentences in (("passages", of_split.passages), ("questions", of_split.questions)):
            arrays[f"{split}.{kind}"] = sentences.ids.numpy().astype(np.int32)
            arrays[f"{split}.{kind}.ends"] = sentences.ends.numpy()
        arrays[f"{split}.answers"] = of_split.answers.numpy().astype(np.int32)
    about = {
        "words": words,
        "entities": entities,
        "lost": {split: lost(items) for split, items in questions.items()},
        "guesses": guessed(questions["valid"]),
        "readable": [
            {"passage": item.passage, "question": item.question, "names": item.names} for item in questions["valid"]
        ],
    }
    return packed.packed_content(arrays, about)


# The files.


def read_question_folder(place: Path) -> list[Question]:
    """Reads all `.question` files in a folder, of which there must be one, in the order of their names."""
    paths = [place / name for name in names_in(place) if Path(name).suffix == ".question"]
    if not paths:
        raise RunError(f"{place} has no .question file")
    return [read_question_file(path) for path in followed(paths, f"reading {path_text(place.name)}")]


def read_question_file(path: Path) -> Question:
    """Reads the question in a file."""
    return parse_question(read_content(path), path)


def shortened(item: Question) -> Question:
    """Cuts a question's passage."""
    return replace(item, sentences=cut(item.sentences, item.question))


def lost(items: Sequence[Question]) -> int:
    """Counts the questions whose answer is not in their passage."""
    return sum(item.answer not in item.passage for item in items)


def guessed(items: Sequence[Question]) -> dict[str, float]:
    """Computes the share of questions that each of `RULES` answers correctly."""
    return dict(zip(RULES, np.mean([guesses(item) for item in items], axis=0).tolist(), strict=True))


def _words(questions: Mapping[str, Sequence[Question]]) -> tuple[int, list[str]]:
    """Makes the vocabulary: all entities, the placeholder, the training questions' words. Also returns the number of
    entities."""
    named = {name for items in questions.values() for item in items for name in item.names}
    entities = 1 + max(int(name.removeprefix("@entity")) for name in named)
    first = [*(f"@entity{number}" for number in range(entities)), PLACEHOLDER]
    special = {*named, PLACEHOLDER}
    counted = Vocabulary.of(words for item in questions["train"] for words in (item.passage, item.question))
    return entities, [*first, *(word for word in counted.words if word not in special)]


def _corpus(name: str, summary: str, **more: Any) -> source.Source[Questions]:
    return source.Source(
        name=name,
        summary=summary,
        files=dict.fromkeys(SPLITS.values(), ""),
        read=lambda folder: read_questions(name, folder),
        spellings=lambda folder: (folder, f"questions/{folder}", f"{name}/questions/{folder}"),
        form="folders of .question files",
        packed=PACKED,
        pack=functools.partial(pack_questions, name),
        **more,
    )


CNN = _corpus(
    "cnn",
    "387,420 questions about CNN's articles, as .question files",
    terms="https://github.com/deepmind/rc-data tells how the questions of Hermann et al. (2015) are made",
)

BOOKS_CLOZE = _corpus(
    "books-cloze",
    "questions about passages of novels, made from plain books",
    terms="it is made from a folder of plain books (.txt, UTF-8)",
    made_from="plain books (.txt)",
    make=cloze.make_questions,
)

CORPORA = {item.name: item for item in (CNN, BOOKS_CLOZE)}
"""The data sets of this form, by name."""
