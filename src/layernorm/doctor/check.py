"""`layernorm doctor --check`: compares every engine that runs here with the float64 equations."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import torch

from .. import backends
from ..isolation import Failure, isolated
from . import installation, table
from .battery import battery, few
from .comparison import Case, Row, compare
from .table import Outcome
from .text import wrapped
from .timing import relative_time

SECONDS = 300.0
"""The most that a case may take. A kernel that waits for ever gives no answer. To compile takes seconds, and more on a
busy machine."""
LINE_SECONDS = 10.0
"""The time between two lines of progress where there is no terminal."""


class WrongEngineError(Exception):
    """An engine is wrong. The message names its rows."""


def check() -> None:
    """Compares every engine with float64, and prints how far each is off and what could not be checked.

    Raises:
        WrongEngineError: an engine is wrong.
    """
    installation.write(installation.core())
    targets = _engines_and_devices()
    slow = [target for target in targets if not backends.ENGINES[target[0]].by_itself]  # to start: it compiles
    unchecked = [f"{item.name}: {item.reason}" for item in backends.status() if not item.available]
    cases = [Case(*target, *problem) for problem in battery() for target in targets if target not in slow]
    cases += [Case(*target, *problem) for problem in few() for target in slow]
    outcomes = list(_compare_cases(cases, unchecked))
    rows = dict.fromkeys(outcome.case.row for outcome in outcomes)
    times = _measure_times([row for row in rows if row[:2] not in slow or row.dtype == torch.float32], unchecked)
    for line in table.lines(outcomes, times):
        print(line)
    print("\n" + table.legend({device for _, device in targets}))
    _conclude(outcomes, unchecked)


OPS = ("normalize", "recurrent")


def _engines_and_devices() -> list[tuple[str, str]]:
    """Returns every engine that runs here with each type of device that it has kernels for."""
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    return [
        (name, device)
        for name in backends.available()
        for device in devices
        if any(backends.supports(name, backends.Kind(op, torch.device(device), torch.float32)).yes for op in OPS)
    ]


def _compare_cases(cases: Sequence[Case], unchecked: list[str]) -> Iterator[Outcome]:
    """Compares every case that its engine has a kernel for. After one that hung, that op is skipped for the engine."""
    without: Counter[Row] = Counter()
    skipped: Counter[tuple[str, str, str]] = Counter()  # by engine, device and op
    hung: set[tuple[str, str, str]] = set()

    def not_skipped() -> Iterator[Case]:
        for case in cases:
            if case.row[:3] not in hung:
                yield case
            else:
                skipped[case.row[:3]] += 1

    with contextlib.closing(_Progress(len(cases), "cases")) as progress:
        for case, result in isolated(compare, not_skipped(), SECONDS):
            progress.step(case.row)
            if isinstance(result, Failure) and result.hung:
                hung.add(case.row[:3])
            if result is None:
                without[case.row] += 1
            else:
                yield Outcome(case, result)
    unchecked += [f"{row}: no kernel for {count} cases" for row, count in without.items()]
    for (engine, device, op), count in skipped.items():
        unchecked.append(f"{op} by {engine} on {device}: {count} cases after one that gave no answer")


def _measure_times(rows: Collection[Row], unchecked: list[str]) -> dict[Row, str]:
    """Measures each row's time relative to torch's, as text."""
    times: dict[Row, str] = {}
    with contextlib.closing(_Progress(len(rows), "times")) as progress:
        for row, time_or_failure in isolated(relative_time, rows, SECONDS):
            progress.step(row)
            if isinstance(time_or_failure, Failure):
                unchecked.append(f"time of {row}: {time_or_failure.message}")
            elif time_or_failure is None:
                unchecked.append(f"time of {row}: torch has no such op")
            else:
                times[row] = f"{time_or_failure:.2f}"
    return times


def _conclude(outcomes: Sequence[Outcome], unchecked: Sequence[str]) -> None:
    """Prints what is wrong and what was not checked, and raises where something is wrong."""
    wrong = [outcome for outcome in outcomes if outcome.wrong]
    if wrong:
        print("\nwrong:")
        for line in table.wrong(wrong):
            print(line)
    print("\nnot checked:" if unchecked else "\nnot checked: nothing")
    for line in unchecked:
        print(wrapped(f"  {line}", 6))
    if wrong:
        rows = dict.fromkeys(str(outcome.case.row) for outcome in wrong)
        raise WrongEngineError(f"{len(wrong)} of {len(outcomes)} cases are wrong: {'; '.join(rows)}")
    print(f"\nall {len(outcomes)} cases are right")


class _Progress:
    """Shows the progress on standard error: on a terminal one line that changes, elsewhere a line at intervals."""

    def __init__(self, total: int, what: str) -> None:
        self.total, self.what, self.done = total, what, 0
        self.start = self.spoke = time.perf_counter()
        self.terminal = sys.stderr.isatty()

    def step(self, row: Row) -> None:
        self.done += 1
        now = time.perf_counter()
        if now - self.spoke < (0.1 if self.terminal else LINE_SECONDS):
            return
        self.spoke = now
        text = f"{self.what} {self.done} of {self.total}, {now - self.start:.0f} s: {row}"
        print(
            f"\r{text:<79}" if self.terminal else text, end="" if self.terminal else "\n", file=sys.stderr, flush=True
        )

    def close(self) -> None:
        if self.terminal:
            print(f"\r{'':79}\r", end="", file=sys.stderr, flush=True)
