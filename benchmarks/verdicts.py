"""Computes every verdict on a claim a second time, and compares it with what the page prints.

    python benchmarks/verdicts.py [--results docs/results] [--page docs/results/verdicts.md]

It was written only from the words of both rules, on `docs/results/trials.md` and that page, and shares nothing with
`layernorm claims` but the claims themselves: the summaries are read as plain JSON, the intervals are SciPy's paired t
test, and Holm's procedure is the closed test by Bonferroni. It prints a line for each claim: the verdict, the mean
difference of the pairs with its 95 % interval (positive: the claim's first norm is ahead; of updates the natural
logarithm of the ratio), the number of pairs, the chance of such an effect without a difference, also without one of the
pairs, and what the page says. A row is equal if the page has the same verdict, effect and interval, as far as it prints
digits; effects at other goals and of the check are not compared. The last line counts the claims that differ; if there
are any, the exit status is 1. The script needs SciPy.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import itertools
import json
import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from scipy.integrate import trapezoid

from layernorm_lab import catalogue

EXPERIMENTS = ("order-embeddings", "reader", "skip-thoughts", "draw", "handwriting", "mnist", "convnets")
SECTIONS = (
    "The paper's claims about experiments", "Claims of ours", "What depends on a choice",
    "Trials that are planned, or have begun",
)  # fmt: skip
PAGE = "docs/results/verdicts.md"
EARLIER_PAIRS = 5
LEVELS = {1: (0.05,), 2: (0.02, 0.03)}

Run = dict[str, Any]
Runs = dict[tuple[float, int], Run]  # by learning rate and seed


class LackError(Exception):
    """Why nothing decides a claim."""


class Number(NamedTuple):
    """A run in a claim's measure, lower is better, and whether that is only a bound."""

    value: float
    bound: bool = False


@dataclass
class Finding:
    """What the runs say of a claim; ``why`` is empty unless nothing decides it."""

    claim: Any
    why: str = ""
    differences: np.ndarray = field(default_factory=lambda: np.array([]))  # of the pairs, by seed; NaN: it has none
    bounds: np.ndarray = field(default_factory=lambda: np.array([], dtype=bool))
    pairs: int = 0  # that count
    verdict: str = "undecided"
    lost: dict[int, str] = field(default_factory=dict)  # by the place of a pair, why it has no difference

    def lacks(self, count: int) -> bool:
        """Whether one of the first pairs has no difference."""
        return any(place < count for place in self.lost)

    @property
    def used(self) -> np.ndarray:
        return self.differences[: self.pairs]

    @property
    def short(self) -> bool:
        return bool(self.bounds[: self.pairs].any())

    @property
    def effect(self) -> float:
        return float(self.used.mean()) if self.pairs else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        if self.pairs < 2:
            return -math.inf, math.inf
        if _alike(self.used):
            return self.effect, self.effect
        low, high = stats.ttest_rel(self.used, 0 * self.used).confidence_interval(0.95)
        return float(low), float(high)

    @property
    def p(self) -> float:
        return chance(self.used) if not self.why and self.pairs and not self.lacks(self.pairs) else 1.0


def _alike(differences: np.ndarray) -> bool:
    return bool(np.ptp(differences) <= 1e-9 * abs(differences.mean()))


def chance(differences: np.ndarray) -> float:
    """The chance of such an effect without a difference."""
    if _alike(differences):
        return 1.0 if differences.mean() == 0 else 2.0 ** (1 - len(differences))
    return float(stats.ttest_rel(differences, 0 * differences).pvalue)


def runs_of(arm: Any, trial: Any, runs: Iterable[Run], rung: dict[str, Any] | None = None) -> Runs:
    """Returns the finished runs of an arm. Two of the same learning rate and seed end the script: the rule does not say
    which of them counts."""
    wanted = {"norm": arm.norm, "precision": "float32", **arm.options, **trial.options, **(rung or {})}
    found: Runs = {}
    for run in runs:
        config = run["config"]
        if run["done"] and all(name in config and config[name] == value for name, value in wanted.items()):
            first = found.setdefault((config["learning_rate"], config["seed"]), run)
            if first is not run:
                same = f"rate {config['learning_rate']:g} and seed {config['seed']} of {arm.name}"
                sys.exit(f"{first['name']} and {run['name']} are both {same}")
    return found


def diverged(run: Run) -> bool:
    return run["result"].get("diverged") is not None


def curve(measure: Any, arm: Any, run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Updates, and the metric there, signed so that lower is better."""
    names = ("update", arm.prefix + measure.metric)
    updates, values = (np.array(run["records"].get(name, []), dtype=float) for name in names)  # None becomes NaN
    if getattr(measure, "log", False):
        values = np.log(np.maximum(values, 1e-7))
    return updates, -values if measure.rising else values


def number(measure: Any, arm: Any, run: Run, updates: float = 0) -> Number:
    """A run's number. It lacks one if it diverged, is not finite, or ended before so many updates and its goal."""
    kind, last = type(measure).__name__, max(run["records"].get("update", [0]), default=0)
    if diverged(run):
        raise LackError(f"{arm.name} diverged")
    if kind == "Kept":
        value, bound = run["result"].get(measure.metric, math.nan), False
        value = math.log(value)
    elif kind == "Summed":
        value, bound = measure.scale * sum(run["result"].get(name, math.nan) for name in measure.names), False
        value = -value if measure.rising else value
    else:
        at, values = curve(measure, arm, run)
        if len(values) == 0 or not np.isfinite(values).all():
            raise LackError(f"{arm.name} has no finite {measure.metric}")
        if kind == "NearBest":
            goal = measure.share * values.min()
            k = int(np.argmax(values <= goal))
            value, bound = math.log(np.interp(goal, values[[k, k - 1]], at[[k, k - 1]]) if k else at[0]), k == 0
        elif kind == "UpdatesToGoal":
            goal = -measure.goal if measure.rising else math.log(measure.goal) if measure.log else measure.goal
            k = int(np.argmax(values <= goal)) if (values <= goal).any() else -1
            if k > 0:
                return Number(math.log(np.interp(goal, values[[k, k - 1]], at[[k, k - 1]])))
            value, bound = math.log(at[k]), True
            last = math.inf if k == 0 else last
        else:
            best = kind == "Robustness" or measure.best
            value, bound = measure.scale * float(values.min() if best else values[-measure.last :].mean()), False
    if last < updates:
        raise LackError(f"{arm.name} ended after {last} of {updates} updates")
    if not math.isfinite(value):
        raise LackError(f"{arm.name} has no number")
    return Number(value, bound)


def score(measure: Any, arm: Any, runs: Sequence[Run]) -> float:
    """Returns the mean number of a pilot's runs at one learning rate."""
    numbers = []
    for run in runs:
        try:
            numbers.append(number(measure, arm, run).value)
        except LackError:
            numbers.append(math.inf)
    return float(np.mean(numbers))


def scores(measure: Any, arm: Any, runs: Runs, rates: Sequence[float], seeds: Sequence[int]) -> np.ndarray:
    if missing := sum((rate, seed) not in runs for rate in rates for seed in seeds):
        raise LackError(f"{missing} pilot runs of {arm.name} are missing")
    told = [runs[rate, seed] for rate in rates for seed in seeds]
    whole = [run["records"]["update"][-1] for run in told if not diverged(run) and run["records"].get("update")]
    for run in told:
        try:
            number(measure, arm, run, max(whole, default=0))
        except LackError as lack:
            if "ended after" in str(lack):
                raise
    return digits([score(measure, arm, [runs[rate, seed] for seed in seeds]) for rate in rates])


def digits(values: Iterable[float]) -> np.ndarray:
    """Scores are compared with nine digits."""
    return np.array([float(f"{value:.9g}") for value in values])


def chosen_rate(claim: Any, arm: Any, runs: Sequence[Run]) -> float:
    """Returns the learning rate that the pilot chooses for an arm."""
    trial, measure = claim.trial, claim.measure.chosen or claim.measure
    if tried := trial.plan.tried.get(arm.norm) if trial.plan else None:
        tried = sorted(tried)
        if len(tried) == 1:
            return tried[0]
        return tried[int(np.argmin(scores(measure, arm, runs_of(arm, trial, runs), tried, trial.plan.seeds)))]
    rungs = [({}, 1)] if trial.plan is None else [(rung.options, rung.keep) for rung in trial.plan.rungs]
    rates = np.array(trial.rates)
    for options, keep in rungs:
        means = scores(measure, arm, runs_of(arm, trial, runs, options), list(rates), trial.pilot)
        unreached = type(measure).__name__ == "UpdatesToGoal" and np.isfinite(means).all() and np.ptp(means) == 0
        if np.isinf(means).all() or unreached:
            raise LackError(f"all learning rates of {arm.name} are alike")
        best = float(rates[int(np.argmin(means))])
        if best in (trial.rates[0], trial.rates[-1]):
            raise LackError(f"the best learning rate of {arm.name}, {best:g}, is at an end of its grid")
        if trial.plan is None:
            return best
        own = means
        if len(rates) > 2:
            means = digits(np.mean(three) for three in np.lib.stride_tricks.sliding_window_view(means, 3))
            rates, own = rates[1:-1], np.where(np.isinf(means), own[1:-1], 0)  # of equal means the lower rate
        rates = np.sort(rates[np.lexsort((own, means))[:keep]])
    return float(rates[0])


def with_goal(claim: Any, rate: float, runs: Sequence[Run]) -> Any:
    """The claim's measure, its goal half of the way that the baseline falls: in the pilot, or, where the last rung has
    options of its own, in the seeds of the first look."""
    measure, arm, trial = claim.measure, claim.behind, claim.trial
    if getattr(measure, "goal", 0) is not None:
        return measure
    whole, plan = runs_of(arm, trial, runs), trial.plan
    seeds = plan.seeds[: plan.looks[0]] if plan.rungs[-1].options else trial.pilot
    if missing := [seed for seed in seeds if (rate, seed) not in whole]:
        raise LackError(f"the goal needs {len(missing)} more runs of {arm.name}")
    lines = [curve(measure, arm, whole[rate, seed])[1] for seed in seeds if not diverged(whole[rate, seed])]
    lines = [line for line in lines if len(line) and np.isfinite(line).all()]
    if not lines:
        raise LackError(f"no run of {arm.name} gives a goal")
    half = (np.mean([line[0] for line in lines]) + np.mean([line.min() for line in lines])) / 2
    fields = {**vars(measure), "goal": -half if measure.rising else math.exp(half) if measure.log else half}
    return type(measure)(**fields)


def counts(trial: Any, seed: int) -> bool:
    """Whether a pair of this seed counts."""
    return seed in trial.plan.seeds if trial.plan else seed not in trial.pilot


def at_best_rates(claim: Any, runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    """The differences of the paired seeds, for each whether a number is a bound, and why some have no difference."""
    trial, arms = claim.trial, (claim.ahead, claim.behind)
    rates = [trial.rates[0] if len(trial.rates) == 1 else chosen_rate(claim, arm, runs) for arm in arms]
    measure = with_goal(claim, rates[1], runs)
    sides = [
        {seed: run for (at, seed), run in runs_of(arm, trial, runs).items() if at == rate and counts(trial, seed)}
        for arm, rate in zip(arms, rates, strict=True)
    ]
    differences, bounds, lost = [], [], {}
    for seed in sorted(sides[0].keys() & sides[1].keys()):
        both = zip(arms, sides, strict=True)
        try:
            ahead, behind = (number(measure, arm, side[seed], trial.updates) for arm, side in both)
        except LackError as lack:
            lost[len(differences)] = str(lack)
            ahead = behind = Number(math.nan)
        differences.append(behind.value - ahead.value)
        bounds.append(ahead.bound or behind.bound)
    return np.array(differences), np.array(bounds, dtype=bool), lost


def over_rates(claim: Any, runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the differences of the mean heights of both arms' curves over the learning rates, for every seed that has
    all of them."""
    measure, trial, arms = claim.measure, claim.trial, (claim.ahead, claim.behind)
    sides = [runs_of(arm, trial, runs) for arm in arms]
    firsts = [measure.scale * value for arm, side in zip(arms, sides, strict=True) for (rate, _), run in side.items()
              if rate in trial.rates for value in curve(measure, arm, run)[1][:1] if math.isfinite(value)]  # fmt: skip
    if not firsts:
        raise LackError("no run has a record")
    whole = [{s for _, s in side if all((r, s) in side for r in trial.rates)} for side in sides]
    heights = []
    for arm, side in zip(arms, sides, strict=True):
        for_seeds = []
        for seed in sorted(set.intersection(*whole)):
            line = []
            for rate in trial.rates:
                try:
                    line.append(number(measure, arm, side[rate, seed], trial.updates).value)
                except LackError as lack:
                    if "ended after" in str(lack):
                        raise
                    line.append(max(firsts))
            for_seeds.append(trapezoid(line) / (len(trial.rates) - 1))
        heights.append(np.array(for_seeds))
    return heights[1] - heights[0], np.zeros(len(heights[0]), dtype=bool)


def looks_of(trial: Any, robust: bool) -> tuple[int, ...]:
    return trial.plan.looks if trial.plan and not robust else (EARLIER_PAIRS,)


def examine(claim: Any, runs: Sequence[Run]) -> Finding:
    """A claim by itself: its pairs."""
    robust = type(claim.measure).__name__ == "Robustness"
    rungs = [rung.options for rung in claim.trial.plan.rungs] if claim.trial.plan else []
    used = [run for arm in (claim.ahead, claim.behind) for options in ({}, *rungs)
            for run in runs_of(arm, claim.trial, runs, options).values()]  # fmt: skip
    try:
        if len({run["data"].get("fingerprint") for run in used}) > 1:
            raise LackError("the runs were made on several data sets")
        differences, bounds, lost = (*over_rates(claim, runs), {}) if robust else at_best_rates(claim, runs)
        if lost and claim.trial.plan is None:
            raise LackError(next(iter(lost.values())))
        least = looks_of(claim.trial, robust)[0]
        if len(differences) < least:
            raise LackError(f"{len(differences)} pairs of {least}")
    except LackError as lack:
        return Finding(claim, str(lack))
    return Finding(claim, "", differences, bounds, len(differences), lost=lost)


def significant(ps: Sequence[float], one: int, level: float = 0.05) -> bool:
    """Holm's procedure: Bonferroni's test rejects every set of the hypotheses that this one is in."""
    others = [k for k in range(len(ps)) if k != one]
    sets = itertools.chain.from_iterable(itertools.combinations(others, size) for size in range(len(ps)))
    return all(min(ps[k] for k in (one, *some)) <= level / (1 + len(some)) for some in sets)


def look(one: Finding, family: Sequence[Finding], count: int | None, level: float) -> str:
    """The verdict after so many pairs; None: after all."""
    seen = [dataclasses.replace(f, pairs=len(f.differences) if count is None else count) for f in family]
    place = [f is one for f in family].index(True)
    now, margin = seen[place], one.claim.measure.margin
    low, high = now.interval
    ps = [f.p if len(f.differences) >= f.pairs else 1.0 for f in seen]
    one.pairs = now.pairs
    if -margin < low and high < margin and not now.short:
        return "equal"
    if significant(ps, place, level):
        return f"{one.claim.ahead.name} {'ahead' if now.effect > 0 else 'behind'}"
    return "undecided"


def decide(claims: Sequence[Any], runs: Sequence[Run]) -> list[Finding]:
    """An experiment's claims with their verdicts."""
    findings = [examine(claim, runs) for claim in claims]
    for one in findings:
        family = [other for other in findings if other.claim.trial == one.claim.trial]
        robust = type(one.claim.measure).__name__ == "Robustness"
        if one.why:
            continue
        if one.claim.trial.plan is None or robust:
            one.verdict = look(one, family, None, 0.05)
            continue
        looks = looks_of(one.claim.trial, robust)
        for count, level in zip(looks, LEVELS[len(looks)], strict=True):
            if len(one.differences) >= count and one.verdict == "undecided" and not one.lacks(count):
                one.verdict = look(one, family, count, level)
    for one in findings:
        if one.verdict == "undecided" and one.lost:
            one.why = next(iter(one.lost.values()))
    return findings


def cell(claim: Any) -> str:
    return f"{claim.text} *With {claim.choice}.*" if claim.choice else claim.text


Printed = tuple[str, str]
"""A page's verdict, without stars, and its cell of the effect."""


def page_verdicts(page: str) -> dict[str, list[Printed]]:
    """What a page prints, by the claim's cell."""
    found: dict[str, list[Printed]] = {}
    for section in re.split(r"^## ", page, flags=re.MULTILINE):
        if section.partition("\n")[0].strip() in SECTIONS:
            rows = [line for line in section.splitlines() if line.startswith("|")]
            for row in rows[2:]:
                cells = [text.strip() for text in re.split(r"(?<!\\)\|", row)[1:-1]]
                found.setdefault(cells[0], []).append((cells[2].replace("*", ""), cells[3]))
    return found


def same_numbers(finding: Finding, printed: str) -> bool:
    """Whether the first effect with an interval that is printed is this one, as far as it has digits."""
    found = re.search(
        r"(?:(lower|higher) by )?([\d.]+)( times as (?:fast|soon))? \((-?[\d.]+) to (-?[\d.]+)\)", printed
    )
    if finding.why:  # what the page prints of a claim that lacks something decides nothing
        return True
    if found is None or bool(found[1]) == bool(found[3]):
        return False
    numbers = [finding.effect, *finding.interval]
    numbers = [math.exp(value) for value in numbers] if found[3] else numbers
    texts = (found[2], found[4], found[5])
    if found[1] and (found[1] == "lower") == finding.claim.measure.rising:  # the first arm is worse, by so much
        effect, low, high = numbers
        numbers = [-effect, -high, -low]
    return all(abs(float(text) - value) <= 0.5001 * 10.0 ** -len(text.partition(".")[2])
               for text, value in zip(texts, numbers, strict=True))  # fmt: skip


def chances(finding: Finding) -> str:
    """Words the chance of the pairs without a difference, and the range of those without one of the pairs."""
    if finding.pairs < 4:
        return ""
    without = [chance(np.delete(finding.used, place)) for place in range(finding.pairs)]
    return f", p {chance(finding.used):.2g} (without one pair {min(without):.2g} to {max(without):.2g})"


def line(finding: Finding, printed: Printed) -> str:
    one, (low, high) = finding, finding.interval
    told = one.why or f"{one.effect:.3g} ({low:.3g} to {high:.3g}), {one.pairs} pairs{chances(one)}"
    same = printed[0].casefold() == one.verdict.casefold() and same_numbers(one, printed[1])
    short = ", not all reach the goal after their first evaluation" if one.short else ""
    return (
        f"{cell(one.claim)} | {one.verdict} | {told}{short} | page: {printed[0]} | {'equal' if same else 'DIFFERENT'}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", metavar="DIR", default="docs/results", help="summaries (default: docs/results)")
    parser.add_argument("--page", metavar="FILE", default=PAGE, help=f"(default: {PAGE})")
    options = parser.parse_args(arguments)
    for option, path in (("--results", Path(options.results)), ("--page", Path(options.page))):
        if not path.exists():
            parser.error(f"{option}: there is no {path}")
    page = page_verdicts(Path(options.page).read_text(encoding="utf-8"))
    lines = []
    for name in EXPERIMENTS:
        path = Path(options.results) / name / "summary.json.gz"
        runs = json.loads(gzip.decompress(path.read_bytes()))["runs"] if path.exists() else []
        for finding in decide(catalogue.find_experiment(name).claims, runs):
            printed = page.get(cell(finding.claim)) or [("nothing", "")]
            lines.append(line(finding, printed.pop(0)))
            print(lines[-1])
    for claim, rest in page.items():
        for printed in rest:
            lines.append(f"{claim} | no such claim | page: {printed[0]} | DIFFERENT")
            print(lines[-1])
    different = sum(text.endswith("DIFFERENT") for text in lines)
    print(f"{len(lines)} claims, {len(lines) - different} equal, {different} different")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
