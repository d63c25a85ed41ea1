"""SICK: pairs of sentences with a score of how related they are, from 1 to 5, in the files of SemEval 2014's task 1."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RunError
from ..runs.files import decoded, read_content, shown
from . import source

LOWEST, HIGHEST = 1, 5
"""The range of the scores."""

_FILES = {"train": "SICK_train.txt", "trial": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}

_COLUMNS = ["pair_ID", "sentence_A", "sentence_B", "relatedness_score", "entailment_judgment"]

_PUBLISHED = {"train": 4500, "trial": 500, "test": 4927}
"""The number of pairs in each published file."""


@dataclass(frozen=True)
class Pairs:
    """Pairs of sentences as text, and float64 `[M]` scores."""

    first: list[str]
    second: list[str]
    scores: np.ndarray

    def __len__(self) -> int:
        return len(self.scores)


@dataclass(frozen=True)
class Sick:
    """The three splits, and facts for records and reports."""

    train: Pairs
    trial: Pairs
    test: Pairs
    facts: dict[str, Any]


def load(data: Path | None) -> Sick:
    """Loads the data set from the given folder, or from wherever it is found.

    Raises:
        RunError: files are missing or damaged.
    """
    return _read(source.locate(SICK, data))


@functools.lru_cache(maxsize=1)  # one command asks for every run
def _read(folder: Path) -> Sick:
    digests, splits = {}, {}
    for split, name in _FILES.items():
        path = source.find_file(SICK, folder, name)
        if path is None:
            raise RunError(f"{folder} lacks {name}")
        content = read_content(path)
        digests[name] = hashlib.sha256(content).hexdigest()
        splits[split] = _pairs(content, path)
    pairs = {split: len(of_split) for split, of_split in splits.items()}
    facts = {
        "name": SICK.name,
        "fingerprint": source.fingerprint(digests),
        "original": pairs == _PUBLISHED,
        "pairs": pairs,
        "folder": shown(folder),
    }
    return Sick(**splits, facts=facts)


def _pairs(content: bytes, path: Path) -> Pairs:
    lines = decoded(content, path).replace("\r\n", "\n").removesuffix("\n").split("\n")
    if lines[0].split("\t") != _COLUMNS:
        raise RunError(f"{path} is no file of SICK: expected the columns {', '.join(_COLUMNS)} in line 1")
    rows = [_row(line, f"{path}, line {number}") for number, line in enumerate(lines[1:], 2)]
    if not rows:
        raise RunError(f"{path} has no pairs of sentences")
    first, second, scores = zip(*rows, strict=True)
    return Pairs(list(first), list(second), np.array(scores))


def _row(line: str, where: str) -> tuple[str, str, float]:
    cells = line.split("\t")
    if len(cells) != len(_COLUMNS):
        raise RunError(f"{where}: expected {len(_COLUMNS)} columns separated by tabs, got {len(cells)}")
    _, first, second, text, _ = cells
    try:
        score = float(text)
    except ValueError:
        score = float("nan")
    if not LOWEST <= score <= HIGHEST:
        raise RunError(f"{where}: expected a score from {LOWEST} to {HIGHEST}, got {text!r}")
    if not (first.strip() and second.strip()):
        raise RunError(f"{where}: a sentence is empty")
    return first, second, score


def _check(folder: Path) -> dict[str, Any]:
    return _read(folder).facts


SICK = source.Source(
    name="sick",
    summary="SICK 2014, pairs of sentences with scores of relatedness",
    url=None,
    files=dict.fromkeys(_FILES.values(), ""),
    spellings=lambda name: (name, f"{name}.gz"),
    check=_check,
    terms="its three files are at https://alt.qcri.org/semeval2014/task1/",
)
