"""What the benchmarks share: turns, minima, tables."""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
clock = CLOCKS["wall"]
"""What is measured. On a machine that others use, too, with one thread: the processor's time of this process."""


def _seconds(run: Callable[[], Any], repeats: int) -> float:
    start = clock()
    for _ in range(repeats):
        run()
    return (clock() - start) / repeats


def minima(runs: Mapping[str, Callable[[], Any]], rounds: int, least: float = 2e-3) -> dict[str, float]:
    """Seconds a call of each, the minimum over rounds in which all take turns; short calls repeated to ``least`` s."""
    repeats = {}
    for name, run in runs.items():
        run()
        run()
        repeats[name] = max(1, int(least / max(_seconds(run, 1), 1e-7)))
    best = dict.fromkeys(runs, math.inf)
    for _ in range(rounds):
        for name, run in runs.items():
            best[name] = min(best[name], _seconds(run, repeats[name]))
    return best


def geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def environment() -> dict[str, str]:
    """What the figures depend on."""
    import layernorm as ln

    found = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
    if "native" in ln.backends.available():
        found["instructions"] = ln.backends.engine("native").ISA
    return found


def save(path: str | None, rows: Sequence[Mapping[str, Any]]) -> None:
    if path:
        Path(path).write_text(json.dumps({"environment": environment(), "rows": list(rows)}, indent=1) + "\n")
        print(f"wrote {path}")


def device_option() -> argparse.ArgumentParser:
    """``--device``, for scripts that measure other things on a GPU, with other options: a parent of both parsers."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="see also: --device cuda --help")
    return parser


def device() -> str:
    """What ``--device`` says on the command line."""
    return device_option().parse_known_args()[0].device
