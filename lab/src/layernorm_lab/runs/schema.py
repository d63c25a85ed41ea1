"""Checks of the values in a file: their names and types, and the digest that shows whether they were changed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from ..errors import LackingError

Made = TypeVar("Made")


Precision = Literal["float32", "bfloat16"]
"""In what a network is computed; bfloat16 is mixed precision by autocast."""


class Values(dict[str, Any]):
    """Named values from a place in a run's file, such as metrics. Asking for one that is missing raises a
    `LackingError`."""

    def __init__(self, values: Mapping[str, Any], path: Path, where: str = "") -> None:
        super().__init__(values)
        self._path, self._where = path, where

    def __missing__(self, name: str) -> Any:
        raise LackingError(self._path, f"{self._path}{self._where} lacks {name}")


def digest(value: Any) -> str:
    """Hashes a JSON value."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the digest that covers all values."""
    return {**values, "sha256": digest(values)}


def unsealed(values: Any) -> dict[str, Any]:
    """Returns the values that `sealed` was given, or raises a ValueError if they were changed."""
    rest = {name: value for name, value in values.items() if name != "sha256"} if isinstance(values, dict) else {}
    if not isinstance(values, dict) or values.get("sha256") != digest(rest):
        raise ValueError("its content does not match its SHA-256: it was changed, or another version wrote it")
    return rest


def filled(kind: type[Made], values: Any) -> Made:
    """Makes a dataclass, whose fields may also be dataclasses, from values of a file by the names of the fields. A
    ValueError, whose message is meant to follow the name of the file, says which is missing, unknown or of another
    type, or is refused."""
    types_of = typing.get_type_hints(kind)
    hints = {field.name: types_of[field.name] for field in dataclasses.fields(typing.cast(Any, kind))}
    if not isinstance(values, dict):
        raise ValueError(f"has {values!r} where it should have {', '.join(hints)}")
    for what, names in (("lacks", hints.keys() - values.keys()), ("has the unknown", values.keys() - hints.keys())):
        if names:
            raise ValueError(f"{what} {', '.join(name for name in (*hints, *values) if name in names)}")
    made: dict[str, Any] = {}
    for name, hint in hints.items():
        if dataclasses.is_dataclass(hint):
            made[name] = filled(typing.cast(type, hint), values[name])
        elif fits(values[name], hint):
            made[name] = values[name]
        else:
            raise ValueError(f"has an impossible value: {name} is {values[name]!r}, not {type_name(hint)}")
    try:
        return kind(**made)
    except ValueError as error:
        raise ValueError(f"has an impossible value: {error}") from error


def fits(value: Any, hint: Any) -> bool:
    """Tells whether a JSON value has the type of an annotation."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is Literal:
        return value in arguments
    if origin in (types.UnionType, typing.Union):
        return any(fits(value, item) for item in arguments)
    if origin is list:
        return isinstance(value, list) and all(fits(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(item, arguments[1]) for item in value.values())
    return type(value) in ((int, float) if hint is float else (hint,))


def check_values(value: Any, name: str = "") -> None:
    """Checks that all numbers in a JSON value can be drawn and all texts be printed. The message of a ValueError, which
    has the name of the value, is meant to follow the name of the file."""
    if isinstance(value, (int, float)):
        most = largest(value)
        if not abs(value) <= most:  # nor is what is not a number
            shown = repr(value) if len(repr(value)) < 30 else f"a number of {len(repr(value))} digits"
            raise ValueError(f"has an impossible value: {name} is {shown}, not a finite number of at most {most:g}")
    elif isinstance(value, str):
        if not value.isprintable() and any(unicodedata.category(item) in ("Cc", "Cs") for item in value):
            raise ValueError(f"has an impossible value: {name} is {value!r}, with a control character or no Unicode")
    elif isinstance(value, dict):
        for key, item in value.items():
            check_values(key, f"a name in {name or 'it'}")
            check_values(item, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            check_values(item, f"{name}[{number}]")


def largest(value: int | float) -> int | float:
    """Returns the largest number that a run's files may have of the type of this one. With a point it is far above
    those of float32 and their squares, and small enough to be added and drawn."""
    return 2**53 if isinstance(value, int) else 1e100


def check_numbers(values: Mapping[str, Any], whole: Iterable[str]) -> None:
    """Checks named numbers, such as metrics, of which those in `whole` must be there and be whole. The message of a
    ValueError is meant to follow the name of the file."""
    whole = tuple(whole)
    for name in whole:
        if name not in values:
            raise ValueError(f"lacks {name}")
    for name, value in values.items():
        hint = int if name in whole else float
        if not fits(value, hint):
            raise ValueError(f"has an impossible value: {name} is {value!r}, not {type_name(hint)}")


def type_name(hint: Any) -> str:
    """Names the type of an annotation in words, for errors."""
    if typing.get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(hint)))}"
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(type_name(item) for item in typing.get_args(hint))
    return _NAMES.get(hint, str(hint))


_NAMES: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Path: "a path",
    types.NoneType: "null",
    dict[str, Any]: "an object",
    list[Any]: "a list",
}
