"""Binarised MNIST from its three .amat files, which are text: a row for each image, of 784 digits 0 or 1."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import RunError
from . import packed, source

if TYPE_CHECKING:
    from torch import Tensor

SIDE = 28
"""Pixels along one side of an image."""

PIXELS = SIDE * SIDE

_URL = "https://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/"

_FILES = {  # split: (file, its SHA-256 at that address as TensorFlow Datasets recorded it)
    "train": ("binarized_mnist_train.amat", "ad693b29f94c14277b095f5238ddefbbdaaae0939789dd2f4f0205278cee3e4d"),
    "valid": ("binarized_mnist_valid.amat", "1de3d397c40fe8eeb33dafd4099a1f665ec01e96d9be234aaeeac8a34930e2e2"),
    "test": ("binarized_mnist_test.amat", "e6687bfea3f820c174f33b7865140b2a2dd2930ef786f35d45795fc193b5ab2c"),
}


@dataclass(frozen=True)
class Binarized:
    """Binary images, split as published: each split uint8 `[M, 784]`, 0 or 1. The published test rows are in the order
    of classes."""

    train: Tensor
    valid: Tensor
    test: Tensor
    facts: dict[str, Any]


def parse_amat(content: bytes, path: Path) -> np.ndarray:
    """Reads the rows of an .amat file, uint8 `[M, 784]`. The error for anything else names the row."""
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


def pack_binarized_mnist(folder: Path) -> bytes:
    """Parses the three files in a folder. Eight values are packed into a byte."""
    files = source.PublishedFiles(BINARIZED_MNIST, folder)
    rows = {split: np.packbits(parse_amat(*files.content(name)), axis=1) for split, (name, _) in _FILES.items()}
    return packed.packed_content(rows, files.digests)


def read_binarized_mnist(folder: Path) -> Binarized:
    """Reads the fixed binarisation of Larochelle and Murray (2011), or other files of its form, or the packed file."""
    import torch

    form = {split: f"uint8 {split} {PIXELS // 8}" for split in _FILES}
    kept, _ = source.parsed(BINARIZED_MNIST, folder, form)
    images = {split: torch.from_numpy(np.unpackbits(kept.arrays[split], axis=1)) for split in _FILES}
    facts = source.facts_of(
        BINARIZED_MNIST,
        folder,
        source.fingerprint(kept.about),
        original=kept.about == dict(_FILES.values()),
        **{split: len(rows) for split, rows in images.items()},
    )
    return Binarized(**images, facts=facts)


BINARIZED_MNIST = source.Source(
    name="binarized-mnist",
    summary="70,000 digits of 28 x 28 bits, as text (110 MB)",
    files=dict(_FILES.values()),
    read=read_binarized_mnist,
    url=_URL,
    packed=f"binarized-mnist{packed.ENDING}",
    pack=pack_binarized_mnist,
)
