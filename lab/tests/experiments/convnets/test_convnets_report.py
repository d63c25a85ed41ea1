"""The report on 6.7 says what the records and the tests of the runs hold."""

import pytest
import torch

from lab_support.runs import report_of, shown, write_result, write_run
from layernorm_lab.experiments.convnets.config import Config
from layernorm_lab.runs import checkpoint, folder

# of every layer at the start and at the end: on / mean / deviation at the border and in the centre
CONTRAST = torch.tensor([[0.2, 0.5], [1.0, 2.0], [1.5, 3.0]], dtype=torch.float64)


def write_convnets(place, norm, seed, losses, rate=3e-3, error=0.4, wrong=8, done=True, contrast=CONTRAST, width=16):
    """A run whose training loss after each epoch of 100 updates is `losses`; of 20 test images `wrong` are wrong."""
    config = vars(Config(norm=norm, seed=seed, learning_rate=rate, epochs=len(losses), width=width, train_cases=10_000))
    records = [
        {
            "update": 100 * epoch, "epoch": float(epoch), "examples": 10_000 * epoch, "seconds_per_update": 0.1,
            "train_nll": loss, "valid_error": error, "test_error": error + 0.01,
        }
        for epoch, loss in enumerate(losses, 1)
    ]  # fmt: skip
    records[0]["first_gradient_norm"] = 1.5 + seed
    facts = {"name": "cifar10", "fingerprint": "abc", "original": False}
    path = place / f"convnets-{norm}-lr{rate}-s{seed}"
    write_run(path, "convnets", config, facts, records, done=done)
    if done:
        right = torch.ones(20, dtype=torch.uint8)
        right[:wrong] = 0
        tensors = {"correct": right}
        for when in ("start", "end"):
            for layer in range(1, 10):
                tensors[f"{when}.{layer}.profile"] = torch.full((3, 4), 0.5, dtype=torch.float64)
                tensors[f"{when}.{layer}.contrast"] = (
                    contrast.clone() if layer == 4 else torch.ones(3, 2, dtype=torch.float64)
                )
                tensors[f"{when}.{layer}.explained"] = torch.tensor([0.01 * layer, 0.5], dtype=torch.float64)
        checkpoint.save_checkpoint(path / folder.TEST, tensors, {})
        write_result(path, all_test_error=wrong / 20)


@pytest.fixture
def whole(tmp_path):
    """Three norms, three rates, three seeds; the middle rate is everybody's best, layer norm between the others."""
    for norm, up, wrong in (("none", 0.2, 10), ("layer", 0.1, 8), ("batch", 0.0, 6)):
        for rate, worse in ((1e-3, 0.1), (3e-3, 0.0), (1e-2, 0.2)):
            for seed in range(3):
                more = up + worse + 0.01 * seed
                losses = [1.7 + more, 1.3 + more, 1.05 + more]
                write_convnets(tmp_path, norm, seed, losses, rate, 0.4 + worse, wrong)
    return tmp_path


def test_tables(whole):
    results, rates, times, on, explained = report_of(whole).tables
    assert results.rows[0] == ["", "baseline", "0.003", "50.0 (50.0-50.0)", "40.0", "1.2-1.3", "1.5-3.5",
                               "3", "300"]  # fmt: skip
    assert [row[2] for row in results.rows] == ["0.003"] * 3
    assert rates.rows[0][2:] == ["50.0 (50.0-50.0)", "40.0 (40.0-40.0)", "60.0 (60.0-60.0)"]
    assert times.rows[1] == ["", "layer norm", "100", "1.00"]
    assert on.rows[0] == ["", "baseline", "1.00", "1.00", "1.00", "0.40", "1.00", "1.00", "1.00", "1.00", "1.00"]
    assert explained.rows[0][2:4] == ["1 / 50", "2 / 50"]


def test_units_at_the_border_in_words(whole):
    border, distances = report_of(whole).figures[2:]
    assert (len(border.says), len(distances.says)) == (3, 3)
    assert border.says[0] == (
        "Baseline: units at the border are rarely turned on, if rarely means less than 0.5 times as often as the "
        "centre's: at the least 0.40 times as often (convolution 4, highest seed). They are on less often in 1 of 9 "
        "convolutions in every seed. Their deviation is 0.50 to 1.00 times the centre's."
    )
    assert distances.says[0] == (
        "Baseline: the distance from the border explains at most 9 % of the variance between units of a layer in how "
        "often they are on (convolution 9; channels explain 50 % there)."
    )


def test_one_seed_that_differs_makes_units_not_rarely_turned_on(whole):
    alike = torch.tensor([[0.4, 0.5], [1.0, 2.0], [1.5, 3.0]], dtype=torch.float64)
    path = whole / "convnets-none-lr0.003-s1"
    tensors, _ = checkpoint.load_checkpoint(path / folder.TEST)
    checkpoint.save_checkpoint(path / folder.TEST, {**tensors, "end.4.contrast": alike}, {})
    text = report_of(whole).figures[2].says[0]
    assert text.startswith("Baseline: units at the border are not rarely turned on, ")
    assert "at the least 0.80 times as often (convolution 4, highest seed)" in text


def test_curves_of_the_border_figure(whole):
    curves, rates, border, distances = report_of(whole).figures
    assert [figure.name for figure in (curves, rates, border, distances)] == [
        "curves", "sensitivity", "border", "distances"
    ]  # fmt: skip
    assert [[panel.title for panel in row] for row in rates.rows] == [["best evaluation", "at the end"]] * 2
    assert [row[0].y_label for row in rates.rows] == ["validation error", "training loss, nats"]
    on, shift, deviation = border.rows[0]
    line = on.curves[0]
    assert (line.label, line.x) == ("baseline", list(range(1, 10)))
    assert line.mean == pytest.approx([1, 1, 1, 0.4, 1, 1, 1, 1, 1])
    assert shift.curves[0].mean[3] == pytest.approx((1 - 2) / 3)
    assert deviation.curves[0].mean[3] == pytest.approx(0.5)
    assert on.limits[0] == 0
    assert [len(row) for row in distances.rows] == [3, 3, 3]
    assert distances.rows[0][0].curves[0].x == [0, 1, 2, 3]


def test_blocks_have_figures_of_their_own(tmp_path):
    """Runs of two widths: each has a row of curves, and its units."""
    write_convnets(tmp_path, "layer", 0, [1.7, 1.3])
    write_convnets(tmp_path / "wide", "layer", 0, [1.6, 1.2], width=32)
    report = report_of(tmp_path, tmp_path / "wide")
    assert [figure.name for figure in report.figures] == [
        "curves", "border-32", "distances-32", "border-16", "distances-16"
    ]  # fmt: skip
    assert [row[0].title for row in report.figures[0].rows] == ["width 32", "width 16"]
    said = [figure.says[0].partition(":")[0] for figure in report.figures if figure.name.startswith("border")]
    assert said == ["Width 32, layer norm", "Width 16, layer norm"]
    assert [row[0] for row in report.tables[0].rows[:2]] == ["32", "16"]


def test_one_rate_has_no_figure_of_the_sensitivity(tmp_path):
    for norm, up in (("none", 0.1), ("layer", 0.0)):
        write_convnets(tmp_path, norm, 0, [1.7 + up, 1.3 + up])
    assert [figure.name for figure in report_of(tmp_path).figures] == ["curves", "border", "distances"]


def test_unfinished_and_damaged_runs(whole):
    (whole / "convnets-layer-lr0.003-s0" / folder.TEST).write_bytes(b"nothing")
    path = whole / "convnets-batch-lr0.003-s1"
    (path / folder.RESULT).unlink()
    report = report_of(whole)
    assert any("test.safetensors is damaged" in line for line in report.status)
    assert any("Unfinished: 1 of 27 runs" in line for line in report.status)
    (said,) = (figure.says for figure in report.figures if figure.name == "border")
    assert len(said) == 3
    assert all("units at the border" in line for line in said)


def test_the_terminal_and_the_markdown(whole, capsys):
    text = shown(report_of(whole), capsys)
    for part in ("[stand-in]", "[S]", "padding: one row of zeros", "width: 16; the public code has 96."):
        assert part in text
