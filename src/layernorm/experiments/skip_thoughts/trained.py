"""A run's trained encoder, and the data that it was trained and evaluated on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..data import books
from ..data.books import Books
from ..errors import RunError
from ..runs.folder import Run
from ..runs.restore import configuration, restore
from .encoder import Encoder
from .network import Config, build


def part(run: Run, name: str, folder: Path | None, load: Callable[[Path | None], Any]) -> Any:
    """One of the data sets of a run: from the folder given, else the one of the run's training, else wherever it is.

    Args:
        name: `books`, `sick` or `sentences`.
        folder: with a folder of that name.

    Raises:
        RunError: it is missing or damaged, or is another than the run's.
    """
    known = run.environment["data"]
    place = Path(known.get("folders", {}).get(name, ""))
    data = load(folder / name if folder is not None else place if place.name and place.is_dir() else None)
    if data.facts["fingerprint"] != known.get("fingerprints", {}).get(name):
        raise RunError(f"the {name} in {data.facts['folder']} are not those of the run in {run.path}; give --data")
    return data


def trained(run: Run, folder: Path | None) -> tuple[Encoder, Config, Books, int]:
    """A run's encoder, its configuration, its books, and the update of its weights.

    Raises:
        RunError: something is missing or damaged, or the books are others.
    """
    found: Books = part(run, "books", folder, books.load)
    config = configuration(Config, run)
    model, update = restore(build(config, config.vocabulary), run)
    return Encoder(model, found.vocabulary(config.vocabulary)), config, found, update


def words(texts: list[str], where: str) -> list[list[str]]:
    """The words of each text.

    Raises:
        RunError: a text has none; the message begins with `where` and its number, from 1.
    """
    found = [books.tokens(text) for text in texts]
    for number, row in enumerate(found, 1):
        if not row:
            raise RunError(f"{where} {number} has no word in it: {texts[number - 1]!r}")
    return found
