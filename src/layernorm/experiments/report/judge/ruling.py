"""What the pairs of a trial say about a claim: the effect with its interval, the verdict, and what was run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .claim import PILOT, SEEDS, Claim

LEVEL = 0.05
"""The chance that a trial whose arms do not differ gives one of its claims the verdict *ahead* or *behind*."""

AHEAD, BEHIND, EQUAL, UNDECIDED = VERDICTS = ("ahead", "behind", "equal", "undecided")


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
        count = len(self.differences)
        half = _quantile(LEVEL, count) * statistics.stdev(self.differences) / math.sqrt(count)
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
    def effect_text(self) -> str:
        """The values and the effect as a sentence; what is lacking if there is no pair of runs."""
        measure, parts = self.claim.measure, []
        if len(self.pairs) > 1:
            means = self.named([measure.shown(mean) for mean in self.means])
            parts += [f"{measure.about}: {means}", measure.compared(self.effect, *self.interval)]
            if any(self.short):
                parts.append(f"never reached it, so that the number is a bound: {self.named(self.short)} runs")
        if self.lacking:
            parts.append(f"lacking: {', '.join(self.lacking)}")
        return "; ".join(parts)

    @property
    def plain(self) -> str:
        """The verdict and the effect in plain words, the better arm first."""
        arms = ["the baseline" if arm.name == "baseline" else arm.name for arm in self.claim.arms]
        never = [f"{count} of {counted(len(self.pairs), 'run')} of {arm}"
                 for arm, count in zip(arms, self.short, strict=True) if count]  # fmt: skip
        bound = f" Never came there: {' and '.join(never)}; the number is a bound." if never else ""
        means, effect, (low, high) = [*self.means], self.effect, self.interval
        if effect < 0:
            arms, means, effect, (low, high) = arms[::-1], means[::-1], -effect, (-high, -low)
        first, second = arms
        said = {
            EQUAL: f"{first} and {second} are equal",
            UNDECIDED: f"it is undecided whether {first} is ahead of {second}",
        }.get(self.verdict, f"{first} is ahead of {second}")
        about, measure = self.claim.trial.about, self.claim.measure
        verdict = f"with {about}: {said}" if about else said
        numbers = f"{capital(measure.about)}: {' against '.join(map(measure.shown, means))}"
        return f"{capital(verdict)}. {numbers}, {measure.compared(effect, low, high)}.{bound}"

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
        whole = count > 1 and not any(seed in PILOT for *_, seed in self.missing)
        return f"{seeds}, rates {chosen}{f', each the best of {count}' if whole else ''}; {share}"

    @property
    def hours_of_a_run(self) -> float:
        """The hours that a run takes on one core."""
        return self.claim.trial.hours if self.seconds is None else self.seconds / 3600

    @property
    def hours_of_more_seeds(self) -> float:
        """Estimates the hours of the seeds that would decide a claim that lacks nothing and is undecided all the same;
        infinity if 100 seeds would not."""
        if self.lacking or self.verdict != UNDECIDED:
            return 0.0
        rates = len(self.claim.trial.rates) if self.claim.over_rates else 1
        return 2 * rates * (self._enough() - len(self.pairs)) * self.hours_of_a_run

    def named(self, texts: Sequence[Any]) -> str:
        """Writes two texts, each after the name of its arm."""
        return ", ".join(f"{arm.name} {text}" for arm, text in zip(self.claim.arms, texts, strict=True))

    def _enough(self) -> float:
        """Computes the number of seeds that would decide if effect and deviation stayed as they are."""
        deviation, margin = statistics.stdev(self.differences), self.claim.measure.margin
        for count in range(len(self.pairs), 101):
            seen = abs(self.effect) > _quantile(self.level or LEVEL, count) * deviation / math.sqrt(count)
            equal = abs(self.effect) + _quantile(LEVEL, count) * deviation / math.sqrt(count) < margin
            if seen or (equal and not any(self.short)):
                return count
        return math.inf


def chance(effect: float, seeds: int = SEEDS, level: float = LEVEL) -> float:
    """Computes the chance that a difference is called *ahead*, with no margin, at a two-sided level. `effect`: the true
    difference in standard deviations of a pair's difference."""
    from scipy import stats

    return float(stats.nct.sf(_quantile(level, seeds), seeds - 1, effect * math.sqrt(seeds)))


def _quantile(level: float, count: int) -> float:
    """Computes the quantile of Student's t for a two-sided level and a number of pairs."""
    from scipy import stats

    return float(stats.t.isf(level / 2, count - 1))


def counted(count: int, noun: str) -> str:
    """Writes a number with its noun."""
    return f"one {noun}" if count == 1 else f"{count} {noun}s"


def capital(text: str) -> str:
    """Writes the text with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]
