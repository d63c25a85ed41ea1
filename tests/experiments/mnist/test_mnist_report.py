"""A report says what the records hold, of finished runs and of unfinished ones."""

import pytest

from layernorm.experiments.report import rendering
from layernorm.experiments.report.page import STYLES
from layernorm.experiments.report.verdicts import RULE_AT_ONE_RATE
from support.runs import report_of, write_digits, write_sweep


@pytest.fixture
def folder(tmp_path):
    return write_sweep(tmp_path)


def rows(table):
    return {(row[0], row[1]): row[2:] for row in table.rows}


def test_results(folder):
    results = rows(report_of(folder).tables[0])
    #                                     final, at best validation, train NLL, seeds, epochs
    assert results["128", "baseline"] == ["10.50 (10.00-11.00)", "10.50 (10.00-11.00)", "1.3e-02", "3", "4"]
    assert results["128", "layer norm"] == ["7.50 (7.00-8.00)", "6.50 (6.00-7.00)", "9.4e-03", "3", "4"]
    assert list(results) == [(size, norm) for size in ("128", "4") for norm in ("baseline", "layer norm", "batch norm")]


def test_speed(folder):
    speed = rows(report_of(folder).tables[1])
    #                                   epochs to the baseline's test error and NLL, ms an update, ratio
    assert speed["128", "baseline"] == ["4", "4", "128.00", "1.00"]
    assert speed["128", "layer norm"] == ["2", "2", "128.00", "1.00"]
    assert speed["128", "batch norm"] == ["4", "4", "128.00", "1.00"]
    assert speed["4", "batch norm"][:2] == ["not reached", "not reached"]


def test_curves_are_means_with_ranges(folder):
    left, right = report_of(folder).figures[0].rows[0]
    layer = next(curve for curve in right.curves if curve.style == STYLES["layer"])
    assert layer.x == [1, 2, 3, 4]
    assert layer.mean == pytest.approx([0.205, 0.085, 0.065, 0.075])
    assert layer.low == pytest.approx([0.20, 0.08, 0.06, 0.07])
    assert layer.high == pytest.approx([0.21, 0.09, 0.07, 0.08])
    assert left.log
    assert not right.log


def test_findings_follow_the_numbers(folder):
    large, small, robustness, rule = report_of(folder).findings
    assert "epochs to a training NLL of 0.1 / 0.012 (the last is the lowest" in large
    assert "layer norm 1 / 2, batch norm 1 / 4: as the paper claims at 1 of 2, no difference" in large, "a tie"
    assert "best test error, 10.50 %: layer norm 2, batch norm 4." in large
    assert "best test error, 10.50 %: layer norm 2, batch norm not reached." in small
    assert "the test error at epoch 4 goes: baseline 10.50 % to 10.50 %, layer norm 7.50 % to 7.50 %" in robustness
    assert "batch norm 9.50 % to 14.50 %" in robustness
    assert robustness.endswith(
        "Only batch norm loses, layer norm does not: as the paper claims (at one learning rate)."
    )
    assert rule == RULE_AT_ONE_RATE


def write_seeds(folder, norm, size, *curves, **changes):
    for seed, curve in enumerate(curves):
        write_digits(folder, norm, size, seed, curve, **changes)


CONVERGENCE = {
    # training NLL is an eighth of these; verdict: the runs of layer norm, those of batch norm
    "as the paper claims (at one learning rate)": ([[0.5, 0.3], [0.5, 0.2], [0.5, 0.2]], [[0.9, 0.5]] * 3),
    "against the paper's claim (at one learning rate)": ([[0.9, 0.5]] * 3, [[0.5, 0.3], [0.5, 0.2], [0.5, 0.2]]),
    "mixed (at one learning rate)": ([[0.79, 0.5, 0.2, 0.07, 0.05]] * 3, [[0.9, 0.7, 0.07, 0.07, 0.04]] * 3),
    "no difference larger than the spread over seeds (at one learning rate)": (
        [[0.5, 0.3], [0.5, 0.3], [0.9, 0.3]],
        [[0.9, 0.3], [0.9, 0.3], [0.9, 0.2]],
    ),
    "no verdict from 2 seeds": ([[0.5, 0.3]] * 2, [[0.9, 0.5]] * 3),
    "no verdict from one seed": ([[0.5, 0.3]], [[0.9, 0.5]] * 3),
    "no verdict from one epoch": ([[0.5]] * 3, [[0.9]] * 3),
    "no verdict from one seed and one epoch": ([[0.5]], [[0.9]]),
}


@pytest.mark.parametrize("verdict", CONVERGENCE)
def test_verdicts_on_convergence(tmp_path, verdict):
    layer, batch = CONVERGENCE[verdict]
    write_seeds(tmp_path, "layer", 128, *layer)
    write_seeds(tmp_path, "batch", 128, *batch)
    finding, _ = report_of(tmp_path).findings
    assert finding.endswith(f": {verdict}.")


def test_convergence_is_compared_at_every_power_of_ten_that_all_runs_reach(tmp_path):
    layer, batch = CONVERGENCE["mixed (at one learning rate)"]
    write_seeds(tmp_path, "layer", 128, *layer)
    write_seeds(tmp_path, "batch", 128, *batch)
    finding, _ = report_of(tmp_path).findings
    assert "0.1 / 0.01 / 0.0063" in finding
    assert "layer norm 1 / 4 / 5, batch norm 2 / 3 / 5" in finding


ROBUSTNESS = {
    # the last test errors of three seeds at batch size 4; at 128 they are 0.10
    "Layer norm loses less than batch norm: as the paper claims (at one learning rate).": (
        [0.11, 0.12, 0.12],
        [0.13, 0.14, 0.15],
    ),
    "Batch norm loses less than layer norm: against the paper's claim (at one learning rate).": (
        [0.13, 0.14, 0.15],
        [0.11, 0.12, 0.12],
    ),
    "Layer norm loses less than batch norm: no difference larger than the spread over seeds (at one learning rate).": (
        [0.11, 0.11, 0.13],
        [0.12, 0.14, 0.14],
    ),
    "Layer norm loses as much as batch norm: no difference larger than the spread over seeds (at one learning rate).": (
        [0.11, 0.11, 0.11],
        [0.11, 0.11, 0.11],
    ),
    "Only layer norm loses, batch norm does not: against the paper's claim (at one learning rate).": (
        [0.13, 0.14, 0.14],
        [0.09, 0.09, 0.09],
    ),
    "No method's error rises: no verdict.": ([0.08, 0.08, 0.08], [0.09, 0.09, 0.09]),
    "Layer norm loses less than batch norm: no verdict from 2 seeds.": ([0.11, 0.11], [0.13, 0.13]),
    "Layer norm loses less than batch norm: no verdict from one seed.": ([0.11], [0.13]),
}


@pytest.mark.parametrize("ending", ROBUSTNESS)
def test_verdicts_on_the_batch_size(tmp_path, ending):
    for norm, lasts in zip(("layer", "batch"), ROBUSTNESS[ending], strict=True):
        write_seeds(tmp_path, norm, 128, *([0.2, 0.1] for _ in lasts))
        write_seeds(tmp_path, norm, 4, *([0.2, last] for last in lasts))
    assert report_of(tmp_path).findings[-2].endswith(f". {ending}")


def test_batch_sizes_are_compared_at_the_epoch_that_all_have_reached(tmp_path):
    for norm in ("layer", "batch"):
        write_seeds(tmp_path, norm, 128, [0.3, 0.2, 0.1], [0.3, 0.2, 0.1])
        write_seeds(tmp_path, norm, 4, [0.4, 0.3], [0.4, 0.3], epochs=3)
    assert "the test error at epoch 2 goes: layer norm 20.00 % to 30.00 %" in report_of(tmp_path).findings[-2]


def test_the_rule_stands_below_verdicts_once_and_only_there(folder, tmp_path):
    rendering.write(report_of(folder), tmp_path / "report")
    assert (tmp_path / "report" / "report.md").read_text().count("A verdict needs 3 seeds a side") == 1
    write_digits(tmp_path / "alone", "layer", 128, 0, [0.3, 0.2])
    assert report_of(tmp_path / "alone").findings == []


def test_unfinished_runs_are_shown_and_said(tmp_path):
    write_digits(tmp_path, "none", 128, 0, [0.3, 0.2, 0.1])
    write_digits(tmp_path, "none", 128, 1, [0.3], epochs=3)
    write_digits(tmp_path, "layer", 128, 0, [], epochs=3)
    report = report_of(tmp_path)
    assert report.status[0].startswith("Unfinished: 2 of 3 runs (digits-layer-b128-s0, digits-none-b128-s1)")
    assert rows(report.tables[0])["128", "baseline"][-1] == "1 of 3"
    rendering.write(report, tmp_path / "report")


def test_diverged_runs_are_shown_and_said(tmp_path):
    for seed in (0, 1, 2):
        write_digits(tmp_path, "layer", 128, seed, [0.3, 0.2, 0.1])
        write_digits(tmp_path, "batch", 128, seed, [0.4, 0.3, 0.2])
    write_digits(tmp_path, "batch", 128, 3, [0.4], epochs=3, diverged=20)
    write_digits(tmp_path, "none", 128, 0, [], epochs=3, diverged=10)
    report = report_of(tmp_path)
    lost = "digits-batch-b128-s3 at update 20, digits-none-b128-s0 at update 10"
    assert report.status == [f"Diverged: 2 of 8 runs ({lost}). Curves end where the shortest seed ends."]
    assert report.findings[0].endswith(": no verdict from runs that diverged and one epoch.")
    results = rows(report.tables[0])
    assert list(results) == [("128", "layer norm"), ("128", "batch norm")]
    assert results["128", "batch norm"][-2:] == ["4", "1 of 3"]
    rendering.write(report, tmp_path / "report")


def test_nothing_yet_is_a_report_too(tmp_path):
    write_digits(tmp_path, "layer", 128, 0, [], epochs=3)
    report = report_of(tmp_path)
    assert report.figures == []
    rendering.write(report, tmp_path / "report")
    rendering.show(report)


def test_runs_of_different_configurations_share_no_row(tmp_path):
    write_digits(tmp_path / "a", "layer", 128, 0, [0.3])
    write_digits(tmp_path / "b", "layer", 128, 0, [0.3, 0.2, 0.1])
    write_digits(tmp_path / "b", "layer", 128, 1, [0.3, 0.2, 0.1])
    write_digits(tmp_path / "b", "none", 128, 0, [0.3, 0.2, 0.1])
    report = report_of(tmp_path / "a", tmp_path / "b")
    results = rows(report.tables[0])
    assert results["128 (a)", "layer norm"] == ["30.00", "30.00", "3.7e-02", "1", "1"]
    assert results["128 (b)", "layer norm"][-2:] == ["2", "3"]
    assert list(results) == [("128 (a)", "layer norm"), ("128 (b)", "baseline"), ("128 (b)", "layer norm")]
    assert report.status[-2:] == ["Rows marked (a): epochs 1.", "Rows marked (b): epochs 3."]
    assert any("epochs is 1 or 3; the paper's" in item.text for item in report.deviations)


def test_unequal_runs_are_said(tmp_path):
    write_digits(tmp_path, "none", 128, 0, [0.3, 0.2])
    write_digits(tmp_path, "layer", 128, 0, [0.3, 0.2], learning_rate=0.5, held_out=100)
    report = report_of(tmp_path)
    assert "The runs differ in held_out: 100, 197." in report.status
    assert report.tables[-1].title == "Learning rates"


def test_deviations_carry_marks(folder):
    deviations = report_of(folder).deviations
    assert {item.mark for item in deviations} == {"I", "stand-in"}
    text = " ".join(item.text for item in deviations)
    assert "1797 digits" in text
    assert "epochs is 4; the paper's protocol has 60" in text


def test_the_sensitivity_is_shown_where_there_are_two_rates(folder):
    assert [figure.name for figure in report_of(folder).figures] == ["figure6"]
    write_digits(folder / "faster", "layer", 4, 0, [0.1, 0.02, 0.05], learning_rate=0.01)
    *_, sensitivity = report_of(folder, folder / "faster").figures
    ((best, last),) = sensitivity.rows
    assert best.title == "batch size 4, best evaluation"
    layer = next(curve for curve in last.curves if curve.label == "layer norm")
    assert (layer.x, layer.mean) == ([0.001, 0.01], pytest.approx([0.15, 0.1]))


def test_batch_norm_with_exact_statistics_is_a_norm_of_its_own(tmp_path):
    for seed in (0, 1, 2):
        write_digits(tmp_path, "layer", 4, seed, [0.3, 0.2])
        write_digits(tmp_path, "batch", 4, seed, [0.5, 0.4], exact=0.1)
    report = report_of(tmp_path)
    assert [row[1:3] for row in report.tables[0].rows] == [
        ["layer norm", "20.00 (20.00-20.00)"],
        ["batch norm", "40.00 (40.00-40.00)"],
        ["batch norm, exact statistics", "30.00 (30.00-30.00)"],
    ]
    assert len(report.figures[0].rows[0][1].curves) == 3
    assert len(report.runs) == 6


def test_a_likelihood_on_a_logarithmic_axis_is_averaged_geometrically(tmp_path):
    for seed, error in enumerate((0.8, 0.008, 0.00008)):
        write_digits(tmp_path, "layer", 128, seed, [error, error])
    report = report_of(tmp_path)
    assert report.figures[0].rows[0][0].curves[0].mean == pytest.approx([0.001, 0.001])
    assert report.tables[0].rows[0][4] == "1.0e-03"
