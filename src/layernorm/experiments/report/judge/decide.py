"""From runs to rulings, and to the lines of a report: pilots, pairs, and the runs that are missing."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...runs.folder import Run
from ..arms import RATE, Arm
from .claim import FRESH, PILOT, SEEDS, Claim
from .measure import Measure, Robustness
from .ruling import LEVEL, VERDICTS, Ruling, capital, counted

_VERDICTS = (
    "In brackets: the 95 % interval of the mean difference. Equal: the interval is inside the margin. Ahead: the "
    "difference is not 0 at the level of 5 %, by Holm's procedure over the claims of a trial. docs/claims.md has all "
    "claims."
)

RULE = (
    f"The rule: each network at the learning rate that was best for it in a pilot with other seeds; {SEEDS} seeds or "
    f"more, compared in pairs. {_VERDICTS}"
)
"""How a claim about best learning rates is decided, in words."""

RULE_OVER_RATES = (
    f"The rule: the mean over all learning rates of the grid; {SEEDS} seeds or more, compared in pairs. {_VERDICTS}"
)
"""How a claim about the whole grid is decided, in words."""

Places = Mapping[tuple[float, int], Run]
"""An arm's runs by learning rate and seed."""

Missing = tuple[str, str, int]
"""A run that must be made: the arm, its rate or what its rate is best for, the seed."""


def decide(claims: Sequence[Claim], runs: Sequence[Run]) -> list[Ruling]:
    """Rules on the claims of an experiment by its runs."""
    rulings = [_over_rates(claim, runs) if claim.over_rates else _at_best_rates(claim, runs) for claim in claims]
    return [_with_level(ruling, [other for other in rulings if other.claim.trial == ruling.claim.trial])
            for ruling in rulings]  # fmt: skip


def counts(rulings: Iterable[Ruling]) -> dict[str, int]:
    """Counts how often there is each verdict."""
    verdicts = [ruling.verdict for ruling in rulings]
    return {verdict: verdicts.count(verdict) for verdict in VERDICTS}


def reported(claims: Sequence[Claim], runs: Sequence[Run]) -> tuple[list[Ruling], str]:
    """Returns the rulings that a report prints, on the claims that have two pairs of runs or more. A sentence counts
    the other claims that have runs of both arms; it is empty if there are none."""
    known = [ruling for ruling in decide(claims, runs)
             if all(ruling.claim.trial.runs(arm, runs) for arm in ruling.claim.arms)]  # fmt: skip
    printed = [ruling for ruling in known if len(ruling.pairs) > 1]
    others = len(known) - len(printed)
    if not others:
        return printed, ""
    are, their = ("is", "its") if others == 1 else ("are", "their")
    return printed, (
        f"{capital(counted(others, 'claim'))} {are} undecided, as these runs are not {their} trial; `layernorm "
        "claims` says what is missing."
    )


def best_rate(claim: Claim, arm: Arm, runs: Sequence[Run]) -> float | None:
    """Finds the learning rate that the pilot of the claim's trial chose for an arm, in the claim's measure; None if the
    pilot is not whole, or chose none. The arm may be another one that the same pilot was run with."""
    pilot = _pilot(claim, arm, _by_place(claim, arm, runs)[0])
    return pilot.rate if pilot.chosen else None


class _Pilot(NamedTuple):
    """An arm's rate, whether its pilot chose it, what a verdict lacks in words, and the runs that must be made. Without
    a whole pilot the rate is the only one of the arm's other runs, or None."""

    rate: float | None
    chosen: bool = True
    lacking: Sequence[str] = ()
    missing: Iterable[Missing] = ()


def _pilot(claim: Claim, arm: Arm, places: Places) -> _Pilot:
    """Chooses an arm's rate."""
    grid = claim.trial.rates
    if len(grid) == 1:  # nothing to choose
        return _Pilot(grid[0])
    absent = [(arm.name, f"{rate:g}", seed) for rate in grid for seed in PILOT if (rate, seed) not in places]
    if absent or claim.measure.open():
        lacking = [f"{len(absent)} of {len(grid) * len(PILOT)} pilot runs with {arm.name}"] if absent else []
        others = {rate for rate, seed in places if seed not in PILOT}
        return _Pilot(others.pop() if len(others) == 1 else None, False, lacking, absent)
    scores = {rate: statistics.fmean(_score(claim.measure, arm, places[rate, seed]) for seed in PILOT) for rate in grid}
    if len(set(scores.values())) == 1:
        lacking = [f"a pilot in which the rates of {arm.name} differ: all diverged, or none came to the goal"]
        return _Pilot(None, False, lacking)
    best = min(scores, key=lambda rate: scores[rate])
    if best not in (grid[0], grid[-1]):
        return _Pilot(best)
    edge, beyond = ("lowest", best**2 / grid[1]) if best == grid[0] else ("highest", best**2 / grid[-2])
    lacking = [f"a rate inside the grid: {arm.name} is best at the {edge}, {best:g}"]
    return _Pilot(best, True, lacking, [(item.name, f"{beyond:g}", seed) for item in claim.arms for seed in PILOT])


def _score(measure: Measure, arm: Arm, run: Run) -> float:
    if run.diverged is not None:
        return math.inf
    return measure.value(run, arm.prefix + (measure.chosen or measure.metric))


def _at_best_rates(claim: Claim, runs: Sequence[Run]) -> Ruling:
    """Rules on a claim about each arm's best rate."""
    measure = claim.measure
    of_arms, faults = _of_arms(claim, runs)
    pilots = [_pilot(claim, arm, places) for arm, places in zip(claim.arms, of_arms, strict=True)]
    first, second = (pilot.rate for pilot in pilots)
    lacking = [*faults, *filter(None, [measure.open()]), *(text for pilot in pilots for text in pilot.lacking)]
    missing = {run for pilot in pilots for run in pilot.missing}
    pairs: dict[int, tuple[float, float]] = {}
    short = (0, 0)
    if not measure.open() and first is not None and second is not None:
        pairs, short, lost = _pairs(claim, of_arms, (first, second))
        lacking += lost
    if len(pairs) < SEEDS:
        lacking.append(f"{SEEDS - len(pairs)} of {SEEDS} paired seeds")
        fresh = [seed for seed in FRESH if seed not in pairs][: SEEDS - len(pairs)]
        for arm, rate in zip(claim.arms, (first, second), strict=True):
            missing |= {(arm.name, f"best in {measure.name}" if rate is None else f"{rate:g}", seed) for seed in fresh}
    seconds = _seconds(run for places in of_arms for run in places.values())
    return Ruling(claim, (first, second), pairs, short, tuple(lacking), frozenset(missing), seconds)


def _pairs(
    claim: Claim, of_arms: Sequence[Places], rates: tuple[float, float]
) -> tuple[dict[int, tuple[float, float]], tuple[int, int], list[str]]:
    """Pairs the values of both arms for each seed that they share at their rates, without the pilot's seeds. Returns
    also how many of each arm's are bounds, and what is lacking."""
    measure, lacking = claim.measure, []
    pairs: dict[int, tuple[float, float]] = {}
    short = [0, 0]
    names = [arm.prefix + measure.metric for arm in claim.arms]
    chosen = [
        {seed: run for (rate, seed), run in places.items() if rate == best and seed not in PILOT}
        for places, best in zip(of_arms, rates, strict=True)
    ]
    for seed in sorted(chosen[0].keys() & chosen[1].keys()):
        both = [by_seed[seed] for by_seed in chosen]
        lost = [arm.name for arm, run in zip(claim.arms, both, strict=True) if run.diverged is not None]
        if lost and measure.lost is None:
            lacking.append(f"a value of seed {seed}: {' and '.join(lost)} diverged")
            continue
        pairs[seed] = (measure.value(both[0], names[0]), measure.value(both[1], names[1]))
        short = [count + measure.short(run, name) for count, run, name in zip(short, both, names, strict=True)]
    return pairs, (short[0], short[1]), lacking


def _over_rates(claim: Claim, runs: Sequence[Run]) -> Ruling:
    """Rules on a claim about the whole grid, which is the same for both arms."""
    measure, rates = claim.measure, claim.trial.rates
    assert isinstance(measure, Robustness)
    of_arms, lacking = _of_arms(claim, runs)
    every = [(arm, run) for arm, places in zip(claim.arms, of_arms, strict=True) for run in places.values()]
    begun = [(arm, run) for arm, run in every if run.records and run.config[RATE] in rates]
    firsts = [measure.scale * measure.values(run, arm.prefix + measure.metric)[0] for arm, run in begun]
    if every and not firsts:
        lacking.append("a run that did not diverge at once")
    worst = max(firsts, default=math.inf)
    made = {
        seed: sum((rate, seed) in places for places in of_arms for rate in rates)
        for seed in {*PILOT, *FRESH, *(run.config["seed"] for _, run in every)}
    }
    pairs: dict[int, tuple[float, float]] = {}
    for seed in sorted(seed for seed, count in made.items() if firsts and count == len(rates) * len(of_arms)):
        first, second = (_area(claim, arm, places, seed, worst)
                         for arm, places in zip(claim.arms, of_arms, strict=True))  # fmt: skip
        pairs[seed] = (first, second)
    missing: set[Missing] = set()
    if len(pairs) < SEEDS:
        lacking.append(f"{SEEDS - len(pairs)} of {SEEDS} seeds with all rates")
        nearest = sorted(made, key=lambda seed: (-made[seed], seed))[:SEEDS]
        for arm, places in zip(claim.arms, of_arms, strict=True):
            missing |= {(arm.name, f"{rate:g}", seed) for rate in rates for seed in nearest
                        if (rate, seed) not in places}  # fmt: skip
    seconds = _seconds(run for _, run in begun)
    return Ruling(claim, (None, None), pairs, (0, 0), tuple(lacking), frozenset(missing), seconds)


def _area(claim: Claim, arm: Arm, places: Places, seed: int, worst: float) -> float:
    """Computes the mean height of the trapezoids between an arm's values at neighbouring rates. A diverged run's is
    `worst`."""
    name = arm.prefix + claim.measure.metric
    line = [places[rate, seed] for rate in claim.trial.rates]
    heights = [worst if run.diverged is not None else claim.measure.value(run, name) for run in line]
    return statistics.fmean((left + right) / 2 for left, right in itertools.pairwise(heights))


def _with_level(ruling: Ruling, family: Sequence[Ruling]) -> Ruling:
    """Returns the ruling with the level of Holm's procedure over its family: the k-th lowest of n chances is compared
    with 5 % / (n - k + 1), until one is above it."""
    ordered = sorted(family, key=lambda item: item.p)
    level = 0.0
    for place, item in enumerate(ordered):
        bound = LEVEL / (len(ordered) - place)
        if item.p > bound:
            level = bound if item is ruling else 0.0
            break
        level = bound
        if item is ruling:
            break
    return dataclasses.replace(ruling, level=level)


def _of_arms(claim: Claim, runs: Sequence[Run]) -> tuple[list[Places], list[str]]:
    """Sorts each arm's runs by learning rate and seed. Says what is lacking because runs do not fit together."""
    of_arms, lacking = [], []
    for arm in claim.arms:
        places, faults = _by_place(claim, arm, runs)
        of_arms.append(places)
        lacking += faults
    count = len({run.environment["data"].get("fingerprint") for places in of_arms for run in places.values()})
    if count > 1:
        lacking.append(f"one data set: the runs were made on {count}")
    return of_arms, lacking


def _by_place(claim: Claim, arm: Arm, runs: Sequence[Run]) -> tuple[Places, list[str]]:
    """Sorts an arm's runs by learning rate and seed. Says what is lacking because there are two in one place."""
    places: dict[tuple[float, int], Run] = {}
    lacking = []
    for run in claim.trial.runs(arm, runs):
        place = (run.config[RATE], run.config["seed"])
        if place in places:
            names = f"{places[place].path.name} and {run.path.name}"
            lacking.append(f"one run of {arm.name} at {place[0]:g} with seed {place[1]}: there are {names}")
        places[place] = run
    return places, lacking


def _seconds(runs: Iterable[Run]) -> float | None:
    seconds = [run.records[-1]["seconds"] for run in runs if run.records]
    return statistics.median(seconds) if seconds else None
