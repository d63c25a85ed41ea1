"""CIFAR-10 from its binary version: six files of rows, or the archive that holds them."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np

from ..errors import RunError
from ..runs.files import read_bytes, read_content
from . import packed, source
from .mnist import Cases, Images

CLASSES, SIDE = 10, 32
"""The number of classes, and of pixels along one side of an image."""

ROW = 1 + 3 * SIDE * SIDE
"""The bytes of a row: the label, then the red, the green and the blue pixels of an image, each row by row."""

ARCHIVE, PACKED, FOLDER = "cifar-10-binary.tar.gz", f"cifar10{packed.ENDING}", "cifar-10-batches-bin"

_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"  # as TensorFlow Datasets recorded it

TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
FILES = (*TRAIN, "test_batch.bin")


def parse_rows(content: bytes, path: Path) -> np.ndarray:
    """Reads the rows of a file, uint8 `[M, 3073]`, the label first in each. An empty or truncated file and a label
    above 9 are errors."""
    if not content or len(content) % ROW:
        raise RunError(f"{path} has {len(content)} bytes; a file of CIFAR-10 has {ROW} for each image, at least one")
    rows = np.frombuffer(content, np.uint8).reshape(-1, ROW)
    bad = rows[:, 0] >= CLASSES
    if bad.any():
        row = int(bad.argmax())
        raise RunError(f"{path}: the label of image {row + 1} is {rows[row, 0]}; labels of CIFAR-10 lie in 0..9")
    return rows


def read_cifar10(folder: Path) -> Images:
    """Reads the archive, the six files or the packed file in a folder. The images are uint8 `[M, 3, 32, 32]`."""
    contents, original = _contents(folder)
    rows = {path.name: parse_rows(content, path) for path, content in contents.items()}
    train, test = _cases([rows[name] for name in TRAIN]), _cases([rows[FILES[-1]]])
    digest = source.fingerprint({path.name: source.sha256(content) for path, content in contents.items()})
    facts = source.facts_of(CIFAR10, folder, digest, original=original, train=len(train), test=len(test))
    return Images(train, train[:0], test, 255, facts)


def _contents(folder: Path) -> tuple[dict[Path, bytes], bool]:
    """Reads the six files' content, and whether it is from the published archive, which the files themselves do not
    show."""
    path = source.packed_in(CIFAR10, folder)
    if path is not None:
        kept = packed.read_packed(read_bytes(path), path, CIFAR10.name, {name: f"uint8 {name}" for name in FILES})
        return {path / name: kept.arrays[name].tobytes() for name in FILES}, kept.about["original"]
    path = source.required_file(CIFAR10, folder, ARCHIVE)
    if path.name != ARCHIVE:
        return {path.parent / name: read_content(path.parent / name) for name in FILES}, False
    return _members(read_content(path), path), source.sha256(read_bytes(path)) == _SHA256


def _members(archive: bytes, path: Path) -> dict[Path, bytes]:
    """Reads the six files in an archive. Nothing is written to the disk, so that a member's name can do no harm."""
    contents: dict[Path, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            for member in tar:
                if member.size < 0:  # the next header would be looked for before this one, for ever
                    raise ValueError(f"{member.name} has {member.size} bytes")
                name = member.name.removeprefix("./").removeprefix(f"{FOLDER}/")
                file = tar.extractfile(member) if name in FILES and member.isreg() else None
                if file is not None and member.size <= len(archive):  # a sparse member may claim any size
                    contents[path / name] = file.read()
    except (tarfile.TarError, ValueError, EOFError, OverflowError, RecursionError) as error:
        raise RunError(f"{path} is damaged or no tar archive ({error})") from error
    lacking = [name for name in FILES if path / name not in contents]
    if lacking:
        raise RunError(f"{path} lacks {', '.join(lacking)}")
    return contents


def pack_cifar10(folder: Path) -> bytes:
    """Parses the archive or the six files in a folder."""
    contents, original = _contents(folder)
    arrays = {path.name: np.frombuffer(content, np.uint8) for path, content in contents.items()}
    return packed.packed_content(arrays, {"original": original})


def _cases(parts: list[np.ndarray]) -> Cases:
    import torch

    rows = np.concatenate(parts)
    images = torch.from_numpy(np.ascontiguousarray(rows[:, 1:])).view(-1, 3, SIDE, SIDE)
    return Cases(images, torch.from_numpy(rows[:, 0].astype(np.int64)))


CIFAR10 = source.Source(
    name="cifar10",
    summary="60,000 pictures of 32 x 32 pixels in 10 classes (170 MB)",
    files={ARCHIVE: _SHA256},
    read=read_cifar10,
    url="https://www.cs.toronto.edu/~kriz/",
    # the archive, or what it holds, with its folder or without
    spellings=lambda name: (f"{FOLDER}/{TRAIN[0]}", TRAIN[0], name),
    form="or its six .bin files",
    packed=PACKED,
    pack=pack_cifar10,
)
