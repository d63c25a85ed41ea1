"""How far reading has come: lines for a file, one line for a terminal, nothing where it is quick."""

import sys

import pytest

from layernorm_lab.data import progress


@pytest.fixture
def clock(monkeypatch):
    """A clock on which each look takes a second."""
    ticks = iter(range(10_000))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(ticks)))


def test_what_is_quick_says_nothing(capsys):
    assert list(progress.followed("abc", "reading letters")) == list("abc")
    assert capsys.readouterr().err == ""


def test_the_first_of_torchruns_processes_speaks(clock, monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "1")
    list(progress.followed(range(200), "reading numbers"))
    assert capsys.readouterr().err == ""


def test_a_line_for_each_quarter(clock, capsys):
    list(progress.followed(range(200), "reading numbers"))
    assert capsys.readouterr().err.splitlines() == [f"reading numbers: {n} %" for n in (0, 25, 50, 75, 100)]


def test_one_line_that_changes_on_a_terminal(clock, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    list(progress.followed(range(4), "reading numbers"))
    written = capsys.readouterr().err
    assert written.endswith("\rreading numbers: 75 %\rreading numbers: 100 %\n")
    assert written.count("\n") == 1


def test_an_error_has_a_line_of_its_own(clock, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    items = progress.followed(range(8), "reading numbers")
    for _ in range(5):
        next(items)
    items.close()  # as where what is done with an item fails
    assert capsys.readouterr().err.endswith("\rreading numbers: 50 %\n")
