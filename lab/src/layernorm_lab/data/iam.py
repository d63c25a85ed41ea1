"""IAM-OnDB, lines of online handwriting with their texts: from the official directories, or packed into one file."""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from ..errors import RunError
from ..runs.files import read_bytes
from . import packed, source
from .progress import followed

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ALPHABET = ("", " ", ".", ",", "'", *LETTERS)
"""The 57 characters of the network's text. The first stands for every character that is not in it (digits, signs)."""

_FARTHEST = 1 << 30
"""The largest coordinate of a point, for which the difference of two points also has 32 bits."""

_CODES = {character: code for code, character in enumerate(ALPHABET) if character}

_LISTS = ("trainset.txt", "testset_v.txt", "testset_f.txt", "testset_t.txt")
VALID = 1
"""The list of the lines that are held out, `testset_v.txt`. The other lines are trained on, as by Graves."""

_PUBLISHED = "258e5e72d21411493ff0958f3527c247b905ca2ea40c951a10aaed582ed7fad1"
"""The fingerprint of the published lines: 10,740 for training and 1,438 for validation. The lists have 10,741, but
a08-551z-09 has no transcript."""

_FORM = re.compile(r"[a-z]\d\d-\d{3}[a-z]?", re.ASCII)
_NAME = re.compile(rf"({_FORM.pattern})-(\d{{1,9}})", re.ASCII)


def encode(text: str) -> np.ndarray:
    """Encodes a text as uint8 `[U]`: the places of its characters in `ALPHABET`, 0 for those that are not in it."""
    return np.array([_CODES.get(character, 0) for character in text], np.uint8)


@dataclass(frozen=True)
class Line:
    """One line of handwriting.

    Attributes:
        name: the name of its file, such as `a01-000u-01`.
        list: the number of the list, of four, that has its form. 1 is the list for validation.
        points: int32 `[N, 3]`: the offset from the previous point in x and in y (down), in the whiteboard's units, and
            whether a stroke ends here. The first point's offset is 0.
        text: the transcribed text.
    """

    name: str
    list: int
    points: np.ndarray
    text: str


@dataclass(frozen=True)
class Sequences:
    """Lines in the form that the network reads, padded.

    Attributes:
        points: float32 `[M, P + 1, 3]`, offsets in training deviations. The first point is where the pen starts.
        lengths: int64 `[M]`: the number of points to predict, which are those after the first.
        text: uint8 `[M, U]`, codes.
        characters: int64 `[M]`, the number of characters in the text.
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
        """Returns the same lines on a device."""
        return Sequences(*(getattr(self, name).to(device) for name in ("points", "lengths", "text", "characters")))


@dataclass(frozen=True)
class Handwriting:
    """The data set.

    Attributes:
        lines: all lines.
        mean, deviation: float64 `[2]`, those of the offsets in x and y over the training lines' points after the first.
        facts: facts for records and reports.
    """

    lines: Sequence[Line]
    mean: np.ndarray
    deviation: np.ndarray
    facts: dict[str, Any]

    def normalised(self, line: Line) -> np.ndarray:
        """Scales a line's points to offsets of mean 0 and deviation 1, float32 `[N, 3]`. The first offset stays 0."""
        points = line.points.astype(np.float32)
        points[1:, :2] = (line.points[1:, :2] - self.mean) / self.deviation
        return points

    def sequences(self, valid: bool, points: int) -> Sequences:
        """Pads the lines for training or validation, cut to a number of points to predict."""
        import torch

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


FILLED, REMOVED = 200.0, 800.0
"""Lengths in whiteboard units, of which a small letter is about 150 high. If a step inside a stroke is longer than
`FILLED`, readings are missing (99.9 % are below 104). A step longer than `REMOVED`, 20 deviations of an offset, was not
made by a pen."""


def clean(points: np.ndarray) -> np.ndarray:
    """Fills in missing readings and removes over-long steps: a line's points, int32 `[N, 3]`.

    A step of more than `REMOVED` units is left out, and the next one begins where the pen was. A step of more than
    `FILLED` units inside a stroke is divided into the fewest equal steps that are not longer, rounded to whole units.

    Source: Graves 2013, section 4, which does the same without giving its numbers.
    """
    length = np.hypot(*points[:, :2].T.astype(np.float64))
    kept = np.flatnonzero(length <= REMOVED)  # the first point among them, whose step is 0
    ends = np.maximum.reduceat(points[:, 2], kept)  # a stroke whose last point is removed ends at the one before
    inside = np.concatenate([[False], ends[:-1] == 0])
    pieces = np.where(inside, np.maximum(np.ceil(length[kept] / FILLED), 1), 1).astype(np.int64)
    step = np.repeat(np.arange(len(kept)), pieces)
    number = np.arange(len(step)) - (np.cumsum(pieces) - pieces)[step]  # of a piece in its step, from 0
    count, offset = pieces[step, None], points[kept[step], :2].astype(np.int64)
    whole = offset * (number[:, None] + 1) // count - offset * number[:, None] // count
    last = number == pieces[step] - 1
    return np.concatenate([whole, (ends[step] * last)[:, None]], 1).astype(np.int32)


def load_iam(data: Path | None, cleaned: bool) -> Handwriting:
    """Loads IAM-OnDB as `Source.load` does, with lines that are cleaned (`clean`) or as published."""
    return read_iam(source.locate(IAM, data), cleaned)


@functools.lru_cache(maxsize=1)
def read_iam(folder: Path, cleaned: bool = True) -> Handwriting:
    """Reads the official directories or the packed file in a folder."""
    published, dropped = _unpacked(folder)
    fingerprint = _fingerprint(published)
    lines = [replace(line, points=clean(line.points)) for line in published] if cleaned else published
    lines = [line for line in lines if len(line.points) > 1]
    train = [line for line in lines if line.list != VALID]
    if not train or len(train) == len(lines):
        raise RunError(f"{folder} has {len(train)} lines for training and {len(lines) - len(train)} for validation")
    offsets = np.concatenate([line.points[1:, :2] for line in train]).astype(np.float64)
    mean, deviation = offsets.mean(0), offsets.std(0)
    if not (deviation > 0).all():
        raise RunError(f"{folder}: the pen does not move in x or in y, so that there is no deviation to divide by")
    facts = source.facts_of(
        IAM,
        folder,
        fingerprint,
        original=fingerprint == _PUBLISHED,
        train=len(train),
        valid=len(lines) - len(train),
        points=sum(len(line.points) for line in lines),
        mean=mean.tolist(),
        deviation=deviation.tolist(),
        dropped=dropped,
        cleaned=_changes(published) if cleaned else "no",
    )
    return Handwriting(lines, mean, deviation, facts)


def _changes(lines: Sequence[Line]) -> str:
    """Counts the changes by `clean` to some lines, in words."""
    length = np.concatenate([np.hypot(*line.points[1:, :2].T.astype(np.float64)) for line in lines])
    inside = np.concatenate([line.points[:-1, 2] == 0 for line in lines])
    removed, filled = int((length > REMOVED).sum()), int((inside & (length > FILLED) & (length <= REMOVED)).sum())
    return (
        f"{filled} steps longer than {FILLED:g} units inside a stroke filled with readings, {removed} longer than "
        f"{REMOVED:g} removed"
    )


def _fingerprint(lines: Sequence[Line]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line.name} {line.list} {line.text}\n".encode())
        digest.update(np.ascontiguousarray(line.points, "<i4").tobytes())
    return digest.hexdigest()


# The packed form.

_ARRAYS = {"lists": "uint8 L", "lengths": "int64 L", "points": "int32 N 3"}


def pack_iam(folder: Path) -> bytes:
    """Parses the official directories in a folder."""
    lines, dropped = _parse(folder)
    if not lines:
        raise RunError(f"{folder} has no line that can be used: {_counted(dropped)}")
    arrays: dict[str, np.ndarray] = {
        "lists": np.array([line.list for line in lines], np.uint8),
        "lengths": np.array([len(line.points) for line in lines], np.int64),
        "points": np.concatenate([line.points for line in lines]),
    }
    about: dict[str, Any] = {
        "names": [line.name for line in lines],
        "texts": [line.text for line in lines],
        "dropped": _counted(dropped),
    }
    return packed.packed_content(arrays, about)


def _unpacked(folder: Path) -> tuple[list[Line], str]:
    kept, path = source.parsed(IAM, folder, _ARRAYS)
    lists, lengths, points = (kept.arrays[name] for name in _ARRAYS)
    names, texts = kept.about["names"], kept.about["texts"]
    if not (
        len(names) == len(texts) == len(lists)
        and all(_NAME.fullmatch(name) for name in names)
        and (lists < len(_LISTS)).all()
        and (lengths >= 2).all()
        and sum(lengths.tolist()) == len(points)
        and np.isin(points[:, 2], (0, 1)).all()
    ):
        raise packed.damaged(path, IAM.name, "its lines are not those of IAM-OnDB")
    parts = np.split(points, np.cumsum(lengths)[:-1])
    return [Line(*item) for item in zip(names, lists.tolist(), parts, texts, strict=True)], kept.about["dropped"]


def _counted(dropped: Counter[str]) -> str:
    return "; ".join(f"{count} {why}" for why, count in dropped.most_common()) or "none"


# The official directories.


def _parse(folder: Path) -> tuple[list[Line], Counter[str]]:
    """Reads every usable line, by name, and counts how many were dropped for which reason."""
    strokes, ascii_, *lists = (source.required_file(IAM, folder, name) for name in IAM.files)
    list_of = _lists(lists)
    lines: list[Line] = []
    dropped: Counter[str] = Counter()
    texts: dict[str, list[str] | None] = {}
    for path in followed(sorted(strokes.glob("*/*/*.xml")), f"reading {IAM.name}"):
        named = _NAME.fullmatch(path.stem)
        if named is None or named[1] not in list_of:
            dropped["in none of the four lists"] += 1
            continue
        form, number = named[1], int(named[2])
        if form not in texts:
            texts[form] = _transcript(ascii_ / form[:3] / form[:7] / f"{form}.txt")
        transcript = texts[form]
        if transcript is None:
            dropped["without a transcript"] += 1
        elif not 1 <= number <= len(transcript):
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
                lines.append(Line(path.stem, list_of[form], points, transcript[number - 1]))
    return sorted(lines, key=lambda line: line.name), dropped


def _lists(paths: Sequence[Path]) -> dict[str, int]:
    """Reads the number of the list that has each form."""
    lists: dict[str, int] = {}
    for number, path in enumerate(paths):
        words = _text(path).split()
        foreign = [word for word in words if not _FORM.fullmatch(word)]
        if foreign or not words:
            what = f"{foreign[0]!r} is no form's name" if foreign else "it is empty"
            raise RunError(f"{path} is not one of the data set's lists: {what}")
        lists |= dict.fromkeys(words, number)
    return lists


def _transcript(path: Path) -> list[str] | None:
    """Reads the lines of a form's corrected transcript ("CSR:"), in order; None if there is none."""
    if not path.is_file():
        return None
    _, mark, text = _text(path).partition("CSR:")
    return [line.strip() for line in text.splitlines() if line.strip()] if mark else None


def read_strokes(path: Path) -> np.ndarray:
    """Reads one line's strokes, `WhiteboardCaptureSession` with or without times, as `Line.points`."""
    content = read_bytes(path)
    try:
        root = ElementTree.fromstring(content)
        if root.tag != "WhiteboardCaptureSession":
            raise RunError(f"{path} is not a line's strokes: its root is {root.tag!r}")
        if root.find(".//Stroke//Stroke") is not None:  # its points would be taken once for each Stroke around them
            raise ValueError("a Stroke lies inside another")
        strokes = [
            [(int(point.attrib["x"]), int(point.attrib["y"])) for point in stroke.iter("Point")]
            for stroke in root.iter("Stroke")
        ]
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error})") from error
    farthest = max((abs(place) for stroke in strokes for point in stroke for place in point), default=0)
    if farthest > _FARTHEST:
        raise RunError(f"{path} is damaged (a coordinate is {farthest}, beyond any whiteboard's)")
    rows = [(x, y, number == len(stroke)) for stroke in strokes for number, (x, y) in enumerate(stroke, 1)]
    points = np.array(rows, np.int32).reshape(len(rows), 3)
    points[:, :2] = np.diff(points[:, :2], axis=0, prepend=points[:1, :2])
    return points


def _text(path: Path) -> str:
    return read_bytes(path).decode("latin-1")


def find_line(data: Handwriting, name: str) -> Line:
    """Finds the line of this name. The error for an unknown one has an example of a name."""
    named = next((line for line in data.lines if line.name == name), None)
    if named is None:
        example = data.lines[0].name
        raise RunError(f"the data set has no line {name!r}; lines are named like {example!r}")
    return named


def _spellings(name: str) -> tuple[str, ...]:
    """Lists the places of an entry: in the folder itself, or where the publisher's archives unpack it."""
    return tuple(f"{place}{name}" for place in ("", "data/", "task1/", "original/", "lineStrokes-all/", "ascii-all/"))


IAM = source.Source(
    name="iam-ondb",
    summary="12,179 lines of online handwriting with their texts",
    files=dict.fromkeys(("lineStrokes", "ascii", *_LISTS), ""),
    read=read_iam,
    spellings=_spellings,
    form="the publisher's folders and lists",
    packed=f"iam-ondb{packed.ENDING}",
    pack=pack_iam,
    terms="IAM-OnDB asks for a registration at https://fki.tic.heia-fr.ch/databases/iam-on-line-handwriting-database",
)
