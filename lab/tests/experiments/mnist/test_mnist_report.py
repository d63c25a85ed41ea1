"""A report says what the records hold, of finished runs and of unfinished ones."""

import pytest

from lab_support.runs import report_of, write_digits, write_sweep
from layernorm_lab.cli.report import make_report
from layernorm_lab.report import rendering
from layernorm_lab.report.page import STYLES


@pytest.fixture
def folder(tmp_path):
    return write_sweep(tmp_path)


def rows(table):
    return {(row[0], row[1]): row[2:] for row in table.rows}


def test_results(folder):
    results = rows(report_of(folder).tables[0])
    #                                     rate, final, lowest on validation, train NLL, seeds, updates
    assert results["128", "baseline"] == ["0.001", "10.50 (10.00-11.00)", "21.00 (20.00-22.00)", "1.3e-02", "3", "40"]
    assert results["128", "layer norm"] == ["0.001", "7.50 (7.00-8.00)", "13.00 (12.00-14.00)", "9.4e-03", "3", "40"]
    assert list(results) == [(size, norm) for size in ("128", "4") for norm in ("baseline", "layer norm", "batch norm")]


def test_curves_are_means_with_ranges(folder):
    left, right = report_of(folder).figures[0].rows[0]
    layer = next(curve for curve in right.curves if curve.style == STYLES["layer"])
    assert layer.x == [1, 2, 3, 4]
    assert layer.mean == pytest.approx([0.205, 0.085, 0.065, 0.075])
    assert layer.low == pytest.approx([0.20, 0.08, 0.06, 0.07])
    assert layer.high == pytest.approx([0.21, 0.09, 0.07, 0.08])
    assert left.log
    assert not right.log


def test_unfinished_runs_are_shown_and_said(tmp_path):
    write_digits(tmp_path, "none", 128, 0, [0.3, 0.2, 0.1])
    write_digits(tmp_path, "none", 128, 1, [0.3], epochs=3)
    write_digits(tmp_path, "layer", 128, 0, [], epochs=3)
    report = report_of(tmp_path)
    assert report.status[0].startswith("Unfinished: 2 of 3 runs (digits-layer-b128-s0, digits-none-b128-s1)")
    assert rows(report.tables[0])["", "baseline"][-2:] == ["1", "30"]
    assert "baseline 0.001 (the only one tried)" in report.figures[0].caption
    rendering.write_report(report, tmp_path / "report")


def test_diverged_runs_are_said_and_have_no_part_in_a_mean(tmp_path):
    for seed in (0, 1, 2):
        write_digits(tmp_path, "layer", 128, seed, [0.3, 0.2, 0.1])
        write_digits(tmp_path, "batch", 128, seed, [0.4, 0.3, 0.2])
    write_digits(tmp_path, "batch", 128, 3, [0.4], epochs=3, diverged=20)
    write_digits(tmp_path, "none", 128, 0, [], epochs=3, diverged=10)
    report = report_of(tmp_path)
    lost = "digits-batch-b128-s3 at update 20, digits-none-b128-s0 at update 10"
    assert report.status == [f"Diverged: 2 of 8 runs ({lost}). Curves end where the shortest seed ends."]
    results = rows(report.tables[0])
    assert list(results) == [("", "layer norm"), ("", "batch norm")]
    assert results["", "batch norm"][-2:] == ["3", "30"]
    rendering.write_report(report, tmp_path / "report")


def test_nothing_yet_is_a_report_too(tmp_path):
    write_digits(tmp_path, "layer", 128, 0, [], epochs=3)
    report = report_of(tmp_path)
    assert report.figures == []
    rendering.write_report(report, tmp_path / "report")
    rendering.print_report(report)


def test_runs_of_different_configurations_share_no_row(tmp_path):
    write_digits(tmp_path / "a", "layer", 128, 0, [0.3])
    write_digits(tmp_path / "b", "layer", 128, 0, [0.3, 0.2, 0.1])
    write_digits(tmp_path / "b", "layer", 128, 1, [0.3, 0.2, 0.1])
    write_digits(tmp_path / "b", "none", 128, 0, [0.3, 0.2, 0.1])
    report = report_of(tmp_path / "a", tmp_path / "b")
    results = rows(report.tables[0])
    assert report.tables[0].columns[0] == "epochs"
    assert results["1", "layer norm"] == ["0.001", "30.00", "60.00", "3.7e-02", "1", "10"]
    assert results["3", "layer norm"][-2:] == ["2", "30"]
    assert list(results) == [("3", "baseline"), ("3", "layer norm"), ("1", "layer norm")]
    assert "1 or 3; the paper's protocol has 60." in [item.text for item in report.deviations]


def test_deviations_carry_marks(folder):
    deviations = report_of(folder).deviations
    assert {item.mark for item in deviations} == {"I", "stand-in"}
    text = " ".join(item.text for item in deviations)
    assert "1797 digits" in text
    assert {item.name: item.text for item in deviations}["epochs"] == "4; the paper's protocol has 60."


def test_digits_say_nothing_of_the_papers_claims(folder, tmp_path):
    """Their data are not the paper's."""
    report = make_report([folder])
    assert (report.claim, report.findings) == ("", [])
    page = rendering.write_report(report, tmp_path / "report")
    for text in (page.read_text(), (tmp_path / "report" / "report.md").read_text()):
        assert "claim" not in text
        assert "These runs." not in text


def test_the_sensitivity_is_shown_where_there_are_two_rates(folder):
    report = report_of(folder)
    assert ([figure.name for figure in report.figures], report.findings) == (["figure6"], [])
    write_digits(folder / "faster", "layer", 4, 0, [0.1, 0.02, 0.04, 0.05], learning_rate=0.01)
    report = report_of(folder, folder / "faster")
    *_, sensitivity = report.figures
    ((best, last),) = sensitivity.rows
    assert best.title == "batch_size 4, best evaluation"
    layer = next(curve for curve in last.curves if curve.label == "layer norm")
    assert (layer.x, layer.mean) == ([0.001, 0.01], pytest.approx([0.15, 0.1]))
    assert report.findings == []


def test_batch_norm_with_exact_statistics_is_an_arm_of_its_own(tmp_path):
    for seed in (0, 1, 2):
        write_digits(tmp_path, "layer", 4, seed, [0.3, 0.2])
        write_digits(tmp_path, "batch", 4, seed, [0.5, 0.4], exact=0.1)
        write_digits(tmp_path, "batch-hidden", 4, seed, [0.5, 0.3], exact=0.2)
    report = report_of(tmp_path)
    assert [[row[1], row[3]] for row in report.tables[0].rows] == [
        ["layer norm", "20.00 (20.00-20.00)"],
        ["batch norm", "40.00 (40.00-40.00)"],
        ["batch norm, exact statistics", "30.00 (30.00-30.00)"],
        ["batch norm, hidden layers", "30.00 (30.00-30.00)"],
        ["batch norm, hidden layers, exact statistics", "10.00 (10.00-10.00)"],
    ]
    assert len(report.figures[0].rows[0][1].curves) == 5
    assert [row[1] for row in report.tables[1].rows] == ["layer norm", "batch norm", "batch norm, hidden layers"]
    assert len(report.runs) == 9


def test_a_likelihood_on_a_logarithmic_axis_is_averaged_geometrically(tmp_path):
    for seed, error in enumerate((0.8, 0.008, 0.00008)):
        write_digits(tmp_path, "layer", 128, seed, [error, error])
    report = report_of(tmp_path)
    assert report.figures[0].rows[0][0].curves[0].mean == pytest.approx([0.001, 0.001])
    assert report.tables[0].rows[0][5] == "1.0e-03"
