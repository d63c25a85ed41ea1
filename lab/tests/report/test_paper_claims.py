"""The pages of the claims and the reports: made again from the committed summaries, and the claims as data."""

import dataclasses
import functools
import gzip
import itertools
import json
import re
import shlex
import shutil

import pytest

from lab_support.command import one_line, refused
from lab_support.runs import write_digits
from layernorm_lab import catalogue, claims, cli
from layernorm_lab.cli.options import parse_run
from layernorm_lab.errors import RunError
from layernorm_lab.report import judge, summary
from layernorm_lab.report.judge import PILOT_SEEDS, TRIAL_SEEDS, decide
from layernorm_lab.report.judge.claim import LEVELS
from layernorm_lab.runs.folder import find_runs
from support.repository import ROOT

RESULTS = ROOT / "docs" / "results"
NEEDS = (
    "the claims are decided by the summaries of our runs, which are committed in layernorm's checkout as docs/results: "
    "run this there, or give that folder with --results"
)
CLAIMS = [(name, claim) for name in catalogue.EXPERIMENTS for claim in catalogue.find_experiment(name).claims]


def write(place):
    """Runs of `digits` at two rates, with seeds of a pilot and others."""
    for rate, norm, seed in itertools.product((0.001, 0.002), ("layer", "none"), (*PILOT_SEEDS, *TRIAL_SEEDS[:2])):
        errors = [0.5, 0.2 + 0.001 * seed + (norm == "none") * 0.1 + rate, 0.1]
        write_digits(place / f"{rate}", norm, 128, seed, errors, learning_rate=rate)
    return find_runs([place / "0.001", place / "0.002"]).runs


def test_a_summary_decides_as_the_runs_do_and_is_refused_when_changed(tmp_path):
    runs = write(tmp_path / "runs")
    path = tmp_path / "summary.json"
    summary.write_summary(path, runs)
    options = {"batch_size": 128}
    trial = judge.Trial(options, (0.001, 0.002), updates=30, paper=300)
    claim = judge.Claim("It.", "7", judge.Arm("layer"), judge.Arm("none"), judge.Value("test_error", "error"), trial)
    from_runs, from_summary = decide([claim], runs), decide([claim], summary.read_summary(path))
    assert from_runs == from_summary
    summary.write_summary(tmp_path / "again.json", summary.read_summary(path))
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    packed = tmp_path / "packed.json.gz"
    summary.write_summary(packed, runs)
    assert gzip.decompress(packed.read_bytes()) == path.read_bytes()
    assert [run.records for run in summary.read_summary(packed)] == [run.records for run in summary.read_summary(path)]
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(RunError, match=r"packed\.json\.gz is damaged"):
        summary.read_summary(packed)
    path.write_text(path.read_text().replace('"seed": 1,', '"seed": 3,', 1))
    with pytest.raises(RunError, match=r"does not match its SHA-256.*make it again with layernorm report"):
        summary.read_summary(path)


def test_a_summary_names_no_folder_of_the_machine(tmp_path):
    write_digits(tmp_path / "runs", "layer", 128, 0, [0.5, 0.4])
    (run,) = find_runs([tmp_path / "runs"]).runs
    run.environment["data"]["folder"] = "/home/somebody/data"
    run.environment["starts"][-1]["command"] = "layernorm run digits --out '/home/a b' --epochs 3 --data=/home/c"
    summary.write_summary(tmp_path / "summary.json", [run])
    assert "/home" not in (tmp_path / "summary.json").read_text()
    (kept,) = summary.read_summary(tmp_path / "summary.json")
    assert kept.environment["starts"][-1]["command"] == "layernorm run digits --epochs 3"


def test_a_summary_has_every_record_with_six_digits(tmp_path):
    write_digits(tmp_path / "runs", "layer", 128, 0, [1 - place / 3000 for place in range(250)])
    path = tmp_path / "summary.json"
    found = find_runs([tmp_path / "runs"]).runs
    summary.write_summary(path, found)
    (read,), (run,) = summary.read_summary(path), found
    assert [record.keys() for record in read.records] == [record.keys() for record in run.records]
    for kept, record in zip(read.records, run.records, strict=True):
        assert kept == {name: pytest.approx(value, rel=5e-6, abs=0) for name, value in record.items()}
    summary.write_summary(tmp_path / "again.json", [read])
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("path", sorted(RESULTS.glob("**/summary.json.gz")), ids=lambda path: str(path.parent.name))
def test_the_committed_summaries_can_be_read(path):
    runs = summary.read_summary(path)
    assert runs
    assert all(run.done and (run.records or run.diverged is not None) for run in runs)


def test_the_commands_write_summary_report_and_page(tmp_path):
    write(tmp_path / "runs")
    folders = [str(tmp_path / "runs" / rate) for rate in ("0.001", "0.002")]
    assert cli.main(["report", *folders, "--summary", str(tmp_path / "summary.json")]) == 0
    assert json.loads((tmp_path / "summary.json").read_text())["experiment"] == "digits"
    assert cli.main(["report", str(tmp_path / "summary.json"), "--out", str(tmp_path / "again")]) == 0
    by_runs = (tmp_path / "runs" / "report" / "report.md").read_text()
    again = (tmp_path / "again" / "report.md").read_text()
    assert by_runs.split("## Environment")[0] == again.split("## Environment")[0]
    one, other = (f"{tmp_path / name}" for name in ("summary.json", "more"))  # a summary that the other rate joins
    assert cli.main(["report", folders[0], "--summary", one]) == 0
    assert cli.main(["report", one, folders[1], "--summary", one, "--out", other]) == 0
    assert (tmp_path / "more" / "report.md").read_text().split("## Environment")[0] == again.split("## Environment")[0]
    count = len(summary.read_summary(tmp_path / "summary.json"))
    assert cli.main(["report", one, *folders, "--summary", one, "--out", other]) == 0  # no run counts twice
    assert len(summary.read_summary(tmp_path / "summary.json")) == count
    assert f"skipped: runs of summaries that are also elsewhere ({count})" in (tmp_path / "more/report.md").read_text()
    (tmp_path / "theory").mkdir()
    (tmp_path / "theory" / "claims.json").write_bytes((RESULTS / "theory" / "claims.json").read_bytes())
    assert cli.main(["claims", "--results", str(tmp_path), "--out", str(tmp_path / "claims.md")]) == 0
    page = (tmp_path / "claims.md").read_text()
    counted = [claim for name, claim in CLAIMS if name != "digits" and claim.where != "ours"]
    count = len([claim for claim in counted if not claim.choice and not claim.trial.plan])
    assert page.startswith("# The paper's claims")
    assert f"{count} claims about experiments: ahead 0, behind 0, equal 0, undecided {count}." in page


def test_a_run_of_a_summary_that_lacks_a_metric_is_skipped(tmp_path):
    write(tmp_path / "runs")
    folders = [str(tmp_path / "runs" / rate) for rate in ("0.001", "0.002")]
    kept = tmp_path / "summary.json"
    assert cli.main(["report", *folders, "--summary", str(kept)]) == 0
    first, *others = summary.read_summary(kept)
    lacking = [{name: value for name, value in record.items() if name != "valid_error"} for record in first.records]
    summary.write_summary(kept, [dataclasses.replace(first, records=lacking), *others])
    assert cli.main(["report", str(kept), "--out", str(tmp_path / "again")]) == 0
    page = " ".join((tmp_path / "again" / "report.md").read_text().split())
    assert "skipped: " in page
    assert "lacks valid" in page


def test_a_folder_that_is_not_there_is_one_line(tmp_path, capsys):
    assert cli.main(["claims", "--results", str(tmp_path / "none")]) == 1
    assert f"{tmp_path / 'none'} is not a folder; {NEEDS}" in one_line(capsys)
    assert cli.main(["report", ""]) == 2
    assert "RUNS must be a path, got ''" in one_line(capsys)
    refused(["report", str(tmp_path), "--summary", "runs.txt"], 2, "--summary must end in .json or .json.gz", capsys)
    assert cli.main(["report", str(tmp_path / "none.json")]) == 1
    assert "is not a folder; give run folders, a folder of them, or a summary (*.json or *.json.gz)" in one_line(capsys)


def test_outside_of_a_checkout_the_claims_say_what_they_need(tmp_path, monkeypatch, capsys):
    """Without the folder, and in one of another program that has the same name."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["claims"]) == 1
    assert f"docs/results is not a folder; {NEEDS}" in one_line(capsys)
    (tmp_path / "docs" / "results").mkdir(parents=True)
    assert cli.main(["claims", "--out", "claims.md"]) == 1
    assert f"docs/results has no EXPERIMENT/summary.json.gz; {NEEDS}" in one_line(capsys)
    assert not (tmp_path / "claims.md").exists()


def test_a_summary_in_the_place_of_another_experiments_is_refused(tmp_path, capsys):
    """Its claims would be undecided, as if there were no runs."""
    (tmp_path / "draw").mkdir()
    shutil.copy(RESULTS / "order-embeddings" / "summary.json.gz", tmp_path / "draw")
    assert cli.main(["claims", "--results", str(tmp_path)]) == 1
    assert "summary.json.gz is a summary of order-embeddings, expected one of draw" in one_line(capsys)


def test_a_terminal_shows_every_claim_with_its_verdict_and_effect(capsys):
    """As the page has them, in at most 80 columns and without signs of Markdown."""
    assert cli.main(["claims", "--results", str(RESULTS)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    columns = [" ".join(" ".join(line[start:end] for line in lines).split())
               for start, end in ((0, 33), (34, 52), (53, 80))]  # fmt: skip
    page = (RESULTS / "verdicts.md").read_text(encoding="utf-8")
    rulings = list(itertools.chain.from_iterable(claims.rulings(RESULTS).values()))
    for ruling in rulings:
        assert ruling.claim.text.rstrip(".") in columns[0]
        if len(ruling.pairs) > 1:
            effect = judge.capital(ruling.claim.measure.compared(ruling.effect, *ruling.interval))
            assert effect in columns[2]
            assert effect[1:] in page
    for verdict, count in judge.counts(rulings).items():
        assert columns[1].split().count(verdict) >= count
    said = "\n".join(lines)
    assert re.search(r"^22 claims: ahead 11, behind 2, equal 4, undecided 5\.$", said, re.M)
    assert "10 statements: holds 7, refuted 3." in said
    assert not re.search(r"[|`\x1b]|\*\*|---", said)


def test_another_json_file_is_no_summary(capsys):
    refused(["report", str(RESULTS / "theory" / "claims.json")], 1, "claims.json is no summary of runs", capsys)


def test_the_committed_pages_are_made_again_to_the_byte(tmp_path):
    short, whole = tmp_path / "claims.md", tmp_path / "verdicts.md"
    assert cli.main(["claims", "--results", str(RESULTS), "--out", str(short), "--details", str(whole)]) == 0
    assert short.read_bytes() == (ROOT / "docs" / "claims.md").read_bytes()
    assert whole.read_bytes() == (RESULTS / "verdicts.md").read_bytes()


def test_the_short_page_is_short_and_counts_what_the_paper_says_in_words():
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert len([word for word in page.split() if word.strip("|-")]) <= 1200
    assert "18 claims: ahead 10, behind 2, equal 3, undecided 3." in " ".join(page.split())


@pytest.mark.parametrize(("name", "claim"), CLAIMS)
def test_a_claim_fits_its_experiment(name, claim):
    """Its arms are norms of the experiment, its trial has all other options, its grid goes in factors of 2."""
    config = type(catalogue.find_experiment(name).presets["smoke"].config)
    for arm in claim.arms:
        made = config(**{**claim.trial.options, **arm.options, "norm": arm.norm})  # refuses what it does not know
        fields = set(vars(made)) - {"norm", "learning_rate", "seed"}
        assert fields - set(claim.trial.options) <= {"gain_init"}
        assert len(claim.trial.rates) >= 4
        assert all(high / low == pytest.approx(2) for low, high in itertools.pairwise(claim.trial.rates))
    assert claim.trial.updates <= claim.trial.paper
    assert claim.measure.known or (claim.trial.plan and claim.measure.chosen), "goals by formula need both"
    if plan := claim.trial.plan:
        assert len(plan.looks) in LEVELS
        assert len(plan.seeds) == plan.looks[-1]
        assert not set(plan.seeds) & set(claim.trial.pilot)
        assert plan.rungs[-1].keep == 1


def test_no_two_claims_have_one_name():
    names = [(name, claim.text, claim.choice) for name, claim in CLAIMS]
    assert len(set(names)) == len(names)


def test_the_commands_of_unfinished_trials_make_runs_that_they_lack():
    """Of a rung or of the pairs, and not stored yet."""
    section = (RESULTS / "trials.md").read_text(encoding="utf-8").split("## What goes on")[1].split("\n## ")[0]
    options, made, read = "", 0, functools.cache(summary.read_summary)
    for line in re.findall(r"^ {4}(.+)$", section, re.MULTILINE):
        if line.startswith("O="):
            options = line.removeprefix("O=").strip('"')
            continue
        _, _, name, *words = shlex.split(line.replace("$O", options))
        stored = read(RESULTS / name / "summary.json.gz")
        trials = [(claim.trial, arm) for claim in catalogue.find_experiment(name).claims for arm in claim.arms
                  if claim.trial.plan]  # fmt: skip
        for config in parse_run(catalogue.find_experiment(name), words).configs:
            run = dataclasses.replace(stored[0], config={"precision": "float32", **vars(config)}, done=True)
            at = (config.learning_rate, config.seed)
            of_pairs = any(trial.runs(arm, [run]) and at[1] in trial.seeds for trial, arm in trials)
            of_pilot = any(trial.runs(arm, [run], rung.options) and at[1] in trial.pilot
                           for trial, arm in trials for rung in trial.plan.rungs)  # fmt: skip
            assert of_pairs or of_pilot, (line, at)
            assert run.config not in [other.config for other in stored], f"{at} of {line} is stored"
            made += 1
    assert made
