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

    `begin` is called at the start of a run, `update` before its first update and after every few, `end` after it.
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
            text = f"{self.title}: {where(state, task)}, {self.rate.told(state, task)}"
            print(text.removesuffix(", "), file=sys.stderr, flush=True)

    def end(self, note: str) -> None:
        print(f"{self.title}: {note}", file=sys.stderr, flush=True)


class Bars(Progress):
    """Bars on a terminal: one for all runs, which several displays may share, and one for the updates of this run."""

    def __init__(self, display: Any, whole: Whole) -> None:
        self.display, self.whole = display, whole
        self.bar = display.add_task("", total=None, note="", visible=False)

    def begin(self, number: int, runs: int, name: str) -> None:
        self.title, self.number = f"[{number}/{runs}] {name}", number
        self.rate, self.drawn = _Rate(), 0.0
        self.whole.begin(runs)
        self.display.update(self.bar, description=name, total=None, completed=0, note="starts", visible=True)

    def update(self, state: State, task: Course) -> None:
        self.rate.tick(state.update)
        if time.perf_counter() - self.drawn < 0.1:
            return
        self.drawn = time.perf_counter()
        note = self.rate.told(state, task, short=True).removesuffix(", ")
        self.display.update(self.bar, total=task.updates, completed=state.update, note=note)
        self.whole.move(self.number, state.update / task.updates)

    def end(self, note: str) -> None:
        self.whole.move(self.number, 1.0)
        self.display.update(self.bar, visible=False)
        self.display.console.print(f"{self.title}: {note}", highlight=False, markup=False)


class Whole:
    """The bar of all runs of a command, with the time that they still take together.

    Args:
        display: rich's.
        sizes: for each run a number in proportion to its updates; empty: all runs are alike.
    """

    def __init__(self, display: Any, sizes: Sequence[float]) -> None:
        self.display, self.sizes = display, sizes
        self.bar = display.add_task("all runs", total=None, note="")
        self.shares: dict[int, float] = {}
        self.began: float | None = None
        self.made = 0.0

    def begin(self, runs: int) -> None:
        """Notes that a run starts or resumes."""
        self.sizes = self.sizes or [1.0] * runs
        self.began = self.began or time.perf_counter()
        self.display.update(self.bar, total=sum(self.sizes))

    def move(self, number: int, share: float) -> None:
        """Notes which share of a run is done. The share at the first call was done before this command, and counts no
        time."""
        assert self.began is not None
        self.made += (share - self.shares.get(number, share)) * self.sizes[number - 1]
        self.shares[number] = share
        done = sum(share * self.sizes[number - 1] for number, share in self.shares.items())
        pace = (time.perf_counter() - self.began) / self.made if self.made else 0.0
        left = left_text(sum(self.sizes) - done, pace)
        self.display.update(self.bar, completed=done, note=f"about {left}" if left else "")


@contextlib.contextmanager
def progress(main: bool = True, lines: int = 1, sizes: Sequence[float] = ()) -> Iterator[Sequence[Progress]]:
    """Makes displays, each for one run at a time, by what standard error is: bars on a terminal, lines elsewhere.
    Processes that are not the main one show nothing. `sizes` are those of `Whole`."""
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
        whole = Whole(display, sizes)
        yield [Bars(display, whole) for _ in range(lines)]


class _Rate:
    """The seconds of an update since this start; 0 until they are known. The updates before a resumed run's start do
    not count."""

    def __init__(self) -> None:
        self.first: tuple[float, int] | None = None
        self.pace = 0.0

    def tick(self, update: int) -> None:
        now = time.perf_counter()
        if self.first is None:
            self.first = (now, update)
        elif update > self.first[1]:
            self.pace = (now - self.first[0]) / (update - self.first[1])

    def told(self, state: State, task: Course, short: bool = False) -> str:
        """Writes the metrics and the time left."""
        return glance(task.shown, state.metrics, short) + left_text(task.updates - state.update, self.pace)


def left_text(count: float, pace: float) -> str:
    """Writes the time left for so many updates at a pace; empty while this is not known."""
    return f"{duration(count * pace)} left" if pace else ""


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
