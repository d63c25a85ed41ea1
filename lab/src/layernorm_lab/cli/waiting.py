"""Says on a terminal what a command waits for before it can show anything else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Shows what is waited for, such as "loading PyTorch", inside the ``with``. A file or a pipe gets nothing."""
    if not sys.stderr.isatty():
        yield
        return
    text = f"{what} ..."
    print(text, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(f"\r{' ' * len(text)}\r", end="", file=sys.stderr, flush=True)
