"""Shows the progress of reading or downloading on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from ..errors import is_first_process

Item = TypeVar("Item")

QUIET = 2.0
"""The seconds of reading before anything is shown."""


class PercentDone:
    """On a terminal one line that changes, elsewhere a line for each quarter.

    Args:
        doing: what is being done, such as "reading iam-ondb".
        quiet: the seconds before anything is shown.
    """

    def __init__(self, doing: str, quiet: float = 0.0) -> None:
        self.doing, self.begins, self.shown = doing, time.monotonic() + quiet, -1

    def show(self, percent: int, more: str = "") -> None:
        """Shows how much is done, if it has changed. ``more`` is added where lines are not overwritten."""
        if time.monotonic() < self.begins or not is_first_process():
            return
        if sys.stderr.isatty():
            if percent != self.shown:
                print(f"\r{self.doing}: {percent} %", end="", file=sys.stderr, flush=True)
                self.shown = percent
        elif percent // 25 > self.shown // 25 or self.shown < 0:
            print(f"{self.doing}: {percent} %{more}", file=sys.stderr, flush=True)
            self.shown = percent

    def close(self) -> None:
        """Ends the line that changes."""
        if self.shown >= 0 and sys.stderr.isatty():
            print(file=sys.stderr, flush=True)


def followed(items: Sequence[Item], doing: str) -> Iterator[Item]:
    """Yields the items one by one, with a display of how many have been taken."""
    progress = PercentDone(doing, QUIET)
    try:
        for number, item in enumerate(items):
            progress.show(100 * number // len(items))
            yield item
        progress.show(100)
    finally:
        progress.close()
