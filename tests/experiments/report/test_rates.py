"""Sweeps over learning rates: each norm at its best one, the table and the figure of them all."""

import itertools

import pytest

from layernorm.experiments.report import figures, rates
from layernorm.experiments.report.comparison import NORMS, compare
from layernorm.experiments.report.page import STYLES, Curve, Figure, Panel
from layernorm.experiments.runs.folder import find
from support.runs import write_digits


def write(place, norm, found, epochs=2):
    """Runs of one norm: by learning rate the last test error of each seed.

    None: the run is at its first epoch. "lost": it diverged in its second. "lost at once": in its first.
    """
    curves = {None: [0.9], "lost": [0.9], "lost at once": []}
    for rate, ends in found.items():
        for seed, end in enumerate(ends):
            curve = curves.get(end, [0.9] * (epochs - 1) + [end])
            diverged = 10 * len(curve) + 10 if isinstance(end, str) else None
            options = {"epochs": epochs, "learning_rate": rate}
            write_digits(place / f"lr{rate:g}", norm, 128, seed, curve, diverged=diverged, **options)


def score(run):
    """What the rate is chosen by: on validation, twice the test error."""
    return run.records[-1]["valid_error"]


def accuracy(run):
    return -(1 - run.records[-1]["test_error"])


def blocks(place, by=score):
    return compare(find(sorted(place.iterdir())).runs, choose=by)


@pytest.fixture
def sweep(tmp_path):
    write(tmp_path, "none", {0.001: [0.3, 0.4], 0.01: [0.2, 0.2], 0.1: [0.1, 0.5]})
    write(tmp_path, "layer", {0.001: [0.4, 0.4], 0.01: [0.3, 0.3], 0.1: [0.1, 0.2]})
    write(tmp_path, "rms", {0.01: [0.1, 0.3]})
    return tmp_path


def test_each_norm_is_compared_at_its_best_rate(sweep):
    (block,), status = blocks(sweep)
    assert (block.label, block.mark, status) == ("", "", [])
    assert {norm: [run.config["learning_rate"] for run in group] for norm, group in block.groups.items()} == {
        "none": [0.01, 0.01],
        "layer": [0.1, 0.1],
        "rms": [0.01, 0.01],
    }
    assert block.curve("layer", "test_error").mean == pytest.approx([0.9, 0.15])
    assert [list(found) for found in block.rates.values()] == [[0.001, 0.01, 0.1], [0.001, 0.01, 0.1], [0.01]]
    assert all(len(group) == 2 for found in block.rates.values() for group in found.values())


def test_without_a_score_other_rates_are_other_variants(sweep):
    found, status = compare(find(sorted(sweep.iterdir())).runs)
    assert [block.mark for block in found] == ["(a)", "(b)", "(c)"]
    assert all(block.rates == {} for block in found)
    assert status[0].startswith("The runs differ in learning_rate")


def test_blocks_choose_by_themselves(tmp_path):
    for size, best in ((128, 0.1), (4, 0.01)):
        for rate in (0.01, 0.1):
            end = 0.1 if rate == best else 0.2
            write_digits(tmp_path / f"lr{rate:g}", "layer", size, 0, [0.5, end], learning_rate=rate)
    found, _ = compare(find(sorted(tmp_path.iterdir())).runs, by="batch_size", choose=score)
    assert {block.label: block.groups["layer"][0].config["learning_rate"] for block in found} == {"4": 0.01, "128": 0.1}


def test_of_equal_rates_the_lowest_is_chosen(tmp_path):
    write(tmp_path, "layer", {0.1: [0.2], 0.01: [0.2]})
    (block,), _ = blocks(tmp_path)
    assert block.groups["layer"][0].config["learning_rate"] == 0.01


def test_a_rate_with_fewer_finished_runs_is_not_chosen(tmp_path):
    write(tmp_path, "none", {0.001: [0.3, 0.3], 0.01: [0.2, 0.2], 0.1: [0.1, None]})
    write(tmp_path, "layer", {0.001: [0.4, 0.4], 0.01: [0.3, 0.3], 0.1: [0.2, 0.2]})
    (block,), status = blocks(tmp_path)
    assert block.groups["none"][0].config["learning_rate"] == 0.01
    assert rates.fewest(block, "none", "layer") == 2, "a verdict has to wait for the third"
    assert rates.fewest(block, "layer") == 3
    assert status == ["Unfinished: 1 of 12 runs (digits-none-b128-s1). Curves end where the shortest seed ends."]


def test_while_no_run_is_finished_all_rates_are_compared(tmp_path):
    write(tmp_path, "layer", {0.001: [None], 0.01: [None], 0.1: [None]})
    (block,), _ = blocks(tmp_path)
    assert block.groups["layer"][0].config["learning_rate"] == 0.001
    assert rates.fewest(block, "layer") == 3


def test_the_table(sweep):
    found, _ = blocks(sweep)
    table = rates.table(found, "batch", score, "validation error")
    assert table.columns == ["batch", "norm", "0.001", "0.01", "0.1"]
    assert table.rows == [
        ["", "baseline", "0.70 (0.60-0.80)", "* 0.40 (0.40-0.40)", "0.60 (0.20-1.00)"],
        ["", "layer norm", "0.80 (0.80-0.80)", "0.60 (0.60-0.60)", "* 0.30 (0.20-0.40)"],
        ["", "RMS norm", "-", "* 0.40 (0.20-0.60)", "-"],
    ]
    assert table.note.startswith("validation error, mean over seeds (lowest to highest), by learning rate.")


def test_a_score_that_is_minus_what_is_shown(sweep):
    found, _ = blocks(sweep, accuracy)
    table = rates.table(found, "batch", accuracy, "accuracy", digits=2, negated=True)
    assert table.rows[1][2:] == ["0.60 (0.60-0.60)", "0.70 (0.70-0.70)", "* 0.85 (0.80-0.90)"]
    panel = rates.panel(found[0], accuracy, "accuracy", negated=True, percent=True)
    assert panel.curves[1].mean == pytest.approx([0.6, 0.7, 0.85])
    assert panel.percent


def test_the_panel(sweep):
    found, _ = blocks(sweep)
    panel = rates.panel(found[0], score, "validation error")
    assert (panel.title, panel.x_label, panel.y_label) == (
        "sensitivity to the learning rate", "learning rate", "validation error",
    )  # fmt: skip
    assert panel.log_x
    none, layer, rms = panel.curves
    assert [curve.label for curve in panel.curves] == ["baseline", "layer norm", "RMS norm"]
    assert none.style == STYLES["none"]
    assert (none.x, rms.x) == ([0.001, 0.01, 0.1], [0.01])
    assert none.mean == pytest.approx([0.7, 0.4, 0.6])
    assert none.low == pytest.approx([0.6, 0.4, 0.2])
    assert none.high == pytest.approx([0.8, 0.4, 1.0])
    assert layer.mean == pytest.approx([0.8, 0.6, 0.3])


def test_a_score_that_is_not_finite_leaves_its_rate_out_of_the_panel(sweep):
    found, _ = blocks(sweep)
    panel = rates.panel(found[0], lambda run: float("inf") if run.config["norm"] == "none" else score(run), "error")
    none, layer, _ = panel.curves
    assert none.x == none.mean == []
    assert layer.x == [0.001, 0.01, 0.1]
    assert figures.draw(Figure("rates", "", [[panel]]), "png").startswith(b"\x89PNG")
    nothing = rates.panel(found[0], lambda run: float("inf"), "error")
    assert figures.draw(Figure("rates", "", [[nothing]]), "png").startswith(b"\x89PNG")


def test_the_figures_names_and_rates_can_be_read(tmp_path):
    """Seven norms with long names above one panel, and each rate below it, also those that the baseline lacks."""
    tried = [0.0003, 0.001, 0.003, 0.01, 0.03]
    curves = [Curve(NORMS[norm], STYLES[norm], tried, *[[0.1] * 5] * 3) for norm in NORMS if norm != "none"]
    baseline = Curve(NORMS["none"], STYLES["none"], tried[:2], *[[0.2] * 2] * 3)
    panel = Panel("sensitivity", "learning rate", "error", [baseline, *curves], log_x=True)
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


def test_best_rates_at_the_edge_are_said(sweep):
    (block,), _ = blocks(sweep)
    assert rates.at_the_edge(block) == [
        "Best learning rates at the edge of those tried, beyond which a better one may lie: layer norm 0.1 (highest)."
    ]


def test_best_rates_inside_are_not_said(tmp_path):
    write(tmp_path, "none", {0.001: [0.3], 0.01: [0.2], 0.1: [0.3]})
    (block,), _ = blocks(tmp_path)
    assert rates.at_the_edge(block) == []
    write(tmp_path, "layer", {0.001: [0.1], 0.01: [0.2]})
    (block,), _ = blocks(tmp_path)
    assert rates.at_the_edge(block)[0].endswith(": layer norm 0.001 (lowest).")


def test_every_norm_has_a_name_and_a_style_of_its_own():
    assert NORMS.keys() == STYLES.keys()
    for table in (NORMS, STYLES):
        assert len({str(value) for value in table.values()}) == len(table)
    for part in ("colour", "dashes"):
        assert len({str(getattr(style, part)) for style in STYLES.values()}) == len(STYLES), part


@pytest.fixture
def partly_lost(tmp_path):
    """The rate that the surviving seed likes best has lost the other one."""
    write(tmp_path, "none", {0.001: [0.4, 0.4], 0.01: [0.3, 0.3], 0.1: [0.01, "lost"]})
    write(tmp_path, "layer", {0.001: [0.4, 0.4], 0.01: [0.01, "lost at once"], 0.1: ["lost", "lost at once"]})
    return tmp_path


def test_a_rate_at_which_a_run_diverged_is_not_chosen(partly_lost):
    (block,), status = blocks(partly_lost)
    assert {norm: group[0].config["learning_rate"] for norm, group in block.groups.items()} == {
        "none": 0.01,
        "layer": 0.001,
    }
    assert status == [
        "Diverged: 4 of 12 runs (digits-layer-b128-s1 at update 10, digits-layer-b128-s0 at update 20, "
        "digits-layer-b128-s1 at update 10, digits-none-b128-s1 at update 20). Curves end where the shortest seed ends."
    ]
    assert rates.fewest(block, "none", "layer") == 3, "a rate that is too high has been tried"
    assert rates.at_the_edge(block)[0].endswith(": layer norm 0.001 (lowest).")


def test_the_table_and_the_panel_of_diverged_runs(partly_lost):
    (block,), _ = blocks(partly_lost)
    assert rates.table([block], "batch", score, "error").rows == [
        ["", "baseline", "0.80 (0.80-0.80)", "* 0.60 (0.60-0.60)", "1 of 2 diverged"],
        ["", "layer norm", "* 0.80 (0.80-0.80)", "1 of 2 diverged", "diverged"],
    ]
    panel = rates.panel(block, score, "error")
    assert [curve.x for curve in panel.curves] == [[0.001, 0.01], [0.001]]


def test_a_rate_without_diverged_runs_is_preferred_to_one_with_more_finished(tmp_path):
    write(tmp_path, "layer", {0.01: [0.3, None], 0.1: [0.1, "lost"]})
    (block,), _ = blocks(tmp_path)
    assert block.groups["layer"][0].config["learning_rate"] == 0.01


def test_where_all_rates_diverge_the_one_with_the_fewest_losses_is_shown(tmp_path):
    write(tmp_path, "layer", {0.01: ["lost", "lost at once"], 0.1: [0.1, "lost"], 1: ["lost at once"] * 2})
    write(tmp_path, "rms", {0.01: ["lost at once"] * 2, 0.1: ["lost at once"] * 2})
    (block,), _ = blocks(tmp_path)
    assert list(block.groups) == ["layer"], "the other norm has nothing to show"
    assert [run.config["learning_rate"] for run in block.groups["layer"]] == [0.1, 0.1]
    assert len(block.curve("layer", "test_error").mean) == 1, "to the shortest seed's end"
    assert rates.table([block], "", score, "error").rows == [
        ["", "layer norm", "diverged", "* 1 of 2 diverged", "diverged"],
        ["", "RMS norm", "* diverged", "diverged", "-"],
    ]
    assert rates.at_the_edge(block) == []


def test_where_nothing_has_a_record_the_status_is_all_there_is(tmp_path):
    write(tmp_path, "layer", {0.1: ["lost at once"]})
    found, status = blocks(tmp_path)
    assert found == []
    assert status[0].startswith("Diverged: 1 of 1 runs (digits-layer-b128-s0 at update 10).")


def test_a_score_of_nan_never_wins(tmp_path):
    write(tmp_path, "layer", {0.001: [float("nan")], 0.01: [0.3], 0.1: [0.4]})
    (block,), _ = blocks(tmp_path)
    assert block.groups["layer"][0].config["learning_rate"] == 0.01
