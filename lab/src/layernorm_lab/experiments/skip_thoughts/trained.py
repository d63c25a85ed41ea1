"""Loads a run's trained encoder, and the data that it was trained and evaluated on."""

from __future__ import annotations

from pathlib import Path

from ...data import books
from ...data.books import Books
from ...errors import RunError
from ...runs.folder import Run
from ...runs.restore import configuration, restore_model, training_data
from .config import Config
from .encoder import Encoder
from .network import build_skip_thoughts


def trained_encoder(run: Run, folder: Path | None) -> tuple[Encoder, Config, Books, int]:
    """Restores a run's encoder, with its configuration, its books, and the update of its weights."""
    data: Books = training_data(run, folder, books.BOOKS.load, "books")
    config = configuration(Config, run)
    model, update = restore_model(build_skip_thoughts(config, config.vocabulary), run)
    return Encoder(model, data.vocabulary(config.vocabulary)), config, data, update


def sentence_words(texts: list[str], where: str) -> list[list[str]]:
    """Splits sentences into words. Each must have one; `where` names them in the error."""
    rows = [books.tokens(text) for text in texts]
    for number, row in enumerate(rows, 1):
        if not row:
            raise RunError(f"{where} {number} has no word in it: {texts[number - 1]!r}")
    return rows
