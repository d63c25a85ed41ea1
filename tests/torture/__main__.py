"""Attacks the package with cases drawn at random, and says what failed and how to see it again.

    python -m torture --minutes 10
    python -m torture --campaign checkpoints races --cases 100
    python -m torture --campaign races --case 17      one case again

Campaigns take turns of some seconds each. Cases happen in processes of their own, some of them several in one.

networks, steppers, cells, norms   random features on every engine, against the float64 equations
second                             gradients of gradients of networks and norms
exports, portable                  ONNX files and portable copies, against their modules, also on wrong input
changes                            steppers whose modules change between the steps
autocast                           accelerated modules beside torch's, by types and numbers
int8, statistics                   scales of int8 weights, statistics of batch norm, in every type
attributes                         torch's attributes set after accelerate: torch's effect, or an error
edges                              audits of bad numbers, populations anew, the device meta, ever new formulas
kills                              a training run killed at every file operation, then anywhere
checkpoints, damage                every file of a run damaged; or whole, but lacking something
races                              two commands in one folder
parsers                            every file of a data set damaged, or a FIFO, a device, a bomb
caches                             the packed file of a data set damaged in the cache
sources, operations                sources that are links, the cache, read-only; killed anywhere, at each file operation
"""

import argparse
import functools
import math
import os
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a fork must find no threads
os.environ.setdefault("LAYERNORM_DATA", "")

import torch

from layernorm import backends
from layernorm.doctor import machine

from . import arithmetic, data, edges, precision, runs, ways_out
from .arena import Process

CAMPAIGNS = {
    **arithmetic.CAMPAIGNS,
    **ways_out.CAMPAIGNS,
    **precision.CAMPAIGNS,
    **edges.CAMPAIGNS,
    **runs.CAMPAIGNS,
    **data.CAMPAIGNS,
}
TURN = 10.0
"""Seconds of a campaign's turn."""


@dataclass
class Count:
    """A campaign so far."""

    cases: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)


def several(case, seeds):
    """Cases one after the other in one process: the kinds of those that passed, and what was wrong with the next."""
    kinds = []
    for seed in seeds:
        try:
            kinds.append(case(seed))
        except AssertionError as error:
            return kinds, str(error)
    return kinds, None


def attack(name, seeds):
    """Cases of a campaign, in a process of their own: as `several`, or what happened to the process."""
    campaign = CAMPAIGNS[name]
    if not campaign.together:
        return several(campaign.case, seeds)
    ended = Process(functools.partial(several, campaign.case, seeds)).wait()
    return ended.value if ended.trouble is None else ([], ended.trouble)


def turn(name, count, first, seconds, most):
    """Goes on with a campaign for so many seconds, or up to so many cases in all."""
    start = time.monotonic()
    CAMPAIGNS[name].before()
    while time.monotonic() - start < seconds and count.cases < most:
        size = min(CAMPAIGNS[name].together or 1, most - count.cases)
        seeds = range(first + count.cases, first + count.cases + size)
        kinds, wrong = attack(name, seeds)
        if wrong is not None and not kinds and size > 1:  # which of them it was, one by one
            for seed in seeds:
                found, text = attack(name, [seed])
                kinds += found
                count.failed |= {} if text is None else {seed: text}
            count.cases += size
        else:
            count.failed |= {} if wrong is None else {seeds[len(kinds)]: wrong}
            count.cases += len(kinds) + (wrong is not None)
        count.kinds.update(kinds)
    count.seconds += time.monotonic() - start


def summary(counts):
    """The counts by campaign, and by kind of case within it."""
    yield f"{'campaign':<14}{'cases':>7}{'failed':>8}{'minutes':>9}"
    for name, count in counts.items():
        yield f"{name:<14}{count.cases:>7}{len(count.failed):>8}{count.seconds / 60:>9.1f}"
        for kind, cases in sorted(count.kinds.items()):
            yield f"  {kind:<48}{cases:>7}"
    engines = ", ".join(backends.available())
    yield f"{machine.processor()}, {machine.cores()} cores, torch {torch.__version__}, engines {engines}"
    yield f"commit {machine.commit()}"


def main():
    parser = argparse.ArgumentParser(prog="torture", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, help="how long (default: 10, or without end if --cases is given)")
    parser.add_argument("--cases", type=int, help="of each campaign, at most")
    parser.add_argument("--seed", type=int, default=0, help="of the first case of each campaign (default: 0)")
    parser.add_argument("--campaign", nargs="+", choices=sorted(CAMPAIGNS), default=list(CAMPAIGNS), metavar="NAME")
    parser.add_argument("--case", type=int, help="only the case of this seed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*input_size=1")
    warnings.filterwarnings("ignore", message=".*layer norm of one unit")
    if options.case is not None:
        for name in options.campaign:
            CAMPAIGNS[name].before()
        found = [attack(name, [options.case]) for name in options.campaign]
        print("\n".join(wrong or f"passed: {kinds[0]}" for kinds, wrong in found))
        return int(any(wrong is not None for _, wrong in found))
    counts = {name: Count() for name in options.campaign}
    most = math.inf if options.cases is None else options.cases
    minutes = (10.0 if options.cases is None else math.inf) if options.minutes is None else options.minutes
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end and any(count.cases < most for count in counts.values()):
        for name, count in counts.items():
            if count.cases < most:
                known = set(count.failed)
                turn(name, count, options.seed, max(0.0, min(TURN, end - time.monotonic())), most)
                for seed in sorted(count.failed.keys() - known):
                    print(f"make torture CAMPAIGN={name} CASE={seed}\n{count.failed[seed].strip()}\n", flush=True)
        done = ", ".join(f"{name} {count.cases} ({len(count.failed)} failed)" for name, count in counts.items())
        left = "" if end == math.inf else f"{max(0.0, end - time.monotonic()) / 60:.1f} min left: "
        print(f"{left}{done}", flush=True)
    print("", *summary(counts), sep="\n")
    return int(any(count.failed for count in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
