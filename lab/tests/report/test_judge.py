"""The judge: its verdicts on runs whose values are given, its error rates in a simulation, and its mirror."""

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from layernorm_lab.report import judge
from layernorm_lab.report.judge import (
    AHEAD,
    BEHIND,
    EQUAL,
    PILOT_SEEDS,
    TRIAL_SEEDS,
    UNDECIDED,
    Arm,
    Claim,
    Robustness,
    Trial,
    UpdatesToGoal,
    Value,
    decide,
)
from layernorm_lab.report.page import Figure, Report
from layernorm_lab.report.verdicts import with_verdicts
from layernorm_lab.runs.folder import Run

RATES = (0.001, 0.002, 0.004)
TRIAL = Trial({"units": 3}, RATES, updates=30, paper=3000)
LAYER, NONE = Arm("layer"), Arm("none")
LOSS = Claim("It ends lower.", "7", LAYER, NONE, Value("loss", "the loss", margin=0.05), TRIAL)
SPEED = dataclasses.replace(LOSS, measure=UpdatesToGoal("loss", "a loss", goal=0.5))
GRID = dataclasses.replace(LOSS, measure=Robustness("loss", "the mean of the best loss", margin=0.05))
SPREAD = (0.0, 0.01, -0.01, 0.02, -0.02)
"""By how much the seeds of a trial differ."""


def run(norm, rate, seed, *losses, diverged=None, **options):
    """A finished run with these losses after 10, 20, ... updates."""
    config = {"norm": norm, "learning_rate": rate, "seed": seed, "units": 3, "precision": "float32", **options}
    records = [{"update": 10 * place, "loss": loss, "seconds": 36.0} for place, loss in enumerate(losses, 1)]
    result = {"update": 10 * len(losses), **({"diverged": diverged} if diverged else {})}
    return Run(Path(f"{norm}-{rate}-{seed}"), "toy", config, {"data": {}, "starts": []}, records, True, result)


def pilot(norm, best=0.002, low=0.3):
    """The pilot of an arm whose best rate is `best`."""
    return [run(norm, rate, seed, 1.0, 0.6, low + (rate != best)) for rate in RATES for seed in PILOT_SEEDS]


def trial(layer, none, spread=SPREAD, pilots=True):
    """A whole trial, whose runs end at these losses, differently for each seed."""
    runs = [*pilot("layer"), *pilot("none")] if pilots else []
    for seed, change in zip(TRIAL_SEEDS, spread, strict=True):
        runs += [run("layer", 0.002, seed, 1.0, 0.6, layer + change), run("none", 0.002, seed, 1.0, 0.6, none)]
    return runs


def verdict(claim, runs):
    (ruling,) = decide([claim], runs)
    return ruling.verdict


@pytest.mark.parametrize(
    ("layer", "none", "expected"),
    [(0.1, 0.3, AHEAD), (0.3, 0.1, BEHIND), (0.3, 0.31, EQUAL), (0.3, 0.325, EQUAL), (0.3, 0.345, AHEAD)],
)
def test_the_verdict_follows_from_the_values(layer, none, expected):
    assert verdict(LOSS, trial(layer, none)) == expected


def test_the_rule_has_no_side():
    """With the arms exchanged the effect, the interval and the verdict are mirrored."""
    turned = dataclasses.replace(LOSS, ahead=NONE, behind=LAYER)
    mirror = {AHEAD: BEHIND, BEHIND: AHEAD, EQUAL: EQUAL, UNDECIDED: UNDECIDED}
    for layer, spread in itertools.product((0.1, 0.25, 0.29, 0.31, 0.35, 0.5), (SPREAD, [10 * s for s in SPREAD])):
        runs = trial(layer, 0.3, spread)
        (one,), (other,) = decide([LOSS], runs), decide([turned], runs)
        assert other.verdict == mirror[one.verdict]
        assert other.effect == pytest.approx(-one.effect)
        assert other.interval == pytest.approx([-end for end in reversed(one.interval)])
        assert one.p == other.p


def test_a_wide_spread_is_undecided():
    (ruling,) = decide([LOSS], trial(0.2, 0.3, [10 * s for s in SPREAD]))
    assert ruling.verdict == UNDECIDED


def test_the_interval_and_the_chance_are_those_of_the_paired_t_test():
    (ruling,) = decide([LOSS], trial(0.27, 0.3))
    ours, theirs = zip(*ruling.pairs.values(), strict=True)
    test = stats.ttest_rel(theirs, ours)
    assert ruling.p == pytest.approx(test.pvalue)
    assert ruling.interval == pytest.approx(tuple(test.confidence_interval(0.95)))


def test_the_pilot_chooses_the_rate_and_counts_in_no_comparison():
    runs = [*pilot("layer", best=0.002, low=0.0), *pilot("none", best=0.002, low=0.9), *trial(0.3, 0.3, pilots=False)]
    (ruling,) = decide([LOSS], runs)
    assert ruling.rates == (0.002, 0.002)
    assert set(ruling.pairs) == set(TRIAL_SEEDS)
    assert ruling.verdict == EQUAL


def test_a_grid_of_one_rate_needs_no_pilot():
    own = dataclasses.replace(LOSS, trial=dataclasses.replace(TRIAL, rates=(0.002,), paper=30))
    (ruling,) = decide([own], trial(0.1, 0.3, pilots=False))
    assert (ruling.verdict, ruling.lacking, ruling.open) == (AHEAD, (), False)
    assert "rates layer norm 0.002, baseline 0.002; 30 updates (100 % of the paper's)" in ruling.ran
    assert judge.best_rate(own, LAYER, []) == 0.002


def test_a_run_that_diverged_may_count_with_a_value():
    runs = trial(0.1, 0.3)
    runs[-2] = run("layer", 0.002, TRIAL_SEEDS[-1], diverged=10)
    assert "diverged" in decide([LOSS], runs)[0].lacking[0]
    counted = dataclasses.replace(LOSS, measure=dataclasses.replace(LOSS.measure, lost=0.7))
    (ruling,) = decide([counted], runs)
    assert (ruling.lacking, ruling.pairs[TRIAL_SEEDS[-1]]) == ((), (0.7, 0.3))


def test_the_mean_of_the_last_evaluations_may_count():
    ended = run("layer", 0.002, 10, 1.0, 0.6, 0.2)
    assert Value("loss", "loss", last=2, scale=10).value(ended, "loss") == pytest.approx(4.0)
    assert Value("loss", "loss", last=2, rising=True).value(ended, "loss") == pytest.approx(-0.4)


def test_the_rate_is_chosen_by_the_measure_of_the_claim():
    """At 0.002 the loss ends lower, at 0.004 it is sooner at the goal."""
    curves = {0.001: (1.0, 0.9, 0.8), 0.002: (1.0, 0.9, 0.1), 0.004: (0.4, 0.4, 0.4), 0.008: (1.0, 0.9, 0.8)}
    wide = dataclasses.replace(TRIAL, rates=tuple(curves))
    runs = [run(norm, rate, seed, *line) for norm in ("layer", "none") for rate, line in curves.items()
            for seed in PILOT_SEEDS]  # fmt: skip
    first, second = decide([dataclasses.replace(LOSS, trial=wide), dataclasses.replace(SPEED, trial=wide)], runs)
    assert first.rates == (0.002, 0.002)
    assert second.rates == (0.004, 0.004)


def test_a_metric_on_test_data_is_chosen_by_one_on_validation_data():
    claim = dataclasses.replace(LOSS, measure=Value("test", "the test loss", chosen=Value("loss", "loss")))
    runs = [
        dataclasses.replace(item, records=[{**record, "test": item.config["learning_rate"]} for record in item.records])
        for item in trial(0.1, 0.3)
    ]
    assert decide([claim], runs)[0].rates == (0.002, 0.002)


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ([], "6 of 6 pilot runs with layer norm, 6 of 6 pilot runs with baseline, 5 of 5 paired seeds"),
        (trial(0.1, 0.3)[1:], "1 of 6 pilot runs with layer norm"),
        (trial(0.1, 0.3)[:-1], "1 of 5 paired seeds"),
        (
            [*pilot("layer", best=0.004), *trial(0.1, 0.3)[6:]],
            "a rate inside the grid: layer norm is best at the highest, 0.004, 5 of 5 paired seeds",
        ),
        (
            [*trial(0.1, 0.3)[:-2], run("layer", 0.002, 14, 1.0, 0.2, diverged=20), run("none", 0.002, 14, 1.0, 0.2)],
            "a value of seed 14: layer norm diverged",
        ),
    ],
)
def test_what_is_lacking_is_named_and_nothing_is_decided(runs, why):
    (ruling,) = decide([LOSS], runs)
    assert ruling.verdict == UNDECIDED
    assert ruling.effect_text.endswith(f"lacking: {why}")
    assert ruling.open != ("diverged" in why)  # another seed would not decide


def test_runs_on_another_data_set_decide_nothing():
    runs = trial(0.1, 0.3)
    runs[-1] = dataclasses.replace(runs[-1], environment={"data": {"fingerprint": "another"}, "starts": []})
    for claim in (LOSS, GRID):
        (ruling,) = decide([claim], runs)
        assert ruling.lacking[0] == "one data set: the runs were made on 2"


def test_two_runs_of_one_rate_and_seed_decide_nothing():
    runs = [*trial(0.1, 0.3), run("none", 0.002, 10, 1.0, 0.6, 5.0, gain_init=0.3)]
    for claim in (LOSS, GRID):
        (ruling,) = decide([claim], runs)
        assert ruling.verdict == UNDECIDED
        assert (
            ruling.lacking[0] == "one run of baseline at 0.002 with seed 10: there are none-0.002-10 and none-0.002-10"
        )


def test_runs_of_other_options_and_unfinished_runs_do_not_count():
    others = [run("layer", 0.002, seed, 1.0, 0.6, -5.0, units=4) for seed in TRIAL_SEEDS]
    others += [run("layer", 0.002, seed, 1.0, 0.6, -5.0, precision="bf16") for seed in TRIAL_SEEDS]
    open_runs = [dataclasses.replace(run("layer", 0.002, 15, 1.0), done=False), run("none", 0.002, 15, 1.0, 0.6, 0.3)]
    assert decide([LOSS], [*trial(0.1, 0.3), *others, *open_runs]) == decide([LOSS], trial(0.1, 0.3))


def test_speed_is_the_ratio_of_updates_on_the_line_between_evaluations():
    """From 0.6 to 0.1 the goal of 0.5 is passed after 22 updates, from 0.6 to 0.4 after 25."""
    (ruling,) = decide([SPEED], trial(0.1, 0.4, [0.0, 0.001, -0.001, 0.002, -0.002]))
    assert ruling.effect == pytest.approx(math.log(25 / 22), rel=1e-3)
    assert ruling.verdict == AHEAD
    assert "updates to a loss of 0.5: layer norm 22, baseline 25; 1.14 times as fast (1.1" in ruling.effect_text


def test_a_run_that_does_not_reach_the_goal_is_a_bound_and_never_equal():
    (ruling,) = decide([SPEED], trial(0.1, 0.55))
    assert ruling.short == (0, 5)
    assert ruling.verdict == AHEAD
    assert [round(math.exp(value)) for value in ruling.means] == [22, 30]
    assert "never there: layer norm 0, baseline 5 runs, so that the number is too low" in ruling.effect_text
    (both,) = decide([SPEED], trial(0.55, 0.55, [0.0, 0.0, 0.0, 0.0, 0.01]))
    assert (both.effect, both.short, both.verdict) == (0.0, (5, 5), UNDECIDED)
    assert both.skew == 0
    assert "never there: layer norm 5, baseline 5 runs; margin" in both.effect_text
    (slow,) = decide([SPEED], trial(0.55, 0.1))
    assert "never there: layer norm 5, baseline 0 runs, so that the number is too high" in slow.effect_text


def test_an_effect_has_the_word_of_its_sign():
    assert decide([LOSS], trial(0.3, 0.1))[0].compared == "higher by 0.20 (0.18 to 0.22)"
    recall = Value("loss", "the recall", margin=0.05, rising=True)
    assert recall.compared(-0.2, -0.3, -0.1) == "lower by 0.20 (0.10 to 0.30)"


def test_higher_may_be_better():
    measure = Value("loss", "the recall", margin=0.05, rising=True)
    runs = [dataclasses.replace(item, records=[{**record, "loss": -record["loss"]} for record in item.records])
            for item in trial(0.1, 0.3)]  # fmt: skip
    (ruling,) = decide([dataclasses.replace(LOSS, measure=measure)], runs)
    assert ruling.verdict == AHEAD
    assert "the recall: layer norm -0.10, baseline -0.30; higher by 0.20" in ruling.effect_text


def test_holm_over_the_claims_of_a_trial():
    """Chances of 0.02 and 0.04: alone both are below 5 %, together the second one is compared with 5 % and the first
    with 2.5 %; with a third claim that lacks runs none is decided."""
    other = dataclasses.replace(
        LOSS, text="Another.", measure=Value("second", "the second", margin=0.0, chosen=Value("loss", "loss"))
    )
    narrow = dataclasses.replace(LOSS, measure=Value("loss", "the loss", margin=0.0))
    runs = []
    for item in trial(0.0, 0.0, [0.0] * 5):
        seed, first = item.config["seed"], item.config["norm"] == "layer"
        place = TRIAL_SEEDS.index(seed) if seed in TRIAL_SEEDS else 0
        shift = first and seed in TRIAL_SEEDS
        values = [
            {
                **record,
                "loss": record["loss"] - shift * _sample(0.02)[place],
                "second": -shift * _sample(0.04)[place],
            }
            for record in item.records
        ]
        runs.append(dataclasses.replace(item, records=values))
    apart = dataclasses.replace(other, trial=dataclasses.replace(TRIAL, about="x"))
    for claims, expected in (
        ([narrow], [AHEAD]),
        ([other], [AHEAD]),
        ([narrow, other], [AHEAD, AHEAD]),
        ([other, narrow, dataclasses.replace(GRID, text="Third.")], [UNDECIDED, UNDECIDED, UNDECIDED]),
        ([narrow, apart, GRID], [AHEAD, AHEAD, UNDECIDED]),
    ):
        assert [ruling.verdict for ruling in decide(claims, runs)] == expected


def reasons(claims, runs):
    """The reasons of the rulings, which stand in every text about them."""
    rulings = decide(claims, runs)
    for ruling in rulings:
        assert bool(ruling.reason) == (ruling.verdict == UNDECIDED)
        assert ruling.plain.count("Undecided, as") == bool(ruling.reason)
        if ruling.reason:
            assert f" Undecided, as {ruling.reason}." in ruling.plain
            assert ruling.lacking or ruling.effect_text.endswith(f"; undecided, as {ruling.reason}")
    return [ruling.reason for ruling in rulings]


def test_undecided_has_its_reason():
    margin = dataclasses.replace(LOSS, measure=Value("loss", "the loss", margin=0.0))
    assert reasons([LOSS], trial(0.1, 0.3)) == [""]
    assert reasons([LOSS], trial(0.2, 0.3, [10 * s for s in SPREAD])) == [
        "the interval allows for no difference, and for more than the margin of 0.05"
    ]
    assert reasons([LOSS], trial(0.1, 0.3)[:-1]) == ["these runs lack 1 of 5 paired seeds"]
    assert reasons([SPEED], trial(0.55, 0.55, [0.0, 0.0, 0.0, 0.0, 0.01])) == [
        "some of the numbers are bounds, so that it cannot be called equal"
    ]
    # five equal differences: the chance of five equal signs
    assert reasons([margin], trial(0.1, 0.3, [0.0] * 5)) == [
        "the rule asks for a chance of at most 5 %, and that of this difference is 6.2 %"
    ]


def test_undecided_by_holms_procedure_or_at_the_first_look_says_so():
    """Both intervals leave out 0: the chances are 4 % and 3 %, of which two claims share 5 %."""
    first, second = (dataclasses.replace(LOSS, text=name, measure=Value(name, name, margin=0.0, chosen=LOSS.measure))
                     for name in ("first", "second"))  # fmt: skip
    runs = [
        dataclasses.replace(item, records=[
            {**record, **{name: -(item.config["norm"] == "layer") * _sample(chance)[item.config["seed"] % 10 % 5]
                          for name, chance in (("first", 0.04), ("second", 0.03))}} for record in item.records])
        for item in trial(0.0, 0.0, [0.0] * 5)
    ]  # fmt: skip
    for ruling in decide([first, second], runs):
        assert ruling.interval[0] > 0
    assert reasons([first, second], runs) == [
        "Holm's procedure over the 2 claims of this trial ends at another one before it comes to this one",
        "Holm's procedure over the 2 claims of this trial asks for a chance of at most 2.5 %, and that of this "
        "difference is 3 %",
    ]
    plan = judge.Plan(rungs=(judge.Rung(),), seeds=tuple(range(10, 20)), looks=(5, 10))
    looked = dataclasses.replace(second, trial=dataclasses.replace(TRIAL, plan=plan))
    assert reasons([looked], runs) == [
        "the rule, at the look after 5 of 10 pairs, asks for a chance of at most 2 %, and that of this difference is "
        "3 %"
    ]


def _sample(chance):
    """Five numbers whose mean differs from 0 with this two-sided chance."""
    base = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    mean = stats.t.isf(chance / 2, 4) * base.std(ddof=1) / math.sqrt(5)
    return base + mean


def test_robustness_is_the_area_over_the_whole_grid():
    """Best losses 0.1, 0.3, 0.2 over three rates: the trapezoids have the heights 0.2 and 0.25."""
    lows = {"layer": (0.1, 0.3, 0.2), "none": (0.2, 0.4, 0.3)}
    runs = [
        run(norm, rate, seed, 1.0, low, 0.9)
        for norm in lows
        for rate, low in zip(RATES, lows[norm], strict=True)
        for seed in (*PILOT_SEEDS, 10, 11, 12)
    ]
    (ruling,) = decide([GRID], runs)
    assert ruling.pairs == {seed: pytest.approx((0.225, 0.325)) for seed in (0, 1, 10, 11, 12)}
    assert (ruling.p, ruling.verdict) == (1 / 16, UNDECIDED)  # five equal differences: the chance of five equal signs
    (fewer,) = decide([GRID], runs[1:])
    assert fewer.lacking == ("1 of 5 seeds with all rates",)
    assert fewer.open


def test_a_run_that_diverged_has_the_worst_start_in_the_area():
    runs = [run(norm, rate, seed, 1.0, 0.2) for norm in ("layer", "none") for rate in RATES for seed in range(5)]
    runs[-1] = run("none", RATES[-1], 4, 1.0, 0.1, diverged=20)
    (ruling,) = decide([GRID], runs)
    assert ruling.pairs[4] == pytest.approx((0.2, 0.4))


def test_runs_that_diverge_at_once_decide_nothing():
    runs = [dataclasses.replace(item, records=[], result={"diverged": 10}) for item in trial(0.1, 0.3)]
    runs += [dataclasses.replace(run(norm, rate, 10), result={"diverged": 10}) for norm in ("layer", "none") for rate in
             (0.001, 0.004)]  # fmt: skip
    first, over_rates = decide([LOSS, GRID], runs)
    assert first.lacking[0].startswith("a pilot in which the rates of layer norm differ: all diverged")
    assert over_rates.lacking[0] == "a run that did not diverge at once"
    assert over_rates.pairs == {}


def test_exact_statistics_are_an_arm_of_their_own():
    claim = dataclasses.replace(LOSS, behind=Arm("batch", prefix="exact_"))
    runs = [
        dataclasses.replace(
            item,
            config={**item.config, "norm": "batch" if item.config["norm"] == "none" else "layer"},
            records=[{**record, "exact_loss": record["loss"] - 0.25} for record in item.records],
        )
        for item in trial(0.1, 0.3)
    ]
    (ruling,) = decide([claim], runs)
    assert ruling.verdict == BEHIND
    assert ruling.effect_text.startswith("the loss: layer norm 0.10, batch norm, exact statistics 0.05")


@pytest.mark.parametrize("count", [400, pytest.param(1500, marks=pytest.mark.long)])
def test_the_error_rates_are_as_promised(count):
    """Simulated trials with equal arms, and with a difference of 2 deviations of a pair's difference.

    Two rates inside the grid do not differ, so that the pilot chooses one of them at random, which must not matter.
    The shares differ from what `chance` computes by 3 standard errors of the simulation at most.
    """
    generator = np.random.default_rng(0)
    narrow = dataclasses.replace(LOSS, measure=Value("loss", "the loss", margin=0.0))
    rates = (0.0005, 0.001, 0.002, 0.004)
    narrow = dataclasses.replace(narrow, trial=dataclasses.replace(TRIAL, rates=rates, updates=10))
    for effect in (0.0, 2.0):
        ahead = behind = 0
        for _ in range(count):
            runs = [run(norm, rate, seed, generator.normal() + (rate in (rates[0], rates[-1])) * 99)
                    for norm in ("layer", "none") for rate in rates for seed in PILOT_SEEDS]  # fmt: skip
            for seed in TRIAL_SEEDS:
                shared = generator.normal()  # both arms' own parts have the deviation 1, their difference sqrt(2)
                for rate, (norm, shift) in itertools.product(rates[1:-1], (("layer", effect), ("none", 0.0))):
                    runs.append(run(norm, rate, seed, shared + generator.normal() - shift * math.sqrt(2)))
            said = verdict(narrow, runs)
            ahead, behind = ahead + (said == AHEAD), behind + (said == BEHIND)
        expected = [judge.chance(effect), judge.chance(-effect)]
        for found, wanted in zip((ahead / count, behind / count), expected, strict=True):
            assert abs(found - wanted) < 3 * math.sqrt(wanted * (1 - wanted) / count) + 1e-3
    assert judge.chance(0.0) == pytest.approx(0.025)


FIGURES = [
    Figure("curves", "Curves.", [], metrics=["other", "loss"]),
    Figure("first", "More curves.", [], metrics=["error"]),
    Figure("sensitivity", "Rates.", []),
    Figure("units", "Units.", []),
]


def reported(claims, runs, figures=FIGURES):
    return with_verdicts(Report("", "", ["They differ."], [], figures, [], []), claims, runs)


def test_a_report_says_its_verdicts_above_their_figure_and_the_rule_below_it():
    report = reported([LOSS, dataclasses.replace(LOSS, behind=Arm("batch"))], trial(0.1, 0.3))
    curves, *others = report.figures
    assert curves.says == [
        "Layer norm is ahead of the baseline. The loss: 0.10 against 0.30, lower by 0.20 (0.18 to 0.22)."
    ]
    assert curves.rule == judge.RULE
    assert others == FIGURES[1:]
    assert report.verdicts == [  # there are no runs of batch norm
        "It ends lower. Verdict: ahead. 5 seeds, rates layer norm 0.002, baseline 0.002, each chosen from 3; 30 "
        "updates (1 % of the paper's). The loss: layer norm 0.10, baseline 0.30; lower by 0.20 (0.18 to 0.22); margin "
        "0.05; with each seed's rates chosen by the other seeds: lower by 0.14 (0.05 to 0.23), 7 seeds."
    ]
    assert report.findings == ["They differ."]
    assert reported([LOSS], []).figures == FIGURES


def test_the_better_arm_is_named_first():
    worse, alike = reported([LOSS], trial(0.3, 0.1)), reported([LOSS], trial(0.1, 0.1))
    assert worse.figures[0].says == [
        "The baseline is ahead of layer norm. The loss: 0.10 against 0.30, lower by 0.20 (0.18 to 0.22)."
    ]
    assert alike.figures[0].says[0].startswith("Layer norm and the baseline are equal. The loss: 0.10 against 0.10, ")
    few = reported([LOSS], [run for run in trial(0.3, 0.1) if run.config["seed"] not in TRIAL_SEEDS[3:]])
    assert few.figures[0].says[0].startswith("It is undecided whether the baseline is ahead of layer norm. The loss: ")
    apart = dataclasses.replace(LOSS, trial=dataclasses.replace(TRIAL, about="larger weights"))
    assert reported([apart], trial(0.1, 0.3)).figures[0].says[0].startswith("With larger weights: layer norm is ahead ")


def test_runs_that_never_came_to_the_goal_are_told():
    """The baseline's runs end above the goal of 0.5."""
    (said,) = reported([SPEED], trial(0.1, 0.55)).figures[0].says
    assert said.endswith(" Never came there: 5 of 5 runs of the baseline. The number is too low.")
    (said,) = reported([SPEED], trial(0.55, 0.1)).figures[0].says
    assert "whether the baseline is ahead of layer norm. Updates to a loss of 0.5: 22 against 30, " in said
    assert said.endswith(" Never came there: 5 of 5 runs of layer norm. The number is too low.")


def test_a_verdict_over_all_rates_stands_above_the_figure_of_the_rates():
    runs = [run(norm, rate, seed, 1.0, 0.6, value + 0.001 * seed * (norm == "none")) for norm, value in
            (("layer", 0.1), ("none", 0.3)) for rate in RATES for seed in (*PILOT_SEEDS, *TRIAL_SEEDS)]  # fmt: skip
    rates = reported([GRID], runs).figures[2]
    assert rates.says[0].startswith("Layer norm is ahead of the baseline. ")
    assert rates.rule == judge.RULE_OVER_RATES
    assert reported([GRID], runs, FIGURES[:1]).figures[0].says == rates.says
    assert reported([GRID], runs, []).findings == [*rates.says, "They differ."]


def test_claims_that_these_runs_are_no_trial_of_are_one_sentence():
    assert reported([LOSS, SPEED, GRID], trial(0.1, 0.3, pilots=False)[:2]).findings == [
        "3 claims are undecided, as these runs are not their trial; `layernorm claims` says what is missing.",
        "They differ.",
    ]
    of_one_pair = dataclasses.replace(LOSS, trial=dataclasses.replace(TRIAL, pilot=(*PILOT_SEEDS, *TRIAL_SEEDS[1:])))
    report = reported([LOSS, of_one_pair], trial(0.1, 0.3))
    assert len(report.verdicts) == 1
    assert report.findings[0].startswith("One claim is undecided, as these runs are not its trial; ")
