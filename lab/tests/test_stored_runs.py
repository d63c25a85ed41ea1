"""Runs and a summary that an earlier version wrote, in `stored`: they are read, reported on, resumed and sampled from.

The other kinds of summaries are those in docs/results, which the tests of the claims read.
"""

import shutil
from pathlib import Path

import pytest

from lab_support.command import cli
from layernorm_lab.runs import folder
from layernorm_lab.runs.files import read_json

STORED = Path(__file__).parent / "stored"
RUNS = sorted(path for path in STORED.iterdir() if path.is_dir())
DIGITS = next(path for path in RUNS if path.name.startswith("digits"))


@pytest.fixture
def copy(tmp_path):
    """Copies a stored run, as commands write beside it."""
    return lambda run: Path(shutil.copytree(run, tmp_path / "runs" / run.name))


def tables(page):
    """The tables of a report."""
    return [line for line in page.read_text().splitlines() if line.startswith("|")]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_stored_run_is_reported_on(run, copy, tmp_path, capsys):
    assert cli.main(["report", str(copy(run)), "--out", str(tmp_path / "report")]) == 0
    said = capsys.readouterr()
    assert "skipped" not in said.out + said.err
    assert any("layer norm" in line for line in tables(tmp_path / "report" / "report.md"))


def test_a_stored_summary_gives_the_report_of_its_run(copy, tmp_path):
    found = []
    for name, given in (("run", copy(DIGITS)), ("summary", STORED / "digits-summary.json")):
        assert cli.main(["report", str(given), "--out", str(tmp_path / name)]) == 0
        found.append(tables(tmp_path / name / "report.md"))
    assert found[0] == found[1] != []


@pytest.mark.parametrize("lost", [False, True])
def test_a_stored_run_is_done_or_goes_on_from_its_checkpoint(lost, copy):
    """Without its result the last evaluation's numbers come from the checkpoint."""
    run, before = copy(DIGITS), read_json(DIGITS / folder.RESULT)
    if lost:
        (run / folder.RESULT).unlink()
    options = ["--epochs", "2", "--hidden", "4", "--norm", "layer", "--batch-size", "128", "--seeds", "0"]
    assert cli.main(["run", "digits", *options, "--out", str(run.parent)]) == 0
    after = read_json(run / folder.RESULT)
    assert {**after, "seconds": 0, "sha256": ""} == {**before, "seconds": 0, "sha256": ""}
    assert (run / folder.RECORDS).read_bytes() == (DIGITS / folder.RECORDS).read_bytes()


@pytest.mark.parametrize(
    ("experiment", "options"), [("draw", ["--count", "2"]), ("handwriting", ["--text", "ab", "--points", "5"])]
)
def test_a_stored_network_draws_and_writes(experiment, options, copy, tmp_path):
    run = next(path for path in RUNS if path.name.startswith(experiment))
    assert cli.main(["sample", experiment, str(copy(run)), *options, "--out", str(tmp_path / "samples")]) == 0
    assert all(path.stat().st_size for path in (tmp_path / "samples").iterdir())
