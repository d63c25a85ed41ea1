"""The shared tables, and the deviations, on numbers that one can add up by hand."""

import dataclasses

import pytest

from lab_support.runs import write_digits
from lab_support.sweeps import LOSS, SPEED, blocks, runs_of_trial, write_rates
from layernorm_lab.config import option
from layernorm_lab.report.arms import Said
from layernorm_lab.report.blocks import Metric, compare
from layernorm_lab.report.curves import curves
from layernorm_lab.report.deviations import deviations
from layernorm_lab.report.page import Deviation
from layernorm_lab.report.tables import (
    Column,
    learning_rates,
    low_to_high,
    mean,
    mean_and_range,
    results,
    update_times,
)
from layernorm_lab.runs.folder import find_runs

ERROR = Metric("valid_error", "validation error", percent=True)


@pytest.mark.parametrize(
    ("values", "digits", "text"), [([3, 1, 2], 3, "1-3"), ([1.1, 1.4], 1, "1"), ([0.84, 2.371], 3, "0.84-2.37")]
)
def test_the_lowest_and_the_highest_over_seeds(values, digits, text):
    assert low_to_high(values, digits) == text


@pytest.mark.parametrize(
    ("values", "text"), [([1.5], "1.50"), ([1, 2, 6], "3.00 (1.00-6.00)"), ([-2, 1], "-0.50 (-2.00 to 1.00)")]
)
def test_the_mean_with_its_range(values, text):
    assert mean_and_range(values) == text


def test_results_have_a_row_for_each_rate_that_the_figure_shows():
    (block,), _ = compare(runs_of_trial(), [LOSS, SPEED])
    metrics = [Metric("test", "", chosen="valid"), Metric("valid", "")]
    columns = [Column("last", "test"), Column("lowest", "valid", "lowest", scale=100, text=mean)]
    table = results([block], metrics, columns, "A note.", [("paper", "baseline", {"last": "7", "seeds": "1"})])
    assert table.columns == ["", "norm", "rate", "last", "lowest", "seeds", "updates"]
    assert table.rows == [
        ["here", "baseline", "0.001", "0.40 (0.40-0.40)", "40.00", "5", "30"],
        ["here", "baseline", "0.002", "0.10 (0.10-0.10)", "10.00", "5", "30"],
        ["here", "layer norm", "0.001", "0.40 (0.40-0.40)", "40.00", "5", "30"],
        ["here", "layer norm", "0.002", "0.10 (0.10-0.10)", "10.00", "5", "30"],
        ["here", "weight norm", "0.001", "0.40 (0.40-0.40)", "40.00", "2", "30"],
        ["here", "weight norm", "0.002", "0.10 (0.10-0.10)", "10.00", "2", "30"],
        ["paper", "baseline", "-", "7", "-", "1", "-"],
    ]
    assert results([block], metrics[:1], columns, "").rows[0][0] == ""


def test_what_only_finished_runs_have_is_a_dash_for_others(tmp_path):
    write_rates(tmp_path, "layer", {0.001: [None]})
    write_rates(tmp_path, "none", {0.001: [0.3]})
    table = results(blocks(tmp_path), [ERROR], [Column("n", "records", "test", text=mean)], "")
    assert [row[3] for row in table.rows] == ["2.00", "-"]


def test_results_are_of_finished_runs_where_there_are_any(tmp_path):
    """Of norms without any a row is about all, and has the updates to which they have come."""
    write_rates(tmp_path, "none", {0.001: [0.3, None]}, epochs=3)
    for seed, curve in enumerate(([0.9], [0.9, 0.7])):
        write_digits(tmp_path / "killed", "layer", 128, seed, curve, epochs=3)
    table = results(blocks(tmp_path), [ERROR], [Column("error", "test_error")], "A note.")
    assert [row[3:] for row in table.rows] == [["0.30", "1", "30"], ["0.80 (0.70-0.90)", "2", "10-20"]]
    assert table.note.endswith(" Runs that are unfinished or diverged are left out.")


def test_a_run_that_diverged_has_no_part_in_a_mean(tmp_path):
    write_rates(tmp_path, "none", {0.001: [0.3, "lost"]})
    table = results(blocks(tmp_path), [ERROR], [Column("error", "test_error")], "A note.")
    assert [row[3:5] for row in table.rows] == [["0.30", "1"]]
    assert table.note.endswith(" Runs that are unfinished or diverged are left out.")


def test_all_learning_rates(tmp_path):
    write_rates(tmp_path, "none", {0.001: [0.3, 0.4], 0.01: [0.2, 0.2], 0.1: [0.01, "lost"]})
    write_rates(tmp_path, "layer", {0.001: [0.4], 0.1: ["lost", "lost at once"]})
    (table,) = learning_rates(blocks(tmp_path), ERROR, digits=1)
    assert table.columns == ["", "norm", "0.001", "0.01", "0.1"]
    assert table.rows == [
        ["", "baseline", "70.0 (60.0-80.0)", "40.0 (40.0-40.0)", "1 of 2 diverged"],
        ["", "layer norm", "80.0", "-", "diverged"],
    ]
    assert table.note == "The best evaluation of each run: validation error, %. Mean over seeds (lowest to highest)."
    rising = dataclasses.replace(ERROR, name="test_error", rising=True, percent=False)
    assert learning_rates(blocks(tmp_path), rising)[0].rows[0][2] == "0.90 (0.90-0.90)"
    write_rates(tmp_path / "one", "layer", {0.001: [0.4]})
    assert learning_rates(blocks(tmp_path / "one"), ERROR) == []


def test_the_time_of_an_update_is_the_fastest_at_any_rate(tmp_path):
    for norm, size in (("none", 128), ("layer", 128), ("layer", 4)):
        write_digits(tmp_path, norm, size, 0, [0.3, 0.2])
    found, _ = compare(find_runs([tmp_path]).runs)
    for run in found[0].runs(next(iter(found[0].arms))):
        run.records[-1]["seconds_per_update"] = 0.064
    assert update_times(found).rows == [
        ["128", "baseline", "64.0", "1.00"], ["128", "layer norm", "128", "2.00"], ["4", "layer norm", "4.0", "-"]
    ]  # fmt: skip


def test_the_time_of_an_update_is_that_of_one_version_of_the_code(tmp_path):
    for norm, seed in (("none", 0), ("none", 1), ("layer", 0)):
        write_digits(tmp_path, norm, 128, seed, [0.3, 0.2])
    found, _ = compare(find_runs([tmp_path]).runs)
    later = found[0].runs(next(iter(found[0].arms)))[-1]
    later.environment["starts"][0]["commit"] = "later"
    later.records[-1]["seconds_per_update"] = 0.001  # a faster version, which ran one arm
    assert [row[1:] for row in update_times(found).rows] == [["baseline", "128", "1.00"], ["layer norm", "128", "1.00"]]


def test_a_run_that_was_resumed_is_compared_in_what_each_version_ran(tmp_path):
    """Of the two records, of update 10 and 20, the second one is the second start's."""
    for norm in ("none", "layer"):
        write_digits(tmp_path, norm, 128, 0, [0.3, 0.2])
    found, _ = compare(find_runs([tmp_path]).runs)
    none, layer = (found[0].runs(arm)[0] for arm in found[0].arms)
    none.records[1]["seconds_per_update"] = 0.064
    start = layer.environment["starts"][0]
    layer.environment["starts"].append({**start, "update": 10})  # the same version
    assert [row[1:] for row in update_times(found).rows] == [
        ["baseline", "64.0", "1.00"],
        ["layer norm", "128", "2.00"],
    ]
    layer.environment["starts"][1]["commit"] = "later"
    layer.records[1]["seconds_per_update"] = 0.001  # faster in a version that the baseline has not
    assert [row[1:] for row in update_times(found).rows] == [
        ["baseline", "64.0", "1.00"],
        ["layer norm", "128", "2.00"],
    ]
    assert "another version" not in update_times(found).note
    layer.environment["starts"][0]["commit"] = "earlier"
    table = update_times(found)
    assert [row[1:] for row in table.rows] == [["baseline", "64.0", "1.00"]]
    assert table.note.endswith("Not here, as another version ran it: layer norm.")


def test_a_ratio_of_short_updates_has_its_reason(tmp_path):
    for norm in ("none", "layer"):
        write_digits(tmp_path, norm, 4, 0, [0.3, 0.2])
    found, _ = compare(find_runs([tmp_path]).runs)
    none, layer = (found[0].runs(arm)[0] for arm in found[0].arms)
    assert "fixed cost" not in update_times(found).note  # 4 ms of both
    layer.records[1]["seconds_per_update"] = layer.records[0]["seconds_per_update"] = 0.008
    assert (
        "The baseline's update takes only 4.0 ms here, so that the fixed cost of a norm's calls"
        in update_times(found).note
    )
    for record in none.records:
        record["seconds_per_update"] = 0.04
    layer.records[0]["seconds_per_update"] = layer.records[1]["seconds_per_update"] = 0.08
    assert "fixed cost" not in update_times(found).note


def test_rows_and_sentences_on_norms_that_were_not_run_are_left_out(tmp_path):
    write_rates(tmp_path, "layer", {0.001: [0.3]})
    paper = [("paper", "layer norm, exact", {}), ("paper", "batch norm", {}), ("rules", "a rule", {})]
    note = ("Of all.", Said("Of layer norm.", ("layer",)), Said("Of both.", ("layer", "batch*")))
    table = results(blocks(tmp_path), [ERROR], [], note, paper)
    assert [row[1] for row in table.rows] == ["layer norm", "layer norm, exact", "a rule"]
    assert table.note.startswith("Of all. Of layer norm. Mean over")
    write_rates(tmp_path, "batch-hidden", {0.001: [0.3]})
    table = results(blocks(tmp_path), [ERROR], [], note, paper)
    assert "Of both." in table.note
    assert ["paper", "batch norm"] not in [row[:2] for row in table.rows]  # on the hidden layers alone is another norm


def test_levels_of_norms_that_were_not_run_are_left_out(tmp_path):
    write_rates(tmp_path, "layer", {0.001: [0.3]})
    metric = dataclasses.replace(
        ERROR, levels={"layer norm, in the paper": 0.1, "baseline, in the paper": 0.2, "a rule": 0.3}
    )
    (figure,) = curves("curves", "Curves.", blocks(tmp_path), [metric])
    assert [line.label for line in figure.rows[0][0].curves] == ["layer norm", "layer norm, in the paper", "a rule"]


@dataclasses.dataclass(frozen=True)
class Protocol:
    """Options of an experiment, with the paper's values."""

    norm: str = option("layer", "the norm", in_name=True)
    learning_rate: float = option(1e-3, "the learning rate")
    train_cases: int = option(0, "cases to train on (0: all (of them))")
    prior: bool = option(False, "whether there is a prior")
    bias: float = option(0.0, "the bias")
    batch_size: int = option(128, "cases in a batch")
    held_out: int = option(5000, "cases held out")


def test_departures_from_a_protocol_are_told_as_one_writes_them(tmp_path):
    for number, rate in enumerate((2e-5, 1e-3, 0.1 + 0.2)):
        write_digits(
            tmp_path / str(number), "layer", 128, 0, [0.3], learning_rate=rate, train_cases=50, prior=True, bias=2.0
        )
    runs = find_runs(sorted(tmp_path.iterdir())).runs
    assert [f"{item.name}: {item.text}" for item in deviations(runs, (), Protocol(), ["held_out"], "the code")] == [
        "learning_rate: 2e-05, 0.001 or 0.3; the code has 0.001.".replace("2e-05, 0.001", "2e-05"),
        "train_cases: 50; the code has all (of them).",
        "prior: on; the code has off.",
        "bias: 2; the code has 0.",
    ]


def test_deviations_hold_for_some_runs_and_have_their_numbers_filled_in(tmp_path):
    write_digits(tmp_path, "layer", 128, 0, [0.3], learning_rate=0.5)
    write_digits(tmp_path, "layer", 4, 0, [0.3])
    (one, two) = find_runs([tmp_path]).runs
    one.environment["data"]["images"] = {"train": 6000}
    named = (
        Deviation("rate", "I", "{learning_rate}, {data_images_train} of {data_name}, {data_lacking}."),
        Deviation("norm", "I", "rms", {"norm": ["rms", "none"]}),
        Deviation("both", "S", "both", {"norm": ["layer"], "batch_size": [4]}),
        Deviation("neither", "S", "neither", {"norm": ["none"], "batch_size": [4]}),
        Deviation("data", "stand-in", "other data"),
        Deviation("goal", "stand-in", "another measure"),
    )
    found = deviations([one, two], named, Protocol(), ["learning_rate", "batch_size", "held_out"], "")
    assert [(item.name, item.text) for item in found] == [
        ("rate", "0.001 or 0.5, 6,000 of digits, ?."),
        ("both", "both"),
        ("data", "other data"),
        ("goal", "another measure"),
    ]
    one.environment["data"]["original"] = True
    assert [item.name for item in deviations([one], named, Protocol(), ["learning_rate", "held_out"], "")] == [
        "rate",
        "goal",
    ]
