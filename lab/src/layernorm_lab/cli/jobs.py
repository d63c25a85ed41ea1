"""`--jobs N`: the runs of a request on N worker processes, each with one thread.

The parent hands out the runs one at a time. Each worker reports its progress over a pipe, and the parent shows it. The
end of the pipe means stop: when the parent closes it or dies, a worker saves its run and ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from ..catalogue import find_experiment
from ..errors import Failure, Interrupted, RunError, error_line
from ..protocol import Experiment
from ..runs.checkpoint import State
from ..train import distributed
from ..train.progress import Course, Progress, progress
from ..train.task import Task
from . import single
from .options import Request

GRACE = 10.0
"""The seconds that a worker has for saving its run after its parent has died."""

SECONDS = 0.1
"""The seconds between two messages of a worker about the progress of its run."""


def make_on_workers(experiment: Experiment, request: Request, runs: Mapping[int, Path]) -> list[Failure]:
    """Makes some of a request's runs, whose folders are given by the run's place in `request.configs`, on workers. A
    run that fails does not stop the others. Returns those that failed.

    Raises:
        Interrupted: SIGINT or SIGTERM arrived, and the workers have saved their runs.
        RunError: a worker ended while it had no run.
    """
    with _stopped_by_sigterm(), progress(lines=min(request.settings.jobs or 1, len(runs))) as displays:
        pool = WorkerPool(experiment, request, runs)
        try:
            for display in displays:
                pool.start_worker(display)
            while pool.workers:
                for pipe in wait([worker.pipe for worker in pool.workers]):
                    pool.receive(next(worker for worker in pool.workers if worker.pipe is pipe))
        except KeyboardInterrupt:
            print(
                "stopping: the workers save their runs (press Ctrl-C again to stop at once)",
                file=sys.stderr,
                flush=True,
            )
            pool.stop()
            raise Interrupted from None
        finally:
            pool.kill()
    return pool.failures


@dataclass
class _Worker:
    """A worker as its parent knows it. `run` is the place, in `request.configs`, of the run that it makes."""

    process: BaseProcess
    pipe: Connection
    display: Progress
    run: int | None = None


class WorkerPool:
    """The workers, the runs that wait for one, and the runs that failed."""

    def __init__(self, experiment: Experiment, request: Request, runs: Mapping[int, Path]) -> None:
        self.experiment, self.request, self.runs = experiment, request, runs
        self.waiting = deque(runs)
        self.workers: list[_Worker] = []
        self.failures: list[Failure] = []

    def start_worker(self, display: Progress) -> None:
        """Starts a worker."""
        context = multiprocessing.get_context("spawn")  # a fork would share torch's threads and the parent's locks
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(self.experiment.name, self.request, self.runs, theirs))
        with _for_workers():
            process.start()
        theirs.close()  # then only the worker holds its end, which closes when the worker ends
        self.workers.append(_Worker(process, ours, display))

    def receive(self, worker: _Worker) -> None:
        """Takes a message from a worker, or notices that it has ended."""
        try:
            word, *values = worker.pipe.recv()
        except (EOFError, ConnectionError):
            self.workers.remove(worker)
            self._ended(worker)
            return
        if word == "ready":
            self._hand_out(worker)
        elif word == "update":
            worker.display.update(*values)
        else:
            if word == "failed":
                self._failed(worker, *values)
            else:
                worker.display.end(*values)
            worker.run = None

    def stop(self) -> None:
        """Makes the workers save their runs, and waits for them to end."""
        for worker in self.workers:
            worker.pipe.close()
        for worker in self.workers:
            worker.process.join()

    def kill(self) -> None:
        """Kills workers that are still there. This is safe, as every file of a run is complete at any time."""
        for worker in self.workers:
            worker.process.kill()
            worker.process.join()

    def _hand_out(self, worker: _Worker) -> None:
        if self.waiting:
            worker.run = self.waiting.popleft()
            worker.display.begin(worker.run + 1, len(self.request.configs), self.runs[worker.run].name)
            worker.pipe.send(worker.run)
        else:
            self.workers.remove(worker)
            worker.pipe.close()
            worker.process.join()

    def _ended(self, worker: _Worker) -> None:
        """Counts the run of a worker that has ended by itself as failed, and starts another in its place."""
        worker.process.join()
        code = worker.process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if worker.run is None:
            raise RunError(f"a worker process ended without a run ({how})")
        self._failed(worker, f"its worker process ended ({how})", "")
        if self.waiting:
            self.start_worker(worker.display)

    def _failed(self, worker: _Worker, why: str, details: str) -> None:
        assert worker.run is not None
        worker.display.end(f"failed: {why}")
        self.failures.append(Failure(self.runs[worker.run].name, why, details))


class _ReportingProgress(Progress):
    """A worker's display, which sends messages to its parent. The parent may have ended."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.spoke = 0.0

    @property
    def stopping(self) -> bool:
        return self.pipe.poll()  # during a run the only thing that can arrive is the end of the pipe

    def update(self, state: State, task: Task | Course) -> None:
        if time.perf_counter() - self.spoke >= SECONDS:
            self.spoke = time.perf_counter()
            self.send("update", state, Course(task.updates, task.updates_per_epoch, task.shown))

    def send(self, word: str, *values: Any) -> None:
        """Sends a message."""
        with contextlib.suppress(ConnectionError):
            self.pipe.send((word, *values))


def _work(name: str, request: Request, runs: Mapping[int, Path], pipe: Connection) -> None:
    """Runs a worker: makes one run after another, until its parent closes the pipe."""
    torch.set_num_threads(1)
    threading.Thread(target=_end_after_parent, daemon=True).start()
    experiment, display = find_experiment(name), _ReportingProgress(pipe)
    with contextlib.suppress(EOFError, ConnectionError, Interrupted):
        while True:
            display.send("ready")
            run = pipe.recv()
            try:
                accelerator = distributed.accelerator(request.settings.device, request.settings.precision)
                note = single.make_run(experiment, request, request.configs[run], runs[run], accelerator, display)
            except Interrupted:
                raise
            except Exception as error:
                display.send("failed", error_line(error), traceback.format_exc())
            else:
                display.send("end", note)


def _end_after_parent() -> None:
    """Ends a worker whose parent has died, for where the worker would not notice that by itself."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    time.sleep(GRACE)
    os._exit(1)


@contextlib.contextmanager
def _for_workers() -> Iterator[None]:
    """Sets what a new process inherits: one thread for every library, and that it ignores Ctrl-C."""
    name = "OMP_NUM_THREADS"
    threads, handler = os.environ.get(name), signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name)
        if threads is not None:
            os.environ[name] = threads
        signal.signal(signal.SIGINT, handler)


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM raise what Ctrl-C raises."""
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
