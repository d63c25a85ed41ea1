"""`benchmarks/frameworks.py`: a model of ours with the tools that people train with, beside a plain loop."""

import importlib.util
import subprocess
import sys

import pytest

from support.repository import ROOT, loaded

frameworks = loaded("benchmarks/frameworks.py")
PROCESSES = ["ddp", "fsdp2", "joblib", "dataloader"]
IN_ONE_PROCESS = [
    pytest.param(
        name, marks=pytest.mark.skipif(importlib.util.find_spec(row.package) is None, reason=f"needs {row.package}")
    )
    for name, row in frameworks.ROWS.items()
    if name not in PROCESSES
]
ROUNDING = 2e-6  # weights of about .3, outputs of about 3, and as many as 8 updates


@pytest.mark.parametrize("name", IN_ONE_PROCESS)
def test_a_framework_trains_what_a_plain_loop_trains(name):
    assert frameworks.ROWS[name].measure() < ROUNDING


@pytest.mark.long
def test_several_processes_train_what_one_trains():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "benchmarks/frameworks.py", *PROCESSES],
        cwd=ROOT, capture_output=True, text=True, timeout=280, check=True,
    )  # fmt: skip
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == PROCESSES
    assert all(float(line[-1]) < ROUNDING for line in lines), done.stdout


def test_the_comparison_sees_another_training(monkeypatch):
    """A row with another rate differs."""
    expected = frameworks.plain()
    monkeypatch.setattr(frameworks, "RATE", 1.01 * frameworks.RATE)
    assert frameworks.difference(frameworks.plain(), expected) > 100 * ROUNDING
