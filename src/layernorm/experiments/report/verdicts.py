"""Verdicts on a claim from a few seeds: a side is ahead only where its worst seed beats the other side's best."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from ..runs.folder import Run

SEEDS, RATES = 3, 3
"""The numbers of seeds on each side, and of learning rates for each norm, that a verdict needs."""

RULE = (
    f"A verdict needs {SEEDS} seeds a side, each norm at the best of {RATES} learning rates chosen on validation by "
    "the seeds that these rates share, and the worst seed of one side ahead of the best of the other; anything else "
    "is undecided."
)
"""The sentence below verdicts."""

RULE_AT_ONE_RATE = f"{RULE} Here all norms were trained at one learning rate: a verdict holds at that rate alone."
"""The same where learning rates were not compared."""


def standing(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> tuple[int, int, int]:
    """Compares pairs of values over seeds, where lower is better.

    Returns:
        at how many pairs the first side is ahead, at how many it is behind, and the number of pairs. A side is ahead
        where its worst seed beats the other side's best.
    """
    pairs = list(zip(first, second, strict=True))
    return sum(max(a) < min(b) for a, b in pairs), sum(min(a) > max(b) for a, b in pairs), len(pairs)


def order(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> str:
    """The verdict on pairs of values over seeds. Lower is better, and the paper claims that the first are lower."""
    ahead, behind, pairs = standing(first, second)
    if ahead == pairs:
        return "as the paper claims"
    if behind == pairs:
        return "against the paper's claim"
    if ahead and behind:
        return "mixed"
    no_difference = "no difference larger than the spread over seeds"
    if not ahead and not behind:
        return no_difference
    side = "as the paper claims" if ahead else "against the paper's claim"
    return f"{side} at {ahead or behind} of {pairs}, {no_difference} at the others"


def order_at_one_rate(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> str:
    """The verdict of `order` on norms that were trained at one learning rate, with a remark that says so."""
    return f"{order(first, second)} (at one learning rate)"


def verdict(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], *groups: Sequence[Run], rates: int, unit: str
) -> str:
    """The verdict of the rule on two norms: `order`, or why there is none. From one rate it holds at that rate alone.

    Args:
        first, second: pairs of values over seeds, as in `order`.
        groups, rates, unit: as in `too_little`.
    """
    if rates == 1:
        return too_little(*groups, unit=unit) or order_at_one_rate(first, second)
    return too_little(*groups, unit=unit, rates=rates) or order(first, second)


def rule(rates: int) -> str:
    """The sentence below verdicts from this number of learning rates for each norm."""
    return RULE_AT_ONE_RATE if rates == 1 else RULE


def ruled(findings: Sequence[str], rule: str = RULE) -> list[str]:
    """Findings that contain verdicts, and below them the rule. Empty if there are no findings."""
    return [*findings, rule] if findings else []


def too_little(*groups: Sequence[Run], unit: str = "epoch", rates: int | None = None) -> str | None:
    """The reason why some runs allow no verdict; None if they do.

    Args:
        groups: groups of runs that differ in the seed alone.
        unit: what a record is called.
        rates: the lowest number of learning rates that a norm was trained at; None: it does not matter.
    """
    seeds = min(len({run.config["seed"] for run in group}) for group in groups)
    lacking = [counted(seeds, "seed")] if seeds < SEEDS else []
    if rates is not None and rates < RATES:
        lacking.append(counted(rates, "learning rate"))
    if any(run.diverged is not None for group in groups for run in group):
        lacking.append("runs that diverged")
    if min(len(run.records) for group in groups for run in group) < 2:
        lacking.append(f"one {unit}")
    return f"no verdict from {' and '.join(lacking)}" if lacking else None


DECIDED = ("as the paper claims", "against the paper's claim")
"""The verdicts that decide a claim."""


def to_decide(
    between: str, verdicts: Mapping[str, str], runs: Sequence[Run], too_few: str | None, whole: float
) -> list[str]:
    """A line about the runs that would decide the open verdicts, with the hours that they take. Empty: none is open.

    Args:
        between: the two norms, in words.
        verdicts: the verdicts by what they are about, in words.
        runs: the compared runs, from whose pace the hours follow.
        too_few: what `too_little` returned for them.
        whole: the work of a run of the whole protocol, as a multiple of the work of one of these runs.
    """
    open_ones = [what for what, verdict in verdicts.items() if verdict not in DECIDED]
    if not open_ones:
        return []
    seconds = [run.records[-1]["seconds"] / _made(run) for run in runs]
    hours = 2 * (SEEDS + RATES - 1) * statistics.fmean(seconds) / 3600
    begun = f"Between {between} {' and '.join(open_ones)} would be decided by"
    each = f"{SEEDS} seeds a side at the best of {RATES} learning rates"
    if too_few:
        return [f"{begun} {each}: {hours:.1f} h at the pace of these runs."]
    return [f"{begun} the whole protocol, if at all: {each}, about {whole * hours:.2g} h at the pace of these runs."]


def _made(run: Run) -> float:
    """The share of its epochs, or updates, that a run has made."""
    record, config = run.records[-1], run.config
    return record["epoch"] / config["epochs"] if "epochs" in config else record["update"] / config["updates"]


def counted(count: int, noun: str) -> str:
    """A number with its noun."""
    return f"one {noun}" if count == 1 else f"{count} {noun}s"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The mean over seeds and, from two seeds on, the lowest and the highest value."""
    mean, low, high = (f"{value:.{digits}f}" for value in (statistics.fmean(values), min(values), max(values)))
    return mean if len(values) == 1 else f"{mean} ({low}{' to ' if min(values) < 0 else '-'}{high})"
