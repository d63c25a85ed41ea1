"""A thread that draws, one drawing after the other, beside the server."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future

from ..experiments.errors import RunError
from ..experiments.protocol import Drawn, stop_asked

MOST_WAITING = 16
"""So many drawings wait. With one drawing at a time, this bounds memory."""


class Job:
    """A drawing that waits or is being made."""

    def __init__(self, draw: Callable[[], Drawn]) -> None:
        self.draw, self.future, self.stopped = draw, Future[Drawn](), threading.Event()

    def stop(self) -> None:
        """Takes the drawing back. If it is being made, it ends at the network's next step."""
        self.stopped.set()
        self.future.cancel()

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        stop_asked.set(self.stopped.is_set)
        try:
            self.future.set_result(self.draw())
        except BaseException as error:  # the page that waits for the drawing shows it
            self.future.set_exception(error)


class Worker:
    """Makes drawings in the order in which they were asked for. It does not keep the process from ending."""

    def __init__(self) -> None:
        self.waiting: list[Job] = []
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._work, daemon=True)

    def submit(self, draw: Callable[[], Drawn]) -> Job:
        """Asks for a drawing.

        Raises:
            RunError: too many drawings wait.
        """
        job = Job(draw)
        with self.changed:
            self.waiting = [other for other in self.waiting if not other.stopped.is_set()]
            if len(self.waiting) == MOST_WAITING:
                raise RunError(f"{MOST_WAITING} drawings wait already; try again later")
            self.waiting.append(job)
            self.changed.notify()
        if self.thread.ident is None:
            self.thread.start()
        return job

    def _work(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.waiting)
                job = self.waiting.pop(0)
            contextvars.copy_context().run(job.run)
            del job  # or its drawing would be kept until there is another
