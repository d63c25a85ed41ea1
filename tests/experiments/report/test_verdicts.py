"""Which side is ahead over a few seeds, and what allows no verdict."""

from pathlib import Path

import pytest

from layernorm.experiments.report.verdicts import (
    RULE,
    RULE_AT_ONE_RATE,
    order,
    order_at_one_rate,
    rule,
    ruled,
    spread,
    too_little,
    verdict,
)
from layernorm.experiments.runs.folder import Run


def group(seeds, records=2, **result):
    return [Run(Path(f"s{seed}"), "any", {"seed": seed}, {}, [{}] * records, True, result) for seed in range(seeds)]


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ([[1, 2, 3]], [[4, 5, 6]], "as the paper claims"),
        ([[4, 5, 6]], [[1, 2, 3]], "against the paper's claim"),
        ([[1, 2, 4]], [[4, 5, 6]], "no difference larger than the spread over seeds"),
        ([[1, 2], [8, 9]], [[3, 4], [6, 7]], "mixed"),
        (
            [[1, 2], [1, 5]],
            [[3, 4], [3, 4]],
            "as the paper claims at 1 of 2, no difference larger than the spread over seeds at the others",
        ),
    ],
)
def test_a_side_is_ahead_where_its_worst_seed_beats_the_others_best(first, second, verdict):
    assert order(first, second) == verdict
    assert order_at_one_rate(first, second) == f"{verdict} (at one learning rate)"


@pytest.mark.parametrize(
    ("groups", "options", "reason"),
    [
        ((group(3), group(3)), {}, None),
        ((group(4), group(3)), {"rates": 3}, None),
        ((group(3), group(2)), {}, "no verdict from 2 seeds"),
        ((group(1), group(3)), {}, "no verdict from one seed"),
        ((group(3), group(3)), {"rates": 2}, "no verdict from 2 learning rates"),
        ((group(3), group(3)), {"rates": 1}, "no verdict from one learning rate"),
        ((group(3), group(3, records=1)), {"unit": "evaluation"}, "no verdict from one evaluation"),
        ((group(3), group(3, diverged=7)), {}, "no verdict from runs that diverged"),
        ((group(2), group(3, records=1)), {"rates": 1}, "no verdict from 2 seeds and one learning rate and one epoch"),
    ],
)
def test_what_allows_no_verdict(groups, options, reason):
    assert too_little(*groups, **options) == reason


def test_the_rule_follows_findings_and_stands_nowhere_else():
    assert ruled(["a", "b"]) == ["a", "b", RULE]
    assert ruled(["a"], RULE_AT_ONE_RATE) == ["a", RULE_AT_ONE_RATE]
    assert ruled([]) == []
    for part in ("3 seeds a side", "best of 3 learning rates", "undecided"):
        assert part in RULE


@pytest.mark.parametrize(
    ("values", "text"), [([1.5], "1.50"), ([1, 2, 6], "3.00 (1.00-6.00)"), ([-2, 1], "-0.50 (-2.00 to 1.00)")]
)
def test_the_mean_with_its_range(values, text):
    assert spread(values) == text


@pytest.mark.parametrize(
    ("seeds", "rates", "said"),
    [
        (3, 3, "as the paper claims"),
        (3, 1, "as the paper claims (at one learning rate)"),
        (3, 2, "no verdict from 2 learning rates"),
        (2, 1, "no verdict from 2 seeds"),
        (2, 3, "no verdict from 2 seeds"),
    ],
)
def test_the_rule_as_a_whole(seeds, rates, said):
    assert verdict([[1, 2]], [[3, 4]], group(seeds), group(3), rates=rates, unit="epoch") == said
    assert rule(rates) == (RULE_AT_ONE_RATE if rates == 1 else RULE)
