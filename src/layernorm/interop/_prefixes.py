"""Under which prefixes a state has a library's arrays, and what is near where it has them nowhere."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ._libraries import Library, rows_of

DIRECTIONS = (("backward", "forward"), ("bw", "fw"))
"""What names the second direction, and the first one's word in its place."""


def without_index(state: Mapping[str, Any], formula: str) -> dict[str, Any]:
    """The arrays by name, without the ``:0`` that TensorFlow puts behind its variables' names.

    Raises:
        TypeError: a name is no string.
        ValueError: two names are then the same.
    """
    other = [key for key in state if not isinstance(key, str)]
    if other:
        raise TypeError(f"{formula}: expected the arrays' names to be strings, got {other[0]!r}")
    found = {key.removesuffix(":0"): value for key, value in state.items()}
    if len(found) < len(state):
        twice = next(key for key in state if f"{key}:0" in state)
        raise ValueError(f"{formula}: expected one array of a name, got {twice!r} and {twice + ':0'!r}")
    return found


def complete(names: Iterable[str], row: Library) -> list[str]:
    """The prefixes under which all arrays of a library are, in the order of the numbers in them."""
    there = set(names)
    required = [key for key, entry in row.entries.items() if not entry.optional]
    candidates = {name.removesuffix(required[0]) for name in there if name.endswith(required[0])}
    return sorted((p for p in candidates if all(p + key in there for key in required)), key=_text_and_numbers)


def _text_and_numbers(prefix: str) -> tuple[str, list[int]]:
    """What stands between its numbers, and these."""
    return re.sub(r"\d+", "#", prefix), [int(number) for number in re.findall(r"\d+", prefix)]


def layers_of(names: Iterable[str], row: Library, formula: str) -> list[tuple[str, ...]]:
    """The prefix of each layer, or the pair for its two directions, as the names tell.

    Layers are told by one number that counts them, directions by the words of `DIRECTIONS`. What differs otherwise may
    be several networks, such as an encoder and a decoder.

    Raises:
        ValueError: there may be several networks.
    """
    prefixes = complete(names, row)
    if not prefixes:
        return [(_nearest(names, row),)]
    pairs: list[tuple[str, ...]] = [(p,) for p in prefixes]
    for second, first in DIRECTIONS:
        partners = {p: p.replace(second, first) for p in prefixes if second in p}
        if len(partners) * 2 == len(prefixes) and set(partners.values()) == set(prefixes) - set(partners):
            pairs = [(partner, p) for p, partner in partners.items()]
            break
    texts, numbers = zip(*(_text_and_numbers(pair[0]) for pair in pairs), strict=True)
    counting = [set(column) for column in zip(*numbers, strict=False) if len(set(column)) > 1]
    one_counts = len(set(texts)) == 1 and len(counting) == 1 and max(counting[0]) - min(counting[0]) == len(pairs) - 1
    if len(pairs) > 1 and not one_counts:
        raise ValueError(f"{formula}: its arrays are under each of {prefixes}; say with prefixes= which are the layers")
    return pairs


def _nearest(names: Iterable[str], row: Library) -> str:
    """The prefix under which the most arrays are; "" where there are none."""
    found: dict[str, int] = {"": 0}
    for key in row.entries:
        for name in names:
            if name.endswith(key):
                found[name.removesuffix(key)] = found.get(name.removesuffix(key), 0) + 1
    return max(found, key=lambda prefix: (found[prefix], -len(prefix)))


def suggestions(names: Iterable[str], missing: list[str], unexpected: list[str], row: Library) -> str:
    """What may be meant, to end an error with."""
    names = list(names)
    found = [
        f"did you mean {near[0]!r} as {name!r}"
        for name in missing
        if (near := difflib.get_close_matches(name, unexpected, n=1, cutoff=0.7))
    ]
    elsewhere = complete(names, row)
    if missing and elsewhere:
        found = [f"they are under {elsewhere}"]
    others = [other.network for other in rows_of(row.preset).values() if other is not row and complete(names, other)]
    found += [f"they are those of a {network}: network={network!r}" for network in others if missing]
    return "".join(f"; {text}" for text in found)
