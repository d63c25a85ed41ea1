"""The idx format of the MNIST files (a big-endian header, then bytes), plain or gzipped."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from ..errors import RunError
from ..runs.files import read_content


def read(path: Path, dimensions: int) -> tuple[np.ndarray, str]:
    """Reads an idx file of unsigned bytes.

    Args:
        path: the file; gzipped if its name ends in .gz.
        dimensions: how many the array must have.

    Returns:
        the array, and the SHA-256 of the uncompressed content.

    Raises:
        RunError: the file cannot be read, or is truncated, altered or of another kind.
    """
    content = read_content(path)
    header = 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) < header:
        raise RunError(f"{path} is damaged or not an idx file of unsigned bytes with {dimensions} dimension(s)")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, 4))
    expected, found = int(np.prod(shape, dtype=np.int64)), len(content) - header
    if found != expected:
        raise RunError(f"{path} is damaged: its header announces {expected} bytes of data, there are {found}")
    array = np.frombuffer(content, np.uint8, expected, header).reshape(shape)
    return array, hashlib.sha256(content).hexdigest()
