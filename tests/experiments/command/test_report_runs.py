"""A report tells of every run that it leaves out."""

import pytest

from layernorm import cli
from support.command import one_line
from support.runs import change, write_digits


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
