"""The shared figures: the metrics' curves at the rates shown, and the sensitivity to the learning rate."""

import dataclasses
import itertools

import pytest

from lab_support.runs import write_digits
from lab_support.sweeps import LOSS, SPEED, blocks, runs_of_trial, write_rates
from layernorm_lab.report import figures
from layernorm_lab.report.arms import NORMS, Arm
from layernorm_lab.report.blocks import Metric, compare
from layernorm_lab.report.curves import curves, sensitivity, view
from layernorm_lab.report.judge import TRIAL_SEEDS, Value
from layernorm_lab.report.page import STYLES, Curve, Figure, Panel
from layernorm_lab.runs.folder import find_runs

pytestmark = pytest.mark.draws

ERROR = Metric("valid_error", "validation error", percent=True)
TEST = Metric("test_error", "test error", chosen="valid_error", percent=True)


@pytest.fixture
def sweep(tmp_path):
    write_rates(tmp_path, "none", {0.001: [0.3, 0.4], 0.01: [0.2, 0.2], 0.1: [0.1, 0.5]})
    write_rates(tmp_path, "layer", {0.001: [0.4, 0.4], 0.01: [0.3, 0.3], 0.1: [0.1, 0.2]})
    write_rates(tmp_path, "rms", {0.01: [0.1, 0.3]})
    return tmp_path


def test_each_arm_is_drawn_at_its_rate_which_the_caption_says(sweep):
    (figure,) = curves("toy", "Errors.", blocks(sweep), [ERROR, TEST])
    ((left, right),) = figure.rows
    assert [curve.label for curve in right.curves] == ["baseline", "layer norm", "RMS norm"]
    assert right.curves[1].mean == pytest.approx([0.9, 0.15])
    assert right.curves[1].high == pytest.approx([0.9, 0.2])
    assert left.curves[1].mean == pytest.approx([1.8, 0.3])
    assert figure.caption == (
        "Errors. Learning rates: baseline 0.01, layer norm 0.1 (without a pilot, the best of those with the most "
        "runs); RMS norm 0.01 (the only one tried). Lines: mean over seeds; bands: lowest to highest seed."
    )
    assert curves("toy", "", [], [ERROR]) == []


def test_panels_show_what_decides_their_claims():
    """The claims chose different rates, and the third arm has no runs but the pilot's."""
    found, _ = compare(runs_of_trial(), [LOSS, SPEED])
    (figure,) = curves("toy", "Loss.", found, [Metric("test", "loss", "valid"), Metric("valid", "speed")], x="update")
    ((loss, speed),) = figure.rows
    assert [curve.mean for curve in loss.curves] == [pytest.approx([1.0, 0.9, 0.1])] * 3
    assert [curve.mean for curve in speed.curves] == [pytest.approx([0.4, 0.4, 0.4])] * 3
    assert loss.curves[0].x == [10, 20, 30]
    assert figure.about == (
        "Loss. Learning rates (loss): baseline 0.002, layer norm 0.002 (the pilot's best); weight norm 0.002 (the "
        "pilot's best, with the pilot's runs). Learning rates (speed): baseline 0.001, layer norm 0.001 (the pilot's "
        "best); weight norm 0.001 (the pilot's best, with the pilot's runs)."
    )


def test_claims_about_one_metric_that_chose_other_rates_have_a_panel_each():
    both = [SPEED, dataclasses.replace(LOSS, measure=Value("valid", "the loss"))]
    found, _ = compare(runs_of_trial(), both)
    (figure,) = curves("toy", "Loss.", found, [Metric("valid", "loss")])
    ((loss, speed),) = figure.rows
    assert (speed.title, loss.title) == ("rates by updates to a loss of 0.5", "rates by the loss")
    assert (speed.curves[0].mean, loss.curves[0].mean) == (pytest.approx([0.4] * 3), pytest.approx([1.0, 0.9, 0.1]))


def test_exact_statistics_are_read_by_their_prefix(tmp_path):
    write_digits(tmp_path, "batch", 4, 0, [0.5, 0.4], exact=0.1)
    found, _ = compare(find_runs([tmp_path]).runs, prefixes=["exact_"])
    (figure,) = curves("toy", "", found, [TEST])
    assert [(curve.label, curve.mean) for curve in figure.rows[0][0].curves] == [
        ("batch norm", [0.5, 0.4]), ("batch norm, exact statistics", [0.4, pytest.approx(0.3)])
    ]  # fmt: skip


def test_a_metric_of_some_evaluations_has_a_curve_of_these():
    runs = runs_of_trial(())
    for run in runs:
        del run.records[1]["other"]
        if run.config["norm"] == "weight":
            for record in run.records:
                record.pop("other", None)
    (figure,) = curves("toy", "", compare(runs)[0], [Metric("other", "", "valid", sparse=True)])
    assert [(curve.label, curve.x) for curve in figure.rows[0][0].curves] == [
        ("baseline", [1.0, 3.0]), ("layer norm", [1.0, 3.0])
    ]  # fmt: skip
    assert curves("toy", "", compare(runs)[0], [Metric("missing", "", "valid", sparse=True)]) == []


def test_levels_are_lines_from_end_to_end():
    found, _ = compare(runs_of_trial(()))
    metric = Metric("valid", "", levels={"a rule": 0.3, "another": 0.2})
    (figure,) = curves("toy", "", found, [metric], x="update")
    *_, rule, other = figure.rows[0][0].curves
    assert (rule.label, rule.x, rule.mean, rule.measured) == ("a rule", [0.0, 30], [0.3, 0.3], False)
    assert rule.style != other.style


def test_panels_that_fill_no_row_leave_places_empty(sweep):
    metrics = [dataclasses.replace(TEST, label=f"{number}") for number in range(5)]
    (figure,) = curves("toy", "", blocks(sweep), metrics)
    assert [len(row) for row in figure.rows] == [3, 2]
    assert [axes.axison for axes in figures.canvas(figure).axes] == [True] * 5 + [False]
    assert [len(row) for row in curves("toy", "", blocks(sweep), metrics[:4])[0].rows] == [2, 2]


def test_limits_leave_out_the_beginnings_highest_values(sweep):
    def line(high):
        return Curve("a", STYLES["layer"], [], [], [value - 1 for value in high], high)

    falling = line([100.0, 9.0, 6.0, 5.0, 3.0])
    assert view([falling]) == pytest.approx((2 - 0.08 * 7, 9 + 0.08 * 7))
    assert view([falling], floor=1.9)[0] == 1.9
    flat = Curve("a", STYLES["layer"], [], [], [5.0, 5.0], [5.0, 5.0])
    assert view([flat]) == (4.5, 5.5)
    write_digits(sweep / "long", "layer", 4, 0, [0.9, 0.1, 0.1, 0.1, 0.1])
    (figure,) = curves("toy", "", blocks(sweep / "long"), [TEST])
    assert "Axes leave out the highest values of the beginning." in figure.caption


def panels(found, *metrics):
    """The panels of the one sensitivity figure, row by row."""
    (figure,) = sensitivity(found, *metrics)
    assert figure.name == "sensitivity"
    return figure.rows


def test_the_sensitivity_curves(sweep):
    ((best, last),) = panels(blocks(sweep), ERROR)
    assert (best.title, last.title) == ("best evaluation", "at the end")
    assert (last.x_label, last.y_label) == ("learning rate", "validation error")
    assert last.log_x
    assert last.percent
    none, layer, rms = last.curves
    assert [curve.label for curve in last.curves] == ["baseline", "layer norm", "RMS norm"]
    assert none.style == STYLES["none"]
    assert (none.x, rms.x) == ([0.001, 0.01, 0.1], [0.01])
    assert none.mean == pytest.approx([0.7, 0.4, 0.6])
    assert none.low == pytest.approx([0.6, 0.4, 0.2])
    assert none.high == pytest.approx([0.8, 0.4, 1.0])
    assert layer.mean == pytest.approx([0.8, 0.6, 0.3])


def test_the_best_evaluation_may_be_before_the_end(tmp_path):
    for rate, errors in ((0.001, [0.2, 0.1, 0.3]), (0.01, [0.4, 0.3, 0.2])):
        write_digits(tmp_path / f"lr{rate:g}", "layer", 128, 0, errors, learning_rate=rate)
    found = blocks(tmp_path)
    ((best, last),) = panels(found, ERROR)
    assert (best.curves[0].mean, last.curves[0].mean) == (pytest.approx([0.2, 0.4]), pytest.approx([0.6, 0.4]))
    ((highest, _),) = panels(found, Metric("test_error", "", rising=True))
    assert highest.curves[0].mean == pytest.approx([0.3, 0.4])


def test_each_block_with_two_rates_has_a_row_for_each_metric(tmp_path):
    for size, tried in ((128, (0.01, 0.1)), (4, (0.01, 0.1)), (2, (0.01,))):
        for rate in tried:
            write_digits(tmp_path / f"lr{rate:g}", "layer", size, 0, [0.5, 0.1], learning_rate=rate)
    found = blocks(tmp_path)
    rows = panels(found, ERROR, Metric("train_nll", "training NLL"))
    assert [[panel.title for panel in row] for row in rows] == [
        [f"batch_size {size}, {what}" for what in ("best evaluation", "at the end")] for size in (128, 128, 4, 4)
    ]
    assert sensitivity([block for block in found if block.label == "2"], ERROR) == []


def test_the_caption_speaks_of_what_is_there(sweep):
    (plain,) = sensitivity(blocks(sweep), ERROR)
    assert "bands: lowest to highest seed" in plain.caption
    assert "cross" not in plain.caption
    write_rates(sweep / "one", "layer", {0.001: [0.3], 0.01: [0.2]})
    (alone,) = sensitivity(blocks(sweep / "one"), ERROR)
    assert "seed" not in alone.caption


def test_unfinished_runs_are_in_no_sensitivity_curve(tmp_path):
    write_rates(tmp_path, "layer", {0.001: [0.3, None], 0.01: [0.2, 0.2]})
    write_rates(tmp_path, "none", {0.001: [None, None]})
    ((_, last),) = panels(blocks(tmp_path), ERROR)
    (layer,) = last.curves
    assert (layer.x, layer.high) == ([0.001, 0.01], pytest.approx([0.6, 0.4]))
    write_rates(tmp_path / "other", "layer", {0.001: [0.3], 0.01: [None]})
    assert sensitivity(blocks(tmp_path / "other"), ERROR) == []


def test_an_axis_over_more_than_a_decade_is_logarithmic(tmp_path):
    write_rates(tmp_path, "layer", {0.001: [0.02, 0.08], 0.01: [0.04, 0.04], 0.1: [0.45, 0.45]})
    ((best, last),) = panels(blocks(tmp_path), ERROR)
    assert best.log
    assert last.log
    assert last.curves[0].mean == pytest.approx([0.08, 0.08, 0.9]), "the geometric mean of 0.04 and 0.16"
    (axes,) = figures.canvas(Figure("", "", [[last]])).axes
    axes.figure.draw_without_rendering()
    assert "10 %" in [label.get_text().replace(".0", "") for label in axes.get_yticklabels()]
    assert "20 %" in [label.get_text() for label in axes.get_yticklabels(minor=True)]


def test_the_figures_names_and_rates_can_be_read():
    """Many arms with long names above one panel, and each rate below it, also those that the baseline lacks."""
    tried = [0.0003, 0.001, 0.003, 0.01, 0.03]
    lines = [Curve(NORMS[norm], STYLES[norm], tried, *[[0.1] * 5] * 3) for norm in NORMS if norm != "none"]
    baseline = Curve(NORMS["none"], STYLES["none"], tried[:2], *[[0.2] * 2] * 3)
    panel = Panel("sensitivity", "learning rate", "error", [baseline, *lines], log_x=True)
    canvas = figures.canvas(Figure("rates", "", [[panel]]))
    canvas.draw_without_rendering()
    (legend,) = canvas.legends
    assert legend.get_window_extent().x0 >= 0
    assert legend.get_window_extent().x1 <= canvas.bbox.width
    assert len(legend.get_texts()) == len(NORMS)
    (axes,) = canvas.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.0003", "0.001", "0.003", "0.01", "0.03"]
    places = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(places)), "they do not overlap"


@pytest.mark.parametrize(
    ("tried", "labels"),
    [([0.001 * 2**place for place in range(9)], ["0.001", "", "0.004", "", "0.016", "", "0.064", "", "0.256"]),
     ([3.125e-5 * 2**place for place in range(7)], ["3.125e-05", "", "0.000125", "", "0.0005", "", "0.002"])],
)  # fmt: skip
def test_of_many_rates_every_second_one_is_labelled(tried, labels):
    line = Curve("a", STYLES["none"], tried, *[[0.1] * len(tried)] * 3)
    panel = Panel("sensitivity", "learning rate", "error", [line], log_x=True, dots=True)
    canvas = figures.canvas(Figure("rates", "", [[panel, panel]]))
    canvas.draw_without_rendering()
    shown = canvas.axes[0].get_xticklabels()
    assert [label.get_text() for label in shown] == labels
    places = [label.get_window_extent() for label in shown if label.get_text()]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(places)), "they do not overlap"


def test_runs_of_one_evaluation_have_one_panel_of_sensitivity(tmp_path):
    write_rates(tmp_path, "none", {0.001: [0.4], 0.01: [0.3]}, epochs=1)
    ((only,),) = panels(blocks(tmp_path), ERROR)
    assert only.title == "at the end"


def test_every_arm_has_a_name_and_a_style_of_its_own():
    arms = [Arm(norm) for norm in NORMS]
    arms += [Arm(norm, {"gain_init": 0.1}) for norm in ("layer", "rms")]
    arms += [Arm(norm, prefix="exact_") for norm in ("batch", "batch-hidden")]
    assert {arm.key for arm in arms} == set(STYLES)
    assert len({arm.name for arm in arms}) == len(arms)
    for part in ("colour", "dashes"):
        assert len({str(getattr(style, part)) for style in STYLES.values()}) == len(STYLES), part


def test_diverged_runs_are_marked_in_the_sensitivity_curves(tmp_path):
    write_rates(tmp_path, "none", {0.001: [0.4, 0.4], 0.01: [0.3, 0.3], 0.1: [0.01, "lost"]})
    write_rates(tmp_path, "layer", {0.001: [0.4, 0.4], 0.01: [0.01, "lost at once"], 0.1: ["lost", "lost at once"]})
    found = blocks(tmp_path)
    ((best, last),) = panels(found, ERROR)
    for panel in (best, last):
        assert [curve.lost for curve in panel.curves] == [[0.1], [0.01, 0.1]]
    assert [curve.x for curve in last.curves] == [[0.001, 0.01, 0.1], [0.001, 0.01]]
    assert last.curves[0].mean == pytest.approx([0.8, 0.6, 0.02]), "of the seeds that did not diverge"
    (figure,) = sensitivity(found, ERROR)
    assert "A cross at the upper edge: a seed diverged at this learning rate" in figure.caption
    (axes,) = figures.canvas(figure).axes[1:]
    crosses = [line.get_xdata().tolist() for line in axes.get_lines() if line.get_marker() == "X"]
    assert crosses == [[0.1], [0.01, 0.1]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.001", "0.01", "0.1"]


def test_a_norm_that_always_diverged_is_there_as_crosses(tmp_path):
    write_rates(tmp_path, "none", {0.001: [0.4], 0.01: [0.3]})
    write_rates(tmp_path, "layer", {0.001: ["lost"], 0.1: ["lost at once"]})
    ((_, last),) = panels(blocks(tmp_path), ERROR)
    none, layer = last.curves
    assert (none.lost, layer.x, layer.lost) == ([], [], [0.001, 0.1])
    canvas = figures.canvas(Figure("", "", [[last]]))
    assert [text.get_text() for text in canvas.legends[0].get_texts()] == ["baseline", "layer norm"]
    assert [label.get_text() for label in canvas.axes[0].get_xticklabels()] == ["0.001", "0.01", "0.1"]
    assert figures.draw_figure(Figure("", "", [[last]]), "png").startswith(b"\x89PNG")


def test_seeds_of_the_trial_are_drawn_without_the_pilots():
    (block,), _ = compare(runs_of_trial(), [SPEED])
    shown = block.shown(Metric("valid", ""))
    assert [len(item.runs) for item in shown.values()] == [len(TRIAL_SEEDS), len(TRIAL_SEEDS), 2]
