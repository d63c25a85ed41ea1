"""The report on the attentive reader says what the records and the tests hold."""

import json

import pytest
import torch

from lab_support.runs import report_of, shown, write_result, write_run
from layernorm_lab.data.cnn import RULES
from layernorm_lab.experiments.reader.config import Config
from layernorm_lab.report import rendering
from layernorm_lab.runs import checkpoint, folder

FACTS = {"name": "books-cloze", "fingerprint": "abc", "original": False, "questions": {"train": 90, "valid": 20}}
FACTS["guesses"] = dict(zip(RULES, (0.2, 0.3, 0.25), strict=True))

RATES = (1e-3, 2e-3, 4e-3)

PAGE = {"passage": ["Ann", "ran"], "attention": [0.8, 0.2], "question": ["who"], "answer": "Ann"}
PAGE["guesses"] = [["Ann", 0.5], ["ran", 0.25], ["(none)", 0.25]]


def write(place, norm, seed, errors, rate=1e-3, gain=1.0, pace=0.1, right=(1, 0, 0, 0), facts=FACTS, **changes):
    """A run whose validation error at updates 100, 200, ... is `errors`; `right`: each test question's answer."""
    config = Config(norm=norm, learning_rate=rate, gain_init=gain, seed=seed, corpus="books-cloze", updates=300)
    records = [
        {"update": 100 * number, "epoch": 0.1 * number, "seconds_per_update": pace, "valid_error": error,
         "valid_nll": 4 * error, "first_gradient_norm": 3.5}
        for number, error in enumerate(errors, 1)
    ]  # fmt: skip
    path = place / f"reader-{norm}-g{config.gain_init}-lr{rate}-s{seed}"
    write_run(path, "reader", {**vars(config), **changes}, facts, records)
    write_result(path, test_error=1 - sum(right) / len(right))
    page = torch.frombuffer(bytearray(json.dumps(PAGE).encode()), dtype=torch.uint8)
    checkpoint.save_checkpoint(path / folder.TEST, {"right": torch.tensor(right, dtype=torch.uint8), "page": page}, {})
    checkpoint.save_checkpoint(path / folder.CHECKPOINT, {}, {})


def write_grid(place, seeds=3, rates=RATES):
    """Five variants; 0.002 is everyone's best rate. Layer norm ends at 60 %, the baseline and gain 0.1 at 66 %, batch
    norm at 60 %, batch norm everywhere above the best rule's 70 %."""
    for seed in range(seeds):
        for rate in rates:
            up = 0.01 * seed + (0.03 if rate != 2e-3 else 0.0)
            write(place, "none", seed, [0.90 + up, 0.80 + up, 0.66 + up], rate)
            write(place, "layer", seed, [0.80 + up, 0.66 + up, 0.60 + up], rate, pace=0.12, right=(1, 1, 0, 0))
            write(place, "layer", seed, [0.90 + up, 0.85 + up, 0.66 + up], rate, gain=0.1)
            write(place, "batch", seed, [0.80 + up, 0.67 + up, 0.60 + up], rate, pace=0.9)
            write(place, "batch-everywhere", seed, [0.90 + up, 0.88 + up, 0.71 + up], rate, pace=1.0)
    return place


@pytest.fixture
def grid(tmp_path):
    return write_grid(tmp_path)


def test_tables(grid):
    results, rates, times = report_of(grid).tables
    assert results.rows[0][:5] == ["here", "baseline", "0.002", "67.0 (66.0-68.0)", "75.0 (75.0-75.0)"]
    assert results.rows[1][1:] == [
        "layer norm",
        "0.002",
        "61.0 (60.0-62.0)",
        "50.0 (50.0-50.0)",
        "3.5",
        "3",
        "300",
    ]
    assert [row[1] for row in results.rows[2:5]] == ["layer norm with gain 0.1", "batch norm", "batch norm everywhere"]
    assert results.rows[5:] == [
        *(
            ["without reading", rule, "-", error, "-", "-", "-", "-"]
            for rule, error in zip(RULES, ("80.0", "70.0", "75.0"), strict=True)
        ),
        *(
            ["cnn, paper", name, "8e-05", error, "-", "-", "-", "-"]
            for name, error in (("baseline", "50.3"), ("batch norm", "49.5"), ("batch norm everywhere", "50.0"))
        ),
    ]
    assert rates.rows[0][2:] == ["70.0 (69.0-71.0)", "67.0 (66.0-68.0)", "70.0 (69.0-71.0)"]
    assert times.rows[1] == ["", "layer norm", "120", "1.20"]
    assert times.rows[3][-1] == "9.00"


def test_findings(grid):
    (reads,) = report_of(grid).findings
    assert reads == (
        "Better than the best answer without reading (most frequent entity, 70.0 %): baseline, layer norm, layer norm "
        "with gain 0.1, batch norm with every seed; batch norm everywhere not with every seed."
    )


def test_norms_that_beat_no_rule_are_said(tmp_path):
    for seed in range(3):
        for rate in RATES:
            for norm, end in (("none", 0.75), ("layer", 0.72)):
                write(tmp_path, norm, seed, [0.9, end], rate)
    reads = report_of(tmp_path).findings[0]
    assert reads.endswith("(most frequent entity, 70.0 %): baseline, layer norm not with every seed.")


def test_figures_and_pictures(grid, tmp_path):
    report = report_of(grid)
    figure, sensitivity = report.figures
    error, nll = figure.rows[0]
    assert (error.x_label, error.y_label) == ("update", "validation error")
    assert [curve.label for curve in error.curves] == [
        "baseline", "layer norm", "layer norm with gain 0.1", "batch norm", "batch norm everywhere", *RULES
    ]  # fmt: skip
    assert error.curves[1].mean == pytest.approx([0.81, 0.67, 0.61])
    assert error.curves[-2].mean == [0.7, 0.7]
    assert error.limits[0] < 0.6
    assert error.limits[1] > 0.9
    assert len(nll.curves) == 5
    assert [len(curve.x) for curve in sensitivity.rows[0][0].curves] == [3] * 5
    labels = [curve.label for curve in nll.curves]
    assert [[curve.label for curve in panel.curves] for panel in sensitivity.rows[0]] == [labels] * 2
    for table in report.tables:
        assert [row[1] for row in table.rows][:5] == labels, "one name everywhere"
    assert [picture.name for picture in report.pictures] == ["question-none", "question-layer"]
    page = rendering.write_report(report, tmp_path / "report")
    assert page.read_text().count("data:image/png;base64") == 2


def test_several_other_gains_are_told_apart(grid):
    write(grid, "layer", 0, [0.9, 0.8], 2e-3, gain=0.3)
    report = report_of(grid)
    names = ["baseline", "layer norm", "layer norm with gain 0.1", "layer norm with gain 0.3"]
    assert [row[1] for row in report.tables[0].rows[:4]] == names
    drawn = {curve.label: curve.style for curve in report.figures[0].rows[0][0].curves}
    assert len({drawn[name] for name in names}) == 4
    rendering.write_report(report, grid / "report")


def test_a_gain_is_read_from_the_configuration(grid):
    for number, path in enumerate(grid.glob("reader-layer-g0.1-*")):
        path.rename(grid / f"renamed-{number}")
    report = report_of(grid)
    (gain,) = (row for row in report.tables[0].rows if row[1] == "layer norm with gain 0.1")
    assert gain[3] == "67.0 (66.0-68.0)"
    assert not any("gain_init" in note for note in report.status)


def test_without_a_baseline_a_test_or_guesses(tmp_path):
    write(tmp_path, "layer", 0, [0.9, 0.8], facts={"name": "cnn", "fingerprint": "x", "original": True})
    (tmp_path / "reader-layer-g1.0-lr0.001-s0" / folder.RESULT).unlink()
    report = report_of(tmp_path)
    assert report.findings == []
    assert report.pictures == []
    assert report.tables[0].rows[0][4] == "-"
    assert [row[0] for row in report.tables[0].rows] == ["here"]  # the paper's rows are of other norms
    assert not any("instead of CNN" in item.text for item in report.deviations)


def test_initial_values_are_departures(tmp_path):
    write(tmp_path, "layer", 0, [0.9, 0.8], initial="torch", forget_bias=2.0, prior=True, dropout=0.0)
    texts = {item.name: item.text for item in report_of(tmp_path).deviations}
    for name, said, paper in (
        ("learning_rate", "0.001", "8e-05"), ("initial", "torch", "source"), ("forget_bias", "2", "0"),
        ("prior", "on", "off"), ("dropout", "0", "0.5"),
    ):  # fmt: skip
        assert texts[name] == f"{said}; the paper's protocol has {paper}."
    assert "more than 10 names, or 120 words after the cut" in texts["questions"]


def test_damaged_test_files_leave_the_report_without_them(grid):
    for path in grid.glob("reader-layer-g1.0-lr0.002-*"):
        (path / folder.TEST).write_bytes(b"nothing")
    report = report_of(grid)
    assert any(note.startswith("No question is shown:") for note in report.status)
    assert len(report.pictures) == 1
    (reads,) = report.findings
    assert reads.startswith("Better than")
    assert report.tables[0].rows[1][3] == "61.0 (60.0-62.0)"


def test_the_terminal_and_the_markdown(grid, capsys):
    text = shown(report_of(grid), capsys)
    for part in ("90 training and 20 validation questions instead of CNN's", "[S]", "figure2.png", "updates: 300"):
        assert part in text
