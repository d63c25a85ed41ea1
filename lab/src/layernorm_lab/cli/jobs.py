"""`--jobs N`: the runs of a request on N worker processes, each with one thread.

The parent hands out the runs one at a time. Each worker reports its progress over a pipe, and the parent shows it.
Where the parent closes the pipe or dies, a worker saves its run and ends.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch

from layernorm.isolation import Worker, WorkerEndedError

from ..errors import Failure, Interrupted, RunError
from ..protocol import Experiment
from ..runs.checkpoint import State
from ..train.progress import Progress, progress
from ..train.task import Course
from .options import Request
from .single import Outcome, Reporting, attempt_run, cut_off, resuming
from .waiting import waiting

SECONDS = 0.1
"""The seconds between two messages of a worker about the progress of its run."""


class _Update(NamedTuple):
    """A worker's message: the arguments of `Progress.update`."""

    state: State
    course: Course


@dataclass
class _Post:
    """A worker, its display, and the run that it makes: its place in `request.configs`."""

    worker: Worker
    display: Progress
    run: int | None = None


def make_on_workers(experiment: Experiment, request: Request, runs: Mapping[int, Path]) -> list[Failure]:
    """Makes some of a request's runs, whose folders are given by the run's place in `request.configs`, on workers. A
    run that fails does not stop the others. Returns those that failed.

    Raises:
        Interrupted: SIGINT or SIGTERM arrived, and the workers have saved their runs.
        RunError: a worker ended while it had no run.
    """
    sizes = [size if place in runs else 0.0 for place, size in enumerate(request.sizes)]
    lines = min(request.settings.jobs or 1, len(runs))
    with _stopped_by_sigterm():
        pool = _Pool(experiment, request, runs)
        try:
            with waiting("starting the workers"):
                for _ in range(lines):
                    pool.fill(Progress())
                wait([post.worker.pipe for post in pool.posts])
            with progress(lines=lines, sizes=sizes) as displays:
                for post, display in zip(pool.posts, displays, strict=True):
                    post.display = display
                while pool.posts:
                    for pipe in wait([post.worker.pipe for post in pool.posts]):
                        pool.receive(next(post for post in pool.posts if post.worker.pipe is pipe))
        except KeyboardInterrupt:
            print(
                "stopping: the workers save their runs (press Ctrl-C again to stop at once)",
                file=sys.stderr,
                flush=True,
            )
            pool.stop()
            raise Interrupted from None
        except WorkerEndedError as how:
            raise RunError(f"a worker process {how}, before it had a run; give the same command again") from None
        finally:
            for post in pool.posts:
                post.worker.kill()  # this is safe, as every file of a run is complete at any time
    return pool.failures


class _Pool:
    """The workers, the runs that wait for one, and the runs that failed."""

    def __init__(self, experiment: Experiment, request: Request, runs: Mapping[int, Path]) -> None:
        self.make = functools.partial(_make, experiment.name, request, runs)
        self.modules = (__name__, "accelerate", "torch._dynamo", experiment.load.__module__)
        self.request, self.runs, self.total = request, runs, len(request.configs)
        self.waiting = deque(runs)
        self.posts: list[_Post] = []
        self.failures: list[Failure] = []

    def fill(self, display: Progress) -> None:
        """Starts a worker for a display."""
        with _one_thread():
            self.posts.append(_Post(Worker(self.make, self.modules), display))

    def receive(self, post: _Post) -> None:
        """Takes a message of a worker, and gives it the next run if it has none."""
        try:
            message = post.worker.receive()
        except WorkerEndedError as how:
            self.posts.remove(post)
            if post.run is None:
                raise
            self._failed(post, cut_off(f"its worker process {how}", self.request))
            if self.waiting:
                self.fill(post.display)
            return
        if isinstance(message, _Update):
            post.display.update(*message)
            return
        if isinstance(message, Outcome) and message.failed:
            self._failed(post, message.note, message.traceback)
        elif isinstance(message, Outcome):
            post.display.end(message.note)
        self._give_next(post)

    def stop(self) -> None:
        """Makes the workers save their runs, and waits for them to end."""
        for post in self.posts:
            post.worker.pipe.close()
        for post in self.posts:
            post.worker.process.join()

    def _give_next(self, post: _Post) -> None:
        post.run = self.waiting.popleft() if self.waiting else None
        if post.run is None:
            self.posts.remove(post)
            post.worker.end()
        else:
            post.display.begin(post.run + 1, self.total, self.runs[post.run].name)
            with contextlib.suppress(OSError):  # it has just been killed, which `receive` will tell
                post.worker.give(post.run)

    def _failed(self, post: _Post, why: str, details: str = "") -> None:
        assert post.run is not None
        post.display.end(f"failed: {why}")
        self.failures.append(Failure(self.runs[post.run].name, why, details))


class _ReportingProgress(Reporting):
    """A worker's display, which sends messages to its parent. The parent may have ended."""

    seconds = SECONDS

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    @property
    def stopping(self) -> bool:
        return self.pipe.poll()  # during a run the only thing that can arrive is the end of the pipe

    def tell(self, state: State, course: Course) -> None:
        with contextlib.suppress(ConnectionError):
            self.pipe.send(_Update(state, course))


def _make(name: str, request: Request, runs: Mapping[int, Path], run: int, pipe: Connection) -> Any:
    """Makes one run, in a worker."""
    torch.set_num_threads(1)
    try:
        return attempt_run(name, request, run, runs[run], _ReportingProgress(pipe))
    except Interrupted:
        if pipe.poll():  # the parent stops all
            sys.exit()
        return Outcome(f"was interrupted by a signal; {resuming(request)}", failed=True)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Gives every library in a process that is started here one thread."""
    name = "OMP_NUM_THREADS"
    threads = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name)
        if threads is not None:
            os.environ[name] = threads


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM raise what Ctrl-C raises."""
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
