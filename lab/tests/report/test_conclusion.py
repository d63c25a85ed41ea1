"""The sentence at the top of a report, on numbers that one can add up by hand. It says no more than the runs show."""

import dataclasses

import pytest

from lab_support.runs import report_of, write_digits, write_sweep
from lab_support.sweeps import write_rates
from layernorm_lab.report.blocks import Metric, compare
from layernorm_lab.report.conclusion import MOST, conclude
from layernorm_lab.runs.folder import find_runs

TEST = Metric("test_error", "test error", chosen="valid_error", percent=True)


def concluded(place, metric=TEST, digits=1):
    return conclude(compare(find_runs(sorted(place.iterdir())).runs, (), ["exact_"])[0], metric, digits)


def test_the_report_on_digits_begins_with_what_they_show(tmp_path):
    """The seeds of each norm are 1 point apart from the lowest to the highest: 7 to 8, 9 to 10, 10 to 11, 14 to 15."""
    assert report_of(write_sweep(tmp_path)).conclusion == [
        "With batch_size 128 layer norm has the lowest test error after the last update, 7.50 % against 9.50 % of "
        "batch norm and 10.50 % of the baseline (means over 3 seeds, one learning rate); the difference of 2.00 points "
        "from batch norm is larger than the spread of the seeds, 1.00 points from the lowest to the highest.",
        "With batch_size 4 layer norm has the lowest test error after the last update, 7.50 % against 10.50 % of the "
        "baseline and 14.50 % of batch norm (means over 3 seeds, one learning rate); the difference of 3.00 points "
        "from the baseline is larger than the spread of the seeds, 1.00 points from the lowest to the highest.",
    ]


def test_a_difference_within_the_spread_is_said_to_be(tmp_path):
    write_rates(tmp_path, "none", {0.001: [0.20, 0.30]})
    write_rates(tmp_path, "layer", {0.001: [0.21, 0.22], 0.002: [0.90, 0.90]})
    assert concluded(tmp_path) == [
        "Layer norm has the lowest test error after the last update, 21.5 % against 25.0 % of the baseline (means over "
        "2 seeds, each at its best learning rate); the difference of 3.5 points from the baseline is not larger "
        "than the spread of the seeds, 10.0 points from the lowest to the highest."
    ]
    higher = dataclasses.replace(TEST, chosen="", rising=True, percent=False, label="recall, nats")
    (sentence,) = concluded(tmp_path, higher, 2)  # at the best evaluation, where all have 0.9
    assert sentence.startswith(
        "The baseline and layer norm have the highest recall at the best evaluation, 0.90 nats ("
    )
    assert "difference" not in sentence


def test_one_seed_says_so_once(tmp_path):
    for size in (4, 128):
        write_digits(tmp_path, "none", size, 0, [0.3, 0.2])
        write_digits(tmp_path, "layer", size, 0, [0.3, 0.1])
    assert concluded(tmp_path) == [
        *(f"With batch_size {size} layer norm has the lowest test error after the last update, 10.0 % against 20.0 % "
          "of the baseline (one seed, one learning rate)." for size in (128, 4)),
        "One seed does not tell whether another would give the same order.",
    ]  # fmt: skip
    write_digits(tmp_path, "none", 4, 1, [0.3, 0.9])
    first, second = concluded(tmp_path)[1:]
    assert second.startswith("One seed")
    assert "(means over 1 to 2 seeds, one learning rate)" in first


def test_what_is_not_finished_or_diverged_is_not_compared(tmp_path):
    write_rates(tmp_path, "none", {0.001: [0.2, 0.3]})
    write_rates(tmp_path, "layer", {0.001: [None, None]})
    write_rates(tmp_path, "batch", {0.001: [0.1, "lost"]})
    assert concluded(tmp_path) == [
        "Only the baseline has finished runs of which none diverged, so it is compared with nothing: test error after "
        "the last update 25.0 % (means over 2 seeds, one learning rate); left out: batch norm, of which 1 of 2 "
        "runs diverged."
    ]
    write_rates(tmp_path / "begun", "layer", {0.001: [None]})
    assert concluded(tmp_path / "begun") == []


def test_statistics_over_the_training_set_are_an_arm_as_in_the_table(tmp_path):
    for seed in (0, 1):
        write_digits(tmp_path, "layer", 4, seed, [0.3, 0.2])
        write_digits(tmp_path, "batch", 4, seed, [0.5, 0.4], exact=0.3)
    assert concluded(tmp_path)[0].startswith(
        "Batch norm, exact statistics has the lowest test error after the last update, 10.0 % against 20.0 % of layer "
        "norm and 40.0 % of batch norm ("
    )


@pytest.mark.parametrize("more", [0, 1])
def test_many_configurations_are_counted(tmp_path, more):
    """In the first, of one epoch, the baseline ends lower; the seeds differ by 2 points."""
    for epochs in range(1, MOST + 1 + more):
        for seed, up in enumerate((0.0, 0.02)):
            write_digits(tmp_path / f"{epochs}", "none", 128, seed, [0.5] * (epochs - 1) + [0.2 + up])
            end = 0.21 if epochs == 1 else 0.1
            write_digits(tmp_path / f"{epochs}", "layer", 128, seed, [0.5] * (epochs - 1) + [end + up])
    sentences = concluded(tmp_path)
    if not more:
        assert len(sentences) == MOST
    else:
        assert sentences == [
            "Of 5 configurations with several norms the lowest test error after the last update is that of layer norm "
            "in 4 and the baseline in 1; in 4 of them the difference from the next norm is larger than the spread of "
            "the seeds."
        ]


def test_many_configurations_of_one_norm_are_compared_with_nothing(tmp_path):
    for epochs in range(1, MOST + 2):
        write_digits(tmp_path / f"{epochs}", "layer", 128, 0, [0.5] * epochs)
    assert concluded(tmp_path) == []
