"""The sums behind several reports, on numbers that one can add up by hand."""

import pytest
import torch

from layernorm.experiments.errors import RunError
from layernorm.experiments.report.comparison import (
    by_case,
    compare,
    first_reaching,
    low_to_high,
    over_cases,
    pictures,
    read_tests,
    spread,
    view,
)
from layernorm.experiments.report.page import STYLES, Curve, Picture
from layernorm.experiments.report.variants import departures
from layernorm.experiments.runs import checkpoint
from layernorm.experiments.runs.folder import TEST, find
from support.runs import write_digits

LINE = [(10, 8.0), (20, 6.0), (40, 2.0), (50, 3.0)]


@pytest.mark.parametrize(
    ("goal", "plain", "interpolated"),
    [(9.0, 10, 10), (8.0, 10, 10), (7.0, 20, 15), (3.0, 40, 35), (2.0, 40, 40), (1.9, None, None)],
)
def test_a_goal_is_reached_at_a_point_or_on_the_way_to_it(goal, plain, interpolated):
    assert first_reaching(LINE, goal) == plain
    assert first_reaching(LINE, goal, interpolated=True) == interpolated


@pytest.mark.parametrize(
    ("values", "form", "text"), [([3, 1, 2], "g", "1-3"), ([1.1, 1.4], ".0f", "1"), ([5], "g", "5")]
)
def test_the_lowest_and_the_highest_over_seeds(values, form, text):
    assert low_to_high(values, form) == text


@pytest.mark.parametrize(
    ("values", "text"), [([1.5], "1.50"), ([1, 2, 6], "3.00 (1.00-6.00)"), ([-2, 1], "-0.50 (-2.00 to 1.00)")]
)
def test_the_mean_with_its_range(values, text):
    assert spread(values) == text


@pytest.mark.parametrize(("layer", "warned"), [((200.0, 90.0, 99.0), False), ((1.0, 100.0, 100.0), True)])
def test_norms_whose_first_gradients_are_far_apart_are_told(tmp_path, layer, warned):
    """By the medians over seeds: one outlier is none of the norm's."""
    for norm, starts in (("none", (1.0, 1.0, 300.0)), ("layer", layer)):
        for seed, start in enumerate(starts):
            write_digits(tmp_path, norm, 128, seed, [0.3, 0.2], first_gradient_norm=start)
    _, status = compare(find([tmp_path]).runs, by="batch_size")
    told = "128: the gradient's norms at update 0 differ by 100 times or more (baseline 1, layer norm 100)"
    assert [told in line for line in status] == ([True] if warned else [])


def test_limits_leave_out_the_beginnings_highest_values():
    def curve(high):
        return Curve("a", STYLES["layer"], [], [], [value - 1 for value in high], high)

    falling = curve([100.0, 9.0, 6.0, 3.0])
    assert view([falling], part=4, margin=1.0) == pytest.approx((2 - 0.08 * 7, 9 + 0.08 * 7))
    assert view([falling], part=4, margin=1.0, floor=1.9)[0] == 1.9
    flat = Curve("a", STYLES["layer"], [], [], [5.0, 5.0], [5.0, 5.0])
    assert view([flat], part=4, margin=1.0) == (4.0, 6.0)


def test_blocks_are_sorted_and_marked_where_configurations_differ(tmp_path):
    for number, size in enumerate((4, 128)):
        write_digits(tmp_path / str(number), "none", size, 0, [0.3, 0.2])
        write_digits(tmp_path / str(number), "layer", size, 0, [0.3, 0.2])
    write_digits(tmp_path / "other", "layer", 4, 0, [0.4, 0.3], learning_rate=0.5)
    blocks, status = compare(find(sorted(tmp_path.iterdir())).runs, by="batch_size", descending=True)
    found = {(block.label, block.mark): list(block.groups) for block in blocks}
    assert found == {
        ("128 (a)", "(a)"): ["none", "layer"],
        ("4 (a)", "(a)"): ["none", "layer"],
        ("4 (b)", "(b)"): ["layer"],
    }
    assert status[0] == "The runs differ in learning_rate: 0.001, 0.5."
    assert status[1:] == ["Rows marked (a): learning_rate 0.001.", "Rows marked (b): learning_rate 0.5."]
    assert [block.has("none") for block in blocks] == [True, True, False]
    assert blocks[2].reached("layer", "test_error") == "-"
    assert blocks[2].pace("layer") == (0.004, "-")


def test_a_picture_is_of_the_first_run_with_weights_that_did_not_diverge(tmp_path):
    for seed, diverged in enumerate((None, 20, None, None)):
        write_digits(tmp_path, "layer", 128, seed, [0.3, 0.2], diverged=diverged)
        if seed:
            (tmp_path / f"digits-layer-b128-s{seed}" / "checkpoint.safetensors").touch()
    runs = sorted(find([tmp_path]).runs, key=lambda run: run.config["seed"])
    made, notes = pictures([("", runs)], lambda run, key: [Picture(run.path.name, "png", key, b"")], "none")
    assert [picture.name for picture in made] == ["digits-layer-b128-s2"]
    assert notes == []


def test_tests_are_read_and_stacked_by_group(tmp_path):
    for norm, right in (("none", (0, 1)), ("layer", (1, 1))):
        for seed in (0, 1):
            write_digits(tmp_path, norm, 128, seed, [0.3, 0.2])
            values = torch.tensor([*right, seed], dtype=torch.uint8)
            checkpoint.save(tmp_path / f"digits-{norm}-b128-s{seed}" / TEST, {"right": values}, {})
    blocks, _ = compare(find([tmp_path]).runs)
    groups = list(blocks[0].groups.values())
    tested, notes = read_tests(blocks)
    assert notes == []
    assert [item.tolist() for item in by_case(groups, tested, "right")] == [
        [[0, 1, 0], [0, 1, 1]], [[1, 1, 0], [1, 1, 1]]
    ]  # fmt: skip
    assert by_case(groups, tested, "other") == []

    path = tmp_path / "digits-layer-b128-s1" / TEST
    checkpoint.save(path, {"right": torch.zeros(4, dtype=torch.uint8)}, {})
    assert by_case(groups, read_tests(blocks)[0], "right") == [], "another number of cases"
    path.write_bytes(b"nothing")
    tested, notes = read_tests(blocks)
    assert by_case(groups, tested, "right") == []
    assert [note.startswith("No test: ") and "test.safetensors is damaged" in note for note in notes] == [True]
    path.unlink()
    assert by_case(groups, read_tests(blocks)[0], "right") == []


def test_a_difference_over_other_test_cases(tmp_path):
    """Of 4 cases layer norm's seeds answer 3, 2 and 3, the baseline's one each: its errors are fewer, so that the
    difference is below 0 where layer norm is named first, and above 0 where it is named last."""
    for norm, rights in (("none", ((0, 0, 0, 1), (0, 0, 0, 1))), ("layer", ((1, 1, 0, 1), (1, 0, 0, 1), (1, 1, 0, 1)))):
        for seed, right in enumerate(rights):
            write_digits(tmp_path, norm, 128, seed, [0.3, 0.2])
            values = torch.tensor(right, dtype=torch.uint8)
            checkpoint.save(tmp_path / f"digits-{norm}-b128-s{seed}" / TEST, {"right": values}, {})
    (block,), _ = compare(find([tmp_path]).runs)

    def lines(*norms, name="right", digits=1):
        tested, _ = read_tests([block])
        return over_cases(block, norms, tested, name, lambda right: 100 * (1 - right.mean(0)), "Error", digits)

    # the four cases' differences of the means over seeds are -100, -66.7, 0 and 0
    (line,) = lines("layer", "none")
    assert line.startswith(
        "Error, layer norm minus baseline, over other test cases with the networks of these seeds: -41.7 (95 %: -"
    )
    (other,) = lines("none", "layer", digits=0)
    assert "Error, baseline minus layer norm, " in other
    assert ": 42 (95 %: " in other
    assert lines("layer", "batch") == [], "no runs of batch norm"
    assert lines("layer", "none", name="other") == [], "no such test"
    (tmp_path / "digits-layer-b128-s2" / TEST).unlink()
    assert lines("layer", "none") == [], "one run has no test"


def test_departures_from_a_protocol_are_told_as_one_writes_them(tmp_path):
    for number, rate in enumerate((2e-5, 1e-3, 0.1 + 0.2)):
        write_digits(
            tmp_path / str(number), "layer", 128, 0, [0.3], learning_rate=rate, train_cases=50, prior=True, bias=2.0
        )
    found = departures(
        find(sorted(tmp_path.iterdir())).runs,
        {"learning_rate": 1e-3, "train_cases": 0, "prior": False, "bias": 0.0, "batch_size": 128},
    )
    assert [item.text for item in found] == [
        "learning_rate is 2e-05 or 0.3; the paper's protocol has 0.001.",
        "train_cases is 50; the paper's protocol has all.",
        "prior is on; the paper's protocol has off.",
        "bias is 2; the paper's protocol has 0.",
    ]


def test_a_run_whose_norm_has_no_row_is_an_error_and_not_left_out(tmp_path):
    write_digits(tmp_path, "none", 128, 0, [0.3])
    write_digits(tmp_path, "laydr", 128, 0, [0.3])
    with pytest.raises(RunError, match=r"digits-laydr-b128-s0 has the norm 'laydr', not one of none, layer, "):
        compare(find([tmp_path]).runs)
