"""A report tells of every run that it leaves out."""

import pytest

from lab_support.command import one_line, refused
from lab_support.runs import change, write_digits
from layernorm_lab import cli
from layernorm_lab.runs import records
from layernorm_lab.runs.files import read_json, write_json


@pytest.fixture
def runs(tmp_path):
    for norm in ("none", "layer"):
        write_digits(tmp_path, norm, 128, 0, [0.3, 0.2])
    return tmp_path


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"norm": "laydr"}, "config.json has an impossible value: norm is 'laydr', not one of none, layer, batch"),
        ({"experiment": "digit"}, "unknown experiment 'digit'; did you mean 'digits'?"),
        ({"learning_rate": "0.1"}, "config.json has an impossible value: learning_rate is '0.1', not a number"),
        ({"learning_rate": -1.0}, "config.json has an impossible value: --learning-rate must be a finite number"),
        ({"epochs": 2.5}, "config.json has an impossible value: epochs is 2.5, not a whole number"),
        ({"strange": 1}, "config.json has the unknown strange"),
    ],
)
def test_a_foreign_run_is_named_and_the_others_are_reported(runs, values, message, capsys):
    run = runs / "digits-layer-b128-s0"
    change(run / "config.json", **values)
    assert cli.main(["report", str(runs)]) == 0
    capsys.readouterr()
    text = (runs / "report" / "report.md").read_text()
    assert f"skipped: {run}" in text
    assert message in text
    assert "baseline" in text
    assert cli.main(["report", str(run)]) == 1
    line = one_line(capsys)
    assert f"skipped: {run}" in line
    assert message in line


def rewritten(path, name):
    """The records without a metric, or the result, as if they had been written so."""
    if path.name == "result.json":
        write_json(path, {key: value for key, value in read_json(path).items() if key != name})
        return
    lines = records.read_records(path)
    path.unlink()
    for line in lines:
        records.append_record(path, {key: value for key, value in line.items() if key != name})


@pytest.mark.parametrize("name", ["test_error", "valid_error", "train_nll", "epoch", "seconds_per_update", "seconds"])
def test_a_run_that_lacks_a_metric_is_named_and_the_others_are_reported(runs, name, capsys):
    run = runs / "digits-layer-b128-s0"
    rewritten(run / "records.jsonl", name)
    assert cli.main(["report", str(runs)]) == 0
    capsys.readouterr()
    text = (runs / "report" / "report.md").read_text()
    assert f"skipped: {run}/records.jsonl, line " in text
    assert f"lacks {name}" in text
    assert "baseline" in text
    assert "| layer norm |" not in text
    refused(["report", str(run)], 1, f"lacks {name}", capsys)
