"""Every verdict on a claim computed a second time, and compared with what `docs/claims.md` prints.

    python benchmarks/verdicts.py [--results docs/results] [--page docs/claims.md]

It shares nothing with `layernorm claims` but the claims themselves: the summaries are read as plain JSON, the intervals
are SciPy's paired t test, and Holm's procedure is the closed test by Bonferroni. Printed is a line for each claim:
the verdict, the mean difference of the pairs with its 95 % interval (positive: the claim's first norm is ahead; of
updates the natural logarithm of the ratio), the number of pairs, and what the page says. The last line counts the
claims that differ; if there are any, the exit status is 1. It needs SciPy.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from scipy.integrate import trapezoid

from layernorm.experiments import catalogue

EXPERIMENTS = ("order-embeddings", "reader", "skip-thoughts", "draw", "handwriting", "mnist", "convnets")
SECTIONS = ("The paper's claims about experiments", "Claims of ours", "What hangs on a choice of ours")
PILOT = (0, 1)
PAIRS = 5
LEVEL = 0.05

Run = dict[str, Any]
Runs = dict[tuple[float, int], Run]  # by learning rate and seed


class LackError(Exception):
    """Why nothing decides a claim."""


@dataclass
class Finding:
    """What the runs say of a claim; ``why`` is empty unless nothing decides it."""

    claim: Any
    why: str = ""
    effect: float = math.nan
    low: float = -math.inf
    high: float = math.inf
    p: float = 1.0
    pairs: int = 0
    short: bool = False
    verdict: str = "undecided"


def runs_of(arm: Any, trial: Any, runs: Iterable[Run]) -> Runs:
    """The finished runs of an arm. Two of the same rate and seed end the script: the rule does not say which counts."""
    wanted = {"norm": arm.norm, "precision": "float32", **arm.options, **trial.options}
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


def curve(measure: Any, arm: Any, run: Run, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Updates, and the metric there, signed so that lower is better."""
    updates, values = (np.array(run["records"].get(name, []), dtype=float) for name in ("update", arm.prefix + metric))
    return updates, -values if measure.rising else values


def value(measure: Any, arm: Any, run: Run, metric: str) -> tuple[float, bool]:
    """A run in the claim's measure, lower is better, and whether it stayed short of a goal."""
    if diverged(run):
        return math.inf, False
    updates, values = curve(measure, arm, run, metric)
    if type(measure).__name__ != "Sooner":
        best = type(measure).__name__ == "Robustness" or measure.best
        return measure.scale * float(values.min() if best else values[-1]), False
    goal = -measure.goal if measure.rising else measure.goal
    if not (values <= goal).any():
        return math.log(updates[-1]), True
    k = int(np.argmax(values <= goal))
    return math.log(np.interp(goal, values[[k, k - 1]], updates[[k, k - 1]]) if k else updates[0]), False


def chosen_rate(measure: Any, arm: Any, trial: Any, runs: Runs) -> float:
    """The rate that is best in the pilot."""
    rates = trial.rates
    if missing := sum((rate, seed) not in runs for rate in rates for seed in PILOT):
        raise LackError(f"{missing} pilot runs of {arm.name} are missing")
    metric = measure.chosen or measure.metric
    means = [np.mean([value(measure, arm, runs[rate, seed], metric)[0] for seed in PILOT]) for rate in rates]
    best = int(np.argmin(means))
    if rates[best] in (min(rates), max(rates)):
        raise LackError(f"the best rate of {arm.name}, {rates[best]:g}, is at an end of its grid")
    return rates[best]


def at_best_rates(claim: Any, sides: Sequence[tuple[Any, Runs]]) -> tuple[list[np.ndarray], bool]:
    """For each arm the values of the paired seeds, and whether any run stayed short of the goal."""
    measure = claim.measure
    if getattr(measure, "goal", 0) is None:
        raise LackError("the goal is not fixed")
    rates = [chosen_rate(measure, arm, claim.trial, runs) for arm, runs in sides]
    told = [{s: run for (r, s), run in runs.items() if r == rate} for rate, (_, runs) in zip(rates, sides, strict=True)]
    seeds = sorted(set.intersection(*map(set, told)) - set(PILOT))
    if any(diverged(side[seed]) for side in told for seed in seeds):
        raise LackError("a run of the pairs diverged")
    table = np.array(
        [
            [value(measure, arm, side[seed], measure.metric) for seed in seeds]
            for (arm, _), side in zip(sides, told, strict=True)
        ]
    ).reshape(2, -1, 2)
    return list(table[..., 0]), bool(table[..., 1].any())


def over_rates(claim: Any, sides: Sequence[tuple[Any, Runs]]) -> list[np.ndarray]:
    """For each arm the mean height of its curve over the rates, of every seed with all rates in both arms."""
    measure, metric, rates = claim.measure, claim.measure.metric, claim.trial.rates
    firsts = [curve(measure, arm, run, metric)[1][:1] for arm, runs in sides for (r, _), run in runs.items()
              if r in rates]  # fmt: skip
    worst = measure.scale * max(np.concatenate(firsts), default=math.nan) if firsts else math.nan
    whole = [{s for _, s in runs if all((r, s) in runs for r in rates)} for _, runs in sides]
    heights = []
    for arm, runs in sides:
        table = [[value(measure, arm, runs[r, s], metric)[0] for r in rates] for s in sorted(set.intersection(*whole))]
        curves = np.array(table).reshape(-1, len(rates))
        heights.append(trapezoid(np.where(np.isinf(curves), worst, curves), axis=1) / (len(rates) - 1))
    if np.isnan(heights).any():
        raise LackError("no run has a record")
    return heights


def examine(claim: Any, runs: Sequence[Run]) -> Finding:
    """A claim by itself, before Holm's procedure."""
    sides = [(arm, runs_of(arm, claim.trial, runs)) for arm in (claim.ahead, claim.behind)]
    short = False
    try:
        if len({run["data"].get("fingerprint") for _, found in sides for run in found.values()}) > 1:
            raise LackError("the runs were made on several data sets")
        if type(claim.measure).__name__ == "Robustness":
            ahead, behind = over_rates(claim, sides)
        else:
            (ahead, behind), short = at_best_rates(claim, sides)
        if len(ahead) < PAIRS:
            raise LackError(f"{len(ahead)} pairs of {PAIRS}")
    except LackError as lack:
        return Finding(claim, str(lack))
    differences = behind - ahead
    effect = float(differences.mean())
    if np.ptp(differences) == 0:
        return Finding(claim, "", effect, effect, effect, float(effect == 0), len(ahead), short)
    test = stats.ttest_rel(behind, ahead)
    low, high = test.confidence_interval(1 - LEVEL)
    return Finding(claim, "", effect, float(low), float(high), float(test.pvalue), len(ahead), short)


def significant(ps: Sequence[float], one: int) -> bool:
    """Holm's procedure: Bonferroni's test rejects every set of the hypotheses that this one is in."""
    others = [k for k in range(len(ps)) if k != one]
    sets = itertools.chain.from_iterable(itertools.combinations(others, size) for size in range(len(ps)))
    return all(min(ps[k] for k in (one, *some)) <= LEVEL / (1 + len(some)) for some in sets)


def decide(claims: Sequence[Any], runs: Sequence[Run]) -> list[Finding]:
    """An experiment's claims with their verdicts."""
    findings = [examine(claim, runs) for claim in claims]
    for one in findings:
        family = [other for other in findings if other.claim.trial == one.claim.trial]
        margin = one.claim.measure.margin
        if one.why:
            continue
        if -margin < one.low and one.high < margin and not one.short:
            one.verdict = "equal"
        elif significant([other.p for other in family], [other is one for other in family].index(True)):
            one.verdict = f"{one.claim.ahead.name} {'ahead' if one.effect > 0 else 'behind'}"
    return findings


def cell(claim: Any) -> str:
    return f"{claim.text} *With {claim.trial.about}.*" if claim.trial.about else claim.text


def page_verdicts(page: str) -> dict[str, list[str]]:
    """The verdicts that a page prints, without their stars, by the claim's cell."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"^## ", page, flags=re.MULTILINE):
        if section.partition("\n")[0].strip() in SECTIONS:
            rows = [line for line in section.splitlines() if line.startswith("|")]
            for row in rows[2:]:
                cells = [text.strip() for text in re.split(r"(?<!\\)\|", row)[1:-1]]
                found.setdefault(cells[0], []).append(cells[2].replace("*", ""))
    return found


def line(finding: Finding, printed: str) -> str:
    one = finding
    told = one.why or f"{one.effect:.3g} ({one.low:.3g} to {one.high:.3g}), {one.pairs} pairs"
    same = "equal" if printed.casefold() == one.verdict.casefold() else "DIFFERENT"
    short = ", not all reach the goal" if one.short else ""
    return f"{cell(one.claim)} | {one.verdict} | {told}{short} | page: {printed} | {same}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", metavar="DIR", default="docs/results", help="summaries (default: docs/results)")
    parser.add_argument("--page", metavar="FILE", default="docs/claims.md", help="(default: docs/claims.md)")
    options = parser.parse_args(arguments)
    page = page_verdicts(Path(options.page).read_text(encoding="utf-8"))
    lines = []
    for name in EXPERIMENTS:
        path = Path(options.results) / name / "summary.json"
        runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
        for finding in decide(catalogue.find_experiment(name).claims, runs):
            printed = page.get(cell(finding.claim)) or ["nothing"]
            lines.append(line(finding, printed.pop(0)))
            print(lines[-1])
    for claim, rest in page.items():
        for printed in rest:
            lines.append(f"{claim} | no such claim | page: {printed} | DIFFERENT")
            print(lines[-1])
    different = sum(text.endswith("DIFFERENT") for text in lines)
    print(f"{len(lines)} claims, {len(lines) - different} equal, {different} different")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
