"""A thread that draws and trains, one job after the other, beside the server."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import torch

from ..errors import RunError
from ..protocol import stop_asked

MOST_WAITING = 16
"""So many jobs wait. With one job at a time, this bounds memory."""

_Made = TypeVar("_Made")


class Job(Generic[_Made]):
    """A drawing or a training that waits or is being made."""

    def __init__(self, make: Callable[[], _Made]) -> None:
        self.make, self.future, self.stopped = make, Future[_Made](), threading.Event()

    def stop(self) -> None:
        """Takes the job back. If it is being made, it ends at the network's next step."""
        self.stopped.set()
        self.future.cancel()

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        stop_asked.set(self.stopped.is_set)
        try:
            self.future.set_result(self.make())
        except BaseException as error:  # the page that waits for the job shows it
            self.future.set_exception(error)


class Worker:
    """Does jobs in the order in which they were asked for. It does not keep the process from ending."""

    def __init__(self) -> None:
        self.waiting: list[Job[Any]] = []
        self.made: list[Job[Any]] = []  # one or none
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._work, daemon=True)

    def submit(self, make: Callable[[], _Made]) -> Job[_Made]:
        """Asks for what `make` returns.

        Raises:
            RunError: too many jobs wait.
        """
        job = Job(make)
        with self.changed:
            self.waiting = [other for other in self.waiting if not other.stopped.is_set()]
            if len(self.waiting) == MOST_WAITING:
                raise RunError(f"{MOST_WAITING} drawings and trainings wait already; try again later")
            self.waiting.append(job)
            self.changed.notify_all()
        if self.thread.ident is None:
            self.thread.start()
        return job

    def close(self) -> None:
        """Takes all jobs back, and waits two seconds for the one that is being made: Python cannot end well while
        torch computes in a thread."""
        with self.changed:
            for job in self.waiting + self.made:
                job.stop()
            self.changed.wait_for(lambda: not self.made, 2)

    def _work(self) -> None:
        torch.set_num_threads(1)  # two that wait for each other on busy cores are many times slower
        torch.set_flush_denormal(True)
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.waiting)
                self.made = [self.waiting.pop(0)]
            contextvars.copy_context().run(self.made[0].run)
            with self.changed:
                self.made = []  # what it made is not kept until there is another
                self.changed.notify_all()


WORKER = Worker()
"""The worker of all pages."""
