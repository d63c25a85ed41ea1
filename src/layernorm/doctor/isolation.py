"""Runs a function in a process of its own. If it crashes or hangs, the next call gets a new process."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

ENDING = 5.0
"""The most seconds that a process may take to end by itself."""


@dataclass(frozen=True)
class Failure:
    """What happened instead of a result. ``hung``: there was no answer until the process was ended."""

    message: str
    hung: bool = False


def isolated(
    function: Callable[[Item], Result], items: Iterable[Item], limit: float
) -> Iterator[tuple[Item, Result | Failure]]:
    """Computes ``function(item)`` for each item, one after another.

    Args:
        function: a function of a module, so that a new process can import it. The process is no fork of this one, whose
            threads and GPU contexts would not survive in it.
        items: are taken one by one, each after the result of the one before.
        limit: the most seconds that a call may take.
    """
    child = None
    try:
        for item in items:
            child = child or _Child(function)
            result = child.ask(item, limit)
            if isinstance(result, Failure) and not child.process.is_alive():
                child = None
            yield item, result
    finally:
        if child is not None:
            child.end()


class _Child:
    def __init__(self, function: Callable[[Any], Any]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_serve, args=(theirs, function), daemon=True)
        self.process.start()
        theirs.close()
        self.started = False

    def ask(self, item: Any, limit: float) -> Any:
        try:
            if not self.started:
                self.started = self.pipe.recv()  # starting takes seconds, which do not count for the call
            self.pipe.send(item)
            if self.pipe.poll(limit):
                return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return Failure(f"the process {_describe_exit(self.process.exitcode)}")
        self.process.kill()
        self.end()
        return Failure(f"no answer within {limit:.0f} s", hung=True)

    def end(self) -> None:
        self.pipe.close()  # at which the process ends by itself, and torch's compiler tidies up
        self.process.join(ENDING)
        self.process.kill()
        self.process.join()


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _serve(pipe: Connection, function: Callable[[Any], Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is asked to stop as well, and ends this process
    pipe.send(True)
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            return
        try:
            answer = function(item)
        except Exception as error:
            answer = Failure(f"{type(error).__name__}: {str(error).strip() or 'without a message'}")
        pipe.send(answer)
