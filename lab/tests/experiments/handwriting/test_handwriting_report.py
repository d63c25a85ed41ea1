"""The report on handwriting says what the records hold."""

from lab_support.runs import report_of, write_run
from layernorm_lab.experiments.handwriting import samples
from layernorm_lab.experiments.handwriting.config import Config
from layernorm_lab.runs.folder import find_runs


def write_lines(place, norm, seed, curve, **changes):
    """A run whose validation NLL at updates 100, 200, ... is `curve`."""
    config = {**vars(Config(norm=norm, seed=seed, units=2, mixtures=1)), **changes}
    records = [
        {"update": 100 * number, "epoch": float(number), "seconds_per_update": 0.2, "valid_nll": value}
        for number, value in enumerate(curve, 1)
    ]
    facts = {"name": "iam-ondb", "fingerprint": "abc", "original": True}
    write_run(place / f"handwriting-{norm}-s{seed}", "handwriting", config, facts, records)


def test_the_numbers_of_parameters(tmp_path):
    for norm in ("none", "layer"):
        write_lines(tmp_path, norm, 0, [900.0, 700.0, 500.0])
    runs = {run.config["norm"]: run for run in find_runs([tmp_path]).runs}
    counts = {norm: sum(p.numel() for p in samples.network(run).parameters()) for norm, run in runs.items()}
    assert counts["layer"] > counts["none"] > 0
    assert report_of(tmp_path).findings == [
        f"Parameters: {counts['none']:,} (baseline), {counts['layer']:,} (layer norm)."
    ]


def test_gains_are_compared_with_one_baseline_each(tmp_path):
    """The baseline has no gain: its option does not count."""
    for seed in range(3):
        write_lines(tmp_path / "none", "none", seed, [900.0 + seed, 700.0 + seed, 500.0 + seed], gain_init=0.3)
        write_lines(tmp_path / "one", "layer", seed, [650.0 + seed, 400.0 + seed, 300.0 + seed])
        write_lines(tmp_path / "small", "layer", seed, [950.0 + seed, 800.0 + seed, 600.0 + seed], gain_init=0.3)
    report = report_of(*(tmp_path / place for place in ("none", "one", "small")))
    assert report.tables[0].rows == [
        ["", "baseline", "0.001", "501.0 (500.0-502.0)", "501.0 (500.0-502.0)", "3", "300"],
        ["", "layer norm", "0.001", "301.0 (300.0-302.0)", "301.0 (300.0-302.0)", "3", "300"],
        ["", "layer norm with gain 0.3", "0.001", "601.0 (600.0-602.0)", "601.0 (600.0-602.0)", "3", "300"],
    ]
    assert report.status == []
    texts = {item.name: item.text for item in report.deviations}
    assert texts["gain_init"] == "0.3; the paper's protocol has 1."
    assert texts["cleaning"].endswith("tells no numbers: ?."), "the data set's facts lack it"


def test_the_sensitivity_is_shown_where_there_are_two_rates(tmp_path):
    write_lines(tmp_path, "none", 0, [900.0, 400.0, 500.0])
    assert [figure.name for figure in report_of(tmp_path).figures] == ["figure5"]
    write_lines(tmp_path / "faster", "none", 0, [900.0, 300.0, -50.0], learning_rate=0.01)
    *_, sensitivity = report_of(tmp_path, tmp_path / "faster").figures
    best, last = (panel.curves[0] for panel in sensitivity.rows[0])
    assert (best.x, best.mean, last.mean) == ([0.001, 0.01], [400.0, -50.0], [500.0, -50.0])
