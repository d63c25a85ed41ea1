"""What the benchmarks share: their common options, turns and minima, and the file of figures."""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch


def gpu_time() -> float:
    """Returns the time at which the GPU has done all that it was given."""
    torch.cuda.synchronize()
    return time.perf_counter()


CLOCKS = {"wall": time.perf_counter, "processor": time.process_time, "gpu": gpu_time}
clock = CLOCKS["wall"]
"""The clock that is read. On a machine that others also use, with one thread: the CPU time of this process."""


def parser(doc: str | None, rounds: int = 9, chart: str | None = None) -> argparse.ArgumentParser:
    """Makes a parser with the options that the benchmarks have in common, and those of a chart of ``chart``."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--threads", type=_positive, nargs="+", default=[1], help="CPU threads, one table each (default: 1)"
    )
    made.add_argument("--rounds", type=_positive, default=rounds, help=f"turns of each side (default: {rounds})")
    made.add_argument(
        "--clock",
        choices=["wall", "processor"],
        default="wall",
        help="processor: CPU time, for a busy machine, with one thread (default: wall)",
    )
    made.add_argument("--json", metavar="FILE", type=_new_file, help="also write the figures to this file")
    if chart:
        made.add_argument("--chart", metavar="FILE", type=_new_file, help=f"draw {chart} here (PNG or SVG)")
        made.add_argument(
            "--redraw", metavar="FILE", type=_stored_rows, help="draw --chart from figures that --json wrote"
        )
    return made


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parses the command line of a benchmark that has a chart."""
    options = parser.parse_args()
    if options.redraw is not None and not options.chart:
        parser.error("--redraw needs --chart, the file to draw")
    return options


def _positive(text: str) -> int:
    """Reads a whole number of at least 1."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _new_file(path: str) -> str:
    """Refuses a file in a folder that is not there, before anything is measured."""
    if not Path(path).resolve().parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {Path(path).parent}")
    return path


def _stored_rows(path: str) -> list[dict[str, Any]]:
    """Returns the rows of a file that :func:`save` wrote."""
    try:
        if not (rows := json.loads(Path(path).read_text())["rows"]):
            raise ValueError("it has no rows")
        return rows
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise argparse.ArgumentTypeError(f"{path} is no file that --json wrote: {problem!r}") from None


def tables(options: argparse.Namespace) -> Iterator[int]:
    """Prints what the figures depend on. Then yields the numbers of threads in turn, each of them set."""
    global clock
    clock = CLOCKS[options.clock]
    torch.manual_seed(0)
    print(environment())
    for threads in options.threads:
        torch.set_num_threads(threads)
        yield threads


def seconds(run: Callable[[], Any], repeats: int) -> float:
    """Returns the seconds of one call, as the mean of several."""
    start = clock()
    for _ in range(repeats):
        run()
    return (clock() - start) / repeats


def minima(runs: Mapping[str, Callable[[], Any]], rounds: int, least: float = 2e-3) -> dict[str, float]:
    """Returns the seconds of one call of each: the minimum over rounds in which all take turns.

    A turn of a short call has as many calls as take ``least`` seconds.
    """
    repeats = {}
    for name, run in runs.items():
        run()
        run()
        repeats[name] = max(1, int(least / max(seconds(run, 1), 1e-7)))
    best = dict.fromkeys(runs, math.inf)
    for _ in range(rounds):
        for name, run in runs.items():
            best[name] = min(best[name], seconds(run, repeats[name]))
    return best


def peak() -> int:
    """Returns the most memory that this process has had, in KiB."""
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)


def geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def environment() -> dict[str, str]:
    """Returns what the figures depend on."""
    import layernorm as ln

    found = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
    if "native" in ln.backends.available():
        found["instructions"] = ln.backends.engine("native").ISA
    if clock is gpu_time:
        found["GPU"] = torch.cuda.get_device_name()
    return found


def save(path: str | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the figures, if a path is given."""
    if path:
        Path(path).write_text(json.dumps({"environment": environment(), "rows": list(rows)}, indent=1) + "\n")
        print(f"wrote {path}")
