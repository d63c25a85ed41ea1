"""Times a training step whose loss reads only the last output of a long sequence, as a classifier of sequences has it.

    python benchmarks/last_output.py
    python benchmarks/last_output.py --steps 50 200 --networks GRU

Where a network forgets, the gradient dies out on its way back, and ends in subnormal numbers. Three sides are timed:
torch's network, the same one after `ln.accelerate`, and torch's with ``torch.set_flush_denormal(True)``, which takes
such numbers as 0 in the thread that sets it, so with one thread everywhere. The script prints the minima over rounds in
milliseconds, and how many times as fast as torch's network each side is. The batch size is 32, the input size 48, the
hidden size 64.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import layernorm as ln
import timing

ROWS, INPUTS, UNITS = 32, 48, 64


def step(module: nn.Module, x: torch.Tensor, flush: bool) -> Callable[[], Any]:
    """Returns one training step of a network, from weights that stay as they are."""

    def run() -> None:
        torch.set_flush_denormal(flush)
        module.zero_grad()
        module(x)[0][-1].square().mean().backward()
        torch.set_flush_denormal(False)

    return run


def main() -> int:
    parser = timing.parser(__doc__, 5)
    parser.add_argument("--networks", nargs="+", choices=["LSTM", "GRU", "RNN"], default=["LSTM", "GRU", "RNN"])
    parser.add_argument("--steps", type=int, nargs="+", default=[50, 100, 200, 400], help="lengths of the sequences")
    options = parser.parse_args()
    rows = []
    for threads in timing.tables(options):
        for network in options.networks:
            for steps in options.steps:
                torch.manual_seed(0)
                x, theirs = torch.randn(steps, ROWS, INPUTS), getattr(nn, network)(INPUTS, UNITS)
                fast = ln.accelerate(getattr(nn, network)(INPUTS, UNITS))
                fast.load_state_dict(theirs.state_dict())
                runs = {
                    "torch": step(theirs, x, False),
                    "accelerate": step(fast, x, False),
                    "flush": step(theirs, x, True),
                }
                found = timing.minima(runs, options.rounds)
                times = "  ".join(f"{side} {s * 1e3:.1f} ({found['torch'] / s:.1f}x)" for side, s in found.items())
                print(f"{network} {steps} steps, {threads} threads: {times}", flush=True)
                rows.append({"network": network, "steps": steps, "threads": threads, "seconds": found})
    timing.save(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
