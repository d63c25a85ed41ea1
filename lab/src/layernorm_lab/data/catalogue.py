"""The data sets, and where each is found on this machine. A new one is a file and a name here."""

from __future__ import annotations

from ..errors import RunError, unknown, wrapped
from ..runs.files import path_text
from . import digits
from .binarized_mnist import BINARIZED_MNIST
from .books import BOOKS
from .cifar10 import CIFAR10
from .iam import IAM
from .mnist import MNIST
from .order_embeddings import ORDER_EMBEDDINGS
from .questions import BOOKS_CLOZE, CNN
from .sentences import SENTENCES
from .sick import SICK
from .source import Source, lack, places

SOURCES = {
    source.name: source
    for source in (
        MNIST, BINARIZED_MNIST, IAM, ORDER_EMBEDDINGS, CIFAR10, CNN, BOOKS_CLOZE, BOOKS, SICK, SENTENCES,
    )
}  # fmt: skip
"""All published data sets, by name."""

EMBEDDED = {"digits": digits.SUMMARY}
"""Data sets that need no files, with a line about each."""


WIDTH = max(map(len, (*SOURCES, *EMBEDDED)))
"""The length of the longest name."""


def listing() -> list[str]:
    """Lists what each data set is, and where it is found here or why it is not. A line has room for an indent of two in
    80 columns."""
    inside = WIDTH + 1
    entries = [(f"{name:<{WIDTH}} {summary}", inside) for name, summary in EMBEDDED.items()]
    for source in SOURCES.values():
        entries.append((f"{source.name:<{WIDTH}} {source.summary}", inside))
        entries += [(" " * inside + text, inside + 2) for text in _state(source)]
    return [line for text, indent in entries for line in wrapped(text, indent, 78).split("\n")]


def _state(source: Source) -> list[str]:
    """Says where a data set is found, or else how to get it and what is wrong with every place that was searched."""
    reasons = []
    for folder in places(source, None):
        try:
            lacking = lack(source, folder)
        except RunError as error:
            lacking = str(error)
        if lacking is None:
            return [f"found in {path_text(folder)}"]
        reasons.append(path_text(lacking))
    by_hand = "" if source.url else " --source DIR"
    return [f"not here: layernorm data prepare {source.name}{by_hand}", *reasons]


def find_source(name: str) -> Source:
    """Finds the data set of this name. An unknown one is a UsageError that suggests the nearest name."""
    if name not in SOURCES:
        raise unknown("data set", name, [*SOURCES, *EMBEDDED])
    return SOURCES[name]
