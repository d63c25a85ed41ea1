"""Finds the prefixes under which a state has a library's arrays, and suggests names where it does not have them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ._libraries import Library, library, rows_of

DIRECTIONS = (("backward", "forward"), ("bw", "fw"))
"""Words for the second direction in a name, each with the first direction's word."""


def without_index(state: Mapping[str, Any], formula: str) -> dict[str, Any]:
    """Renames the arrays without the ``:0`` that TensorFlow puts after its variables' names. Names must be strings, and
    stay different."""
    no_strings = [key for key in state if not isinstance(key, str)]
    if no_strings:
        raise TypeError(f"{formula}: expected the arrays' names to be strings, got {no_strings[0]!r}")
    arrays = {key.removesuffix(":0"): value for key, value in state.items()}
    if len(arrays) < len(state):
        twice = next(key for key in state if f"{key}:0" in state)
        raise ValueError(f"{formula}: expected one array of a name, got {twice!r} and {twice + ':0'!r}")
    return arrays


def complete(names: Iterable[str], row: Library) -> list[str]:
    """Finds the prefixes under which all arrays of a library are, in the order of the numbers in them."""
    present = set(names)
    required = [key for key, entry in row.entries.items() if not entry.optional]
    candidates = {name.removesuffix(required[0]) for name in present if name.endswith(required[0])}
    return sorted((p for p in candidates if all(p + key in present for key in required)), key=_text_and_numbers)


def network_of(names: Iterable[str], name: str, prefix: str | None) -> Library:
    """Finds the row of the network whose arrays are under a prefix, or under any. Where there are none, it is the
    library's first.

    Raises:
        ValueError: there is no such library, or there are arrays of two networks.
    """
    first, names = library(name, None), list(names)
    found: dict[str, Library] = {}
    for row in sorted(rows_of(name).values(), key=lambda row: len(row.entries)):
        found |= dict.fromkeys(complete(names, row), row)  # the authors' GRU has all names of their LSTM, and more
    if prefix is not None:
        return found.get(prefix, first)
    networks = {row.network: row for row in found.values()}
    if len(networks) > 1:
        raise ValueError(f"{name}: there are arrays of {' and of '.join(sorted(networks))}; pass network= or prefixes=")
    return next(iter(networks.values()), first)


def _text_and_numbers(prefix: str) -> tuple[str, list[int]]:
    """Splits a prefix: it with # in place of each number, and the numbers."""
    return re.sub(r"\d+", "#", prefix), [int(number) for number in re.findall(r"\d+", prefix)]


def layers_of(names: Iterable[str], row: Library, formula: str) -> list[tuple[str, ...]]:
    """Finds the prefix of each layer, or the pair of prefixes for its two directions, as the names have them.

    Prefixes are layers of one network if they differ in a single number that counts up. They are its directions if they
    differ in the words of `DIRECTIONS`. Other prefixes may be several networks, such as an encoder and a decoder.

    Raises:
        ValueError: there may be several networks, or a layer or direction beside those found lacks an array.
    """
    names = list(names)
    prefixes = complete(names, row)
    if not prefixes:
        return [(_nearest(names, row),)]
    _check_others(names, prefixes, row, formula)
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
        raise ValueError(f"{formula}: its arrays are under each of {prefixes}; pass the layers' as prefixes=")
    return pairs


def _check_others(names: Sequence[str], found: Sequence[str], row: Library, formula: str) -> None:
    """Checks that no layer or direction is left out because an array of it is missing or has another name: one that
    has most arrays, and not all of those of the library's other network."""
    texts = {_text_and_numbers(prefix)[0] for prefix in found}
    for one, other in [pair for words in DIRECTIONS for pair in (words, words[::-1])]:
        texts |= {text.replace(one, other) for text in texts}
    required = [key for key, entry in row.entries.items() if not entry.optional]
    begun = dict.fromkeys(name.removesuffix(key) for key in required for name in names if name.endswith(key))
    rows = [other for other in rows_of(row.name or row.preset).values() if other is not row]
    others = {prefix for other in rows for prefix in complete(names, other)}
    for prefix in begun:
        missing = [prefix + key for key in required if prefix + key not in names]
        most = 2 * len(missing) < len(required)
        if most and prefix not in {*found, *others} and _text_and_numbers(prefix)[0] in texts:
            raise ValueError(
                f"{formula}: missing {missing}, beside other arrays under {prefix!r}; to leave it out pass prefixes="
            )


def _nearest(names: Iterable[str], row: Library) -> str:
    """Finds the prefix under which the most arrays are, "" where there are none."""
    counts: dict[str, int] = {"": 0}
    for key in row.entries:
        for name in names:
            if name.endswith(key):
                counts[name.removesuffix(key)] = counts.get(name.removesuffix(key), 0) + 1
    return max(counts, key=lambda prefix: (counts[prefix], -len(prefix)))


def suggestions(names: Iterable[str], missing: list[str], unexpected: list[str], row: Library) -> str:
    """Writes the end of an error: what the caller may have meant."""
    names = list(names)
    texts = [
        f"did you mean {near[0]!r} as {name!r}"
        for name in missing
        if (near := difflib.get_close_matches(name, unexpected, n=1, cutoff=0.7))
    ]
    elsewhere = complete(names, row)
    if missing and elsewhere:
        texts = [f"they are under {elsewhere}"]
    rows = rows_of(row.name or row.preset).values()
    others = [other.network for other in rows if other is not row and complete(names, other)]
    texts += [f"they are those of a {network}: network={network!r}" for network in others if missing]
    return "".join(f"; {text}" for text in texts)
