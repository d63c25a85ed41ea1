"""What the pairs of a trial say about a claim: the effect with its interval, the verdict, and what was run."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .claim import SEEDS, Claim
from .measure import goal_text

LEVEL = 0.05
"""The chance that a trial whose arms do not differ gives one of its claims the verdict *ahead* or *behind*."""

SAME = 1e-9
"""Below this share of the mean difference the standard error is rounding, and the differences count as equal."""

AHEAD, BEHIND, EQUAL, UNDECIDED = VERDICTS = ("ahead", "behind", "equal", "undecided")


@dataclass(frozen=True)
class Ruling:
    """What the runs say about a claim.

    Attributes:
        claim: the claim. A goal by formula is filled in.
        rates: the two arms' learning rates, as the pilot chose them; None: all rates of the grid, or not chosen yet.
        pairs: for each seed the two arms' values, of which lower is better.
        lacking: what a verdict lacks, in words.
        chosen: whether the pilots chose the rates.
        lost: for each seed that has runs of both arms and no pair, what is lacking.
        flags: for each seed why the two arms' values are bounds (`Measure.flag`).
        used: the number of seeds at the look that decides, the first ones that have runs of both arms; None: all.
        level: the level at which Holm's procedure compares this claim; 0: the procedure stopped at another claim before
            this one.
        whole: the level of the look, which the procedure shares among the claims of the trial.
        family: the number of these claims.
        others: the rulings at the goals that do not decide.
        check: the pairs with each seed's rates chosen by the other seeds.
    """

    claim: Claim
    rates: tuple[float | None, float | None]
    pairs: Mapping[int, tuple[float, float]]
    lacking: tuple[str, ...]
    chosen: bool = False
    lost: Mapping[int, str] = field(default_factory=dict)
    flags: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    used: int | None = None
    level: float = LEVEL
    whole: float = LEVEL
    family: int = 1
    others: tuple[Ruling, ...] = ()
    check: Ruling | None = None

    def after(self, count: int) -> Ruling:
        """Returns what was known at the look after a number of pairs."""
        later = {self.lost[seed] for seed in self.made[count:] if seed in self.lost}
        lacking = tuple(text for text in self.lacking if text not in later)
        others = tuple(other.after(count) for other in self.others)
        return dataclasses.replace(self, lacking=lacking, used=count, others=others)

    @property
    def made(self) -> list[int]:
        """The seeds that have runs of both arms."""
        return sorted({*self.pairs, *self.lost})

    @property
    def seeds(self) -> list[int]:
        """The seeds of the pairs that count."""
        return [seed for seed in self.made[: self.used] if seed in self.pairs]

    @cached_property
    def differences(self) -> list[float]:
        """By how much the claim's first arm is ahead, for each seed."""
        return [self.pairs[seed][1] - self.pairs[seed][0] for seed in self.seeds]

    @property
    def effect(self) -> float:
        """The mean difference: above 0 if the claim's first arm is ahead."""
        return statistics.fmean(self.differences)

    @property
    def means(self) -> tuple[float, float]:
        """The mean value of each arm."""
        ahead, behind = zip(*(self.pairs[seed] for seed in self.seeds), strict=True)
        return statistics.fmean(ahead), statistics.fmean(behind)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the effect."""
        count = len(self.differences)
        half = _quantile(LEVEL, count) * statistics.stdev(self.differences) / math.sqrt(count)
        return self.effect - half, self.effect + half

    def flagged(self, flag: str) -> tuple[int, int]:
        """Counts, for each arm, the runs whose value is a bound for this reason."""
        ahead, behind = ([self.flags[seed][k] for seed in self.seeds if seed in self.flags].count(flag) for k in (0, 1))
        return ahead, behind

    @property
    def short(self) -> tuple[int, int]:
        """For each arm the number of runs that ended before the goal."""
        return self.flagged("short")

    @property
    def early(self) -> tuple[int, int]:
        """For each arm the number of runs that were at the goal at their first evaluation."""
        return self.flagged("early")

    @property
    def p(self) -> float:
        """The chance of an effect this far from 0 if there is no difference; 1 if a verdict lacks something. Pairs that
        all differ by the same amount have no deviation; then it is the chance that all signs are alike."""
        count = len(self.differences)
        if self.lacking or count < max(2, self.used or 0):
            return 1.0
        from scipy import stats

        error = statistics.stdev(self.differences) / math.sqrt(count)
        if error <= SAME * abs(self.effect):
            return 1.0 if self.effect == 0 else 2.0 ** (1 - count)
        return float(2 * stats.t.sf(abs(self.effect) / error, count - 1))

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`, of the claim's first arm."""
        if self.lacking:
            return UNDECIDED
        low, high = self.interval
        margin = self.claim.measure.margin
        if -margin < low and high < margin and not any(self.short + self.early):
            return EQUAL
        if self.p <= self.level:
            return AHEAD if self.effect > 0 else BEHIND
        return UNDECIDED

    @property
    def open(self) -> bool:
        """Whether runs that are not made yet would decide."""
        more = bool(self.lacking) or len(self.made) < self.claim.looks[-1]
        return self.verdict == UNDECIDED and more and not self.lost

    @property
    def reason(self) -> str:
        """Why the verdict is *undecided*, in words that follow "as"; empty for any other verdict."""
        if self.verdict != UNDECIDED:
            return ""
        if self.lacking:
            return f"these runs lack {', '.join(self.lacking)}"
        (low, high), measure, plan = self.interval, self.claim.measure, self.claim.trial.plan
        if -measure.margin < low and high < measure.margin:
            return "some of the numbers are bounds, so that it cannot be called equal"
        if low <= 0 <= high:
            return f"the interval allows for no difference, and for more than the margin of {measure.margin_text}"
        look = f", at the look after {self.used} of {plan.looks[-1]} pairs," if plan and self.used else ""
        rule = f"Holm's procedure over the {self.family} claims of this trial" if self.family > 1 else "the rule"
        if not self.level:
            return f"{rule}{look} ends at another one before it comes to this one"
        return f"{rule}{look} asks for a chance of at most {_percent(self.level)}, and that of this difference is " + (
            _percent(self.p)
        )

    @property
    def effect_text(self) -> str:
        """The values and the effect as a sentence; what is lacking if there is no pair of runs."""
        measure, parts = self.claim.measure, []
        if len(self.pairs) > 1:
            means = self.named([measure.shown(mean) for mean in self.means])
            parts += [f"{measure.about}: {means}", measure.compared(self.effect, *self.interval)]
            parts += self.bounds
            for other in self.others:
                if len(other.seeds) > 1:
                    parts.append(", ".join([f"at {goal_text(other.claim.measure)}: {other.compared}", *other.bounds]))
            parts.append(f"margin {measure.margin_text}")
            if self.check is not None:
                seeds = counted(len(self.check.seeds), "seed")
                effect = ", ".join([self.check.compared, seeds, *self.check.bounds])
                parts.append(f"with each seed's rates chosen by the other seeds: {effect}")
            elif self.claim.trial.shorter_pilot and not (self.claim.over_rates or self.claim.trial.tried):
                parts.append("no check with rates chosen by other seeds, as the pilot's runs are shorter")
        if self.lacking:
            parts.append(f"lacking: {', '.join(self.lacking)}")
        elif self.reason:
            parts.append(f"undecided, as {self.reason}")
        return "; ".join(parts)

    @property
    def bounds(self) -> list[str]:
        """Which runs have values that are bounds, in words, and what they make of the number."""
        counts = {"never there": self.short, "there at the first evaluation": self.early}
        parts = [f"{text}: {self.named(count)} runs" for text, count in counts.items() if any(count)]
        if self.skew:
            parts[-1] += f", so that the number is too {'low' if self.skew < 0 else 'high'}"
        return parts

    @property
    def skew(self) -> int:
        """1 if the runs whose values are bounds make the effect too large, -1 if too small; 0 if there are none, or if
        they do both."""
        return any([self.short[0], self.early[1]]) - any([self.short[1], self.early[0]])

    @property
    def plain(self) -> str:
        """The verdict and the effect in plain words, the better arm first."""
        arms = [arm.spoken for arm in self.claim.arms]
        bound = ""
        for text, counts in {"Never came there": self.short, "There at the first evaluation": self.early}.items():
            runs = [f"{count} of {counted(len(self.seeds), 'run')} of {arm}"
                    for arm, count in zip(arms, counts, strict=True) if count]  # fmt: skip
            bound += f" {text}: {' and '.join(runs)}." if runs else ""
        means, effect, (low, high), skew = [*self.means], self.effect, self.interval, self.skew
        if effect < 0:
            arms, means, effect, (low, high), skew = arms[::-1], means[::-1], -effect, (-high, -low), -skew
        bound += f" The number is too {'low' if skew < 0 else 'high'}." if skew else ""
        first, second = arms
        said = {
            EQUAL: f"{first} and {second} are equal",
            UNDECIDED: f"it is undecided whether {first} is ahead of {second}",
        }.get(self.verdict, f"{first} is ahead of {second}")
        about, measure = self.claim.choice, self.claim.measure
        verdict = f"with {about}: {said}" if about else said
        numbers = f"{capital(measure.about)}: {' against '.join(map(measure.shown, means))}"
        why = f" Undecided, as {self.reason}." if self.reason else ""
        # the pairs chose among several, and the figure beside it has the rates that a pilot chose
        rates = f" Learning rates: {self._rates}." if self.claim.trial.tried else ""
        return f"{capital(verdict)}. {numbers}, {measure.compared(effect, low, high)}.{why}{bound}{rates}"

    @property
    def _rates(self) -> str:
        return self.named([f"{rate:g}" if rate else "-" for rate in self.rates])

    @property
    def ran(self) -> str:
        """The runs that were compared, in words."""
        trial, chosen = self.claim.trial, self._rates
        if not self.made:
            runs = f"no pair yet, rates {chosen}" if any(self.rates) else "no pair yet"
            return f"{runs}{trial.note and '; '}{trial.note}"
        share = f"{trial.updates} updates ({trial.of_the_paper})"
        seeds = counted(len(self.seeds), "seed")
        count = len(trial.rates)
        if self.claim.over_rates:
            return f"{seeds} at each of {count} rates, {trial.rates[0]:g} to {trial.rates[-1]:g}; {share}"
        if trial.tried:
            rates = [trial.tried.get(arm.norm, trial.rates) for arm in self.claim.arms]
            of = self.named([" and ".join(f"{rate:g}" for rate in some) for some in rates])
            some_choice = f", chosen by the pairs from {of}" if max(map(len, rates)) > 1 else ""
            return f"{seeds}, rates {chosen}{some_choice}; {share}"
        from_grid = f", each chosen from {count}" if self.chosen and count > 1 else ""
        return f"{seeds}, rates {chosen}{from_grid}; {share}"

    @property
    def compared(self) -> str:
        """The effect with its interval, as text."""
        return self.claim.measure.compared(self.effect, *self.interval)

    def named(self, texts: Sequence[Any]) -> str:
        """Writes two texts, each after the name of its arm."""
        return ", ".join(f"{arm.name} {text}" for arm, text in zip(self.claim.arms, texts, strict=True))


def chance(effect: float, seeds: int = SEEDS) -> float:
    """Computes the chance that a difference is called *ahead*, with no margin, at the two-sided level of 5 %. `effect`:
    the true difference in standard deviations of a pair's difference."""
    from scipy import stats

    return float(stats.nct.sf(_quantile(LEVEL, seeds), seeds - 1, effect * math.sqrt(seeds)))


def _quantile(level: float, count: int) -> float:
    """Computes the quantile of Student's t for a two-sided level and a number of pairs."""
    from scipy import stats

    return float(stats.t.isf(level / 2, count - 1))


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


def counted(count: int, noun: str) -> str:
    """Writes a number with its noun."""
    return f"one {noun}" if count == 1 else f"{count} {noun}s"


def capital(text: str) -> str:
    """Writes the text with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]
