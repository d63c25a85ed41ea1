"""Where runs differ from the paper, printed from data: named deviations, and the paper's values of the options."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ..runs.folder import Run
from .arms import in_order
from .page import Deviation


def deviations(
    runs: Sequence[Run], named: Sequence[Deviation], protocol: Any, apart: Collection[str], whose: str
) -> list[Deviation]:
    """Lists the deviations of some runs, with their numbers filled in.

    Args:
        runs: of one experiment.
        named: the experiment's deviations; those that hold for none of the runs are left out.
        protocol: a configuration with the paper's values. Every other value of an option is also a deviation.
        apart: the options that the paper does not state, or states several values of.
        whose: whose the values of ``protocol`` are, such as "the paper's protocol".
    """
    data = runs[0].environment["data"]
    values = _Values({name: one_of(run.config.get(name) for run in runs) for name in runs[0].config})
    values |= _flat("data", data)
    results = [
        dataclasses.replace(item, text=item.text.format_map(values))
        for item in named
        if any(_holds(item, run) for run in runs) and not (item.name == "data" and data.get("original"))
    ]
    for option in dataclasses.fields(protocol):
        paper = getattr(protocol, option.name)
        others = {run.config.get(option.name, paper) for run in runs} - {paper}
        if others and option.name not in ("norm", "seed", *apart):
            zero = re.search(r"\(0: ((?:[^()]|\([^()]*\))*)\)", option.metadata["doc"])
            words = {0: zero[1]} if zero else {}
            text = f"{one_of(others, words)}; {whose} has {option_text(paper, words)}."
            results.append(Deviation(option.name, "I", text))
    if values["precision"] != "float32":
        results.append(Deviation("precision", "I", f"{values['precision']}."))
    return results


def one_of(values: Iterable[Any], words: Mapping[Any, str] | None = None) -> str:
    """Values of an option in a sentence, in order: "0.001, 0.002 or 0.004"."""
    *first, last = (option_text(value, words) for value in sorted(set(values), key=in_order))
    return f"{', '.join(first)} or {last}" if first else last


def _holds(item: Deviation, run: Run) -> bool:
    return all(run.config.get(name) in values for name, values in item.where.items())


def option_text(value: Any, words: Mapping[Any, str] | None = None) -> str:
    """Writes an option's value in a sentence: 2e-05, adam, on."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if words and value in words:
        return words[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


class _Values(dict[str, str]):
    """What the fields of a text stand for. A fact that an older version did not record is a question mark."""

    def __missing__(self, name: str) -> str:
        return "?"


def _flat(name: str, value: Any) -> dict[str, str]:
    """Names the facts of a data set by the names of fields, with commas between thousands."""
    if isinstance(value, Mapping):
        return {key: text for part, item in value.items() for key, text in _flat(f"{name}_{part}", item).items()}
    return {name: f"{value:,}" if isinstance(value, int) else str(value)}
