"""The judge: whether one norm is ahead of another, decided from runs by one rule. Every verdict in print is its.

An experiment gives the judge its claims as data (`Claim`): two arms, what is measured, and the trial that decides,
which is planned before it is run. The rule:

1. A pilot. Each arm is trained at the same number of learning rates, in factors of 2, with the seeds `PILOT`. Its
   rate is the best of them in the claim's own measure, never on test data. It must lie inside the grid.
2. The trial. Each arm is trained at its rate with `SEEDS` seeds or more that the pilot did not have. One seed gives
   both arms the same initial weights and the same batches, so that seeds are pairs.
3. The effect is the mean over pairs of the difference of the two values, or of the logarithm of their ratio, with the
   95 % interval of Student's t.
4. The verdict is *equal* if the interval lies inside the claim's margin. Otherwise it is *ahead* or *behind* if the
   effect differs from 0 at the level of 5 %, by Holm's procedure over all claims that one trial decides. Otherwise it
   is *undecided*.

Robustness to the rate needs no pilot: it is measured over the whole grid, and every seed that has all rates counts.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..runs.folder import Run
from .comparison import GAINED, NORMS, RATE, first_reaching

PILOT = (0, 1)
"""The seeds of a pilot. They choose a rate, and count in no comparison that the rate is chosen for."""

SEEDS = 5
"""The least number of pairs that a verdict needs."""

FRESH = tuple(range(10, 10 + SEEDS))
"""The seeds of a trial as it is planned."""

LEVEL = 0.05
"""The chance that a trial whose arms do not differ gives one of its claims the verdict *ahead* or *behind*."""

FACTOR = 2.0
"""The ratio of neighbouring learning rates in a grid."""

AHEAD, BEHIND, EQUAL, UNDECIDED = VERDICTS = ("ahead", "behind", "equal", "undecided")


@dataclass(frozen=True)
class Arm:
    """One side of a comparison.

    Attributes:
        norm: the norm of its runs.
        options: other options of its runs by which it differs from the other arm.
        prefix: what stands before the metrics' names in its records: batch norm's exact statistics are `exact_`.
    """

    norm: str
    options: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""

    @property
    def name(self) -> str:
        """Its name in tables and sentences."""
        gain = self.options.get("gain_init", 1.0) if self.norm in GAINED else 1.0
        return (
            NORMS[self.norm]
            + (f" with gain {gain:g}" if gain != 1.0 else "")
            + ", exact statistics" * bool(self.prefix)
        )

    def has(self, run: Run) -> bool:
        """Whether a run is of this arm."""
        return run.config["norm"] == self.norm and _has(run, self.options)


@dataclass(frozen=True)
class Trial:
    """The runs that decide some claims of an experiment, planned before they are made.

    Attributes:
        options: the options that its runs share.
        rates: the learning rates of the grid, the same for all arms, from low to high, in factors of 2.
        updates, paper: the updates of a run, and of the paper's runs.
        hours: an estimate of the hours that a run takes on one core, until there are runs.
        command: the command of its pilot; with other seeds and rates, that of its runs.
        about: the choice by which this trial differs from the main one, for a table of sensitivity; empty for the main
            one.
    """

    options: Mapping[str, Any]
    rates: tuple[float, ...]
    updates: int
    paper: int
    hours: float
    command: str = ""
    about: str = ""

    def runs(self, arm: Arm, runs: Iterable[Run]) -> list[Run]:
        """The finished runs of an arm, in float32."""
        wanted = {"precision": "float32", **self.options}
        return [run for run in runs if run.done and arm.has(run) and _has(run, wanted)]


@dataclass(frozen=True)
class Measure(ABC):
    """What is compared.

    Attributes:
        metric: its name in the records.
        name: its name in sentences, with its unit.
        chosen: the metric, on validation data, by which the learning rate is chosen; None: `metric`.
        rising: whether higher values are better.
        margin: two arms are equal if their effect is known to be smaller.
    """

    metric: str
    name: str
    chosen: str | None = None
    rising: bool = False
    margin: float = math.log(1.1)

    @abstractmethod
    def value(self, run: Run, metric: str) -> float:
        """The number that is compared, of which lower is better."""

    @abstractmethod
    def said(self, ruling: Ruling) -> str:
        """The two arms' values and the effect with its interval, as a sentence."""

    def values(self, run: Run, metric: str) -> list[float]:
        """The metric at each evaluation, with the sign with which lower is better."""
        return [(-1 if self.rising else 1) * record[metric] for record in run.records]

    def open(self) -> str:
        """What must be fixed before a trial can be run; empty if nothing."""
        return ""

    def short(self, run: Run, metric: str) -> bool:
        """Whether the run ended before its number was known, which then is a bound."""
        return False


@dataclass(frozen=True)
class Sooner(Measure):
    """The logarithm of the updates until a metric first reaches a goal, on the line between two evaluations.

    A run that does not reach the goal counts with its last update. This makes the difference smaller than it is, so
    that two arms are not called equal if it happens.

    Attributes:
        goal: a value of the metric, fixed before the trial. None: not fixed yet.
        unit, scale: the unit in which the goal is shown, with the space before it, and what the goal is multiplied by.
    """

    goal: float | None = None
    unit: str = ""
    scale: float = 1.0

    def value(self, run: Run, metric: str) -> float:
        reached = self._reached(run, metric)
        return math.log(run.records[-1]["update"] if reached is None else reached)

    def short(self, run: Run, metric: str) -> bool:
        return self._reached(run, metric) is None

    def open(self) -> str:
        return "a goal, which the pilot gives" if self.goal is None else ""

    def _reached(self, run: Run, metric: str) -> float | None:
        assert self.goal is not None
        line = zip((record["update"] for record in run.records), self.values(run, metric), strict=True)
        return first_reaching(line, -self.goal if self.rising else self.goal, interpolated=True)

    def said(self, ruling: Ruling) -> str:
        assert self.goal is not None
        means = [math.exp(mean) for mean in ruling.means]
        times, low, high = (math.exp(value) for value in (ruling.effect, *ruling.interval))
        text = (
            f"updates to {self.name} of {self.scale * self.goal:g}{self.unit}: "
            f"{ruling.named([f'{mean:.0f}' for mean in means])}; {times:.2f} times as fast ({low:.2f} to {high:.2f})"
        )
        if any(ruling.short):
            text += f"; never reached it, so that the number is a bound: {ruling.named(ruling.short)} runs"
        return text


@dataclass(frozen=True)
class Value(Measure):
    """A metric's value after the last update, or its best value.

    Attributes:
        best: whether the best value counts.
        scale: what the value is multiplied by, such as 100 for percent.
        digits: the digits after the point.
    """

    best: bool = False
    scale: float = 1.0
    digits: int = 2

    def value(self, run: Run, metric: str) -> float:
        line = self.values(run, metric)
        return self.scale * (min(line) if self.best else line[-1])

    def said(self, ruling: Ruling) -> str:
        sign = -1 if self.rising else 1
        means = [f"{sign * mean:.{self.digits}f}" for mean in ruling.means]
        low, high = ruling.interval
        better = "higher" if self.rising else "lower"
        return (
            f"{self.name}: {ruling.named(means)}; {better} by {ruling.effect:.{self.digits}f} "
            f"({low:.{self.digits}f} to {high:.{self.digits}f})"
        )


@dataclass(frozen=True)
class Robustness(Value):
    """The area under the best value against the logarithm of the learning rate, as a mean over the grid.

    The area is that of the trapezoids between neighbouring rates, divided by the grid's width. A run that diverged
    counts with the worst first evaluation of all runs.
    """

    best: bool = True


@dataclass(frozen=True)
class Claim:
    """A claim that one arm is ahead of another.

    Attributes:
        text: the claim, in words close to the paper's.
        where: the section, figure or table of the paper, or "ours".
        ahead, behind: the arm that the claim puts first, and the one that it is compared with.
        measure: what is compared.
        trial: the runs that decide.
        figure: the figure of the runs, in the folder of the experiment's results.
    """

    text: str
    where: str
    ahead: Arm
    behind: Arm
    measure: Measure
    trial: Trial
    figure: str = ""

    @property
    def arms(self) -> tuple[Arm, Arm]:
        """Both arms, the one that the claim puts first at the beginning."""
        return self.ahead, self.behind

    @property
    def over_rates(self) -> bool:
        """Whether the claim is about the whole grid of learning rates."""
        return isinstance(self.measure, Robustness)


@dataclass(frozen=True)
class Ruling:
    """What the runs say about a claim.

    Attributes:
        claim: the claim.
        rates: the two arms' learning rates, as the pilot chose them; None: all rates of the grid, or not chosen yet.
        pairs: for each seed the two arms' values, of which lower is better.
        short: for each arm the number of runs whose value is a bound.
        lacking: what a verdict lacks, in words.
        missing: the runs that must be made: the arm, its rate or what its rate is best for, the seed.
        seconds: the time of a run, where there are runs.
        level: the level at which Holm's procedure compares this claim; 0: it does not come to it.
    """

    claim: Claim
    rates: tuple[float | None, float | None]
    pairs: Mapping[int, tuple[float, float]]
    short: tuple[int, int]
    lacking: tuple[str, ...]
    missing: frozenset[tuple[str, str, int]]
    seconds: float | None
    level: float = LEVEL

    @cached_property
    def differences(self) -> list[float]:
        """By how much the claim's first arm is ahead, for each seed."""
        return [behind - ahead for ahead, behind in self.pairs.values()]

    @property
    def effect(self) -> float:
        """The mean difference: above 0 if the claim's first arm is ahead."""
        return statistics.fmean(self.differences)

    @property
    def means(self) -> tuple[float, float]:
        """The mean value of each arm."""
        ahead, behind = zip(*self.pairs.values(), strict=True)
        return statistics.fmean(ahead), statistics.fmean(behind)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the effect."""
        half = _half_width(self.differences, LEVEL)
        return self.effect - half, self.effect + half

    @property
    def p(self) -> float:
        """The chance of an effect this far from 0 if there is no difference; 1 if a verdict lacks something."""
        if self.lacking:
            return 1.0
        from scipy import stats

        error = statistics.stdev(self.differences) / math.sqrt(len(self.differences))
        if error == 0:
            return float(self.effect == 0)
        return float(2 * stats.t.sf(abs(self.effect) / error, len(self.differences) - 1))

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`, of the claim's first arm."""
        if self.lacking:
            return UNDECIDED
        low, high = self.interval
        margin = self.claim.measure.margin
        if -margin < low and high < margin and not any(self.short):
            return EQUAL
        if self.p <= self.level:
            return AHEAD if self.effect > 0 else BEHIND
        return UNDECIDED

    @property
    def found(self) -> str:
        """The values and the effect as a sentence; what is lacking if there is no pair of runs."""
        said = self.claim.measure.said(self) if len(self.pairs) > 1 else ""
        lacking = f"lacking: {', '.join(self.lacking)}" if self.lacking else ""
        return "; ".join(filter(None, (said, lacking)))

    @property
    def ran(self) -> str:
        """The runs that were compared, in words."""
        trial = self.claim.trial
        if self.seconds is None:
            return "no runs"
        share = f"{trial.updates} updates ({100 * trial.updates / trial.paper:.2g} % of the paper's)"
        seeds = counted(len(self.pairs), "seed")
        count = len(trial.rates)
        if self.claim.over_rates:
            return f"{seeds} at each of {count} rates, {trial.rates[0]:g} to {trial.rates[-1]:g}; {share}"
        chosen = self.named([f"{rate:g}" if rate else "-" for rate in self.rates])
        whole = not any(seed in PILOT for *_, seed in self.missing)
        return f"{seeds}, rates {chosen}{f', each the best of {count}' if whole else ''}; {share}"

    @property
    def hours_of_a_run(self) -> float:
        """The hours that a run takes on one core."""
        return self.claim.trial.hours if self.seconds is None else self.seconds / 3600

    @property
    def hours_of_more_seeds(self) -> float:
        """The hours of the seeds that would decide a claim that lacks nothing and is undecided all the same.

        It is infinity if 100 seeds would not.
        """
        if self.lacking or self.verdict != UNDECIDED:
            return 0.0
        rates = len(self.claim.trial.rates) if self.claim.over_rates else 1
        return 2 * rates * (self._enough() - len(self.pairs)) * self.hours_of_a_run

    def named(self, texts: Sequence[Any]) -> str:
        """Two texts, each after the name of its arm."""
        return ", ".join(f"{arm.name} {text}" for arm, text in zip(self.claim.arms, texts, strict=True))

    def _enough(self) -> float:
        """The number of seeds that would decide if effect and deviation stayed as they are."""
        deviation, margin = statistics.stdev(self.differences), self.claim.measure.margin
        for count in range(len(self.pairs), 101):
            seen = abs(self.effect) > _quantile(self.level or LEVEL, count) * deviation / math.sqrt(count)
            equal = abs(self.effect) + _quantile(LEVEL, count) * deviation / math.sqrt(count) < margin
            if seen or (equal and not any(self.short)):
                return count
        return math.inf


def decide(claims: Sequence[Claim], runs: Sequence[Run]) -> list[Ruling]:
    """What runs of one experiment say about its claims."""
    rulings = [_over_rates(claim, runs) if claim.over_rates else _at_best_rates(claim, runs) for claim in claims]
    return [_with_level(ruling, [other for other in rulings if other.claim.trial == ruling.claim.trial])
            for ruling in rulings]  # fmt: skip


def counts(rulings: Iterable[Ruling]) -> dict[str, int]:
    """How often there is each verdict."""
    verdicts = [ruling.verdict for ruling in rulings]
    return {verdict: verdicts.count(verdict) for verdict in VERDICTS}


def findings(claims: Sequence[Claim], runs: Sequence[Run]) -> list[str]:
    """What a report prints: a line for each claim that some runs belong to, and the rule below them."""
    known = [claim for claim in claims if all(claim.trial.runs(arm, runs) for arm in claim.arms)]
    lines = [
        f"{ruling.claim.text} Verdict: {ruling.verdict}. {capital(ruling.ran)}. {capital(ruling.found)}."
        for ruling in decide(claims, runs)
        if ruling.claim in known
    ]
    return [*lines, RULE] if lines else []


RULE = (
    f"The rule: each arm at its best learning rate of a pilot with other seeds, {SEEDS} paired seeds or more, the mean "
    "difference with its 95 % interval. Equal: the interval is inside the margin. Ahead, behind: the difference is not "
    "0 at the level of 5 %, by Holm's procedure over the claims of a trial. docs/claims.md has all claims."
)
"""The sentence below verdicts."""


def chance(effect: float, seeds: int = SEEDS, level: float = LEVEL) -> float:
    """The chance that a difference is called *ahead*, with no margin.

    Args:
        effect: the true difference in standard deviations of a pair's difference.
        seeds: the number of pairs.
        level: the two-sided level of the test.
    """
    from scipy import stats

    return float(stats.nct.sf(_quantile(level, seeds), seeds - 1, effect * math.sqrt(seeds)))


def _at_best_rates(claim: Claim, runs: Sequence[Run]) -> Ruling:
    """The pairs of a claim about each arm's best rate."""
    measure, trial = claim.measure, claim.trial
    open_goal = measure.open()
    of_arms, faults = _by_rate_and_seed(claim, runs)
    lacking = [*faults, *([open_goal] if open_goal else [])]
    rates: list[float | None] = []
    missing: set[tuple[str, str, int]] = set()
    for arm, by_rate_and_seed in zip(claim.arms, of_arms, strict=True):
        grid = trial.rates
        pilot = {rate: [by_rate_and_seed.get((rate, seed)) for seed in PILOT] for rate in grid}
        absent = {(arm.name, f"{rate:g}", seed) for rate in grid for seed in PILOT
                  if (rate, seed) not in by_rate_and_seed}  # fmt: skip
        missing |= absent
        if absent:
            lacking.append(f"{len(absent)} of {len(grid) * len(PILOT)} pilot runs with {arm.name}")
        if absent or open_goal:
            rates.append(_only({rate for rate, seed in by_rate_and_seed if seed not in PILOT}))
            continue
        scores = {rate: statistics.fmean(_score(measure, arm, run) for run in both) for rate, both in pilot.items()}
        if len(set(scores.values())) == 1:
            lacking.append(f"a pilot in which the rates of {arm.name} differ: all diverged, or none came to the goal")
            rates.append(None)
            continue
        best = min(scores, key=lambda rate: scores[rate])
        rates.append(best)
        if best in (grid[0], grid[-1]):
            edge = "lowest" if best == grid[0] else "highest"
            lacking.append(f"a rate inside the grid: {arm.name} is best at the {edge}, {best:g}")
            beyond = best / FACTOR if best == grid[0] else best * FACTOR
            missing |= {(item.name, f"{beyond:g}", seed) for item in claim.arms for seed in PILOT}
    pairs: dict[int, tuple[float, float]] = {}
    short = [0, 0]
    if not open_goal and None not in rates:
        chosen = [
            {seed: run for (rate, seed), run in of_arm.items() if rate == best and seed not in PILOT}
            for of_arm, best in zip(of_arms, rates, strict=True)
        ]
        for seed in sorted(chosen[0].keys() & chosen[1].keys()):
            both = [of_arm[seed] for of_arm in chosen]
            lost = [arm.name for arm, run in zip(claim.arms, both, strict=True) if run.diverged is not None]
            if lost:
                lacking.append(f"a value of seed {seed}: {' and '.join(lost)} diverged")
                continue
            names = [arm.prefix + measure.metric for arm in claim.arms]
            pairs[seed] = (measure.value(both[0], names[0]), measure.value(both[1], names[1]))
            short = [count + measure.short(run, name) for count, run, name in zip(short, both, names, strict=True)]
    if len(pairs) < SEEDS:
        lacking.append(f"{SEEDS - len(pairs)} of {SEEDS} paired seeds")
        fresh = [seed for seed in FRESH if seed not in pairs][: SEEDS - len(pairs)]
        for arm, rate in zip(claim.arms, rates, strict=True):
            missing |= {(arm.name, f"best in {measure.name}" if rate is None else f"{rate:g}", seed) for seed in fresh}
    seconds = _seconds([run for of_arm in of_arms for run in of_arm.values()])
    first, second = rates
    return Ruling(claim, (first, second), pairs, (short[0], short[1]), tuple(lacking), frozenset(missing), seconds)


def _over_rates(claim: Claim, runs: Sequence[Run]) -> Ruling:
    """The pairs of a claim about the whole grid, which is the same for both arms."""
    measure, rates = claim.measure, claim.trial.rates
    assert isinstance(measure, Robustness)
    of_arms, lacking = _by_rate_and_seed(claim, runs)
    every = [(arm, run) for arm, of_arm in zip(claim.arms, of_arms, strict=True) for run in of_arm.values()]
    begun = [(arm, run) for arm, run in every if run.records and run.config[RATE] in rates]
    firsts = [measure.scale * measure.values(run, arm.prefix + measure.metric)[0] for arm, run in begun]
    if every and not firsts:
        lacking.append("a run that did not diverge at once")
    worst = max(firsts, default=math.inf)

    def area(arm: Arm, of_arm: Mapping[tuple[float, int], Run], seed: int) -> float:
        name = arm.prefix + measure.metric
        line = [of_arm[rate, seed] for rate in rates]
        heights = [worst if run.diverged is not None else measure.value(run, name) for run in line]
        return statistics.fmean((left + right) / 2 for left, right in itertools.pairwise(heights))

    made = {
        seed: sum((rate, seed) in of_arm for of_arm in of_arms for rate in rates)
        for seed in {*PILOT, *FRESH, *(run.config["seed"] for _, run in every)}
    }
    pairs: dict[int, tuple[float, float]] = {}
    for seed in sorted(seed for seed, count in made.items() if firsts and count == len(rates) * len(of_arms)):
        first, second = (area(arm, of_arm, seed) for arm, of_arm in zip(claim.arms, of_arms, strict=True))
        pairs[seed] = (first, second)
    missing: set[tuple[str, str, int]] = set()
    if len(pairs) < SEEDS:
        lacking.append(f"{SEEDS - len(pairs)} of {SEEDS} seeds with all rates")
        nearest = sorted(made, key=lambda seed: (-made[seed], seed))[:SEEDS]
        for arm, of_arm in zip(claim.arms, of_arms, strict=True):
            missing |= {(arm.name, f"{rate:g}", seed) for rate in rates for seed in nearest
                        if (rate, seed) not in of_arm}  # fmt: skip
    seconds = _seconds([run for _, run in begun])
    return Ruling(claim, (None, None), pairs, (0, 0), tuple(lacking), frozenset(missing), seconds)


def _with_level(ruling: Ruling, family: Sequence[Ruling]) -> Ruling:
    """The ruling with the level of Holm's procedure over its family: the k-th lowest of n chances is compared with
    5 % / (n - k + 1), until one is above it."""
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


def shared(config: Any, *apart: str) -> dict[str, Any]:
    """The options of a configuration, for `Trial.options`, without norm, learning rate, seed and those in `apart`."""
    return {name: value for name, value in vars(config).items() if name not in ("norm", RATE, "seed", *apart)}


def _by_rate_and_seed(claim: Claim, runs: Sequence[Run]) -> tuple[list[dict[tuple[float, int], Run]], list[str]]:
    """Each arm's runs by learning rate and seed, and what is lacking because runs do not fit together."""
    of_arms: list[dict[tuple[float, int], Run]] = []
    lacking = []
    for arm in claim.arms:
        by_place: dict[tuple[float, int], Run] = {}
        for run in claim.trial.runs(arm, runs):
            place = (run.config[RATE], run.config["seed"])
            if place in by_place:
                names = f"{by_place[place].path.name} and {run.path.name}"
                lacking.append(f"one run of {arm.name} at {place[0]:g} with seed {place[1]}: there are {names}")
            by_place[place] = run
        of_arms.append(by_place)
    count = len({run.environment["data"].get("fingerprint") for of_arm in of_arms for run in of_arm.values()})
    if count > 1:
        lacking.append(f"one data set: the runs were made on {count}")
    return of_arms, lacking


def _has(run: Run, options: Mapping[str, Any]) -> bool:
    return all(run.config.get(name) == value for name, value in options.items())


def _score(measure: Measure, arm: Arm, run: Run | None) -> float:
    assert run is not None
    if run.diverged is not None:
        return math.inf
    return measure.value(run, arm.prefix + (measure.chosen or measure.metric))


def _only(values: set[float]) -> float | None:
    return next(iter(values)) if len(values) == 1 else None


def _seconds(runs: Sequence[Run]) -> float | None:
    seconds = [run.records[-1]["seconds"] for run in runs if run.records]
    return statistics.median(seconds) if seconds else None


def _quantile(level: float, count: int) -> float:
    """The quantile of Student's t for a two-sided level and a number of pairs."""
    from scipy import stats

    return float(stats.t.isf(level / 2, count - 1))


def _half_width(differences: Sequence[float], level: float) -> float:
    count = len(differences)
    return _quantile(level, count) * statistics.stdev(differences) / math.sqrt(count)


def counted(count: int, noun: str) -> str:
    """A number with its noun."""
    return f"one {noun}" if count == 1 else f"{count} {noun}s"


def capital(text: str) -> str:
    """The text with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]
