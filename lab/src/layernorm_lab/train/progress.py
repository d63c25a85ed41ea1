"""Progress of a command: bars on a terminal, plain lines at intervals elsewhere, nothing in the other processes."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress

from ..runs.checkpoint import State
from .task import Course

LINE_SECONDS = 10.0
"""The seconds between two plain lines about one run."""


class Progress:
    """The display that the loop reports to. This base class shows nothing.

    The loop calls `begin` at the start of a run, `update` during it and `end` after it.
    """

    @property
    def stopping(self) -> bool:
        """Whether the run must be saved and interrupted, as after Ctrl-C."""
        return False

    def begin(self, number: int, runs: int, name: str) -> None:
        """Notes that a run starts or resumes."""

    def update(self, state: State, task: Course) -> None:
        """Notes that some updates were made."""

    def end(self, note: str) -> None:
        """Notes that the run is over: it has ended now, or was done before."""


class Lines(Progress):
    """Plain lines on standard error."""

    def begin(self, number: int, runs: int, name: str) -> None:
        self.title = f"[{number}/{runs}] {name}"
        self.spoke = time.perf_counter()
        self.rate = _Rate()

    def update(self, state: State, task: Course) -> None:
        self.rate.tick(state.update)
        if time.perf_counter() - self.spoke >= LINE_SECONDS:
            self.spoke = time.perf_counter()
            left = duration(self.rate.left(state.update, task.updates))
            print(
                f"{self.title}: {where(state, task)}, {glance(task.shown, state.metrics)}{left} left",
                file=sys.stderr,
                flush=True,
            )

    def end(self, note: str) -> None:
        print(f"{self.title}: {note}", file=sys.stderr, flush=True)


class Bars(Progress):
    """Bars on a terminal: one for the runs, which several displays may share, and one for the updates of this run."""

    def __init__(self, display: Any, total: Any) -> None:
        self.display, self.total = display, total
        self.bar = display.add_task("", total=None, note="", visible=False)
        self.drawn = 0.0

    def begin(self, number: int, runs: int, name: str) -> None:
        self.title = f"[{number}/{runs}] {name}"
        self.rate = _Rate()
        self.display.update(self.total, total=runs)
        self.display.update(self.bar, description=name, total=None, completed=0, note="", visible=True)

    def update(self, state: State, task: Course) -> None:
        self.rate.tick(state.update)
        if time.perf_counter() - self.drawn < 0.1:
            return
        self.drawn = time.perf_counter()
        left = duration(self.rate.left(state.update, task.updates))
        note = f"{glance(task.shown, state.metrics, short=True)}{left} left"
        self.display.update(self.bar, total=task.updates, completed=state.update, note=note)

    def end(self, note: str) -> None:
        self.display.update(self.total, advance=1)
        self.display.update(self.bar, visible=False)
        self.display.console.print(f"{self.title}: {note}", highlight=False, markup=False)


@contextlib.contextmanager
def progress(main: bool = True, lines: int = 1) -> Iterator[Sequence[Progress]]:
    """Makes displays, each for one run at a time, by what standard error is: bars on a terminal, lines elsewhere.
    Processes that are not the main one show nothing."""
    if not main:
        yield [Progress() for _ in range(lines)]
        return
    if not sys.stderr.isatty():
        yield [Lines() for _ in range(lines)]
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        TextColumn("{task.percentage:>3.0f} %  {task.fields[note]}", markup=False),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as display:
        total = display.add_task("runs", total=None, note="")
        yield [Bars(display, total) for _ in range(lines)]


class _Rate:
    """The time left, from the pace since this start. The updates before a resumed run's start do not count."""

    def __init__(self) -> None:
        self.first: tuple[float, int] | None = None
        self.pace = 0.0

    def tick(self, update: int) -> None:
        now = time.perf_counter()
        if self.first is None:
            self.first = (now, update)
        elif update > self.first[1]:
            self.pace = (now - self.first[0]) / (update - self.first[1])

    def left(self, update: int, updates: int) -> float:
        return (updates - update) * self.pace


def where(state: State, task: Course) -> str:
    """Says how far a run is: `epoch 3.2 of 10`, or `update 20 of 600` if the run is shorter than an epoch."""
    if task.updates < task.updates_per_epoch:
        return f"update {state.update} of {task.updates}"
    return f"epoch {state.update / task.updates_per_epoch:.1f} of {task.updates / task.updates_per_epoch:g}"


def glance(shown: Mapping[str, str], metrics: Mapping[str, float], short: bool = False) -> str:
    """Writes the metrics that a task shows, each followed by a comma and a space. `short`: only the last of them."""
    texts = [f"{label.format(metrics[name])}, " for name, label in shown.items() if name in metrics]
    return "".join(texts[-1:] if short else texts)


def duration(seconds: float) -> str:
    """Writes a time span as text: `8 s`, `3 min`, `1 h 20 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
