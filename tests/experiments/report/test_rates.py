"""Sweeps over learning rates: each norm at its best one, the table and the figure of them all."""

import itertools

import pytest

from layernorm.experiments.report import figures, rates
from layernorm.experiments.report.comparison import NORMS, compare, compared, speed
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


def compared_seeds(block, norm):
    """The seeds by which a norm's learning rates are compared, by rate."""
    return {rate: [run.config["seed"] for run in group] for rate, group in compared(block.rates[norm]).items()}


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


def test_a_rate_with_more_unfinished_runs_is_not_chosen(tmp_path):
    write(tmp_path, "none", {0.001: [0.3, 0.3], 0.01: [0.2, 0.2], 0.1: [0.1, None]})
    write(tmp_path, "layer", {0.001: [0.4, 0.4], 0.01: [0.3, 0.3], 0.1: [0.2, 0.2]})
    (block,), status = blocks(tmp_path)
    assert block.groups["none"][0].config["learning_rate"] == 0.01
    assert compared_seeds(block, "none") == {0.001: [0, 1], 0.01: [0, 1]}
    assert compared_seeds(block, "layer") == {0.001: [0, 1], 0.01: [0, 1], 0.1: [0, 1]}
    assert status == ["Unfinished: 1 of 12 runs (digits-none-b128-s1). Curves end where the shortest seed ends."]


def test_rates_are_compared_by_the_seeds_that_all_of_them_have(tmp_path):
    write(tmp_path, "none", {0.001: [0.3], 0.01: [0.2, 0.9, 0.9], 0.1: [0.5]})
    write(tmp_path, "layer", {0.001: [0.1], 0.01: [0.2, 0.3, 0.3], 0.1: [0.5]})
    (block,), _ = blocks(tmp_path)
    assert [run.config["learning_rate"] for run in block.groups["none"]] == [0.01] * 3, "by seed 0 alone"
    assert [run.config["learning_rate"] for run in block.groups["layer"]] == [0.001]
    for norm in ("none", "layer"):
        assert compared_seeds(block, norm) == {0.001: [0], 0.01: [0], 0.1: [0]}


def test_a_fourth_rate_with_fewer_seeds_is_left_out(tmp_path):
    write(tmp_path, "none", {0.001: [0.3, 0.3], 0.01: [0.4, 0.1], 0.1: [0.5, 0.5], 1: [0.2]})
    (block,), _ = blocks(tmp_path)
    assert [run.config["learning_rate"] for run in block.groups["none"]] == [0.01] * 2
    assert compared_seeds(block, "none") == {0.001: [0, 1], 0.01: [0, 1], 0.1: [0, 1]}


def test_rates_without_a_common_seed_are_compared_by_all(tmp_path):
    write_digits(tmp_path / "a", "layer", 128, 0, [0.9, 0.2], learning_rate=0.1)
    write_digits(tmp_path / "b", "layer", 128, 1, [0.9, 0.1], learning_rate=0.2)
    (block,), _ = blocks(tmp_path)
    assert block.groups["layer"][0].config["learning_rate"] == 0.2


def test_while_no_run_is_finished_all_rates_are_compared(tmp_path):
    write(tmp_path, "layer", {0.001: [None], 0.01: [None], 0.1: [None]})
    (block,), _ = blocks(tmp_path)
    assert block.groups["layer"][0].config["learning_rate"] == 0.001
    assert compared_seeds(block, "layer") == {0.001: [0], 0.01: [0], 0.1: [0]}


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


ERROR = rates.Measure("valid_error", "validation error", percent=True)


def panels(found, *measures, title="{}"):
    """The panels of the one sensitivity figure, row by row."""
    (figure,) = rates.sensitivity(found, *measures, title=title)
    assert figure.name == "sensitivity"
    return figure.rows


def test_the_sensitivity_curves(sweep):
    found, _ = blocks(sweep)
    ((best, last),) = panels(found, ERROR)
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
    for rate, curve in ((0.001, [0.2, 0.1, 0.3]), (0.01, [0.4, 0.3, 0.2])):
        write_digits(tmp_path / f"lr{rate:g}", "layer", 128, 0, curve, learning_rate=rate)
    found, _ = blocks(tmp_path)
    ((best, last),) = panels(found, ERROR)
    assert (best.curves[0].mean, last.curves[0].mean) == (pytest.approx([0.2, 0.4]), pytest.approx([0.6, 0.4]))
    ((highest, _),) = panels(found, rates.Measure("test_error", "", rising=True))
    assert highest.curves[0].mean == pytest.approx([0.3, 0.4])


def test_each_block_with_two_rates_has_a_row_for_each_measure(tmp_path):
    for size, tried in ((128, (0.01, 0.1)), (4, (0.01, 0.1)), (2, (0.01,))):
        for rate in tried:
            write_digits(tmp_path / f"lr{rate:g}", "layer", size, 0, [0.5, 0.1], learning_rate=rate)
    found, _ = compare(find(sorted(tmp_path.iterdir())).runs, by="batch_size", choose=score)
    rows = panels(found, ERROR, rates.Measure("train_nll", "training NLL"), title="batch size {}")
    assert [[panel.title for panel in row] for row in rows] == [
        [f"batch size {size}, {what}" for what in ("best evaluation", "at the end")] for size in (4, 4, 128, 128)
    ]
    assert rates.sensitivity([block for block in found if block.label == "2"], ERROR) == []


def test_the_caption_speaks_of_what_is_there(sweep):
    (plain,) = rates.sensitivity(blocks(sweep)[0], ERROR)
    assert "bands: lowest to highest seed" in plain.caption
    assert "cross" not in plain.caption
    write(sweep / "one", "layer", {0.001: [0.3], 0.01: [0.2]})
    (alone,) = rates.sensitivity(blocks(sweep / "one")[0], ERROR)
    assert "seed" not in alone.caption


def test_unfinished_runs_are_in_no_sensitivity_curve(tmp_path):
    write(tmp_path, "layer", {0.001: [0.3, None], 0.01: [0.2, 0.2]})
    write(tmp_path, "none", {0.001: [None, None]})
    ((_, last),) = panels(blocks(tmp_path)[0], ERROR)
    (layer,) = last.curves
    assert (layer.x, layer.high) == ([0.001, 0.01], pytest.approx([0.6, 0.4]))
    write(tmp_path / "other", "layer", {0.001: [0.3], 0.01: [None]})
    assert rates.sensitivity(blocks(tmp_path / "other")[0], ERROR) == []


def test_an_axis_over_more_than_a_decade_is_logarithmic(tmp_path):
    write(tmp_path, "layer", {0.001: [0.02, 0.08], 0.01: [0.04, 0.04], 0.1: [0.45, 0.45]})
    ((best, last),) = panels(blocks(tmp_path)[0], ERROR)
    assert best.log
    assert last.log
    assert last.curves[0].mean == pytest.approx([0.08, 0.08, 0.9]), "the geometric mean of 0.04 and 0.16"
    (axes,) = figures.canvas(Figure("", "", [[last]])).axes
    axes.figure.draw_without_rendering()
    assert "10 %" in [label.get_text().replace(".0", "") for label in axes.get_yticklabels()]
    assert "20 %" in [label.get_text() for label in axes.get_yticklabels(minor=True)]


@pytest.fixture
def gains(tmp_path):
    """Layer norm from two initial gains, as a report sorts them: the other one is a norm of its own."""
    for norm, gain in (("none", None), ("layer", None), ("layer-gain", 0.1)):
        for rate in (0.001, 0.01):
            changes = {"learning_rate": rate, **({} if gain is None else {"gain_init": gain})}
            write_digits(tmp_path / f"lr{rate:g}", norm, 128, 0, [0.2, 0.1], **changes)
    return compare(find(sorted(tmp_path.iterdir())).runs, choose=score)[0]


def test_a_norm_has_one_label_everywhere(gains):
    (block,) = gains
    labels = ["baseline", "layer norm", "layer norm with gain 0.1"]
    assert [block.name(norm) for norm in block.groups] == labels
    assert [line.label for line in block.curves("test_error")] == labels
    assert [[line.label for line in panel.curves] for panel in panels(gains, ERROR)[0]] == [labels] * 2
    assert [row[1] for row in rates.table(gains, "", score, "").rows] == labels
    assert [row[1] for row in speed(gains, "", {}, 0, "").rows] == labels
    assert "layer norm with gain 0.1 0.001 (lowest)" in rates.at_the_edge(block)[0]


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
    assert rates.at_the_edge(block)[0].endswith(": layer norm 0.001 (lowest).")


def test_the_table_of_diverged_runs(partly_lost):
    (block,), _ = blocks(partly_lost)
    assert rates.table([block], "batch", score, "error").rows == [
        ["", "baseline", "0.80 (0.80-0.80)", "* 0.60 (0.60-0.60)", "1 of 2 diverged"],
        ["", "layer norm", "* 0.80 (0.80-0.80)", "1 of 2 diverged", "diverged"],
    ]


def test_diverged_runs_are_marked_in_the_sensitivity_curves(partly_lost):
    found, _ = blocks(partly_lost)
    ((best, last),) = panels(found, ERROR)
    for panel in (best, last):
        assert [curve.lost for curve in panel.curves] == [[0.1], [0.01, 0.1]]
    assert [curve.x for curve in last.curves] == [[0.001, 0.01, 0.1], [0.001, 0.01]]
    assert last.curves[0].mean == pytest.approx([0.8, 0.6, 0.02]), "of the seeds that did not diverge"
    (figure,) = rates.sensitivity(found, ERROR)
    assert "A cross at the upper edge: at this rate a seed diverged" in figure.caption
    (axes,) = figures.canvas(figure).axes[1:]
    crosses = [line.get_xdata().tolist() for line in axes.get_lines() if line.get_marker() == "X"]
    assert crosses == [[0.1], [0.01, 0.1]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.001", "0.01", "0.1"]


def test_a_norm_that_always_diverged_is_there_as_crosses(tmp_path):
    write(tmp_path, "none", {0.001: [0.4], 0.01: [0.3]})
    write(tmp_path, "layer", {0.001: ["lost"], 0.1: ["lost at once"]})
    found, _ = blocks(tmp_path)
    ((_, last),) = panels(found, ERROR)
    none, layer = last.curves
    assert (none.lost, layer.x, layer.lost) == ([], [], [0.001, 0.1])
    canvas = figures.canvas(Figure("", "", [[last]]))
    assert [text.get_text() for text in canvas.legends[0].get_texts()] == ["baseline", "layer norm"]
    assert [label.get_text() for label in canvas.axes[0].get_xticklabels()] == ["0.001", "0.01", "0.1"]
    assert figures.draw(Figure("", "", [[last]]), "png").startswith(b"\x89PNG")


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
