"""How often the rule is wrong where two arms are equal: a simulation with the noise that the runs have."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from ...runs.folder import Run
from .claim import LEVELS, WHOLE, Claim
from .pilot import by_place, choose

DRAWS = 2000
"""The number of trials that are simulated."""


def simulated_error(claim: Claim, runs: Sequence[Run]) -> float | None:
    """Simulates trials of two equal arms, and returns the share of verdicts *ahead* or *behind*.

    Both arms have the true scores and the deviations of the baseline: at each rate of the last rung the mean and the
    deviation of all its runs there, in the measure that chooses the rate. Both choose a rate by their pilots, as the
    rule does, of those inside the grid. The pairs are drawn at the chosen rates. There is no margin, and no other claim
    of the trial. None: the baseline's pilot is not whole, nothing is chosen, or the pairs choose.
    """
    from scipy import stats

    trial, plan = claim.trial, claim.trial.plan
    truth = _truth(claim, runs)
    if truth is None:
        return None
    rates = sorted(truth)
    means, deviations = (np.array([truth[rate][k] for rate in rates]) for k in (0, 1))
    generator = np.random.default_rng(0)
    pilots = generator.normal(means, deviations, (len(trial.pilot), 2, DRAWS, len(rates))).mean(0)
    inner = slice(1, -1) if len(rates) > 2 else slice(None)
    points = pilots[..., inner]
    if plan and len(rates) > 2:
        points = (pilots[..., :-2] + pilots[..., 1:-1] + pilots[..., 2:]) / 3
    chosen = points.argmin(-1) + (inner.start or 0)
    noise = generator.normal(0, 1, (claim.looks[-1], 2, DRAWS)) * deviations[chosen]
    differences = np.diff(means[chosen] + noise, axis=1)[:, 0]
    wrong = np.zeros(DRAWS, bool)
    for count, level in zip(claim.looks, LEVELS[len(claim.looks)], strict=True):
        some = differences[:count]
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.abs(some.mean(0)) / (some.std(0, ddof=1) / math.sqrt(count))
        wrong |= t > stats.t.isf(level / 2, count - 1)
    return float(wrong.mean())


def _truth(claim: Claim, runs: Sequence[Run]) -> Mapping[float, tuple[float, float]] | None:
    """Returns for each rate of the last rung the mean and the deviation of the baseline's numbers."""
    trial, arm, measure = claim.trial, claim.behind, claim.measure.chooses
    pilot = choose(claim, arm, runs)
    if len(trial.rates) == 1 or trial.tried or claim.over_rates or not pilot.chosen:
        return None
    name, rung = arm.prefix + measure.metric, trial.plan.rungs[-1] if trial.plan else WHOLE
    places = by_place(claim, arm, runs, rung.options)[0]
    rates = [rate for rate in pilot.rates if all((rate, seed) in places for seed in trial.pilot)]
    whole = {place: run for place, run in places.items() if not measure.fails(run, name)}
    values = {rate: [measure.value(run, name) for (at, _), run in whole.items() if at == rate] for rate in rates}
    known = {rate: (statistics.fmean(line), statistics.stdev(line)) for rate, line in values.items() if len(line) > 1}
    if not known:
        return None
    worst = max(mean for mean, _ in known.values())  # of a rate at which runs diverge
    return {rate: known.get(rate, (worst, 0.0)) for rate in rates}
