"""How much sooner `layernorm run --jobs 2` finishes a sweep than `--jobs 1`, start-up and report included.

    python benchmarks/jobs.py [--epochs 500] [--rounds 3] [--jobs 1 2]

A sweep on scikit-learn's digits: layer norm at four learning rates, two seeds, eight runs. Each round makes it with
every number of workers in turn, in new folders; the minimum over the rounds is printed (goal: two workers on two cores
take at most 0.6 of one worker's time). Beside other work on the machine the ratio is of no use.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

SWEEP = ["--norm", "layer", "--batch-size", "128", "--learning-rate", "5e-4", "1e-3", "2e-3", "4e-3"]
SEEDS = ["--seeds", "0", "1"]


def seconds(epochs: int, jobs: int) -> float:
    """The wall time of one command."""
    with tempfile.TemporaryDirectory() as folder:
        own = ["--epochs", str(epochs), "--jobs", str(jobs), "--out", folder]
        start = time.perf_counter()
        command = [sys.executable, "-m", "layernorm", "run", "digits", *SWEEP, *SEEDS, *own]
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=500, help="of each run (default: 500)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the fastest counts (default: 3)")
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2], help="numbers of workers (default: 1 2)")
    options = parser.parse_args()
    rounds = [[seconds(options.epochs, jobs) for jobs in options.jobs] for _ in range(options.rounds)]
    best = [min(column) for column in zip(*rounds, strict=True)]
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    print(f"8 runs of {options.epochs} epochs, {cores} cores, load {load:.1f}, minimum of {options.rounds} rounds")
    for jobs, taken in zip(options.jobs, best, strict=True):
        print(f"--jobs {jobs}  {taken:7.1f} s   {taken / best[0]:.2f} of --jobs {options.jobs[0]}")


if __name__ == "__main__":
    main()
