"""The report on DRAW says what the records hold, and does without the samples of a damaged checkpoint."""

import pytest

from lab_support.runs import report_of, shown, write_run
from layernorm_lab.experiments.draw.config import Config


def write_draw(place, norm, seed, bounds, glimpses=16, **changes):
    """A run whose validation and test bound at updates 100, 200, ... is `bounds`, a quarter of it KL."""
    config = {**vars(Config(norm=norm, seed=seed, epochs=len(bounds), glimpses=glimpses)), **changes}
    records = [
        {
            "update": 100 * epoch, "epoch": float(epoch), "seconds_per_update": 0.2,
            "valid_bound": bound, "test_bound": bound, "test_kl": bound / 4, "test_reconstruction": 3 * bound / 4,
        }
        for epoch, bound in enumerate(bounds, 1)
    ]  # fmt: skip
    facts = {"name": "binarized-mnist", "fingerprint": "abc", "original": True}
    write_run(place / f"draw-{norm}-s{seed}", "draw", config, facts, records)


@pytest.fixture
def six(tmp_path):
    for seed in (0, 1, 2):
        up = 0.5 * seed
        write_draw(tmp_path, "none", seed, [200.0 + up, 130.0 + up, 110.0 + up, 104.0 + up])
        write_draw(tmp_path, "layer", seed, [190.0 + up, 120.0 + up, 100.0 + up, 96.0 + up])
    return tmp_path


def test_tables(six):
    results, times = report_of(six).tables
    assert results.rows[0] == ["here", "baseline", "0.001", "104.50 (104.00-105.00)", "26.12", "78.38", "3", "400"]
    assert results.rows[1] == ["here", "layer norm", "0.001", "96.50 (96.00-97.00)", "24.12", "72.38", "3", "400"]
    assert results.rows[2] == ["paper", "baseline", "-", "82.36", "-", "-", "-", "-"]
    assert times.rows == [["", "baseline", "200", "1.00"], ["", "layer norm", "200", "1.00"]]


def test_the_figure(six):
    (figure,) = report_of(six).figures
    panels = [panel for row in figure.rows for panel in row]
    assert [panel.y_label for panel in panels] == [
        "validation bound, nats", "test bound, nats", "KL part, nats", "reconstruction part, nats"
    ]  # fmt: skip
    assert [curve.label for curve in panels[1].curves[2:]] == [
        "baseline, in the paper after 200 epochs",
        "layer norm, in the paper after 200 epochs",
    ]
    assert [curve.mean for curve in panels[1].curves[2:]] == [[82.36] * 2, [82.09] * 2]
    assert panels[2].curves[1].mean == pytest.approx([47.625, 30.125, 25.125, 24.125])
    assert "Learning rates: baseline 0.001, layer norm 0.001 (the only one tried)." in figure.caption


def test_the_sensitivity_is_shown_where_there_are_two_rates(six):
    report = report_of(six)
    assert ([figure.name for figure in report.figures], report.findings) == (["figure4"], [])
    write_draw(six / "faster", "layer", 0, [150.0, 90.0, 92.0, 95.0], learning_rate=0.01)
    report = report_of(six, six / "faster")
    *_, sensitivity = report.figures
    best, last = (panel.curves[1] for panel in sensitivity.rows[0])
    assert (best.x, best.mean) == ([0.001, 0.01], [96.5, 90.0])
    assert last.mean == [96.5, 95.0]
    assert sensitivity.rows[0][0].title == "best evaluation"
    assert report.findings == []


def test_the_terminal_and_the_markdown(six, capsys):
    text = shown(report_of(six), capsys)
    for part in ("82.09", "glimpses: 16; the paper's protocol has 64.", "[S]", "figure4.png", "epochs: 4"):
        assert part in text
    assert "measure: speed is measured by the bound on the validation images" in text
    assert "Larochelle and Murray" not in text, "the data are theirs"


def test_a_checkpoint_that_cannot_be_read_leaves_the_report_without_its_samples(six):
    (six / "draw-layer-s0" / "checkpoint.safetensors").write_bytes(b"nothing")
    report = report_of(six)
    assert not report.pictures
    assert any("checkpoint.safetensors is damaged" in note for note in report.status)
