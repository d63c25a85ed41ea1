"""The report on order embeddings says what the records and the tests hold."""

import pytest

from lab_support.runs import report_of, shown, write_result, write_run
from layernorm_lab import catalogue
from layernorm_lab.experiments.order_embeddings.config import Config
from layernorm_lab.runs import folder

FACTS = {"name": "order-embeddings", "fingerprint": "abc", "original": False, "features": 6}
FACTS["images"] = {"train": 60, "val": 12, "test": 4}

RATES = (1e-3, 2e-3, 4e-3)


def write(place, norm, rate, seed, recalls, pace=0.1, test=None, **changes):
    """A run whose validation recall at updates 25, 50, ... is `recalls`."""
    config = Config(norm=norm, learning_rate=rate, seed=seed, epochs=len(recalls), evaluate_every=25)
    records = []
    for number, recall in enumerate(recalls, 1):
        parts = {f"valid_{side}_r{count}": recall / 3 for side in ("image", "caption") for count in (1, 5, 10)}
        record = {"update": 25 * number, "epoch": float(number), "seconds_per_update": pace}
        records.append({**record, "valid_image_recall": recall, **parts})
    path = place / f"order-embeddings-order-{norm}-lr{rate}-s{seed}"
    write_run(path, "order-embeddings", {**vars(config), **changes}, FACTS, records)
    values = {f"test_{side}_{name}": value for side in ("caption", "image") for name, value in (test or TEST).items()}
    write_result(path, kept_update=25, **values)


TEST = {"r1": 25.0, "r5": 50.0, "r10": 75.0, "mean_rank": 8.5}
BETTER = {"r1": 50.0, "r5": 75.0, "r10": 100.0, "mean_rank": 3.5}


def write_grid(place):
    """Two norms at three rates with three seeds; 0.002 is the baseline's best, 0.004 layer norm's."""
    for seed in range(3):
        up = 0.5 * seed
        for rate, lift in zip(RATES, (0, 10, 5), strict=True):
            write(place, "none", rate, seed, [40.0 + lift + up, 60.0 + lift + up, 80.0 + lift + up, 79.0 + lift + up])
        for rate, lift in zip(RATES, (0, 5, 12), strict=True):
            curve = [60.0 + lift + up, 80.0 + lift + up, 81.0 + lift + up, 80.0 + lift + up]
            write(place, "layer", rate, seed, curve, pace=0.11, test=BETTER)
    return place


@pytest.fixture
def grid(tmp_path):
    return write_grid(tmp_path)


def test_each_norm_is_shown_at_its_best_rate(grid):
    report = report_of(grid)
    captions, images, rates, times = report.tables
    assert images.rows[0] == ["here", "baseline", "0.002", "25.0", "50.0", "75.0 (75.0-75.0)", "8.5", "3", "100"]
    assert images.rows[1][2:7] == captions.rows[1][2:7] == ["0.004", "50.0", "75.0", "100.0 (100.0-100.0)", "3.5"]
    assert captions.rows[-1] == ["order, paper", "layer norm", "-", "48.5", "80.6", "89.8", "5.1", "-", "-"]
    assert images.rows[-1] == ["order, paper", "layer norm", "-", "38.9", "74.3", "86.3", "7.6", "-", "-"]
    assert rates.rows[0][2:] == ["80.5 (80.0-81.0)", "90.5 (90.0-91.0)", "85.5 (85.0-86.0)"]
    assert rates.rows[1][4] == "93.5 (93.0-94.0)"
    assert times.rows == [["", "baseline", "100", "1.00"], ["", "layer norm", "110", "1.10"]]
    assert report.findings == []
    assert (
        "baseline 0.002, layer norm 0.004 (without a pilot, the best of those with the most runs)"
        in report.figures[0].caption
    )


def test_without_a_baseline_and_without_a_test(tmp_path):
    write(tmp_path, "layer", 1e-3, 0, [50.0, 70.0])
    (tmp_path / "order-embeddings-order-layer-lr0.001-s0" / folder.RESULT).unlink()
    report = report_of(tmp_path)
    assert report.tables[0].rows[0] == ["here", "layer norm", "0.001", "-", "-", "-", "-", "1", "50"]
    assert report.tables[2].rows == [["", "layer norm", "100", "-"]]


def test_the_similarities_are_apart_and_the_margin_is_told(grid):
    for seed in range(2):
        write(grid / "cosine", "none", 1e-3, seed, [20.0, 30.0], similarity="cosine", margin=0.5)
    runs = folder.find_runs([grid, grid / "cosine"]).runs
    experiment = catalogue.find_experiment("order-embeddings")
    report = experiment.report(runs, experiment.claims)
    head, *_ = report.tables[0].columns
    named = dict(zip(head.split(", "), report.tables[0].rows[0][0].split(", "), strict=True))
    assert (named["similarity"], named["margin"]) == ("order", "0")
    assert [row[0].split(", ")[0] for row in report.tables[0].rows[:3]] == ["order", "order", "cosine"]
    assert [figure.name for figure in report.figures] == ["figure1", "sensitivity"]
    assert [len(row) for row in report.figures[0].rows] == [2, 2, 2, 2], "four panels for each of the two"
    (sensitivity,) = report.figures[-1].rows  # cosine has one rate
    assert sensitivity[0].title.startswith("similarity order, ")
    margin = next(item.text for item in report.deviations if item.name == "margin")
    assert margin == "0.5; the paper's protocol has 0.05 for order, 0.2 for cosine."


def test_the_terminal_and_the_markdown(grid, capsys):
    text = shown(report_of(grid), capsys)
    for part in ("60 training images with 6 features each", "learning_rate: 0.002 or 0.004;", "[S]", "sensitivity.png"):
        assert part in text
    assert "figure1.png" in text
