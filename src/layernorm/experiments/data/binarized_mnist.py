"""Binarised MNIST from its three .amat files, which are text: a row for each image, of 784 digits 0 or 1."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import RunError
from ..runs.files import make_folder, read_bytes, read_content, shown, write_atomic
from . import packed, source

SIDE = 28
"""Pixels along one side of an image."""

PIXELS = SIDE * SIDE

_URL = "https://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/"

_FILES = {  # split: (file, its SHA-256 at that address as TensorFlow Datasets recorded it)
    "train": (
        "binarized_mnist_train.amat",
        "ad693b29f94c14277b095f5238ddefbbdaaae0939789dd2f4f0205278cee3e4d",
    ),
    "valid": (
        "binarized_mnist_valid.amat",
        "1de3d397c40fe8eeb33dafd4099a1f665ec01e96d9be234aaeeac8a34930e2e2",
    ),
    "test": (
        "binarized_mnist_test.amat",
        "e6687bfea3f820c174f33b7865140b2a2dd2930ef786f35d45795fc193b5ab2c",
    ),
}


@dataclass(frozen=True)
class Binarized:
    """Binary images, split as published.

    Attributes:
        train, valid, test: uint8 `[M, 784]`, 0 or 1. The published test rows are in the order of classes.
        facts: facts for records and reports.
    """

    train: Tensor
    valid: Tensor
    test: Tensor
    facts: dict[str, Any]


def load(data: Path | None) -> Binarized:
    """Loads the fixed binarisation of Larochelle and Murray (2011), or other files of its form.

    Args:
        data: the folder with the three files. None: they are looked for, and downloaded if they are not found.

    Raises:
        RunError: the files are missing, damaged or of another kind.
    """
    return _read(source.locate(BINARIZED_MNIST, data))


def parse(content: bytes, path: Path) -> np.ndarray:
    """The rows of an .amat file.

    Args:
        content: the file's bytes.
        path: the file's name, for messages.

    Returns:
        uint8 `[M, 784]`, every value 0 or 1.

    Raises:
        RunError: a row does not have 784 values, a value is neither 0 nor 1, or there is no row.
    """
    width = 2 * PIXELS  # each digit is followed by a space, the last one by a newline
    rows, rest = divmod(len(content), width)
    whole = np.frombuffer(content, np.uint8, rows * width).reshape(rows, PIXELS, 2)
    after = np.full(PIXELS, ord(" "), np.uint8)
    after[-1] = ord("\n")
    values = whole[:, :, 0] - np.uint8(ord("0"))
    good = ((whole[:, :, 1] == after) & (values <= 1)).all(axis=1)
    if not good.all() or rest or not rows:
        row = rows if good.all() else int(good.argmin())
        raise RunError(
            f"{path} is damaged or no file of binary images: row {row + 1} is not {PIXELS} values 0 or 1 "
            "separated by single spaces and ended by a newline"
        )
    return values


@functools.lru_cache(maxsize=1)  # one command asks for every run
def _read(folder: Path) -> Binarized:
    digests, images = {}, {}
    for split, (name, _) in _FILES.items():
        path = source.find_file(BINARIZED_MNIST, folder, name)
        if path is None:
            raise RunError(f"{folder} lacks {name}")
        content = read_content(path)
        digests[name] = hashlib.sha256(content).hexdigest()
        images[split] = torch.from_numpy(_cached(content, digests[name], path))
    facts = {
        "name": BINARIZED_MNIST.name,
        "fingerprint": source.fingerprint(digests),
        "original": all(digests[name] == published for name, published in _FILES.values()),
        "folder": shown(folder),
    }
    return Binarized(images["train"], images["valid"], images["test"], facts)


def _cached(content: bytes, digest: str, path: Path) -> np.ndarray:
    """The rows of a file. They are parsed once, and then kept in the cache, eight values to a byte. The key is the
    content's SHA-256, with those of the modules that parse it."""
    key = source.fingerprint({"content": digest} | source.parsers(BINARIZED_MNIST))
    place = source.cache() / f"{BINARIZED_MNIST.name}-packed" / f"{key}{packed.ENDING}"
    with contextlib.suppress(RunError):  # if it is missing, damaged or of another file, it is made again
        kept = packed.unpack(read_bytes(place), place, BINARIZED_MNIST.name, {"rows": f"uint8 M {PIXELS // 8}"})
        if kept.about == digest:
            return np.unpackbits(kept.arrays["rows"], axis=1)
    values = parse(content, path)
    with contextlib.suppress(RunError):  # if the cache cannot be written, the file is parsed again next time
        make_folder(place.parent)
        write_atomic(place, packed.pack({"rows": np.packbits(values, axis=1)}, digest))
    return values


def _check(folder: Path) -> dict[str, Any]:
    data = _read(folder)
    return {"train": len(data.train), "valid": len(data.valid), "test": len(data.test), **data.facts}


BINARIZED_MNIST = source.Source(
    name="binarized-mnist",
    summary="70,000 digits of 28 x 28 bits, as text (110 MB)",
    url=_URL,
    files=dict(_FILES.values()),
    spellings=lambda name: (name, f"{name}.gz"),
    check=_check,
)
