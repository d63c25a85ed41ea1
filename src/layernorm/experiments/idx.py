"""The idx format of the MNIST files (a big-endian header, then bytes), plain or gzipped."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path

import numpy as np

from .errors import RunError, reason


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
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise RunError(f"{path} is damaged ({error})") from error
    except OSError as error:
        raise RunError(f"cannot read {path}: {reason(error)}") from error
    header = 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) < header:
        raise RunError(f"{path} is damaged or not an idx file of unsigned bytes with {dimensions} dimension(s)")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, 4))
    expected, found = int(np.prod(shape, dtype=np.int64)), len(content) - header
    if found != expected:
        raise RunError(f"{path} is damaged: its header announces {expected} bytes of data, there are {found}")
    array = np.frombuffer(content, np.uint8, expected, header).reshape(shape)
    return array, hashlib.sha256(content).hexdigest()
