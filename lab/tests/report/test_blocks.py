"""How runs are sorted for figures and tables: blocks of one configuration, arms, and the learning rates shown."""

import dataclasses

import pytest

from lab_support.runs import write_digits
from lab_support.sweeps import LOSS, SPEED, compared, runs_of_trial, write_rates
from layernorm_lab.errors import RunError
from layernorm_lab.report.arms import Arm, in_order
from layernorm_lab.report.blocks import Metric, best_tried, compare
from layernorm_lab.report.curves import curves
from layernorm_lab.report.deviations import one_of
from layernorm_lab.report.judge import PILOT_SEEDS, TRIAL_SEEDS, Plan, Rung, Value, decide
from layernorm_lab.report.pictures import pictures
from layernorm_lab.report.tables import results
from layernorm_lab.runs.folder import find_runs

ERROR = Metric("valid_error", "validation error", percent=True)


def chosen(block):
    """Each norm's learning rate in the panels of the validation error, and the number of its runs there."""
    return {arm.norm: (shown.rate, len(shown.runs)) for arm, shown in block.shown(ERROR).items()}


def test_an_arm_without_a_pilot_is_shown_at_its_best_rate(tmp_path):
    write_rates(tmp_path, "none", {0.001: [0.3, 0.4], 0.01: [0.2, 0.2], 0.1: [0.1, 0.5]})
    write_rates(tmp_path, "layer", {0.001: [0.4, 0.4], 0.01: [0.3, 0.3], 0.1: [0.1, 0.2]})
    write_rates(tmp_path, "rms", {0.01: [0.1, 0.3]})
    (block,), status = compared(tmp_path)
    assert (block.label, block.title, status) == ("", "", [])
    assert chosen(block) == {"none": (0.01, 2), "layer": (0.1, 2), "rms": (0.01, 2)}
    assert [shown.how for shown in block.shown(ERROR).values()] == [
        "without a pilot, the best of those with the most runs",
        "without a pilot, the best of those with the most runs",
        "the only one tried",
    ]
    assert [list(by_rate) for by_rate in block.arms.values()] == [[0.001, 0.01, 0.1], [0.001, 0.01, 0.1], [0.01]]


def test_where_higher_is_better_the_highest_is_chosen(tmp_path):
    write_rates(tmp_path, "layer", {0.001: [0.95], 0.01: [0.97], 0.1: [0.96]})
    (block,), _ = compared(tmp_path)
    (by_rate,) = block.arms.values()
    assert best_tried(by_rate, dataclasses.replace(ERROR, rising=True)) == 0.01


def test_blocks_choose_by_themselves(tmp_path):
    for size, best in ((128, 0.1), (4, 0.01)):
        for rate in (0.01, 0.1):
            end = 0.1 if rate == best else 0.2
            write_digits(tmp_path / f"lr{rate:g}", "layer", size, 0, [0.5, end], learning_rate=rate)
    found, _ = compared(tmp_path)
    assert [(block.label, block.title, chosen(block)) for block in found] == [
        ("128", "batch_size 128", {"layer": (0.1, 1)}),
        ("4", "batch_size 4", {"layer": (0.01, 1)}),
    ]


def test_a_rate_with_fewer_finished_runs_is_not_chosen(tmp_path):
    write_rates(tmp_path, "none", {0.001: [0.3, 0.3], 0.01: [0.2, 0.2], 0.1: [0.1, None]})
    write_rates(tmp_path, "layer", {0.001: [None], 0.01: [None]})
    (block,), status = compared(tmp_path)
    assert chosen(block) == {"none": (0.01, 2), "layer": (0.001, 1)}
    assert status == [
        "Unfinished: 3 of 8 runs (digits-layer-b128-s0, digits-layer-b128-s0, digits-none-b128-s1). Curves end where "
        "the shortest seed ends."
    ]


def test_rates_with_the_most_seeds_are_compared(tmp_path):
    write_rates(tmp_path, "none", {0.001: [0.3], 0.01: [0.2, 0.9, 0.9], 0.1: [0.5]})
    write_rates(tmp_path, "layer", {0.001: [0.3, 0.3], 0.01: [0.4, 0.1], 0.1: [0.5, 0.5], 1: [0.2]})
    (block,), _ = compared(tmp_path)
    assert chosen(block) == {"none": (0.01, 3), "layer": (0.01, 2)}


def test_a_rate_at_which_a_run_diverged_is_not_chosen(tmp_path):
    """Though the surviving seed likes it best. Where all rates diverge, one with the fewest losses is shown."""
    write_rates(tmp_path, "none", {0.001: [0.4, 0.4], 0.01: [0.3, 0.3], 0.1: [0.01, "lost"]})
    write_rates(tmp_path, "layer", {0.01: ["lost", "lost at once"], 0.1: [0.1, "lost"], 1: ["lost at once"] * 2})
    write_rates(tmp_path, "rms", {0.01: ["lost at once"] * 2, 0.1: ["lost at once"] * 2})
    (block,), status = compared(tmp_path)
    assert chosen(block) == {"none": (0.01, 2), "layer": (0.1, 2)}, "the third norm has nothing to show"
    assert status[0].startswith("Diverged: 10 of 16 runs (digits-layer-b128-s0 at update 20, ")


def test_where_nothing_has_a_record_the_status_is_all_there_is(tmp_path):
    write_rates(tmp_path, "layer", {0.1: ["lost at once"]})
    found, status = compared(tmp_path)
    assert found == []
    assert status[0].startswith("Diverged: 1 of 1 runs (digits-layer-b128-s0 at update 10).")


def seeds(shown):
    return {arm.name: (item.rate, [run.config["seed"] for run in item.runs], item.how) for arm, item in shown.items()}


def test_a_panel_shows_the_runs_that_decide_the_claim_about_its_metric():
    """And an arm that was in the pilot alone at its best rate there, in the same measure."""
    runs = runs_of_trial()
    (block,), _ = compare(runs, [LOSS, SPEED])
    loss, speed = decide([LOSS, SPEED], runs)
    for metric, ruling in ((Metric("test", "", chosen="valid"), loss), (Metric("valid", ""), speed)):
        (by,) = block.choices(metric)
        rate = ruling.rates[0]
        assert by == ruling.claim.measure.about
        assert ruling.rates == (rate, rate)
        assert seeds(block.shown(metric)) == {
            "baseline": (rate, list(TRIAL_SEEDS), "the pilot's best"),
            "layer norm": (rate, list(TRIAL_SEEDS), "the pilot's best"),
            "weight norm": (rate, list(PILOT_SEEDS), "the pilot's best, with the pilot's runs"),
        }
    assert (loss.rates[0], speed.rates[0]) == (0.002, 0.001)


def test_a_pilot_of_shorter_runs_chooses_for_the_block_of_the_whole_ones():
    plan = Plan((Rung({"epochs": 1}),), seeds=TRIAL_SEEDS, looks=(5,))
    claim = dataclasses.replace(LOSS, trial=dataclasses.replace(LOSS.trial, options={"epochs": 3}, plan=plan))
    of_seed = {seed: {"epochs": 1 if seed in PILOT_SEEDS else 3} for seed in (*PILOT_SEEDS, *TRIAL_SEEDS)}
    runs = [
        dataclasses.replace(run, config={**run.config, **of_seed[run.config["seed"]]})
        for run in runs_of_trial()
        if run.config["learning_rate"] == 0.002 or run.config["seed"] in PILOT_SEEDS
    ]
    blocks, _ = compare(runs, [claim])
    (whole,) = (block for block in blocks if block.options["epochs"] == "3")
    assert seeds(whole.shown(Metric("test", "", chosen="valid"))) == {
        name: (0.002, list(TRIAL_SEEDS), "the pilot's best") for name in ("baseline", "layer norm")
    }
    assert {block.options["epochs"]: block.of_pilot for block in blocks} == {"3": False, "1": True}
    (figure,) = curves("toy", "", blocks, [Metric("test", "", chosen="valid")])
    assert [panel.title for row in figure.rows for panel in row] == ["epochs 3"]
    begun, _ = compare([run for run in runs if run.config["epochs"] == 1], [claim])
    assert not begun[0].of_pilot, "a pilot alone is drawn"


def test_a_metric_that_no_claim_is_about_has_the_rates_of_the_claim_it_goes_with():
    (block,), _ = compare(runs_of_trial(), [SPEED, LOSS])
    assert block.shown(Metric("other", "", chosen="valid")) == block.shown(Metric("test", "", chosen="valid"))
    (block,), _ = compare(runs_of_trial(), [SPEED])
    assert [item.rate for item in block.shown(Metric("other", "", chosen="valid")).values()] == [0.001] * 3


def test_claims_that_chose_other_rates_have_choices_of_their_own():
    both = [SPEED, dataclasses.replace(LOSS, measure=Value("valid", "the loss"))]
    (block,), _ = compare(runs_of_trial(), both)
    choices = block.choices(Metric("valid", ""))
    assert {by: {item.rate for item in choice.values()} for by, choice in choices.items()} == {
        "updates to a loss of 0.5": {0.001},
        "the loss": {0.002},
    }


def test_the_rate_that_ends_best_is_shown_before_the_one_that_is_soonest():
    both = [SPEED, dataclasses.replace(LOSS, measure=Value("valid", "the loss"))]
    (block,), _ = compare(runs_of_trial(), both)
    assert {item.rate for item in block.shown(Metric("valid", "")).values()} == {0.002}


def test_two_trials_of_one_measure_have_a_choice_each():
    later = Plan(seeds=tuple(range(20, 25)), looks=(5,))
    trial = dataclasses.replace(LOSS.trial, plan=later, about="later seeds")
    (block,), _ = compare(runs_of_trial((*TRIAL_SEEDS, *later.seeds)), [LOSS, dataclasses.replace(LOSS, trial=trial)])
    by = block.choices(Metric("test", "", chosen="valid"))
    assert [*by] == ["the loss", "the loss, with later seeds"]
    counts = [{arm.norm: len(item.runs) for arm, item in choice.items()} for choice in by.values()]
    assert counts == [{"none": 10, "layer": 10, "weight": 2}, {"none": 5, "layer": 5, "weight": 2}]
    rows = results([block], [Metric("test", "", chosen="valid")], [], "").rows
    assert [(row[1], row[-2]) for row in rows] == [
        ("baseline", "10"), ("baseline", "5"), ("layer norm", "10"), ("layer norm", "5"), ("weight norm", "2")
    ]  # fmt: skip


def test_without_a_whole_pilot_no_claim_chooses():
    runs = runs_of_trial()[1:]
    (block,), _ = compare(runs, [LOSS])
    assert {
        item.how for arm, item in block.shown(Metric("test", "", chosen="valid")).items() if arm.norm == "none"
    } == {"without a pilot, the best of those with the most runs"}
    (other,), _ = compare(runs_of_trial(units=4), [LOSS])
    assert other.claims == [], "runs of another configuration"


def test_runs_of_other_configurations_or_data_are_never_in_one_block():
    runs = [*runs_of_trial(), *runs_of_trial(units=4)]
    runs[-1] = dataclasses.replace(runs[-1], environment={"data": {"fingerprint": "f" * 64}, "starts": []})
    found, _ = compare(runs)
    assert [block.title for block in found] == [
        "units 4, data set ffffffffffff", "units 4, data set None", "units 3, data set None"
    ]  # fmt: skip
    found, _ = compare(runs, [LOSS])
    assert [block.title for block in found] == [
        "units 3, data set None", "units 4, data set ffffffffffff", "units 4, data set None"
    ], "the one that a claim is about is first"  # fmt: skip


def test_gains_are_arms_and_the_baseline_has_none():
    runs = [*runs_of_trial((), gain_init=1.0), *runs_of_trial((), gain_init=0.3), *runs_of_trial((), gain_init=0.1)]
    (block,), _ = compare(runs)
    names = ["baseline", "layer norm", "layer norm with gain 0.1", "layer norm with gain 0.3", "weight norm"]
    assert [arm.name for arm in block.arms] == names
    assert len({block.style(arm) for arm in block.arms}) == 5
    assert [len(block.runs(arm)) for arm in block.arms] == [18, 6, 6, 6, 18]


@pytest.mark.parametrize(("layer", "warned"), [((200.0, 90.0, 99.0), False), ((1.0, 100.0, 100.0), True)])
def test_norms_whose_first_gradients_are_far_apart_are_told(tmp_path, layer, warned):
    """By the medians over seeds: one outlier is none of the norm's."""
    for norm, starts in (("none", (1.0, 1.0, 300.0)), ("layer", layer)):
        for seed, start in enumerate(starts):
            write_digits(tmp_path, norm, 128, seed, [0.3, 0.2], first_gradient_norm=start)
    _, status = compare(find_runs([tmp_path]).runs)
    told = "The gradient's norms at update 0 differ by 100 times or more (baseline 1, layer norm 100)"
    assert [told in line for line in status] == ([True] if warned else [])


def test_a_run_whose_norm_has_no_row_is_an_error_and_not_left_out(tmp_path):
    write_digits(tmp_path, "none", 128, 0, [0.3])
    write_digits(tmp_path, "laydr", 128, 0, [0.3])
    with pytest.raises(RunError, match=r"digits-laydr-b128-s0 has the norm 'laydr', not one of none, layer, "):
        compare(find_runs([tmp_path]).runs)


def test_a_picture_is_of_the_first_run_with_weights_that_did_not_diverge(tmp_path):
    for seed, diverged in enumerate((None, 20, None, None)):
        write_digits(tmp_path, "layer", 128, seed, [0.3, 0.2], diverged=diverged)
        if seed:
            (tmp_path / f"digits-layer-b128-s{seed}" / "checkpoint.safetensors").touch()
    found, _ = compare(find_runs([tmp_path]).runs)
    made, notes = pictures(found, ERROR, lambda run, arm, name: [(run.path.name, arm.name, name)], "none")
    assert made == [("digits-layer-b128-s2", "layer norm", "layer")]
    assert notes == []

    def fail(run, arm, name):
        raise RunError("broken")

    assert pictures(found, ERROR, fail, "No sample") == ([], ["No sample: broken"])


def test_a_start_by_name_stands_behind_the_numbers():
    gains = ["steady", 1.0, 0.3]
    assert sorted(gains, key=in_order) == [0.3, 1.0, "steady"]
    assert one_of(gains) == "0.3, 1 or steady"
    assert Arm("layer", {"gain_init": "steady"}).name == "layer norm with the start steady"
