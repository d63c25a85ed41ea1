"""The errors that a command can end with: it failed (exit code 1), wrong usage (2), or it was interrupted (130)."""

from __future__ import annotations

import contextlib
import difflib
import os
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


class RunError(Exception):
    """Something failed that the user can act on. The message is the one line that they see."""


class LackingError(RunError):
    """A file of a run lacks a value that is asked for. `path` is that of the file."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(what)
        self.path = path


class UsageError(Exception):
    """The command asks for something that does not exist or does not fit together."""


class Interrupted(Exception):  # noqa: N818 - not an error: the run is saved and goes on later
    """The user or the system asked the run to stop. Everything up to here is saved."""


@dataclass(frozen=True)
class Failure:
    """One of several runs, which failed: its name, the reason in one line, and the traceback or an empty text."""

    name: str
    why: str
    traceback: str


class Failures(RunError):  # noqa: N818 - several errors
    """Several runs failed: `lines` has one line for each."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        self.lines = [f"{failure.name} failed: {failure.why}" for failure in failures]
        super().__init__("\n".join([*self.lines, *(failure.traceback for failure in failures)]))


def is_first_process() -> bool:
    """Tells whether this is the process that speaks, of those of torchrun or by itself."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def printable(text: str) -> str:
    """Makes a text from a user one line that can be printed: control characters, which a terminal or a page would obey,
    and bytes that are no text become escapes."""
    return "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) in _OBEYED else c for c in text)


_OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode's control, format and surrogate characters, and its separators of lines and paragraphs."""


def wrapped(text: str, indent: int, width: int = 80) -> str:
    """Wraps the text to at most ``width`` columns, all lines but the first indented. Names and paths are not split."""
    return textwrap.fill(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def unknown(kind: str, name: str, names: Iterable[str]) -> UsageError:
    """Makes the error for a name that is not among the known ones. It suggests the nearest one, and lists a few."""
    known = {item.lstrip("-").lower(): item for item in names}  # the dashes of options make none of them like another
    near = difflib.get_close_matches(name.lstrip("-").lower(), known, n=1)
    hints = [f"did you mean {known[near[0]]!r}?"] if near else []
    if not near or len(known) <= 6:
        hints.append(f"there are: {', '.join(known.values())}")
    return UsageError(f"unknown {kind} {name!r}; {' '.join(hints)}")


def reason(error: OSError) -> str:
    """Returns the system's message, without the number and the path that `str(error)` adds."""
    return error.strerror or str(error)


@contextlib.contextmanager
def failing(doing: str) -> Iterator[None]:
    """Makes an OSError inside the ``with`` a RunError: that this, such as "write FILE", cannot be done, and why."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot {doing}: {reason(error)}") from error


def error_line(error: Exception) -> str:
    """Words an error as the one line that the user sees."""
    if isinstance(error, (UsageError, RunError)):
        return str(error)
    if isinstance(error, OSError):
        return f"cannot read {error.filename}: {reason(error)}" if error.filename else reason(error)
    first = (str(error).splitlines() or [""])[0]
    return f"unexpected {type(error).__name__}: {first} (--traceback shows where)"
