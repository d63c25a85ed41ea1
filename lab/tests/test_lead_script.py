"""`benchmarks/lead.py`, how a lead goes on in a training, beside the judge's numbers of the same pairs."""

import statistics
import sys

import pytest

from layernorm_lab.catalogue import find_experiment
from layernorm_lab.report.judge import UpdatesToGoal, decide
from layernorm_lab.report.summary import read_summary
from support.repository import ROOT, loaded

lead = loaded(ROOT / "benchmarks" / "lead.py")
ARGS = ["lead.py", "draw", "--set", "epochs=60", "--metric"]


def test_effects_are_the_judges(monkeypatch, capsys):
    runs = read_summary(ROOT / "docs" / "results" / "draw" / "summary.json.gz")
    speed, bound = (ruling for ruling in decide(find_experiment("draw").claims, runs)
                    if "over 60 epochs" in ruling.claim.text and not ruling.claim.choice)  # fmt: skip
    arms = ["--arms", *(f"{arm.norm}:{rate:g}" for arm, rate in zip(speed.claim.arms, speed.rates, strict=True))]
    assert isinstance(speed.claim.measure, UpdatesToGoal)
    for metric, at, ruling in (
        ("valid_bound", ["--goals", str(speed.claim.measure.goal)], speed), ("test_bound", ["--last", "1"], bound),
    ):  # fmt: skip
        monkeypatch.setattr(sys, "argv", [*ARGS, metric, *arms, *at])
        lead.main()
        _, effect, counts = capsys.readouterr().out.splitlines()
        numbers, _, each = effect.partition("lower by " if ruling is bound else "updates, ")[2].partition("; each ")
        found = [float(word.strip("();")) for word in numbers.split() if word.strip("();").replace(".", "").isdigit()]
        expected = ruling.claim.measure.compared(ruling.effect, *ruling.interval)
        due = [float(word.strip("()")) for word in expected.split() if word.strip("()").replace(".", "").isdigit()]
        assert found[:3] == pytest.approx(due, abs=0.01)
        assert len(due) == 3
        pairs = [float(word) for word in each.split()]
        mean = statistics.mean(pairs) if ruling is bound else statistics.geometric_mean(pairs)
        assert len(pairs) == 5
        assert mean == pytest.approx(due[0], rel=0.02)  # two digits of each
        assert counts == f"  of 120 evaluations the mean of {arms[1]} is lower at 120, of {arms[2]} at 0"


def test_runs_that_are_missing_are_named(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [*ARGS, "test_bound", "--arms", "layer:0.002", "none:1", "--last", "1"])
    with pytest.raises(SystemExit):
        lead.main()
    assert "needs two pairs of runs or more, got 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("experiment", "metric", "message"),
    [
        ("drawn", "test_bound", "an experiment must be a folder of docs/results with a summary.json.gz, got 'drawn'"),
        ("draw", "test_error", "--metric must be one of .*test_bound.*, got 'test_error'"),
    ],
)
def test_what_is_unknown_is_named(experiment, metric, message, monkeypatch):
    arms = ["--arms", "layer:0.002", "none:0.002"]
    monkeypatch.setattr(sys, "argv", ["lead.py", experiment, "--set", "epochs=60", "--metric", metric, *arms])
    with pytest.raises(SystemExit, match=message):
        lead.main()
