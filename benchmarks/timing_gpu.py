"""What the benchmarks share on a GPU: a clock with cold caches, the state of the machine, rows that may fail.

A call is timed by CUDA events, one before it and one after it, without waiting in between. Ahead of the first event a
buffer of four times the L2 cache is overwritten, often enough for the processor to have launched the whole call before
the GPU gets to it: so the L2 cache is cold, and no time of Python's is counted. Where a call takes longer to launch
than that (5 milliseconds: a thousand kernels), its launches are counted, as its user would wait for them; `hidden` is
the share of rounds in which they are not. The sides take turns, and the processor waits for the GPU once a round.
"""

from __future__ import annotations

import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import layernorm as ln
import timing

GPU = "cuda"
SWEEPS = (4, 64)  # times that the buffer is overwritten: some 0.3 ms on an H100, and 5 ms for what is not hidden by it
LEAST = 3  # rounds of a call that takes long

Times = dict[str, float]
"""Of one call: minimum and median in seconds, the number of rounds, and which share of them hid the launches."""


def need_gpu() -> None:
    """Ends the command, with status 2, where there is none."""
    if not torch.cuda.is_available():
        print(f"{Path(sys.argv[0]).name}: --device cuda: PyTorch {torch.__version__} finds no GPU", file=sys.stderr)
        raise SystemExit(2)


@functools.cache
def _buffer() -> Tensor:
    buffer = torch.empty(4 * torch.cuda.get_device_properties(GPU).L2_cache_size, dtype=torch.uint8, device=GPU)
    for _ in range(2000):  # 0.1 s, in which the clocks rise
        buffer.zero_()
    return buffer


def _record(run: Callable[[], Any], sweeps: int) -> tuple[Any, Any, bool]:
    """The events before and after a call, and whether the GPU got to it after all of it had been launched."""
    buffer, start, end = _buffer(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(sweeps):
        buffer.zero_()
    start.record()
    run()
    end.record()
    return start, end, not start.query()


def _sweeps(run: Callable[[], Any]) -> int:
    """As few as hide the launches."""
    for sweeps in SWEEPS:
        torch.cuda.synchronize()
        *_, hidden = _record(run, sweeps)
        if hidden:
            break
    return sweeps


def times(runs: Mapping[str, Callable[[], Any]], rounds: int, enough: float = 0.5) -> dict[str, Times]:
    """`Times` of each, over rounds in which all take turns; a call drops out after ``enough`` seconds of its own."""
    sweeps = {}
    for name, run in runs.items():
        run()
        sweeps[name] = _sweeps(run)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    hidden = dict.fromkeys(runs, 0)
    for k in range(rounds):
        due = [name for name in runs if k < LEAST or sum(seconds[name]) < enough]
        recorded = {name: _record(runs[name], sweeps[name]) for name in due}
        torch.cuda.synchronize()
        for name, (start, end, behind) in recorded.items():
            seconds[name].append(start.elapsed_time(end) / 1e3)
            hidden[name] += behind
    return {
        name: {
            "minimum": min(found),
            "median": statistics.median(found),
            "rounds": len(found),
            "hidden": hidden[name] / len(found),
        }
        for name, found in seconds.items()
    }


def environment() -> dict[str, Any]:
    """What the figures depend on; the clocks as they are at this moment."""
    properties = torch.cuda.get_device_properties(GPU)
    found = {
        **timing.environment(),
        "GPU": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "L2 cache, MiB": properties.L2_cache_size / 2**20,
        "CUDA": torch.version.cuda,
        "cuDNN": torch.backends.cudnn.version(),
    }
    for engine in ln.backends.status():
        found[f"engine {engine.name}"] = engine.reason or getattr(ln.backends.engine(engine.name), "ISA", "available")
    fields = "driver_version,clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem,power.draw,power.limit,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        answer = f"unknown: {error}"
    return {**found, fields: answer}


class Rows:
    """The rows of a table, each measured by a function: one that fails costs itself alone, and after so many seconds no
    further one is begun.

    Args:
        seconds: from now on.
        path: of a JSON file, or None.
    """

    def __init__(self, seconds: float, path: str | None) -> None:
        self.seconds, self.start, self.path = seconds, time.monotonic(), path
        self.rows: list[dict[str, Any]] = []
        self.failed: list[str] = []
        self.left_out: list[str] = []
        self.environment = environment()
        for name, value in self.environment.items():
            print(f"{name}: {value}", flush=True)

    def measure(self, what: str, run: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """What ``run`` returns, which is kept, too; nothing where it fails or is left out."""
        if time.monotonic() - self.start > self.seconds:
            self.left_out.append(what)
            return []
        try:
            found = run()
        except (
            Exception,
            SystemExit,
        ) as error:  # also a wrong result, which ends the scripts that have no further rows
            message = f"{what}: {type(error).__name__}: {(str(error).strip() or '-').splitlines()[0]}"
            print(message, flush=True)
            self.failed.append(message)
            return []
        self.rows += found
        return found

    def save(self) -> None:
        """All that has been measured so far."""
        if self.path:
            found = {"at the start": self.environment, "now": environment()}
            everything = {"environment": found, "failed": self.failed, "left_out": self.left_out, "rows": self.rows}
            Path(self.path).write_text(json.dumps(everything, indent=1) + "\n")

    def close(self) -> int:
        """Says what is missing, saves; the status that the command ends with."""
        took = time.monotonic() - self.start
        print(f"\n{len(self.rows)} rows in {took:.0f} s; failed: {len(self.failed)}; left out: {len(self.left_out)}")
        for what in self.left_out:
            print(f"left out: {what}")
        self.save()
        if self.path:
            print(f"wrote {self.path}")
        return 1 if self.failed else 0
