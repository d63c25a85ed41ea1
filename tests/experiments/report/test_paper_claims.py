"""docs/claims.md: verdicts by the rule, from summaries alone, and the committed page made again to the byte."""

import dataclasses
import json
from pathlib import Path

import pytest

from layernorm import cli
from layernorm.experiments import claims
from layernorm.experiments.catalogue import EXPERIMENTS
from layernorm.experiments.claims import CLAIMS, Claim, decide
from layernorm.experiments.errors import RunError
from layernorm.experiments.report import summary
from layernorm.experiments.runs.folder import find
from support.command import one_line
from support.runs import write_digits

ROOT = Path(__file__).parents[3]
RATES = (0.001, 0.002, 0.004)
SOONER = Claim("It is sooner.", "7", "digits", "test_error", "layer", "none", "sooner", 2.0, "more", "valid_error")


def write(place, layer, none, seeds=3, rates=RATES):
    """Runs whose best rate is the second; the curves are lists of test errors."""
    for norm, curve in (("layer", layer), ("none", none)):
        for number, rate in enumerate(rates):
            for seed in range(seeds):
                errors = [error + 0.001 * seed + 0.2 * abs(number - 1) for error in curve]
                write_digits(place / f"{rate}", norm, 128, seed, errors, learning_rate=rate)
    return find([place / f"{rate}" for rate in rates]).runs


@pytest.mark.parametrize(
    ("layer", "none", "how", "verdict"),
    [
        ([0.5, 0.2, 0.1], [0.5, 0.4, 0.2], "sooner", "holds"),
        ([0.5, 0.4, 0.2], [0.5, 0.2, 0.1], "sooner", "refuted"),
        ([0.5, 0.2, 0.1], [0.5, 0.2, 0.1], "sooner", "not seen"),
        ([0.5, 0.3, 0.2, 0.1], [0.5, 0.4, 0.2, 0.1], "sooner", "holds in part"),
        ([0.5, 0.2, 0.1], [0.5, 0.4, 0.2], "end", "holds"),
        ([0.5, 0.1, 0.3], [0.5, 0.4, 0.2], "best", "holds"),
        ([0.5, 0.1, 0.3], [0.5, 0.4, 0.2], "end", "refuted"),
    ],
)
def test_the_verdict_follows_from_the_runs(tmp_path, layer, none, how, verdict):
    row = decide(dataclasses.replace(SOONER, how=how), write(tmp_path, layer, none))
    assert row.verdict == verdict
    assert row.ran == f"3 seeds at the best of 3 rates, chosen by 3 seeds; {10 * len(layer)} updates"


def test_one_seed_at_each_rate_may_choose_where_more_are_run(tmp_path):
    runs = write(tmp_path, [0.5, 0.2, 0.1], [0.5, 0.4, 0.2])
    few = [run for run in runs if run.config["seed"] == 0 or run.config["learning_rate"] == 0.002]
    row = decide(SOONER, few)
    assert (row.verdict, row.ran) == ("holds", "3 seeds at the best of 3 rates, chosen by one seed; 30 updates")


def test_every_run_reaches_the_best_value_that_all_reach(tmp_path):
    """Also the worst one, whose best is 0.028: `0.302 + (0.028 - 0.302)` is less than that."""
    row = decide(SOONER, write(tmp_path, [0.3, 0.01], [0.3, 0.026]))
    assert row.verdict == "holds"
    assert "inf" not in row.effect


def test_higher_may_be_better(tmp_path):
    runs = write(tmp_path, [0.5, 0.4], [0.5, 0.2])
    claim = dataclasses.replace(SOONER, metric="-test_error", how="end")
    assert decide(claim, runs).verdict == "holds"
    assert decide(claim, runs).effect == "test_error: layer norm 0.401 (0.4 to 0.402), baseline 0.201 (0.2 to 0.202)"


@pytest.mark.parametrize(
    ("seeds", "rates", "why"),
    [(2, RATES, "2 seeds"), (3, RATES[:2], "2 learning rates"), (1, RATES[:1], "one seed and one learning rate")],
)
def test_too_few_seeds_or_rates_leave_it_undecided_with_its_hours(tmp_path, seeds, rates, why):
    row = decide(SOONER, write(tmp_path, [0.5, 0.1], [0.5, 0.2], seeds, rates))
    assert (row.verdict, row.needed) == ("undecided", "2 h: more")
    assert row.effect.endswith(f"; no verdict from {why}")


def test_another_initial_gain_is_a_claim_of_its_own(tmp_path):
    """The baseline has no gain: it counts for both."""
    small = [
        dataclasses.replace(run, config={**run.config, "gain_init": 0.3})
        for run in write(tmp_path / "small", [0.5, 0.4, 0.2], [0.5, 0.2, 0.1])
    ]
    ones = [run for run in write(tmp_path / "one", [0.5, 0.1, 0.05], [0.5, 0.2, 0.1]) if run.config["norm"] == "layer"]
    assert decide(SOONER, [*small, *ones]).verdict == "holds"
    claim = dataclasses.replace(SOONER, ahead="layer-gain", only={"gain_init": 0.3})
    row = decide(claim, [*small, *ones])
    assert row.verdict == "refuted"
    assert "layer norm with gain 0.3 " in row.effect
    assert decide(dataclasses.replace(claim, only={"gain_init": 0.5}), [*small, *ones]).verdict == "undecided"


def test_one_seed_made_twice_counts_once(tmp_path):
    runs = write(tmp_path, [0.5, 0.2, 0.1], [0.5, 0.4, 0.2], seeds=2)
    row = decide(SOONER, [*runs, *runs])
    assert row.effect.endswith("; no verdict from 2 seeds")


def test_without_runs_it_is_undecided():
    row = decide(SOONER, [])
    assert (row.verdict, row.needed) == ("undecided", "2 h: more")


def test_a_summary_decides_as_the_runs_do_and_is_refused_when_changed(tmp_path):
    runs = write(tmp_path / "runs", [0.5, 0.2, 0.1], [0.5, 0.4, 0.2])
    path = tmp_path / "summary.json"
    summary.write(path, runs)
    assert decide(SOONER, summary.read(path)) == decide(SOONER, runs)
    summary.write(tmp_path / "again.json", summary.read(path))
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    path.write_text(path.read_text().replace('"seed": 2', '"seed": 3', 1))
    with pytest.raises(RunError, match=r"does not match its SHA-256.*make it again with layernorm report"):
        summary.read(path)


def test_long_curves_are_thinned_to_their_ends(tmp_path):
    write_digits(tmp_path / "runs", "layer", 128, 0, [1 - place / 1000 for place in range(250)])
    summary.write(tmp_path / "summary.json", find([tmp_path / "runs"]).runs)
    (run,) = summary.read(tmp_path / "summary.json")
    assert len(run.records) <= summary.RECORDS + 1
    assert [run.records[place]["update"] for place in (0, -1)] == [10, 2500]


def test_the_command_writes_both(tmp_path, capsys):
    write(tmp_path / "runs", [0.5, 0.2, 0.1], [0.5, 0.4, 0.2])
    folders = [str(tmp_path / "runs" / f"{rate}") for rate in RATES]
    assert cli.main(["report", *folders, "--summary", str(tmp_path / "summary.json")]) == 0
    assert json.loads((tmp_path / "summary.json").read_text())["experiment"] == "digits"
    assert cli.main(["claims", "--results", str(tmp_path), "--out", str(tmp_path / "claims.md")]) == 0
    page = (tmp_path / "claims.md").read_text()
    assert page.startswith("# The paper's claims")
    assert f"{len(CLAIMS)} claims about experiments: undecided {len(CLAIMS)}." in page
    assert all(page.index("## Not decided yet") < page.index(claim.text) for claim in CLAIMS)


def test_a_folder_that_is_not_there_is_one_line(tmp_path, capsys):
    assert cli.main(["claims", "--results", str(tmp_path / "none")]) == 1
    assert f"{tmp_path / 'none'} is not a folder" in one_line(capsys)


def test_the_committed_page_is_made_again_to_the_byte():
    assert claims.page(ROOT / "docs" / "results").encode() == (ROOT / "docs" / "claims.md").read_bytes()


def test_claims_are_about_experiments_that_there_are():
    assert {claim.experiment for claim in CLAIMS} <= set(EXPERIMENTS)
    assert len({claim.text for claim in CLAIMS}) == len(CLAIMS)
