"""Evaluations that take no time, and no data of an earlier test."""

import pytest

from layernorm.experiments.data import books, sentences, sick
from layernorm.experiments.skip_thoughts import encoder, evaluation, experiment


@pytest.fixture(autouse=True)
def _quick(monkeypatch, tmp_path):
    """Fewer folds, values of C, blocks and features."""
    for read in (books.read_books, sick.read_sick, sentences.read_sentences):
        read.cache_clear()
    experiment.load_text.cache_clear()
    monkeypatch.setattr(evaluation, "PENALTIES", (1.0,))
    monkeypatch.setattr(evaluation, "FOLDS", 2)
    monkeypatch.setattr(evaluation, "BLOCKS", 1)
    monkeypatch.setattr(encoder, "FEATURES", 64)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LAYERNORM_DATA", raising=False)
