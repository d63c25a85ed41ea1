"""MNIST from its four idx files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import RunError, UsageError
from . import idx, source

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"

_FILES = {  # name: (SHA-256 as published, SHA-256 of the uncompressed content)
    "train-images-idx3-ubyte.gz": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "train-labels-idx1-ubyte.gz": (
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "t10k-images-idx3-ubyte.gz": (
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}


@dataclass(frozen=True)
class Cases:
    """Some labelled images.

    Attributes:
        images: uint8 `[M, N]`, one row for each image.
        labels: int64 `[M]`.
    """

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice) -> Cases:
        return Cases(self.images[rows], self.labels[rows])

    def to(self, device: torch.device) -> Cases:
        """Returns the same cases on a device."""
        return Cases(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Images:
    """A data set of labelled images, split.

    Attributes:
        train, valid, test: the cases. `valid` is the held-out end of the training set, and empty before `holding_out`.
        white: the pixel value that becomes 1.0.
        facts: facts for records and reports.
    """

    train: Cases
    valid: Cases
    test: Cases
    white: int
    facts: dict[str, Any]

    def holding_out(self, count: int) -> Images:
        """Keeps so many cases at the end of the training set for validation. Of these and of the rest, none may be
        empty."""
        rest = len(self.train) - count
        if not 0 < rest < len(self.train):
            where = f"for the data in {self.facts['folder']}"
            raise UsageError(f"--held-out must lie in 1..{len(self.train) - 1} {where}, got {count}")
        return replace(self, train=self.train[:rest], valid=self.train[rest:])


def read_mnist(folder: Path) -> Images:
    """Reads the four files in a folder."""
    files, arrays = source.PublishedFiles(MNIST, folder), []
    for name in _FILES:
        array, files.digests[name] = idx.read_idx(
            source.required_file(MNIST, folder, name), 3 if "images" in name else 1
        )
        arrays.append(array)
    train, test = _cases(folder, *arrays[:2]), _cases(folder, *arrays[2:])
    sizes = [" x ".join(map(str, array.shape[1:])) for array in arrays[::2]]
    if sizes[0] != sizes[1] or not train.images.shape[1]:
        raise RunError(f"{folder}: expected images of one size, got {sizes[0]} to train and {sizes[1]} to test")
    original = files.digests == MNIST.contents
    return Images(train, train[:0], test, 255, files.facts(original=original, train=len(train), test=len(test)))


def _cases(folder: Path, images: np.ndarray, labels: np.ndarray) -> Cases:
    import torch

    if len(images) != len(labels) or not len(images):
        raise RunError(f"{folder}: {len(images)} images do not go with {len(labels)} labels")
    if labels.max() > 9:
        raise RunError(f"{folder}: a label is {labels.max()}, they must lie in 0..9")
    # copied: the arrays are read-only views of the file's bytes
    return Cases(torch.from_numpy(images.reshape(len(images), -1).copy()), torch.from_numpy(labels.astype(np.int64)))


def _spellings(name: str) -> tuple[str, ...]:
    plain = name.removesuffix(".gz")
    dotted = plain.replace("-idx", ".idx")
    return name, plain, dotted, f"{dotted}.gz"


MNIST = source.Source(
    name="mnist",
    summary="70,000 handwritten digits of 28 x 28 pixels (12 MB)",
    files={name: published for name, (published, _) in _FILES.items()},
    read=read_mnist,
    url=_URL,
    contents={name: content for name, (_, content) in _FILES.items()},
    spellings=_spellings,
)
