"""The form in which a parsed data set is saved: arrays and facts, with their SHA-256."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RunError

ENDING = ".safetensors"


@dataclass(frozen=True)
class Packed:
    """The content of a packed file: the arrays by name, everything else as JSON values, and the SHA-256 of both."""

    arrays: Mapping[str, np.ndarray]
    about: Any
    digest: str


class _Facts(dict[str, Any]):
    """The facts of a packed file. One that is missing makes the file a damaged one."""

    def __init__(self, facts: Any, path: Path, name: str) -> None:
        super().__init__(facts)
        self.path, self.name = path, name

    def __missing__(self, key: str) -> Any:
        raise damaged(self.path, self.name, f"it lacks {key}")


def packed_content(arrays: Mapping[str, np.ndarray], about: Any) -> bytes:
    """Writes the content of a packed file."""
    from safetensors.numpy import save

    held = {**arrays, "about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
    held = {name: np.ascontiguousarray(array) for name, array in held.items()}
    return save({**held, "sha256": np.frombuffer(_arrays_digest(held), np.uint8)})


def open_packed(content: bytes) -> Packed:
    """Reads the content of a packed file. A ValueError says that it is none, or was changed."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(content)
        given = arrays.pop("sha256").tobytes()
        whole = given == _arrays_digest(arrays)
        about = json.loads(arrays.pop("about").tobytes()) if whole else None
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no packed file: {error}") from error
    if not whole:
        raise ValueError("its content does not match its SHA-256")
    return Packed(arrays, about, given.hex())


def read_packed(content: bytes, path: Path, name: str, form: Mapping[str, str]) -> Packed:
    """Reads the content of a packed file, whose arrays must have the type and the shape in `form`, such as `"int32 N
    3"`. A letter means the same size everywhere. Errors name the path and the data set."""
    try:
        kept = open_packed(content)
    except ValueError as error:
        raise damaged(path, name, str(error)) from error
    sizes: dict[str, int] = {}
    for key, expected in form.items():
        kind, *shape = expected.split()
        array = kept.arrays.get(key)
        if array is None or array.dtype != kind or not _shape_fits(array.shape, shape, sizes):
            got = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
            raise damaged(path, name, f"expected {key} to be {kind} [{', '.join(shape)}], got {got}")
    if not isinstance(kept.about, dict):
        raise damaged(path, name, "its facts are no JSON object")
    return replace(kept, about=_Facts(kept.about, path, name))


def _shape_fits(shape: Sequence[int], expected: Sequence[str], sizes: dict[str, int]) -> bool:
    """Tells whether a shape has the expected numbers and letters. The size of a letter is noted when it first comes."""
    if len(shape) != len(expected):
        return False
    wanted = [
        int(size) if size.isdecimal() else sizes.setdefault(size, n) for size, n in zip(expected, shape, strict=True)
    ]
    return list(shape) == wanted


def damaged(path: Path, name: str, why: str) -> RunError:
    """Makes the error for a packed file that cannot be used. It says what to do."""
    return RunError(f"{path} is damaged ({why}); layernorm data prepare {name} --source DIR makes the cache's again")


def _arrays_digest(arrays: Mapping[str, np.ndarray]) -> bytes:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.data)
    return digest.digest()
