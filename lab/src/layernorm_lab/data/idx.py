"""The idx format of the MNIST files (a big-endian header, then bytes), plain or gzipped."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from ..errors import RunError
from ..runs.files import read_content
from .source import sha256


def read_idx(path: Path, dimensions: int) -> tuple[np.ndarray, str]:
    """Reads an idx file of unsigned bytes with this number of dimensions. Returns the array, and the SHA-256 of the
    uncompressed content."""
    header = 4 + 4 * dimensions

    def shape(content: bytes) -> tuple[int, ...]:
        return tuple(np.frombuffer(content[4:header], ">u4").tolist()) if len(content) >= header else ()

    content = read_content(path, lambda head: header + math.prod(shape(head)))
    if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) < header:
        raise RunError(f"{path} is damaged or not an idx file of unsigned bytes with {dimensions} dimension(s)")
    expected, actual = math.prod(shape(content)), len(content) - header
    if actual != expected:
        raise RunError(f"{path} is damaged: its header announces {expected} bytes of data, there are {actual}")
    array = np.frombuffer(content, np.uint8, expected, header).reshape(shape(content))
    return array, sha256(content)
