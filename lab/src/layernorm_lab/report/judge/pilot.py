"""How a pilot chooses an arm's learning rate, and the goals by formula."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...runs.folder import Run
from ..arms import RATE, Arm
from .claim import Claim, Plan
from .measure import SHARES, Measure, UpdatesToGoal

Places = Mapping[tuple[float, int], Run]
"""An arm's runs by learning rate and seed."""


class Pilot(NamedTuple):
    """An arm's rate, whether its pilot chose it, what a verdict lacks in words, and the rates of the last rung. Without
    a whole pilot the rate is the only one of the arm's other runs, or None."""

    rate: float | None
    chosen: bool = True
    lacking: Sequence[str] = ()
    rates: Sequence[float] = ()


def by_place(
    claim: Claim, arm: Arm, runs: Sequence[Run], options: Mapping[str, Any] | None = None
) -> tuple[dict[tuple[float, int], Run], list[str]]:
    """Sorts an arm's runs by learning rate and seed. Says what is lacking because there are two in one place."""
    places: dict[tuple[float, int], Run] = {}
    lacking = []
    for run in claim.trial.runs(arm, runs, options):
        place = (run.config[RATE], run.config["seed"])
        if place in places:
            names = f"{places[place].path.name} and {run.path.name}"
            lacking.append(f"one run of {arm.name} at {place[0]:g} with seed {place[1]}: there are {names}")
        places[place] = run
    return places, lacking


def choose(claim: Claim, arm: Arm, runs: Sequence[Run]) -> Pilot:
    """Chooses an arm's rate."""
    grid, plan = claim.trial.rates, claim.trial.plan
    if len(grid) == 1:  # nothing to choose
        return Pilot(grid[0], rates=grid)
    if plan is None:
        return _by_the_earlier_rule(claim, arm, by_place(claim, arm, runs)[0])
    if arm.norm in plan.tried:
        return _by_the_pairs(claim, arm, plan, by_place(claim, arm, runs)[0])
    rates = tried = grid
    for place, rung in enumerate(plan.rungs):
        places = by_place(claim, arm, runs, rung.options)[0]
        where = f" of rung {place + 1}" if len(plan.rungs) > 1 else ""
        if lacking := _absent(f"pilot runs{where} with {arm.name}", places, rates, claim.trial.pilot):
            return Pilot(None, False, lacking)
        points = scores(claim.measure.chooses, arm, places, rates, claim.trial.pilot)
        lacking, best = _faults(claim, arm, points, places), min(rates, key=lambda rate: points[rate])
        if lacking:
            return Pilot(None, False, lacking)
        if best in (grid[0], grid[-1]):
            return _beyond(claim, arm, best)
        tried, rates = rates, kept(points, rung.keep)
    return Pilot(rates[0], rates=tried)


def scores(
    measure: Measure, arm: Arm, places: Places, rates: Sequence[float], seeds: Sequence[int]
) -> dict[float, float]:
    """Returns the score of each rate: the mean of its runs' numbers; infinity if one has none."""
    return {rate: _mean(_score(measure, arm, places[rate, seed]) for seed in seeds) for rate in rates}


def kept(points: Mapping[float, float], count: int) -> tuple[float, ...]:
    """Returns the rates that a rung keeps, from low to high: those with the best means over themselves and their
    neighbours, without the lowest and the highest rate. Of two rates, or fewer, the better ones. Where means are
    infinite, as a run diverged, the rates' own scores decide. Of equal ones the lower rate is kept."""
    rates = sorted(points)
    smooth = dict(points)
    if len(rates) > 2:
        smooth = {rates[k]: _mean(points[rate] for rate in rates[k - 1 : k + 2]) for k in range(1, len(rates) - 1)}
    own = {rate: points[rate] if math.isinf(mean) else 0.0 for rate, mean in smooth.items()}
    return tuple(sorted(sorted(smooth, key=lambda rate: (smooth[rate], own[rate], rate))[:count]))


def goals(claim: Claim, rate: float, runs: Sequence[Run]) -> tuple[UpdatesToGoal, ...]:
    """Computes the goals that the baseline's runs at its rate give: those of the pilot, or of the first look where the
    pilot's runs are shorter. There are none if a run is missing."""
    measure, arm, plan = claim.measure, claim.behind, claim.trial.plan
    if plan is None or not isinstance(measure, UpdatesToGoal) or measure.known:
        return ()
    places, name = by_place(claim, arm, runs)[0], arm.prefix + measure.metric
    seeds = plan.seeds[: plan.looks[0]] if claim.trial.shorter_pilot else claim.trial.pilot
    if any((rate, seed) not in places for seed in seeds):
        return ()
    some = [places[rate, seed] for seed in seeds]
    curves = [measure.values(run, name) for run in some if not measure.fails(run, name)]
    return tuple(measure.with_goal(share, curves) for share in SHARES) if curves else ()


def _absent(what: str, places: Places, rates: Sequence[float], seeds: Sequence[int]) -> list[str]:
    """Counts the runs that are not there, in words; empty if all are."""
    absent = sum((rate, seed) not in places for rate in rates for seed in seeds)
    return [f"{absent} of {len(rates) * len(seeds)} {what}"] if absent else []


def _faults(claim: Claim, arm: Arm, points: Mapping[float, float], places: Places) -> list[str]:
    """Says why the runs of a pilot choose nothing."""
    measure = claim.measure.chooses
    if math.isinf(min(points.values())) or (isinstance(measure, UpdatesToGoal) and len(set(points.values())) == 1):
        return [f"a pilot in which the rates of {arm.name} differ: all diverged, or none reached the goal"]
    of_pilot = [run for (rate, seed), run in places.items() if rate in points and seed in claim.trial.pilot]
    longest = max(run.records[-1]["update"] for run in of_pilot if run.records)
    return ended_early(arm, measure, of_pilot, longest)


def ended_early(arm: Arm, measure: Measure, runs: Iterable[Run], updates: int) -> list[str]:
    """Names the runs that ended, without having diverged or reached the goal, after fewer updates than these. Their
    number would be too good."""
    name, lacking = arm.prefix + measure.metric, []
    for run in runs:
        if run.diverged is not None or measure.fails(run, name) or not run.records:
            continue
        last = run.records[-1]["update"]
        reached = isinstance(measure, UpdatesToGoal) and measure.flag(run, name) != "short"
        if last < updates and not reached:
            lacking.append(f"{updates} updates of {arm.name} with seed {run.config['seed']}: it has {last}")
    return lacking


def _by_the_pairs(claim: Claim, arm: Arm, plan: Plan, places: Places) -> Pilot:
    """Chooses, of the rates that the pairs are trained at, the one with the best score over their seeds."""
    rates = plan.tried[arm.norm]
    if len(rates) == 1:  # nothing to choose
        return Pilot(rates[0], rates=rates)
    if lacking := _absent(f"runs of {arm.name}", places, rates, plan.seeds):
        return Pilot(None, False, lacking)
    points = scores(claim.measure.chooses, arm, places, rates, plan.seeds)
    used = [places[rate, seed] for rate in rates for seed in plan.seeds]
    if lacking := ended_early(arm, claim.measure.chooses, used, claim.trial.updates):
        return Pilot(None, False, lacking)
    return Pilot(min(rates, key=lambda rate: (points[rate], rate)), rates=rates)


def _beyond(claim: Claim, arm: Arm, best: float) -> Pilot:
    """An arm whose best rate is an end of its grid needs a wider one, as all arms then do."""
    grid = claim.trial.rates
    edge = "lowest" if best == grid[0] else "highest"
    return Pilot(best, True, [f"a rate inside the grid: {arm.name} is best at the {edge}, {best:g}"], grid)


def _by_the_earlier_rule(claim: Claim, arm: Arm, places: Places) -> Pilot:
    """Chooses the rate with the best score."""
    grid, seeds = claim.trial.rates, claim.trial.pilot
    if lacking := _absent(f"pilot runs with {arm.name}", places, grid, seeds):
        others = {rate for rate, seed in places if seed not in seeds}
        return Pilot(others.pop() if len(others) == 1 else None, False, lacking)
    points = scores(claim.measure.chooses, arm, places, grid, seeds)
    if lacking := _faults(claim, arm, points, places):
        return Pilot(None, False, lacking)
    best = min(grid, key=lambda rate: points[rate])
    is_end = best in (grid[0], grid[-1]) and not claim.trial.closed
    return _beyond(claim, arm, best) if is_end else Pilot(best, rates=grid)


def _mean(values: Iterable[float]) -> float:
    """Computes the mean with nine digits, so that scores which differ by rounding alone are equal."""
    return float(f"{statistics.fmean(values):.9g}")


def _score(measure: Measure, arm: Arm, run: Run) -> float:
    name = arm.prefix + measure.metric
    return math.inf if run.diverged is not None or measure.fails(run, name) else measure.value(run, name)
