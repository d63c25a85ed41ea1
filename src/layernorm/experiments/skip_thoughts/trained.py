"""Loads a run's trained encoder, and the data that it was trained and evaluated on."""

from __future__ import annotations

from pathlib import Path

from ..data import books
from ..data.books import Books
from ..errors import RunError
from ..runs.folder import Run
from ..runs.restore import configuration, restore, training_data
from .encoder import Encoder
from .network import Config, build


def trained(run: Run, folder: Path | None) -> tuple[Encoder, Config, Books, int]:
    """A run's encoder, its configuration, its books, and the update of its weights.

    Raises:
        RunError: a file is missing or damaged, or the books are not those of the training.
    """
    found: Books = training_data(run, folder, books.BOOKS.load, "books")
    config = configuration(Config, run)
    model, update = restore(build(config, config.vocabulary), run)
    return Encoder(model, found.vocabulary(config.vocabulary)), config, found, update


def words(texts: list[str], where: str) -> list[list[str]]:
    """The words of each text.

    Raises:
        RunError: a text has no word. The message begins with `where` and the text's number, from 1.
    """
    found = [books.tokens(text) for text in texts]
    for number, row in enumerate(found, 1):
        if not row:
            raise RunError(f"{where} {number} has no word in it: {texts[number - 1]!r}")
    return found
