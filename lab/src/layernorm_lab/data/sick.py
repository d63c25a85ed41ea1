"""SICK: pairs of sentences with a score of how related they are, from 1 to 5, in the files of SemEval 2014's task 1."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RunError
from ..runs.files import decoded
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


def read_sick(folder: Path) -> Sick:
    """Reads the three files in a folder."""
    files = source.PublishedFiles(SICK, folder)
    splits = {split: _pairs(*files.content(name)) for split, name in _FILES.items()}
    pairs = {split: len(of_split) for split, of_split in splits.items()}
    return Sick(**splits, facts=files.facts(original=pairs == _PUBLISHED, pairs=pairs))


def _pairs(content: bytes, path: Path) -> Pairs:
    lines = decoded(content, path, "utf-8-sig").replace("\r\n", "\n").removesuffix("\n").split("\n")
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


SICK = source.Source(
    name="sick",
    summary="SICK 2014, pairs of sentences with scores of relatedness",
    files=dict.fromkeys(_FILES.values(), ""),
    read=read_sick,
    terms="its three files are at https://alt.qcri.org/semeval2014/task1/",
)
