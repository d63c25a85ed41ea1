"""What whole processes take: `import layernorm`, and a sweep by `layernorm run --jobs`.

    python benchmarks/processes.py import
    python benchmarks/processes.py jobs --epochs 500

`import`: the milliseconds that `import layernorm` adds to `import torch`, in fresh processes (goal: at most 60).

`jobs`: how much sooner several workers finish a sweep than one, start-up and report included. The sweep is of layer
norm at four learning rates and two seeds on scikit-learn's digits: eight runs (goal: two workers on two cores take at
most 0.6 of one worker's time). Beside other work on the machine the ratio is of no use.

The printed times are minima over the rounds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

from layernorm.doctor import machine

CODE = """
import time
a = time.perf_counter()
import torch
b = time.perf_counter()
import layernorm
print(b - a, time.perf_counter() - b)
"""
SWEEP = ["--norm", "layer", "--batch-size", "128", "--learning-rate", "5e-4", "1e-3", "2e-3", "4e-3"]
SEEDS = ["--seeds", "0", "1"]


def imported() -> list[float]:
    """Returns the milliseconds of both imports in a fresh process."""
    out = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
    return [1e3 * float(word) for word in out.split()]


def swept(epochs: int, jobs: int) -> float:
    """Returns the seconds of one command, in a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        own = ["--epochs", str(epochs), "--jobs", str(jobs), "--out", folder]
        command = [sys.executable, "-m", "layernorm_lab", "run", "digits", *SWEEP, *SEEDS, *own]
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["import", "jobs"], help="what is measured")
    parser.add_argument("--rounds", type=int, default=3, help="of which the fastest counts (default: 3)")
    parser.add_argument("--epochs", type=int, default=500, help="of each run of the sweep (default: 500)")
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2], help="numbers of workers (default: 1 2)")
    options = parser.parse_args()
    if options.what == "import":
        torch_ms, layernorm_ms = map(min, zip(*(imported() for _ in range(options.rounds)), strict=True))
        print(f"import torch      {torch_ms:7.1f} ms")
        print(f"import layernorm  {layernorm_ms:+7.1f} ms")
        return
    rounds = [[swept(options.epochs, jobs) for jobs in options.jobs] for _ in range(options.rounds)]
    best = [min(column) for column in zip(*rounds, strict=True)]
    load, cores = os.getloadavg()[0], machine.cores()
    print(f"8 runs of {options.epochs} epochs, {cores} cores, load {load:.1f}, minimum of {options.rounds} rounds")
    for jobs, taken in zip(options.jobs, best, strict=True):
        print(f"--jobs {jobs}  {taken:7.1f} s   {taken / best[0]:.2f} of --jobs {options.jobs[0]}")


if __name__ == "__main__":
    main()
