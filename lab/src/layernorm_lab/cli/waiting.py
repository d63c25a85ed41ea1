"""Says what a command waits for before it can show anything else."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from ..errors import is_first_process

SILENCE = 3.0
"""Seconds after which a file or a pipe gets a line."""


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Says what is waited for, such as "loading PyTorch", inside the ``with``: at once on a terminal, which is cleaned
    afterwards. In a file or a pipe it is a line for every `SILENCE` seconds, with the time so far."""
    text = f"{what} ..."
    if not is_first_process():
        yield
    elif sys.stderr.isatty():
        print(text, end="", file=sys.stderr, flush=True)
        try:
            yield
        finally:
            print(f"\r{' ' * len(text)}\r", end="", file=sys.stderr, flush=True)
    else:
        over = threading.Event()
        teller = threading.Thread(target=_tell, args=(text, over), daemon=True)
        try:
            teller.start()
            yield
        finally:
            over.set()
            teller.join()


def _tell(text: str, over: threading.Event) -> None:
    began = time.monotonic()
    while not over.wait(SILENCE):
        print(f"{text} {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
