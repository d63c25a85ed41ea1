"""The judge by the rule of 2026-11-25: rungs, smooth scores, goals by formula, looks, the check; and runs that it
refuses. Expected values are worked out by hand."""

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from layernorm_lab.report import summary
from layernorm_lab.report.judge import (
    AHEAD,
    BEHIND,
    EQUAL,
    UNDECIDED,
    Arm,
    Claim,
    Kept,
    NearBest,
    Plan,
    Robustness,
    Rung,
    Summed,
    Trial,
    UpdatesToGoal,
    Value,
    decide,
    simulated_error,
)
from layernorm_lab.runs.folder import Run

RATES = (0.001, 0.002, 0.004, 0.008)
LAYER, NONE = Arm("layer"), Arm("none")
PLAN = Plan(seeds=tuple(range(20, 30)), looks=(5, 10))
TRIAL = Trial({"units": 3}, RATES, updates=30, paper=3000, plan=PLAN)
LOSS = Claim("It ends lower.", "7", LAYER, NONE, Value("loss", "the loss", margin=0.05), TRIAL)
CHOSEN = Value("loss", "the loss", best=True)


def run(norm, rate, seed, *losses, diverged=None, result=(), step=10, **options):
    """A finished run with these losses after `step`, 2 `step`, ... updates."""
    config = {"norm": norm, "learning_rate": rate, "seed": seed, "units": 3, "precision": "float32", **options}
    records = [{"update": step * k, "loss": loss, "seconds": 36.0} for k, loss in enumerate(losses, 1)]
    ended = {
        "update": step * len(losses),
        "records": len(losses),
        **dict(result),
        **({"diverged": diverged} if diverged else {}),
    }
    environment = {"data": {}, "starts": [{}]}
    return Run(Path(f"{norm}-{rate}-{seed}"), "toy", config, environment, records, True, ended)


def pilot(norm, scores=(0.9, 0.5, 0.6, 0.9), rates=RATES, seeds=(0, 1)):
    return [run(norm, rate, seed, 1.0, 0.9, score) for rate, score in zip(rates, scores, strict=True) for seed in seeds]


def pairs(layer, none, rate=0.002, seeds=PLAN.seeds):
    """Pairs whose runs end at these losses."""
    runs = []
    for seed, one, two in zip(seeds, layer, none, strict=False):
        runs += [run("layer", rate, seed, 1.0, 0.9, one), run("none", rate, seed, 1.0, 0.9, two)]
    return runs


PILOTS = [*pilot("layer"), *pilot("none")]
SPREAD = np.array([0.0, 0.01, -0.01, 0.02, -0.02, 0.015, -0.015, 0.005, -0.005, 0.0])


def one(claim, runs):
    return decide([claim], runs)[0]


def with_p(p, count=5, deviation=0.02):
    """Numbers whose mean differs from 0 with this two-sided chance."""
    base = np.linspace(-1, 1, count)
    base *= deviation / base.std(ddof=1)
    return base + stats.t.isf(p / 2, count - 1) * deviation / math.sqrt(count)


def test_a_rate_is_chosen_by_the_mean_over_itself_and_its_neighbours():
    """0.002 has the best score by itself, but a bad neighbour: 0.002 has (0.9 + 0.5 + 0.55) / 3, 0.004 the means of
    0.5, 0.55 and 0.6. The ends have no such mean: 0.008, with 0.55 and 0.6 alone, would be second."""
    runs = [*pilot("layer", (0.9, 0.5, 0.55, 0.6)), *pilot("none", (0.6, 0.5, 0.6, 0.9))]
    assert one(LOSS, runs).rates == (0.004, 0.002)


def test_of_equal_smooth_scores_the_lower_rate_is_taken_whatever_the_rates_own():
    assert one(LOSS, [*pilot("layer", (3, 2, 1, 3)), *pilot("none")]).rates[0] == 0.002  # both are 2


def test_halving_keeps_rates_and_the_last_two_are_compared_by_themselves():
    plan = dataclasses.replace(PLAN, rungs=(Rung({"epochs": 1}, keep=2), Rung()))
    claim = dataclasses.replace(LOSS, trial=dataclasses.replace(TRIAL, options={"epochs": 4}, plan=plan))

    def first(norm):  # keeps 0.002 and 0.004
        return [dataclasses.replace(item, config={**item.config, "epochs": 1}) for item in pilot(norm)]

    def second(norm, scores):
        some = pilot(norm, scores, RATES[1:3])
        return [dataclasses.replace(item, config={**item.config, "epochs": 4}) for item in some]

    firsts = [*first("layer"), *first("none")]
    lacking = one(claim, firsts)
    assert lacking.lacking[:2] == (
        "4 of 4 pilot runs of rung 2 with layer norm",
        "4 of 4 pilot runs of rung 2 with baseline",
    )
    whole = one(claim, [*firsts, *second("layer", (0.4, 0.3)), *second("none", (0.3, 0.4))])
    assert whole.rates == (0.004, 0.002)
    fewer = one(claim, firsts[1:])
    assert fewer.lacking[0] == "1 of 8 pilot runs of rung 1 with layer norm"


@pytest.mark.parametrize(
    ("scores", "end"), [((0.4, 0.5, 0.6, 0.9), "lowest, 0.001"), ((0.9, 0.6, 0.5, 0.4), "highest, 0.008")]
)
def test_a_best_rate_at_an_end_lacks_a_rate_inside(scores, end):
    ruling = one(LOSS, [*pilot("layer", scores), *pilot("none")])
    assert ruling.lacking[0] == f"a rate inside the grid: layer norm is best at the {end}"
    assert ruling.open


def test_goals_are_shares_of_the_fall_of_the_baselines_pilot():
    """The baseline's pilot falls from 1.0 to 0.5, so that the goals are 0.875, 0.75 and 0.625. Straight lines from
    (10, 1.0) over (20, 0.9) to (30, 0.5) reach 0.75 at 23.75, to (30, 0.1) at 21.875."""
    claim = dataclasses.replace(LOSS, measure=UpdatesToGoal("loss", "a loss", chosen=CHOSEN))
    ruling = one(claim, [*PILOTS, *pairs(0.1 + SPREAD, 0.5 + 0 * SPREAD)])
    assert ruling.claim.measure.goal == pytest.approx(0.75)
    assert [item.claim.measure.goal for item in ruling.others] == pytest.approx([0.875, 0.625])
    assert ruling.effect == pytest.approx(math.log(23.75 / 21.875), abs=2e-3)
    assert (ruling.verdict, len(ruling.seeds)) == (EQUAL, 5)
    assert "updates to a loss of 0.75: layer norm 22, baseline 24; 1.09 times as fast" in ruling.effect_text
    assert "; at 0.875: " in ruling.effect_text
    assert "; at 0.625: " in ruling.effect_text
    assert "margin 10 % of the updates" in ruling.effect_text
    assert one(claim, pairs(0.1 + SPREAD, 0.5 + SPREAD)).pairs == {}  # no pilot, no goal


def test_goals_of_a_loss_that_falls_over_powers_of_ten_and_of_a_rising_recall():
    curves = [[-10.0, -60.0, -90.0], [-20.0, -70.0, -110.0]]  # as `values` returns a rising metric
    rising = UpdatesToGoal("recall", "a recall", rising=True).with_goal(0.25, curves)
    assert rising.goal == pytest.approx(15 + 0.25 * 85)
    falling, it = UpdatesToGoal("loss", "a loss", log=True), run("none", 0.002, 0, 1.0, 1e-4, 2e-4)
    fallen = falling.with_goal(0.5, [falling.values(it, "loss")])
    assert fallen.goal == pytest.approx(1e-2)
    assert fallen.value(it, "loss") == pytest.approx(math.log(15)), "on the line between logarithms"
    ended = run("none", 0.002, 0, 1e-1, 0.0)
    assert falling.with_goal(0.5, [falling.values(ended, "loss")]).goal == pytest.approx(1e-4), "0 counts as 1e-7"


def test_near_best_is_on_the_line_to_a_share_of_the_runs_own_best_value():
    """The best recall is 100, of which 98 % lie on the line from 50 after 10 updates to 100 after 20: at 19.6. Of a
    single evaluation it is that one."""
    measure = NearBest("loss", "updates to 98 % of the best")
    assert measure.value(run("none", 0.002, 0, 50.0, 100.0, 99.0), "loss") == pytest.approx(math.log(19.6))
    assert measure.value(run("none", 0.002, 0, 50.0), "loss") == pytest.approx(math.log(10))


def test_a_shorter_pilot_leaves_the_goals_to_the_baselines_runs_of_the_first_look():
    """The pilot's runs of two evaluations fall from 1.0 to 0.9, the pairs' baselines from 1.0 to 0.5: the goal is 0.75,
    reached at 23.75. Seed 15 is on no list and counts nowhere. There is no check, as no pair has a rate to choose."""
    plan = dataclasses.replace(PLAN, rungs=(Rung({"epochs": 1}),), looks=(5, 10))
    trial = dataclasses.replace(TRIAL, options={"epochs": 3}, plan=plan)
    claim = dataclasses.replace(LOSS, trial=trial, measure=UpdatesToGoal("loss", "a loss", chosen=CHOSEN))
    short = [run(item.config["norm"], item.config["learning_rate"], item.config["seed"], 1.0,
                 item.records[-1]["loss"] + 0.4, epochs=1) for item in PILOTS]  # fmt: skip
    whole = [dataclasses.replace(item, config={**item.config, "epochs": 3})
             for item in pairs(0.1 + SPREAD, 0.5 + 0 * SPREAD, seeds=(15, *PLAN.seeds))]  # fmt: skip
    ruling = one(claim, [*short, *whole])
    assert ruling.claim.measure.goal == pytest.approx(0.75)
    assert (ruling.seeds, ruling.check) == ([20, 21, 22, 23, 24], None)
    some = [item for item in whole if item.config["seed"] not in (24, 25, 26, 27, 28, 29)]
    begun = one(claim, [*short, *some])
    assert begun.lacking == ("1 of 5 paired seeds",)
    assert begun.open


def test_of_two_rates_the_pairs_choose_one_and_a_pilot_does_not_count():
    """The pilot is best at 0.002, where the pairs' baselines end at 0.5; at 0.004 at 0.3, at the first 5 pairs higher.
    Layer norm, at 0.4, is ahead of the first and behind the second."""
    tried = {"layer": (0.002,), "none": (0.002, 0.004)}
    trial = dataclasses.replace(TRIAL, plan=Plan(PLAN.rungs, PLAN.seeds, (10,), tried))
    claim = dataclasses.replace(LOSS, trial=trial)
    first = pairs(0.4 + SPREAD, 0.5 + 0 * SPREAD)
    second = [run("none", 0.004, seed, 1.0, 0.9, 0.55 if seed < 25 else 0.05) for seed in PLAN.seeds]
    assert (one(LOSS, [*PILOTS, *first]).verdict, one(claim, [*first, *second]).rates) == (AHEAD, (0.002, 0.004))
    even = [run("none", 0.004, seed, 1.0, 0.9, 0.3) for seed in PLAN.seeds]
    ruling = one(claim, [*PILOTS, *first, *even])
    assert (ruling.verdict, ruling.rates) == (BEHIND, (0.002, 0.004))
    assert ruling.check.seeds == [0, 1, *PLAN.seeds]
    assert one(dataclasses.replace(claim, trial=dataclasses.replace(trial, plan=dataclasses.replace(
        trial.plan, tried={"layer": (0.002,), "none": (0.004,)}))), [*PILOTS, *first, *even]).check is None  # fmt: skip
    assert "chosen by the pairs from layer norm 0.002, baseline 0.002 and 0.004" in ruling.ran
    assert ruling.plain.endswith("Learning rates: layer norm 0.002, baseline 0.004.")
    assert simulated_error(claim, [*PILOTS, *first, *even]) is None
    one_each = dataclasses.replace(trial.plan, looks=(5, 10), tried={"layer": (0.002,), "none": (0.004,)})
    at_look = dataclasses.replace(claim, trial=dataclasses.replace(trial, plan=one_each))
    assert one(at_look, [*first[:10], *even[:5]]).verdict == BEHIND, "with one rate there is a look at 5 pairs"
    begun = one(claim, [*first, *even[2:]])
    assert begun.lacking[0] == "2 of 20 runs of baseline"
    assert (begun.verdict, begun.open) == (UNDECIDED, True)


def test_rates_with_one_score_leave_the_lower_one_and_all_diverged_lack_a_choice():
    plan = dataclasses.replace(PLAN, rungs=(Rung({"epochs": 1}, keep=2), Rung()))
    claim = dataclasses.replace(LOSS, trial=dataclasses.replace(TRIAL, options={"epochs": 4}, plan=plan))
    firsts = [dataclasses.replace(item, config={**item.config, "epochs": 1}) for item in PILOTS]
    scores = {(0.002, 0): 0.0185, (0.002, 1): 0.0191, (0.004, 0): 0.0188, (0.004, 1): 0.0188}  # unequal sums
    seconds = [run(norm, rate, seed, 1.0, 0.9, score, epochs=4)
               for norm in ("layer", "none") for (rate, seed), score in scores.items()]  # fmt: skip
    assert one(claim, [*firsts, *seconds]).rates == (0.002, 0.002)
    lost = [dataclasses.replace(item, result={"update": 30, "diverged": 20}) for item in seconds]
    assert one(claim, [*firsts, *lost]).lacking[0].startswith("a pilot in which the rates of layer norm differ")


def test_where_a_neighbour_diverged_the_rates_own_scores_decide():
    """Both inner rates have the neighbour 0.002 or 0.004, which has no score: then the finite one is taken."""
    layer = [dataclasses.replace(item, result={**item.result, "diverged": 20})
             if (item.config["learning_rate"], item.config["seed"]) == (0.002, 1) else item
             for item in pilot("layer")]  # fmt: skip
    assert one(LOSS, [*layer, *pilot("none")]).rates == (0.004, 0.002)


def test_a_rung_on_other_data_is_refused():
    plan = dataclasses.replace(PLAN, rungs=(Rung({"epochs": 1}),))
    claim = dataclasses.replace(LOSS, trial=dataclasses.replace(TRIAL, options={"epochs": 3}, plan=plan))
    other = {"data": {"fingerprint": "abc"}, "starts": [{}]}
    short = [dataclasses.replace(item, config={**item.config, "epochs": 1}, environment=other) for item in PILOTS]
    whole = [
        dataclasses.replace(item, config={**item.config, "epochs": 3}) for item in pairs(0.1 + SPREAD, 0.5 + SPREAD)
    ]
    assert "one data set: the runs were made on 2" in one(claim, [*short, *whole]).lacking


@pytest.mark.parametrize(
    ("first", "then", "expected", "used"),
    [
        (with_p(0.015), [0.0] * 5, AHEAD, 5),  # decided at the first look, whatever comes then
        (-with_p(0.015), [0.0] * 5, BEHIND, 5),
        (with_p(0.03), [0.2, 0.21, 0.19, 0.2, 0.22], AHEAD, 10),  # above 0.02 at the first look
        (with_p(0.03), [-0.05, -0.06, -0.01, 0.0, -0.04], UNDECIDED, 10),
    ],
)
def test_two_looks(first, then, expected, used):
    claim = dataclasses.replace(LOSS, measure=dataclasses.replace(LOSS.measure, margin=1e-6))
    differences = np.array([*first, *then])
    ruling = one(claim, [*PILOTS, *pairs(0.5 - differences, 0.5 + 0 * differences)])
    assert (ruling.verdict, len(ruling.seeds)) == (expected, used)
    assert ruling.effect == pytest.approx(differences[:used].mean())


def test_the_second_look_has_the_level_of_3_percent():
    claim = dataclasses.replace(LOSS, measure=dataclasses.replace(LOSS.measure, margin=1e-6))
    for p, expected in ((0.029, AHEAD), (0.031, UNDECIDED)):
        ten = with_p(p, 10)
        order = np.argsort(-np.abs(ten - ten.mean()))  # the first five are undecided by themselves
        ruling = one(claim, [*PILOTS, *pairs(0.5 - ten[order], 0.5 + 0 * ten)])
        assert (ruling.verdict, len(ruling.seeds)) == (expected, 10)


def test_between_the_looks_a_claim_is_open():
    claim = dataclasses.replace(LOSS, measure=dataclasses.replace(LOSS.measure, margin=1e-6))
    six = np.array([*with_p(0.2), 5.0])
    ruling = one(claim, [*PILOTS, *pairs(0.5 - six, 0.5 + 0 * six)])
    assert (ruling.verdict, len(ruling.seeds), ruling.lacking) == (UNDECIDED, 5, ())
    assert ruling.open
    few = one(claim, [*PILOTS, *pairs(0.5 - six[:3], 0.5 + 0 * six[:3])])
    assert (few.lacking, few.open) == (("2 of 5 paired seeds",), True)
    ten = np.array([*with_p(0.2), *with_p(0.2)])
    last = one(claim, [*PILOTS, *pairs(0.5 - ten, 0.5 + 0 * ten)])
    assert (last.verdict, len(last.seeds), last.open) == (UNDECIDED, 10, False), "the last look ends the trial"


def test_a_verdict_of_the_first_look_stays_whatever_the_second_lacks():
    """Its own later pair, or that of another claim of the trial, may have no number."""
    clear = 0.5 - 0.1 - SPREAD[:5]
    more = [*PILOTS, *pairs(clear, 0.5 + 0 * clear), run("none", 0.002, 26, 1.0, 0.9, 0.5)]
    ruling = one(LOSS, [*more, run("layer", 0.002, 26, 1.0, 0.9, diverged=20)])
    assert (ruling.verdict, ruling.lacking, len(ruling.seeds)) == (AHEAD, (), 5)

    second = Value("second", "the second", chosen=CHOSEN, margin=1e-6)
    claims = [LOSS, dataclasses.replace(LOSS, text="Another.", measure=second)]
    both = [
        dataclasses.replace(item, records=[{**record, "second": record["loss"]} for record in item.records])
        for item in more
    ]
    both.append(run("layer", 0.002, 26, 1.0, 0.9, 0.5))  # without `second`
    assert [ruling.verdict for ruling in decide(claims, both)] == [AHEAD, AHEAD]


def test_a_pair_without_a_number_at_the_first_look_is_undecided_for_good():
    clear = 0.5 - 0.1 - SPREAD
    runs = [*PILOTS, *pairs(clear, 0.5 + 0 * clear)]
    runs[len(PILOTS)] = run("layer", 0.002, 20, 1.0, 0.9, diverged=20)
    for made in (runs[: len(PILOTS) + 10], runs):
        ruling = one(LOSS, made)
        assert ruling.lacking == ("a value of seed 20: layer norm diverged",)
        assert (ruling.verdict, ruling.open) == (UNDECIDED, False)


def test_two_runs_in_one_place_of_a_rung_are_refused():
    rungs = (Rung({"units": 2}, keep=2), Rung())
    claim = dataclasses.replace(LOSS, trial=dataclasses.replace(TRIAL, plan=dataclasses.replace(PLAN, rungs=rungs)))
    first = [dataclasses.replace(item, config={**item.config, "units": 2}) for item in PILOTS]
    clear = 0.5 - 0.1 - SPREAD
    runs = [*first, *PILOTS, *pairs(clear, 0.5 + 0 * clear)]
    assert one(claim, runs).verdict == AHEAD
    ruling = one(claim, [*runs, first[0]])
    assert ruling.verdict == UNDECIDED
    assert ruling.lacking[0].startswith("one run of layer norm at 0.001 with seed 0: there are")


def test_equal_ends_a_trial_at_the_first_look():
    ruling = one(LOSS, [*PILOTS, *pairs(0.5 + SPREAD[:5], 0.5 + 0 * SPREAD[:5])])
    assert (ruling.verdict, ruling.open) == (EQUAL, False)


def test_holm_within_a_look():
    """At the first look chances of 0.009 and 0.015 are both decided (0.01, then 0.02), of 0.011 and 0.015 neither."""
    measure = dataclasses.replace(LOSS.measure, margin=1e-6)
    second = Value("second", "the second", chosen=CHOSEN, margin=1e-6)
    claims = [dataclasses.replace(LOSS, measure=measure), dataclasses.replace(LOSS, text="Another.", measure=second)]
    for chances, expected in (((0.009, 0.015), [AHEAD] * 2), ((0.011, 0.015), [UNDECIDED] * 2)):
        runs = [*PILOTS, *pairs(0.5 - with_p(chances[0]), [0.5] * 5)]
        other = dict(zip(PLAN.seeds, with_p(chances[1]), strict=False))
        runs = [
            dataclasses.replace(
                item,
                records=[
                    {**record, "second": -other.get(item.config["seed"], 0.0) * (item.config["norm"] == "layer")}
                    for record in item.records
                ],
            )
            for item in runs
        ]
        assert [ruling.verdict for ruling in decide(claims, runs)] == expected


def test_equal_differences_have_the_chance_of_equal_signs():
    claim = dataclasses.replace(LOSS, trial=dataclasses.replace(TRIAL, plan=dataclasses.replace(PLAN, looks=(5,))))
    ruling = one(claim, [*PILOTS, *pairs([0.3] * 5, [0.5] * 5)])
    assert (ruling.p, ruling.verdict) == (1 / 16, UNDECIDED)
    alike = one(claim, [*PILOTS, *pairs([0.5] * 5, [0.5] * 5)])
    assert (alike.p, alike.verdict) == (1.0, EQUAL)


def test_a_shorter_run_does_not_win_by_missing_the_goal():
    """Layer norm's runs end at 20 updates, above the goal, the baseline's reach it at 30."""
    claim = dataclasses.replace(LOSS, measure=UpdatesToGoal("loss", "a loss", goal=0.5, chosen=CHOSEN))
    runs = [*PILOTS, *pairs([0.7] * 10, [0.4] * 10)]
    late = [dataclasses.replace(item, records=item.records[:2]) if item.config["norm"] == "layer" else item
            for item in runs[len(PILOTS):]]  # fmt: skip
    ruling = one(claim, [*PILOTS, *late])
    assert ruling.verdict == UNDECIDED
    assert ruling.lacking[0] == "30 updates of layer norm with seed 20: it has 20"
    soon = [dataclasses.replace(item, records=item.records[:2]) if item.config["norm"] == "layer" else item
            for item in pairs([0.7] * 10, [0.4] * 10)]  # fmt: skip
    reached = dataclasses.replace(claim, measure=dataclasses.replace(claim.measure, goal=0.95))
    assert not one(reached, [*PILOTS, *soon]).lacking  # a run may end where it is at its goal
    values = one(LOSS, [*PILOTS, *late])  # and a value is compared after the same updates
    assert values.lacking[0] == "30 updates of layer norm with seed 20: it has 20"
    grid = dataclasses.replace(LOSS, measure=Robustness("loss", "the mean"))
    some = [
        run(n, r, s, *[1.0, 0.5, 0.4][: 2 if n == "layer" else 3])
        for n in ("layer", "none")
        for r in RATES
        for s in range(5)
    ]
    assert one(grid, some).lacking[0] == "30 updates of layer norm with seed 0: it has 20"


def test_a_pilot_with_a_shorter_run_chooses_nothing():
    claim = dataclasses.replace(LOSS, measure=UpdatesToGoal("loss", "a loss", goal=0.3))
    runs = [dataclasses.replace(item, records=item.records[:1]) if item.config["learning_rate"] == 0.004 else item
            for item in pilot("layer")]  # fmt: skip
    for trial in (TRIAL, dataclasses.replace(TRIAL, plan=None)):
        ruling = one(dataclasses.replace(claim, trial=trial), [*runs, *pilot("none")])
        assert "30 updates of layer norm with seed 0: it has 10" in ruling.lacking


@pytest.mark.parametrize(
    ("spoilt", "why"),
    [
        ({"records": [], "result": {"diverged": 10}}, "layer norm diverged"),
        ({"result": {"diverged": 20}}, "layer norm diverged"),
        ({"records": [{"update": 30, "loss": math.nan, "seconds": 1.0}]}, "layer norm has a loss that is not finite"),
        ({"records": [{"update": 30, "loss": math.inf, "seconds": 1.0}]}, "layer norm has a loss that is not finite"),
        ({"records": [{"update": 30, "seconds": 1.0}]}, "layer norm has no loss"),
        ({"records": []}, "layer norm has no loss"),
    ],
)
@pytest.mark.parametrize("measure", [LOSS.measure, UpdatesToGoal("loss", "a loss", goal=0.55, chosen=CHOSEN)])
def test_a_pair_without_a_number_is_refused_with_words(measure, spoilt, why):
    for trial in (TRIAL, dataclasses.replace(TRIAL, plan=None)):
        claim = dataclasses.replace(LOSS, measure=measure, trial=trial)
        runs = [*PILOTS, *pairs(0.4 + SPREAD, 0.5 + 0 * SPREAD)]
        runs[len(PILOTS)] = dataclasses.replace(runs[len(PILOTS)], **spoilt)
        ruling = one(claim, runs)
        assert ruling.verdict == UNDECIDED
        assert ruling.lacking[0] == f"a value of seed 20: {why}"
        chosen = [
            dataclasses.replace(item, **spoilt) if item.config["learning_rate"] == 0.004 else item for item in runs
        ]
        assert one(claim, chosen).rates[0] == 0.002  # in a pilot it is the worst


def test_over_all_rates_a_run_that_is_not_finite_counts_with_the_worst_beginning():
    claim = dataclasses.replace(LOSS, measure=Robustness("loss", "the mean of the best loss"))
    runs = [run(norm, rate, seed, 1.0, 0.5, 0.2) for norm in ("layer", "none") for rate in RATES for seed in range(5)]
    runs[-1] = run("none", RATES[-1], 4, 0.9, math.nan, 0.1)
    assert one(claim, runs).pairs[4] == pytest.approx((0.2, (0.2 + 0.2 + 0.6) / 3))


def test_runs_that_are_at_the_goal_at_once_are_marked_and_never_equal():
    claim = dataclasses.replace(LOSS, measure=UpdatesToGoal("loss", "a loss", goal=0.95, chosen=CHOSEN))
    runs = [*PILOTS, *pairs(0.5 + SPREAD, 0.5 + 0 * SPREAD)]
    soon = [dataclasses.replace(item, records=[{**record, "loss": 0.9} for record in item.records])
            if item.config["norm"] == "layer" and item.config["seed"] == 20 else item for item in runs]  # fmt: skip
    ruling = one(claim, soon)
    assert (ruling.early, ruling.verdict) == ((1, 0), UNDECIDED)
    told = "there at the first evaluation: layer norm 1, baseline 0 runs, so that the number is too low"
    assert told in ruling.effect_text
    beside = dataclasses.replace(ruling, others=(ruling,)).effect_text
    assert beside.count(f", {told}") == 2  # beside the other goal's effect and the check's
    assert one(claim, runs).verdict == EQUAL
    always = [dataclasses.replace(item, records=[{**record, "loss": 0.9} for record in item.records])
              if item.config["seed"] >= 20 else item for item in runs]  # fmt: skip
    ruling = one(claim, always)  # nobody knows which arm was there first
    assert (ruling.early, set(ruling.differences), ruling.verdict) == ((len(ruling.pairs),) * 2, {0.0}, UNDECIDED)


def test_the_tests_numbers_and_the_kept_model_decide():
    recall = Summed("loss", "test recall", chosen=CHOSEN, rising=True, names=("r1", "r5"), margin=0.1)
    kept = Kept("kept_update", "updates to the best model", chosen=CHOSEN)
    claims = [dataclasses.replace(LOSS, measure=recall), dataclasses.replace(LOSS, text="Soon.", measure=kept)]
    runs = [*PILOTS]
    for item in pairs(0.5 + SPREAD, 0.5 + 0 * SPREAD):
        layer, seed = item.config["norm"] == "layer", item.config["seed"]
        tested = {"r1": 10.0 + 5 * layer + 0.1 * (seed % (3 - layer)), "r5": 20.0}
        kept_update = 10 if layer else 20 + seed % 2
        runs.append(dataclasses.replace(item, result={**item.result, **tested, "kept_update": kept_update}))
    first, second = decide(claims, runs)
    assert (first.verdict, second.verdict) == (AHEAD, AHEAD)
    assert first.pairs[20] == pytest.approx((-35.0, -30.2))
    assert second.pairs[21] == pytest.approx((math.log(10), math.log(21)))
    without = [dataclasses.replace(item, result={"update": 30}) for item in runs]
    assert [ruling.lacking[0] for ruling in decide(claims, without)] == [
        "a value of seed 20: layer norm has no r1 and baseline has no r1",
        "a value of seed 20: layer norm has no kept_update and baseline has no kept_update",
    ]


def test_the_check_takes_each_seeds_rates_from_the_other_seeds():
    """Seed 0 says 0.004, seed 1 and the mean 0.002. So the pilot's seed 0 is paired at 0.002, seed 1 at 0.004."""
    scores = {(0.001, 0): 0.9, (0.002, 0): 0.5, (0.004, 0): 0.45, (0.008, 0): 0.46,
              (0.001, 1): 0.5, (0.002, 1): 0.3, (0.004, 1): 0.8, (0.008, 1): 1.4}  # fmt: skip
    layer = [run("layer", rate, seed, 1.0, 0.9, score) for (rate, seed), score in scores.items()]
    ruling = one(LOSS, [*layer, *pilot("none"), *pairs(0.4 + SPREAD, 0.5 + 0 * SPREAD)])
    assert ruling.rates == (0.002, 0.002)
    assert ruling.check.pairs[0] == pytest.approx((0.5, 0.5))
    assert ruling.check.pairs[1] == pytest.approx((0.8, 0.5))
    assert sorted(ruling.check.pairs) == [0, 1, *PLAN.seeds]
    others = pairs(0.1 + SPREAD, 0.5 + 0 * SPREAD, seeds=range(30, 40))  # of another trial with the same options
    checked = one(LOSS, [*layer, *pilot("none"), *pairs(0.4 + SPREAD, 0.5 + 0 * SPREAD), *others]).check
    assert checked.pairs == ruling.check.pairs
    assert "with each seed's rates chosen by the other seeds: lower by" in ruling.effect_text


def test_the_simulated_error_is_the_level_where_the_rates_are_alike_and_more_where_they_are_not():
    """With equal means at all rates the pairs have no difference, so that 5 % of the verdicts are wrong: 0.02 and 0.03
    at two looks, which together are a little less as both see the first five pairs. Where the rates differ by as much
    as the noise, two equal arms choose different rates, and some of these differences are seen."""
    generator = np.random.default_rng(1)
    for size, low, high in ((0.0, 0.03, 0.06), (0.5, 0.06, 0.5)):
        runs = [
            run("none", rate, seed, 1.0, 0.9, 0.5 + size * 0.1 * place + 0.05 * generator.normal())
            for place, rate in enumerate(RATES)
            for seed in (0, 1, *range(20, 26))
        ]
        low_end = [run("none", RATES[0], seed, 1.0, 0.9, 2.0 + 0.01 * seed) for seed in (0, 1)]
        runs = [*low_end, *(item for item in runs if item.config["learning_rate"] != RATES[0])]
        alike = dataclasses.replace(LOSS, trial=dataclasses.replace(TRIAL, plan=None))
        assert low < simulated_error(alike if size else LOSS, runs) < high
    assert simulated_error(LOSS, []) is None


def test_verdicts_from_a_summary_are_those_of_the_runs(tmp_path):
    """Twenty made trials with curves of up to 150 evaluations, of six digits: every ruling, numbers too."""
    generator = np.random.default_rng(0)
    speed = UpdatesToGoal("loss", "a loss", chosen=CHOSEN)
    over_rates = Robustness("loss", "the mean of the best loss")
    claims = [
        LOSS,
        dataclasses.replace(LOSS, text="Soon.", measure=speed),
        dataclasses.replace(LOSS, text="Ever.", measure=over_rates),
    ]
    verdicts = []
    for case in range(20):
        count = int(generator.choice([3, 59, 61, 150]))
        trial = dataclasses.replace(TRIAL, updates=10 * count)
        some = [dataclasses.replace(claim, trial=trial) for claim in claims]
        gain, runs = generator.choice([0.0, 0.05, 0.5]), []
        for norm, rate, seed in itertools.product(("layer", "none"), RATES, (0, 1, *range(20, 26))):
            worse = abs(math.log2(rate / 0.002)) + 0.3 * generator.random()
            floor = 0.5 + 0.2 * worse - gain * (norm == "layer")
            line = floor + np.exp(-np.arange(count) / count * 5) + 0.05 * generator.normal(size=count)
            runs.append(run(norm, rate, seed, *(float(f"{value:.6g}") for value in line)))
        path = tmp_path / "summary.json"
        summary.write_summary(path, runs)
        by_runs, by_summary = decide(some, runs), decide(some, summary.read_summary(path))
        assert by_summary == by_runs, case
        verdicts += [ruling.verdict for ruling in by_runs]
    assert {AHEAD, UNDECIDED} <= set(verdicts)
