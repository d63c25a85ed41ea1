"""Runs a function in processes of its own. One that crashes or hangs is replaced by a new one."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

ENDING = 5.0
"""The most seconds that a process may take to end by itself."""

GRACE = 10.0
"""The seconds that a process has for what it is doing after its parent has died."""

START = "forkserver" if sys.platform == "linux" else "spawn"
"""How a worker starts. Windows has no fork, and on macOS the system's libraries do not survive one."""

READY = "ready"
"""A worker's first message: it has started, which takes seconds."""


@dataclass(frozen=True)
class Failure:
    """What happened instead of a result. ``hung``: there was no answer until the process was ended."""

    message: str
    hung: bool = False


class WorkerEndedError(Exception):
    """A worker has ended by itself. The message says how, such as "was ended by SIGKILL"."""


class Worker:
    """A process that computes ``function(item, pipe)`` for one item after another.

    It sends `READY`, then each result, and in between what the function sends through the pipe. The end of the pipe
    means stop: where the parent closes it or dies, the worker ends after its item.

    Args:
        function: a function of a module, so that another process can import it. The process is no fork of this one,
            whose threads and GPU contexts would not survive in it. It is one of a server that has imported `modules`
            and done nothing else, or on other systems than Linux a new one. Where the first worker is also the first
            process of that server, all its processes start with Ctrl-C ignored.
        modules: the modules that take long to import. They are imported once for all workers.

    Raises:
        WorkerEndedError: the server was ended.
    """

    def __init__(self, function: Callable[[Any, Connection], Any], modules: Sequence[str] = (__name__,)) -> None:
        context = multiprocessing.get_context(START)
        if START == "forkserver":
            context.set_forkserver_preload(list(modules))
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, function, dict(os.environ))
        self.process = context.Process(target=_serve, args=arguments, daemon=True)  # type: ignore[attr-defined]
        with ctrl_c_ignored():
            try:
                self.process.start()
            except (EOFError, ConnectionError):
                raise WorkerEndedError("was ended while it started") from None
        theirs.close()  # then only the worker holds its end, which closes when the worker ends

    def give(self, item: Any) -> None:
        """Gives the worker an item to compute."""
        self.pipe.send(item)

    def receive(self) -> Any:
        """Waits for a message.

        Raises:
            WorkerEndedError: there will be none.
        """
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            raise WorkerEndedError(_describe_exit(self.process.exitcode)) from None

    def end(self, limit: float | None = None) -> None:
        """Lets the worker end by itself, for which it has this many seconds."""
        self.pipe.close()
        self.process.join(limit)
        self.kill()

    def kill(self) -> None:
        """Ends the worker, if it is still there, at once."""
        self.process.kill()
        self.process.join()


def isolated(
    function: Callable[[Item], Result], items: Iterable[Item], limit: float
) -> Iterator[tuple[Item, Result | Failure]]:
    """Computes ``function(item)`` for each item, one after another.

    Args:
        function: a function of a module, as for `Worker`.
        items: are taken one by one, each after the result of the one before.
        limit: the most seconds that a call may take.
    """
    worker = None
    try:
        for item in items:
            if worker is None:
                worker = Worker(functools.partial(_answer, function))
                started = False
            result: Any
            try:
                started = started or worker.receive() == READY  # starting does not count for the call
                worker.give(item)
                result = worker.receive() if worker.pipe.poll(limit) else None
            except (WorkerEndedError, OSError):
                worker.process.join()
                result = Failure(f"the process {_describe_exit(worker.process.exitcode)}")
                worker = None
            else:
                if result is None:
                    result = Failure(f"no answer within {limit:.0f} s", hung=True)
                    worker.kill()
                    worker = None
                else:
                    (result,) = result
            yield item, result
    finally:
        if worker is not None:
            worker.end(ENDING)  # torch's compiler tidies up


def _answer(function: Callable[[Any], Any], item: Any, pipe: Connection) -> tuple[Any]:
    try:
        return (function(item),)
    except Exception as error:
        return (Failure(f"{type(error).__name__}: {str(error).strip() or 'without a message'}"),)


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _serve(pipe: Connection, function: Callable[[Any, Connection], Any], environment: dict[str, str]) -> None:
    os.environ.clear()  # the server has that of its own start
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is asked to stop as well, and ends this process
    threading.Thread(target=_end_after_parent, daemon=True).start()
    with contextlib.suppress(EOFError, ConnectionError):
        pipe.send(READY)
        while True:
            pipe.send(function(pipe.recv(), pipe))


def _end_after_parent() -> None:
    """Ends a process whose parent has died, for where it would not notice that by itself."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    time.sleep(GRACE)
    os._exit(1)


@contextlib.contextmanager
def ctrl_c_ignored() -> Iterator[None]:
    """Lets a process that is started here ignore Ctrl-C from its first moment on."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
