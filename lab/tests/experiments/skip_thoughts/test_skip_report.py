"""The report on skip-thoughts says what the records and the tests hold."""

import pytest

from lab_support.runs import report_of, shown, write_result, write_run
from layernorm_lab.data.sentences import FILES
from layernorm_lab.experiments.skip_thoughts.config import Config

FACTS = {"name": "books", "fingerprint": "abc", "original": False, "books": {"train": 84, "valid": 10, "test": 5}}
FACTS["triples"] = {"train": 246_329, "valid": 24_236, "test": 10_155}

RATES = (2e-4, 6e-4, 2e-3)


def measures(pearson, accuracy):
    return {
        "sick_pearson": pearson, "sick_spearman": pearson - 0.05, "sick_mse": 1 - pearson,
        **{name: accuracy + number for number, name in enumerate(FILES)},
    }  # fmt: skip


def write(place, norm, rate, seed, curve, pearson=0.7, pace=1.0, accuracy=70.0, done=True):
    """A run whose validation NLL at updates 100, 200, ... is `curve`; the tasks are in every second record."""
    config = Config(
        norm=norm, learning_rate=rate, seed=seed, updates=100 * (len(curve) + (not done)), hidden=400,
        evaluate_every=100, tasks_every=2, fast_eval=True,
    )  # fmt: skip
    records = []
    for number, nll in enumerate(curve, 1):
        tasks = measures(pearson - 0.01 * (len(curve) - number), accuracy) if number % 2 == 0 else {}
        record = {"update": 100 * number, "epoch": 0.1 * number, "seconds_per_update": pace}
        records.append({**record, "valid_nll": nll, **tasks})
    path = place / f"skip-thoughts-{norm}-lr{rate}-s{seed}"
    write_run(path, "skip-thoughts", vars(config), FACTS, records, done=done)
    if done:
        rows = {"trained": pearson, "untrained": 0.5, "bag": 0.6, "random_bag": 0.65}
        tested = {f"{row}_{key}": value for row, r in rows.items() for key, value in measures(r, accuracy).items()}
        write_result(path, test_nll=curve[-1] + 0.25, **tested)


@pytest.fixture
def grid(tmp_path):
    """Two norms at three rates with three seeds; 6e-4 is the baseline's best, 2e-3 layer norm's."""
    for seed in range(3):
        up = 0.01 * seed
        for rate, lift in zip(RATES, (0.4, 0.0, 0.2), strict=True):
            write(tmp_path, "none", rate, seed, [6 + up, 5.5 + up, 5.2 + up, 5 + lift + up], 0.70 - up)
        for rate, lift in zip(RATES, (0.4, 0.2, 0.0), strict=True):
            curve = [5.6 + up, 5.1 + up, 4.9 + up, 4.7 + lift + up]
            write(tmp_path, "layer", rate, seed, curve, 0.75 - up, pace=1.1, accuracy=72.0)
    return tmp_path


def test_the_tables(grid):
    sick, classes, results, rates, times = report_of(grid).tables
    assert sick.rows[0] == ["here", "baseline", "0.690 (0.680-0.700)", "0.640", "0.310", "3"]
    assert sick.rows[1][:3] == ["here", "layer norm", "0.740 (0.730-0.750)"]
    assert [row[1] for row in sick.rows[2:8]] == [
        f"{norm}, {row}" for row in ("untrained", "bag", "random bag") for norm in ("baseline", "layer norm")
    ]
    assert sick.rows[7][2:] == ["0.650 (0.650-0.650)", "0.600", "0.350", "3"]
    assert sick.rows[-2] == ["2400 units", "layer norm, paper", ".854", ".785", ".277", "-"]
    assert classes.rows[1] == ["here", "layer norm", "72.0", "73.0", "74.0", "75.0", "73.5 (73.5-73.5)", "3"]
    assert classes.rows[-1][2:7] == ["79.4", "83.1", "93.7", "89.3", "86.4"]
    assert results.rows == [
        ["", "baseline", "0.0006", "5.010 (5.000-5.020)", "5.260 (5.250-5.270)", "3", "400"],
        ["", "layer norm", "0.002", "4.710 (4.700-4.720)", "4.960 (4.950-4.970)", "3", "400"],
    ]
    assert rates.rows[1][2:] == ["4.910 (4.900-4.920)", "4.910 (4.900-4.920)", "4.710 (4.700-4.720)"]
    assert times.rows == [["", "baseline", "1000", "1.00"], ["", "layer norm", "1100", "1.10"]]


def test_the_figures_show_the_tasks_where_they_were_evaluated(grid):
    figure, learning, sensitivity = report_of(grid).figures
    assert sensitivity.name == "sensitivity"
    labels = ["SICK, Pearson's r", "SICK, MSE", "MR, %", "CR, %", "SUBJ, %", "MPQA, %"]
    assert [panel.y_label for row in figure.rows for panel in row] == labels
    curve = figure.rows[0][0].curves[1]
    assert (curve.label, curve.x) == ("layer norm", [200, 400])
    assert curve.mean == pytest.approx([0.72, 0.74])
    assert learning.rows[0][0].curves[0].x == [100, 200, 300, 400]


def test_unfinished_runs(tmp_path):
    write(tmp_path / "open", "none", 2e-4, 0, [6.0], done=False)
    report = report_of(tmp_path / "open")
    assert report.findings == []
    titles = [table.title for table in report.tables]
    assert titles == ["Results", "Time of an update"], "no run was tested on the tasks"
    assert [figure.name for figure in report.figures] == ["nll"]


def test_the_terminal_and_the_markdown(grid, capsys):
    text = shown(report_of(grid), capsys)
    for part in (
        "84 books with 246,329 triples",
        "updates: 400",
        "learning_rate: 0.0006 or 0.002;",
        "30 blocks",
        "[S]",
    ):
        assert part in text, part
