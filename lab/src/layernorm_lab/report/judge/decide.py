"""From runs to rulings, and to the lines of a report: pairs, looks, and what is missing."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from ...runs.folder import Run
from ..arms import RATE, Arm
from .claim import LEVELS, SEEDS, Claim
from .measure import Robustness
from .pilot import Pilot, Places, by_place, choose, ended_early, goals, kept, scores
from .ruling import LEVEL, UNDECIDED, VERDICTS, Ruling, capital, counted

_VERDICTS = (
    "In brackets: the 95 % interval of the mean difference. Equal: the interval is inside the margin. Ahead: the "
    "difference is not 0 at the level of 5 % (of 2 and 3 % at the looks of a trial that has two), by Holm's procedure "
    "over the claims of a trial. docs/claims.md has all claims, and the rule of trials since 2026-11-25."
)

RULE = (
    "The rule: each network at the learning rate that was best for it in a pilot with other seeds, or in the pairs; "
    f"{SEEDS} seeds or more, or as many as the trial's plan has, compared in pairs. {_VERDICTS}"
)
"""How a claim about best learning rates is decided, in words."""

RULE_OVER_RATES = (
    f"The rule: the mean over all learning rates of the grid; {SEEDS} seeds or more, compared in pairs. {_VERDICTS}"
)
"""How a claim about the whole grid is decided, in words."""


def decide(claims: Sequence[Claim], runs: Sequence[Run]) -> list[Ruling]:
    """Rules on the claims of an experiment by its runs."""
    rulings = [_over_rates(claim, runs) if claim.over_rates else _at_best_rates(claim, runs) for claim in claims]
    return [_looked_at(ruling, [other for other in rulings if other.claim.trial == ruling.claim.trial])
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
    pilot = choose(claim, arm, runs)
    return pilot.rate if pilot.chosen else None


def _at_best_rates(claim: Claim, runs: Sequence[Run]) -> Ruling:
    """Rules on a claim about each arm's best rate."""
    of_arms, faults = _of_arms(claim, runs)
    pilots = [choose(claim, arm, runs) for arm in claim.arms]
    lacking = [*faults, *(text for pilot in pilots for text in pilot.lacking)]
    measures = goals(claim, pilots[1].rate, runs) if pilots[1].chosen and pilots[1].rate and not lacking else ()
    if measures:
        claim = dataclasses.replace(claim, measure=measures[1])
    ruling = _paired(claim, of_arms, pilots, lacking)
    others = [_paired(dataclasses.replace(claim, measure=item), of_arms, pilots, lacking)
              for item in measures[::2]]  # fmt: skip
    check = None if lacking or not claim.measure.known else _check(claim, of_arms, pilots)
    return dataclasses.replace(ruling, others=tuple(others), check=check)


def _paired(claim: Claim, of_arms: Sequence[Places], pilots: Sequence[Pilot], lacking: Sequence[str]) -> Ruling:
    """Pairs the values of both arms for each seed that counts and that they share at their rates."""
    measure, trial = claim.measure, claim.trial
    first, second = (pilot.rate for pilot in pilots)
    sides = [{seed: run for (rate, seed), run in places.items() if rate == best and trial.pairs_with(seed)}
             for places, best in zip(of_arms, (first, second), strict=True)]  # fmt: skip
    pairs, lost = _pairs(claim, sides) if measure.known else ({}, {})
    lacking = [*lacking, *lost.values()]
    made = sides[0].keys() & sides[1].keys()
    if len(made) < claim.looks[0]:
        lacking.append(f"{claim.looks[0] - len(made)} of {claim.looks[0]} paired seeds")
    elif not measure.known:
        lacking.append(f"a run of {claim.behind.name} that gives a goal")
    values = {seed: (pair[0][0], pair[1][0]) for seed, pair in pairs.items()}
    flags = {seed: (pair[0][1], pair[1][1]) for seed, pair in pairs.items()}
    return Ruling(claim, (first, second), values, tuple(lacking), all(pilot.chosen for pilot in pilots), lost, flags)


Pair = tuple[tuple[float, str], tuple[float, str]]
"""For each arm the number of its run, and why that is a bound."""


def _pairs(claim: Claim, sides: Sequence[Mapping[int, Run]]) -> tuple[dict[int, Pair], dict[int, str]]:
    """Returns the pairs of the seeds that both sides have, and for the seeds without a pair what is lacking."""
    measure, lost, pairs = claim.measure, {}, {}
    for seed in sorted(sides[0].keys() & sides[1].keys()):
        both = [(arm, side[seed], arm.prefix + measure.metric) for arm, side in zip(claim.arms, sides, strict=True)]
        fails = [(arm.name, fault) for arm, run, name in both if (fault := measure.fails(run, name))]
        early = [line for arm, run, _ in both for line in ended_early(arm, measure, [run], claim.trial.updates)]
        if fails:
            lost[seed] = f"a value of seed {seed}: {' and '.join(' '.join(fault) for fault in fails)}"
        elif early:
            lost[seed] = ", ".join(early)
        else:
            one, two = ((measure.value(run, name), measure.flag(run, name)) for _, run, name in both)
            pairs[seed] = (one, two)
    return pairs, lost


def _check(claim: Claim, of_arms: Sequence[Places], pilots: Sequence[Pilot]) -> Ruling | None:
    """Pairs both arms with each seed's rates chosen by the other seeds that have all rates of the last rung. There is
    no check where one rate was run, nor where a pilot chose by runs that are shorter than the trial's."""
    trial, grids = claim.trial, [pilot.rates for pilot in pilots]
    if all(len(grid) == 1 for grid in grids) or (trial.shorter_pilot and not trial.tried):
        return None
    of_arms = [{(rate, seed): run for (rate, seed), run in places.items()
                if seed in trial.pilot or trial.pairs_with(seed)} for places in of_arms]  # fmt: skip
    whole = [{seed for _, seed in places if all((rate, seed) in places for rate in grid)}
             for places, grid in zip(of_arms, grids, strict=True)]  # fmt: skip
    known = sorted(set.intersection(*whole))
    pairs: dict[int, Pair] = {}
    for seed in sorted({seed for _, seed in of_arms[0]} & {seed for _, seed in of_arms[1]}):
        others = [item for item in known if item != seed]
        chosen = [_chosen(claim, arm, places, grid, others)
                  for arm, places, grid in zip(claim.arms, of_arms, grids, strict=True)]  # fmt: skip
        found = [places.get((rate, seed)) for places, rate in zip(of_arms, chosen, strict=True)]
        if others and all(found):
            pairs |= _pairs(claim, [{seed: run} for run in found if run])[0]
    values = {seed: (pair[0][0], pair[1][0]) for seed, pair in pairs.items()}
    flags = {seed: (pair[0][1], pair[1][1]) for seed, pair in pairs.items()}
    return Ruling(claim, (None, None), values, (), False, {}, flags) if len(values) > 1 else None


def _chosen(claim: Claim, arm: Arm, places: Places, grid: Sequence[float], seeds: Sequence[int]) -> float:
    points = scores(claim.measure.chooses, arm, places, grid, seeds) if seeds else dict.fromkeys(grid, 0.0)
    return kept(points, 1)[0] if claim.trial.plan else min(grid, key=lambda rate: points[rate])


def _over_rates(claim: Claim, runs: Sequence[Run]) -> Ruling:
    """Rules on a claim about the whole grid, which is the same for both arms."""
    measure, rates, trial = claim.measure, claim.trial.rates, claim.trial
    assert isinstance(measure, Robustness)
    of_arms, lacking = _of_arms(claim, runs)
    every = [(arm, run) for arm, places in zip(claim.arms, of_arms, strict=True) for run in places.values()]
    begun = [(arm, run) for arm, run in every if run.config[RATE] in rates and not _lost(measure, arm, run, first=True)]
    firsts = [measure.scale * measure.values(run, arm.prefix + measure.metric)[0] for arm, run in begun]
    if every and not firsts:
        lacking.append("a run that did not diverge at once")
    worst = max(firsts, default=math.inf)
    made = {
        seed: sum((rate, seed) in places for places in of_arms for rate in rates)
        for seed in {*trial.pilot, *trial.seeds, *(run.config["seed"] for _, run in every)}
    }
    pairs: dict[int, tuple[float, float]] = {}
    for seed in sorted(seed for seed, count in made.items() if firsts and count == len(rates) * len(of_arms)):
        lines = [[places[rate, seed] for rate in rates] for places in of_arms]
        lacking += [text for arm, line in zip(claim.arms, lines, strict=True)
                    for text in ended_early(arm, measure, line, trial.updates)]  # fmt: skip
        first, second = (_area(claim, arm, line, worst) for arm, line in zip(claim.arms, lines, strict=True))
        pairs[seed] = (first, second)
    if len(pairs) < SEEDS:
        lacking.append(f"{SEEDS - len(pairs)} of {SEEDS} seeds with all rates")
    return Ruling(claim, (None, None), pairs, tuple(lacking))


def _lost(measure: Robustness, arm: Arm, run: Run, first: bool = False) -> bool:
    """Tells whether a run counts as diverged, or, for its first evaluation, had diverged before it."""
    name = arm.prefix + measure.metric
    if first:
        return not run.records or not math.isfinite(run.records[0].get(name, math.nan))
    return run.diverged is not None or bool(measure.fails(run, name))


def _area(claim: Claim, arm: Arm, line: Sequence[Run], worst: float) -> float:
    """Computes the mean height of the trapezoids between an arm's values at neighbouring rates. A diverged run's is
    `worst`."""
    measure, name = claim.measure, arm.prefix + claim.measure.metric
    assert isinstance(measure, Robustness)
    heights = [worst if _lost(measure, arm, run) else measure.value(run, name) for run in line]
    return statistics.fmean((left + right) / 2 for left, right in itertools.pairwise(heights))


def _looked_at(ruling: Ruling, family: Sequence[Ruling]) -> Ruling:
    """Returns the ruling at the look that decides it, or else at the last one that there are pairs for; by the earlier
    rule at all pairs."""
    found, plan = _with_level(ruling, family, LEVEL), ruling.claim.trial.plan
    if plan is None or ruling.claim.over_rates:
        return found
    for count, level in zip(plan.looks, LEVELS[len(plan.looks)], strict=True):
        if len(ruling.made) < count:
            break
        found = _with_level(ruling.after(count), [other.after(count) for other in family], level)
        if found.verdict != UNDECIDED:
            return found
    return dataclasses.replace(found, lacking=ruling.lacking)


def _with_level(ruling: Ruling, family: Sequence[Ruling], whole: float) -> Ruling:
    """Returns the ruling with the level of Holm's procedure over its family: the k-th lowest of n chances is compared
    with the whole level / (n - k + 1), until one is above it."""
    ordered = sorted(family, key=lambda item: item.p)
    place = next(k for k, item in enumerate(ordered) if item.claim == ruling.claim)
    level = 0.0
    for k, item in enumerate(ordered[: place + 1]):
        bound = whole / (len(ordered) - k)
        if item.p > bound:
            level = bound if k == place else 0.0
            break
        level = bound
    return dataclasses.replace(ruling, level=level, whole=whole, family=len(ordered))


def _of_arms(claim: Claim, runs: Sequence[Run]) -> tuple[list[Places], list[str]]:
    """Sorts each arm's runs by learning rate and seed. Says what is lacking because runs do not fit together."""
    of_arms: list[Places] = []
    lacking: list[str] = []
    rungs = claim.trial.plan.rungs if claim.trial.plan else ()
    used: list[Run] = []
    for arm in claim.arms:
        places, faults = by_place(claim, arm, runs)
        of_rungs = [by_place(claim, arm, runs, rung.options) for rung in rungs if rung.options]
        of_arms.append(places)
        lacking += [*faults, *(fault for _, found in of_rungs for fault in found)]
        used += [*places.values(), *(run for found, _ in of_rungs for run in found.values())]
    count = len({run.environment["data"].get("fingerprint") for run in used})
    if count > 1:
        lacking.append(f"one data set: the runs were made on {count}")
    return of_arms, lacking
