"""Attacks the package with cases drawn at random, and says what failed and how to see it again.

    python -m torture --minutes 10
    python -m torture --campaign races --case 17      one case again

Campaigns take turns of some seconds each. Every case happens in a process of its own.
"""

import argparse
import functools
import os
import platform
import sys
import time
from dataclasses import dataclass, field

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a fork must find no threads
os.environ.setdefault("LAYERNORM_DATA", "")

import torch

from layernorm import backends

from . import arithmetic, data, runs
from .arena import Process

CAMPAIGNS = {**arithmetic.CAMPAIGNS, **runs.CAMPAIGNS, **data.CAMPAIGNS}
TURN = 10.0
"""Seconds of a campaign's turn."""

SHOWN = 5
"""Failures of a campaign that are printed."""


@dataclass
class Count:
    """A campaign so far."""

    cases: int = 0
    seconds: float = 0.0
    failed: dict[int, str] = field(default_factory=dict)


def several(case, seeds):
    """Cases one after the other in one process: the number that passed, and what was wrong with the next one."""
    for number, seed in enumerate(seeds):
        try:
            case(seed)
        except AssertionError as error:
            return number, str(error)
    return len(seeds), None


def turn(name, count, first, seconds):
    """Goes on with a campaign for so many seconds."""
    start = time.monotonic()
    # cases of arithmetic take milliseconds: many share a process, and a crash is narrowed down case by case
    block = 25 if name in arithmetic.CAMPAIGNS else 1
    while time.monotonic() - start < seconds:
        seeds = range(first + count.cases, first + count.cases + block)
        if block == 1:
            passed, wrong = _one(name, seeds[0])
        else:
            ended = Process(functools.partial(several, CAMPAIGNS[name], seeds)).wait()
            passed, wrong = ended.value if ended.trouble is None else (0, None)
            if ended.trouble is not None:
                singly = [(seed, _one(name, seed)[1]) for seed in seeds]
                count.failed |= {seed: text for seed, text in singly if text is not None}
                passed = len(seeds)
        if wrong is not None:
            count.failed[seeds[passed]] = wrong
        count.cases += passed + (wrong is not None)
    count.seconds += time.monotonic() - start


def _one(name, seed):
    """One case: 1 and None, or 0 and what was wrong."""
    if name not in arithmetic.CAMPAIGNS:  # it makes processes of its own
        return several(CAMPAIGNS[name], [seed])
    ended = Process(functools.partial(several, CAMPAIGNS[name], [seed])).wait()
    return ended.value if ended.trouble is None else (0, ended.trouble)


def main():
    parser = argparse.ArgumentParser(prog="torture", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="of the first case of each campaign (default: 0)")
    parser.add_argument("--campaign", nargs="+", choices=sorted(CAMPAIGNS), default=list(CAMPAIGNS), metavar="NAME")
    parser.add_argument("--case", type=int, help="only the case of this seed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.case is not None:
        wrong = [_one(name, options.case)[1] for name in options.campaign]
        print("\n".join(text or "passed" for text in wrong))
        return int(any(wrong))
    counts = {name: Count() for name in options.campaign}
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        for name, count in counts.items():
            turn(name, count, options.seed, max(0.0, min(TURN, end - time.monotonic())))
        done = ", ".join(f"{name} {count.cases} ({len(count.failed)} failed)" for name, count in counts.items())
        print(f"{max(0.0, end - time.monotonic()) / 60:.1f} min left: {done}", flush=True)
    print(f"\n{'campaign':<12}{'cases':>8}{'failed':>8}{'minutes':>9}")
    for name, count in counts.items():
        print(f"{name:<12}{count.cases:>8}{len(count.failed):>8}{count.seconds / 60:>9.1f}")
    print(
        f"{platform.machine()}, {os.cpu_count()} processors, torch {torch.__version__}, "
        f"{', '.join(backends.available())}"
    )
    for name, count in counts.items():
        for seed, text in list(count.failed.items())[:SHOWN]:
            print(f"\nmake torture CAMPAIGN={name} CASE={seed}\n{text.strip()}")
    return int(any(count.failed for count in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
