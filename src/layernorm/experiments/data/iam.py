"""IAM-OnDB, lines of online handwriting with their texts: from the official directories, or packed into one file."""

from __future__ import annotations

import functools
import hashlib
import io
import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor

from ..errors import RunError, reason
from . import source

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ALPHABET = ("", " ", ".", ",", "'", *LETTERS)
"""The 57 characters of the network's text; the first stands for every other one ("non-letter": digits, signs)."""

_CODES = {character: code for code, character in enumerate(ALPHABET) if character}

_LISTS = ("trainset.txt", "testset_v.txt", "testset_f.txt", "testset_t.txt")
VALID = 1
"""The list of the lines that are held out, `testset_v.txt`: the others are trained on, as Graves did."""

_LINES = (10740, 1438)
"""In training and for validation: 10,741 are listed, of which a08-551z-09 has no transcript."""

_FORM = re.compile(r"[a-z]\d\d-\d{3}[a-z]?")


def encode(text: str) -> np.ndarray:
    """A text as codes, uint8 `[U]`: places in `ALPHABET`, 0 for what is not in it."""
    return np.array([_CODES.get(character, 0) for character in text], np.uint8)


@dataclass(frozen=True)
class Line:
    """One line of handwriting.

    Attributes:
        name: of its file, `a01-000u-01`.
        list: which of the four lists has its form: 1 is the validation's.
        points: int32 `[N, 3]`: offset from the point before in x and in y (down), in the whiteboard's units, and
            whether a stroke ends here. The first point's offset is 0.
        text: as transcribed.
    """

    name: str
    list: int
    points: np.ndarray
    text: str


@dataclass(frozen=True)
class Sequences:
    """Lines as the network reads them, padded.

    Attributes:
        points: float32 `[M, P + 1, 3]`, offsets in training deviations; the first is where the pen starts.
        lengths: int64 `[M]`: points to predict, those after the first.
        text: uint8 `[M, U]`, codes.
        characters: int64 `[M]`, of the text.
    """

    points: Tensor
    lengths: Tensor
    text: Tensor
    characters: Tensor

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: Any) -> Sequences:
        return Sequences(self.points[rows], self.lengths[rows], self.text[rows], self.characters[rows])

    def to(self, device: torch.device) -> Sequences:
        """The same lines on a device."""
        return Sequences(*(getattr(self, name).to(device) for name in ("points", "lengths", "text", "characters")))


@dataclass(frozen=True)
class Handwriting:
    """The data set.

    Attributes:
        lines: all of it.
        mean, deviation: float64 `[2]`, of the offsets in x and y over the training lines' points after the first.
        facts: what records and reports tell about it.
    """

    lines: Sequence[Line]
    mean: np.ndarray
    deviation: np.ndarray
    facts: dict[str, Any]

    def normalised(self, line: Line) -> np.ndarray:
        """A line's points, float32 `[N, 3]`, with offsets of mean 0 and deviation 1; the first stays at 0."""
        points = line.points.astype(np.float32)
        points[1:, :2] = (line.points[1:, :2] - self.mean) / self.deviation
        return points

    def sequences(self, valid: bool, points: int) -> Sequences:
        """The training lines or those for validation, cut to so many points to predict."""
        lines = [line for line in self.lines if (line.list == VALID) == valid]
        lengths = [min(len(line.points) - 1, points) for line in lines]
        width = max(len(line.text) for line in lines)
        padded = np.zeros((len(lines), max(lengths) + 1, 3), np.float32)
        text = np.zeros((len(lines), width), np.uint8)
        for row, (line, length) in enumerate(zip(lines, lengths, strict=True)):
            padded[row, : length + 1] = self.normalised(line)[: length + 1]
            text[row, : len(line.text)] = encode(line.text)
        characters = torch.tensor([len(line.text) for line in lines])
        return Sequences(torch.from_numpy(padded), torch.tensor(lengths), torch.from_numpy(text), characters)


def load(data: Path | None) -> Handwriting:
    """IAM-OnDB, wherever it is found.

    Args:
        data: the folder with the official directories or the packed file; None: wherever it is found.

    Raises:
        RunError: it is missing or damaged.
    """
    return _read(source.locate(IAM, data))


@functools.lru_cache(maxsize=1)  # one command asks for every run
def _read(folder: Path) -> Handwriting:
    lines, dropped = _unpacked(source.packed(IAM, folder), folder / str(IAM.packed))
    train = [line for line in lines if line.list != VALID]
    if not train or len(train) == len(lines):
        raise RunError(f"{folder} has {len(train)} lines for training and {len(lines) - len(train)} for validation")
    offsets = np.concatenate([line.points[1:, :2] for line in train]).astype(np.float64)
    mean, deviation = offsets.mean(0), offsets.std(0)
    if not (deviation > 0).all():
        raise RunError(f"{folder}: the pen does not move in x or in y, so that there is no deviation to divide by")
    counts = (len(train), len(lines) - len(train))
    facts = {
        "name": IAM.name,
        "fingerprint": _fingerprint(lines),
        "original": counts == _LINES,
        "folder": str(folder),
        "train": counts[0],
        "valid": counts[1],
        "points": sum(len(line.points) for line in lines),
        "mean": mean.tolist(),
        "deviation": deviation.tolist(),
        "dropped": dropped,
    }
    return Handwriting(lines, mean, deviation, facts)


def _fingerprint(lines: Sequence[Line]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line.name} {line.list} {line.text}\n".encode())
        digest.update(np.ascontiguousarray(line.points, "<i4").tobytes())
    return digest.hexdigest()


# The packed form: arrays in one .npz file, of which none is an object: nothing is pickled.


@functools.lru_cache(maxsize=1)  # it is checked, then written
def _pack(folder: Path) -> bytes:
    lines, dropped = _parse(folder)
    if not lines:
        raise RunError(f"{folder} has no line that can be used: {_counted(dropped)}")
    file = io.BytesIO()
    np.savez_compressed(
        file,
        names=np.array([line.name for line in lines]),
        lists=np.array([line.list for line in lines], np.uint8),
        lengths=np.array([len(line.points) for line in lines], np.int64),
        points=np.concatenate([line.points for line in lines]).astype(np.int32),
        texts=np.array([line.text for line in lines]),
        dropped=np.array(_counted(dropped)),
    )
    return file.getvalue()


def _unpacked(content: bytes, path: Path) -> tuple[list[Line], str]:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            names, lists, lengths, points, texts = (
                arrays[name] for name in ("names", "lists", "lengths", "points", "texts")
            )
            dropped = str(arrays["dropped"])
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise RunError(f"{path} is damaged or not a packed data set ({error}); {_ADVICE}") from error
    if not (len(names) == len(lists) == len(lengths) == len(texts) and int(lengths.sum()) == len(points)):
        raise RunError(f"{path} is damaged: its arrays do not fit together; {_ADVICE}")
    parts = np.split(points, np.cumsum(lengths)[:-1])
    found = zip(names.tolist(), lists.tolist(), parts, texts.tolist(), strict=True)
    return [Line(*item) for item in found], dropped


_ADVICE = "layernorm data prepare iam-ondb --source DIR makes the one in the cache anew"


def _counted(dropped: Counter[str]) -> str:
    return "; ".join(f"{count} {why}" for why, count in dropped.most_common()) or "none"


# The official directories.


def _parse(folder: Path) -> tuple[list[Line], Counter[str]]:
    """Every usable line, by name, and how many were dropped for which reason."""
    strokes, ascii_, *lists = (_entry(folder, name) for name in IAM.files)
    list_of = _lists(lists)
    lines: list[Line] = []
    dropped: Counter[str] = Counter()
    texts: dict[str, list[str] | None] = {}
    for path in sorted(strokes.glob("*/*/*.xml")):
        form, _, number = path.stem.rpartition("-")
        if form not in list_of:
            dropped["in none of the four lists"] += 1
            continue
        if form not in texts:
            texts[form] = _transcript(ascii_ / form[:3] / form[:7] / f"{form}.txt")
        transcript = texts[form]
        if transcript is None:
            dropped["without a transcript"] += 1
        elif not number.isdecimal() or not 1 <= int(number) <= len(transcript):
            dropped["beyond the last line of the transcript"] += 1
        else:
            try:
                points = read_strokes(path)
            except RunError:
                dropped["damaged"] += 1
                continue
            if len(points) < 2:
                dropped["with fewer than two points"] += 1
            else:
                lines.append(Line(path.stem, list_of[form], points, transcript[int(number) - 1]))
    return sorted(lines, key=lambda line: line.name), dropped


def _entry(folder: Path, name: str) -> Path:
    path = source.find_file(IAM, folder, name)
    if path is None:
        raise RunError(f"{folder} lacks {name}")
    return path


def _lists(paths: Sequence[Path]) -> dict[str, int]:
    """Which of the lists has a form."""
    found: dict[str, int] = {}
    for number, path in enumerate(paths):
        words = _text(path).split()
        foreign = [word for word in words if not _FORM.fullmatch(word)]
        if foreign or not words:
            what = f"{foreign[0]!r} is no form's name" if foreign else "it is empty"
            raise RunError(f"{path} is not one of the data set's lists: {what}")
        found |= dict.fromkeys(words, number)
    return found


def _transcript(path: Path) -> list[str] | None:
    """The lines of a form's corrected transcript ("CSR:"), in order; None if there is none."""
    if not path.is_file():
        return None
    _, mark, text = _text(path).partition("CSR:")
    return [line.strip() for line in text.splitlines() if line.strip()] if mark else None


def read_strokes(path: Path) -> np.ndarray:
    """Reads one line's strokes, `WhiteboardCaptureSession` with or without times.

    Returns:
        points, int32 `[N, 3]`, as in `Line`.

    Raises:
        RunError: the file cannot be read, or is truncated or of another kind.
    """
    try:
        root = ElementTree.parse(path).getroot()
        if root.tag != "WhiteboardCaptureSession":
            raise RunError(f"{path} is not a line's strokes: its root is {root.tag!r}")
        strokes = [
            [(int(point.attrib["x"]), int(point.attrib["y"])) for point in stroke.iter("Point")]
            for stroke in root.iter("Stroke")
        ]
        rows = [(x, y, number == len(stroke)) for stroke in strokes for number, (x, y) in enumerate(stroke, 1)]
        points = np.array(rows, np.int64).reshape(len(rows), 3)
    except OSError as error:
        raise RunError(f"cannot read {path}: {reason(error)}") from error
    except (ElementTree.ParseError, LookupError, ValueError, OverflowError) as error:
        raise RunError(f"{path} is damaged ({error})") from error
    points[:, :2] = np.diff(points[:, :2], axis=0, prepend=points[:1, :2])
    if np.abs(points).max(initial=0) > np.iinfo(np.int32).max:
        raise RunError(f"{path} is damaged (an offset is beyond 32 bits)")
    return points.astype(np.int32)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="latin-1")
    except OSError as error:
        raise RunError(f"cannot read {path}: {reason(error)}") from error


def find_line(data: Handwriting, name: str) -> Line:
    """The line of this name.

    Raises:
        RunError: the data set has none; the form of names is told.
    """
    found = next((line for line in data.lines if line.name == name), None)
    if found is None:
        example = data.lines[0].name
        raise RunError(f"the data set has no line {name!r}; lines are named like {example!r}")
    return found


def _spellings(name: str) -> tuple[str, ...]:
    """Where an entry lies: in the folder, or where the publisher's archives unpack it."""
    return tuple(f"{place}{name}" for place in ("", "data/", "task1/", "original/", "lineStrokes-all/", "ascii-all/"))


def _check(folder: Path) -> dict[str, Any]:
    return _read(folder).facts


IAM = source.Source(
    name="iam-ondb",
    summary="12,179 lines of online handwriting with their texts",
    url=None,
    files=dict.fromkeys(("lineStrokes", "ascii", *_LISTS), ""),
    spellings=_spellings,
    check=_check,
    form="the publisher's folders and lists",
    packed="iam-ondb.npz",
    pack=_pack,
    terms="IAM-OnDB asks for a registration at https://fki.tic.heia-fr.ch/databases/iam-on-line-handwriting-database",
)
