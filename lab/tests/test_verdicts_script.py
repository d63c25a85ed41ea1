"""`benchmarks/verdicts.py`, the second computation of every verdict: on what is committed, and on runs made up here."""

import dataclasses
import gzip
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from layernorm_lab import catalogue
from layernorm_lab.report import judge
from layernorm_lab.report.judge import Arm, Claim, Kept, NearBest, Plan, Rung, Summed, Trial, UpdatesToGoal, Value
from layernorm_lab.runs.folder import Run
from support.repository import ROOT, loaded

PATH = ROOT / "benchmarks" / "verdicts.py"
verdicts = loaded(PATH)

GOAL = 150.0
UPDATES = range(100, 1100, 100)
SEEDS = (0, 1, 10, 11, 12, 13, 14)
STRAY = np.array([0.0, 0.0, 0.1, -0.2, 0.05, 0.15, -0.1])  # of the seeds
WIDE = {"none": 20 * STRAY}
BEST = 1  # the place of the best rate in the grid


def draws(kind):
    """DRAW's claim of this kind in its first trial by the earlier rule, with a goal if it needs one."""
    found = (
        c for c in catalogue.find_experiment("draw").claims if type(c.measure).__name__ == kind and not c.trial.plan
    )
    claim = next(found)
    if kind != "UpdatesToGoal":
        return claim
    return dataclasses.replace(claim, measure=dataclasses.replace(claim.measure, goal=GOAL))


def make_runs(trial, times, ends, best=BEST):
    """Runs of every norm, rate and seed.

    Args:
        trial: whose options they have.
        times: norm -> for each seed the update at which the validation bound, a straight line, is at the goal. At the
            best rate's neighbours it is there after twice as many, at theirs after four times as many.
        ends: norm -> for each seed the test bound.
        best: the place of the best rate.
    """
    runs = []
    for norm in times:
        for place, rate in enumerate(trial.rates):
            for seed, time, end in zip(SEEDS, times[norm], ends[norm], strict=True):
                bounds = [GOAL + 0.1 * (float(time) * 2.0 ** abs(place - best) - update) for update in UPDATES]
                records = {"update": list(UPDATES), "valid_bound": bounds, "test_bound": [float(end)] * len(bounds)}
                config = {**trial.options, "precision": "float32", "norm": norm, "learning_rate": rate, "seed": seed}
                name = f"draw-{norm}-lr{rate}-s{seed}"
                runs.append(
                    {"name": name, "config": config, "data": {}, "done": True, "result": {}, "records": records}
                )
    return runs


def made(layer_time=400.0, layer_end=100.0, stray=None):
    """Runs with layer norm and without, without taking 400 updates and ending at 100, all with a little noise."""
    stray = {"layer": STRAY, "none": STRAY[::-1], **(stray or {})}
    times = {norm: (layer_time if norm == "layer" else 400.0) * np.exp(0.05 * stray[norm]) for norm in stray}
    ends = {norm: (layer_end if norm == "layer" else 100.0) + 0.5 * stray[norm] for norm in stray}
    return make_runs(draws("Value").trial, times, ends)


def at_best(norm, seed):
    """The name of a run that is compared."""
    return f"draw-{norm}-lr{draws('Value').trial.rates[BEST]}-s{seed}"


def one(kind, runs):
    return verdicts.decide([draws(kind)], runs)[0]


def page(printed):
    """A page of all claims, with these verdicts and effects: cell -> two texts. The others are undecided."""
    head = "| claim | in the paper | verdict | effect (95 % interval) | what we ran | figure |\n|" + " --- |" * 6
    claims = [claim for name in verdicts.EXPERIMENTS for claim in catalogue.find_experiment(name).claims]
    cells = [verdicts.cell(claim) for claim in claims]
    told = {cell: printed.get(cell, ("**undecided**", "-")) for cell in cells}
    rows = "\n".join(f"| {cell} | 6 | {verdict} | {effect} | - | - |" for cell, (verdict, effect) in told.items())
    return f"# Claims\n\n## {verdicts.SECTIONS[0]}\n\n{head}\n{rows}\n"


def test_the_committed_page_prints_what_the_committed_summaries_say(capsys):
    paths = ["--results", str(ROOT / "docs" / "results"), "--page", str(ROOT / verdicts.PAGE)]
    returned, said = verdicts.main(paths), capsys.readouterr().out
    assert returned == 0, said
    claims = sum(len(catalogue.find_experiment(name).claims) for name in verdicts.EXPERIMENTS)
    assert said.endswith(f"{claims} claims, {claims} equal, 0 different\n")


def test_a_page_with_another_verdict_is_named(tmp_path, capsys):
    runs = made(layer_end=90.0)
    (tmp_path / "draw").mkdir()
    content = json.dumps({"experiment": "draw", "runs": runs}).encode()
    (tmp_path / "draw" / "summary.json.gz").write_bytes(gzip.compress(content))
    right = {}
    for finding in verdicts.decide(catalogue.find_experiment("draw").claims, runs):
        name, _, word = finding.verdict.rpartition(" ")
        numbers = [finding.effect, *finding.interval]
        if type(finding.claim.measure).__name__ == "UpdatesToGoal":
            numbers = [math.exp(value) for value in numbers if math.isfinite(value)]
        speed = type(finding.claim.measure).__name__ == "UpdatesToGoal"
        effect = "{:.2f} times as fast ({:.2f} to {:.2f})" if speed else "lower by {:.2f} ({:.2f} to {:.2f})"
        effect = f"A: 5 of 5; {effect.format(*numbers)}" if len(numbers) == 3 and not finding.why else "-"
        right[verdicts.cell(finding.claim)] = (f"{name} **{word}**", effect)
    claim = verdicts.cell(draws("Value"))
    assert right[claim][0] == "layer norm **ahead**"
    file = tmp_path / "claims.md"
    arguments = ["--results", str(tmp_path), "--page", str(file)]

    file.write_text(page(right))
    assert verdicts.main(arguments) == 0
    assert "DIFFERENT" not in capsys.readouterr().out

    for wrong in ("**undecided**", "**equal**", "layer norm **behind**", "baseline **ahead**"):
        file.write_text(page({**right, claim: (wrong, right[claim][1])}))
        assert verdicts.main(arguments) == 1
        (named,) = [line for line in capsys.readouterr().out.splitlines() if line.endswith("DIFFERENT")]
        assert named.startswith(f"{claim} | layer norm ahead | ")

    words = [right[claim][1].replace("lower by ", word) for word in ("higher by ", "better by ", "")]
    for effect in ("lower by 9.99 (9.27 to 10.72)", *words, "-"):
        file.write_text(page({**right, claim: (right[claim][0], effect)}))
        assert verdicts.main(arguments) == 1
        assert capsys.readouterr().out.count("DIFFERENT") == 1

    whole = page(right)
    file.write_text(whole.replace(f"| {claim} |", "| Another claim. |"))
    assert verdicts.main(arguments) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines if line.endswith("DIFFERENT")] == [claim, "Another claim."]


@pytest.mark.parametrize(
    ("kind", "runs", "verdict"),
    [
        ("Value", made(layer_end=90), "layer norm ahead"),
        ("Value", made(layer_end=110), "layer norm behind"),
        ("Value", made(layer_end=100.3), "equal"),
        ("Value", made(layer_end=98.6, stray=WIDE), "undecided"),
        ("UpdatesToGoal", made(layer_time=250), "layer norm ahead"),
        ("UpdatesToGoal", made(layer_time=600), "layer norm behind"),
        ("UpdatesToGoal", made(layer_time=402), "equal"),
        ("UpdatesToGoal", made(layer_time=380, stray=WIDE), "undecided"),
    ],
)
def test_each_verdict_comes_out(kind, runs, verdict):
    finding = one(kind, runs)
    assert (finding.verdict, finding.why, finding.pairs) == (verdict, "", 5)


def test_effects_and_intervals():
    """Against the differences that went into the runs, and the t distribution's quantile for 4 degrees of freedom."""
    difference = (STRAY[::-1] - STRAY)[2:]  # reversed, the pilot's zeros are the last two seeds'
    half = 2.7764451 * difference.std(ddof=1) / math.sqrt(5)
    for kind, base, size in (("Value", 10.0, 0.5), ("UpdatesToGoal", math.log(1.6), 0.05)):
        finding = one(kind, made(layer_end=90, layer_time=250))
        assert finding.effect == pytest.approx(base + size * difference.mean(), rel=1e-9)
        low, high = finding.interval
        assert high - finding.effect == pytest.approx(size * half, rel=1e-6)
        assert finding.effect - low == pytest.approx(size * half, rel=1e-6)


def test_what_leaves_a_claim_undecided():
    """A pilot that lacks a run, a best rate at an end of the grid, four pairs, a pair that diverged."""
    trial, runs = draws("Value").trial, made(layer_end=90)
    times, ends = ({norm: [value] * len(SEEDS) for norm in ("layer", "none")} for value in (400.0, 100.0))
    spoilt = json.loads(json.dumps(runs))
    next(run for run in spoilt if run["name"] == at_best("none", 12))["result"]["diverged"] = 500
    pilot = f"draw-layer-lr{trial.rates[-1]}-s1"
    cases = {
        "1 pilot runs of layer norm are missing": [run for run in runs if run["name"] != pilot],
        f"the best learning rate of layer norm, {trial.rates[0]:g}, is at an end": make_runs(
            trial, times, ends, best=0
        ),
        "4 pairs of 5": [run for run in runs if run["name"] != at_best("layer", 14)],
        "baseline diverged": spoilt,
    }
    for why, some in cases.items():
        finding = one("Value", some)
        assert finding.verdict == "undecided"
        assert finding.why.startswith(why)


def test_runs_that_do_not_reach_the_goal_are_not_equal():
    """Each counts with its last update, so that no pair differs."""
    late = {norm: [400.0, 400.0] + [3000.0] * 5 for norm in ("layer", "none")}
    finding = one("UpdatesToGoal", make_runs(draws("Value").trial, late, dict.fromkeys(late, SEEDS)))
    assert (finding.effect, *finding.interval, finding.short) == (0, 0, 0, True)
    assert (finding.verdict, finding.why) == ("undecided", "")


def test_a_goal_reached_at_the_first_record_counts_with_it():
    early = {"layer": [400.0, 400.0] + [50.0] * 5, "none": [400.0] * 7}
    finding = one("UpdatesToGoal", make_runs(draws("Value").trial, early, dict.fromkeys(early, SEEDS)))
    assert (finding.effect, finding.p) == (pytest.approx(math.log(400 / 100)), 1 / 16)  # five equal differences
    assert finding.short


def test_over_all_rates_a_run_that_diverged_counts_as_the_worst_beginning():
    trial, runs = draws("Value").trial, made()
    for run in runs:
        place, norm = trial.rates.index(run["config"]["learning_rate"]), run["config"]["norm"]
        start = (120.0 if norm == "layer" else 130.0) + 10 * place
        run["records"]["valid_bound"] = [start - update / 100 for update in UPDATES]
    end = [run for run in runs if run["name"].startswith(f"draw-none-lr{trial.rates[-1]}-")]
    for run in end:
        run.update(result={"diverged": 300}, records={name: line[:2] for name, line in run["records"].items()})
    finding = one("Robustness", runs)
    rates = len(trial.rates)
    worst = 130 + 10 * (rates - 1) - 1  # the first record's without a norm at the last rate, 9 above the best one's
    assert worst == end[0]["records"]["valid_bound"][0]
    assert finding.effect == pytest.approx(10 + 9 / 2 / (rates - 1))
    assert (finding.pairs, finding.verdict) == (7, "layer norm ahead")


def test_claims_of_one_trial_share_their_errors():
    """Holm's procedure at 5 %: 0.025 for the smaller of two, then 0.05. A claim without runs counts with 1."""
    for ps, expected in (
        ([0.04], [True]),
        ([0.02, 0.04], [True, True]),
        ([0.04, 0.03], [False, False]),
        ([0.04, 1.0], [False, False]),
        ([0.02, 0.012, 0.06], [True, True, False]),
        ([0.012, 0.04, 0.03], [True, False, False]),
    ):
        assert [verdicts.significant(ps, k) for k in range(len(ps))] == expected
    runs = made(layer_end=98.2, stray=WIDE)
    alone = one("Value", runs)
    other = draws("UpdatesToGoal")
    other = dataclasses.replace(other, measure=dataclasses.replace(other.measure, goal=-1.0))  # no run reaches it
    assert 0.025 < alone.p <= 0.05, "choose another layer_end"
    assert alone.verdict == "layer norm ahead"
    assert [finding.verdict for finding in verdicts.decide([draws("Value"), other], runs)] == ["undecided"] * 2


def test_two_runs_of_the_same_rate_and_seed_are_refused():
    runs = made()
    with pytest.raises(SystemExit, match=r"are both rate .* and seed 0 of layer norm"):
        one("Value", [*runs, {**runs[0], "name": "again"}])


def planned(kind, generator):
    """A claim by the rule of 2026-11-25, drawn at random."""
    chosen = Value("valid_bound", "bound")
    measure = {
        "UpdatesToGoal": UpdatesToGoal("valid_bound", "a bound", chosen, log=bool(generator.integers(2))),
        "Value": Value("test_bound", "test", chosen, margin=1.0, last=int(generator.integers(1, 4))),
        "Kept": Kept("kept_update", "updates", chosen),
        "NearBest": NearBest("recall", "updates", chosen),
        "Summed": Summed("valid_bound", "sum", chosen, margin=1.0, names=("one", "two")),
    }[kind]
    rungs = [(Rung(),), (Rung({"epochs": 1}, keep=2), Rung()), (Rung({"epochs": 1}),)][generator.integers(3)]
    looks = [(5, 8), (5,)][generator.integers(2)]
    rates = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
    tried = [{}, {}, {"layer": (2e-3,), "none": (2e-3, 4e-3)}, {"layer": (4e-3,), "none": (2e-3,)}]
    plan = Plan(rungs, tuple(range(20, 28)), looks, tried[generator.integers(4)])
    trial = Trial({"epochs": 2}, rates, updates=1000, paper=9999, plan=plan)
    return Claim(kind, "7", Arm("layer"), Arm("none"), measure, trial)


def drawn(trial, generator, gain, noise):
    """Runs of both arms at all rates, in both rungs, some of which are spoilt. Seed 18 is on no list. Where values have
    few digits there are ties."""
    runs, few = [], generator.random() < 0.3
    for norm, epochs, rate in itertools.product(("layer", "none"), (1, 2), trial.rates):
        for seed in (0, 1, 18, *range(20, 20 + int(generator.choice([4, 5, 8, 8, 8])))):
            worse = abs(math.log2(rate / 2e-3)) + noise * generator.normal() - gain * (norm == "layer")
            updates = np.arange(100, 100 + 500 * epochs, 100)
            line = 50 + 5 * worse + 100 * np.exp(-updates / 300) + 0.1 * generator.normal(size=len(updates))
            line = line.round(-1) + 1 if few else line
            config = {"epochs": epochs, "precision": "float32", "norm": norm, "learning_rate": rate, "seed": seed}
            result = {"kept_update": int(updates[line.argmin()]), "one": float(line.min()), "two": 1.0}
            records = {"update": updates.tolist(), "valid_bound": line.tolist(), "test_bound": (line + 1).tolist()}
            records["recall"] = (300 - line).tolist()
            chance = generator.random()
            if chance < 0.001:
                result["diverged"] = 500
            elif chance < 0.002:
                records["valid_bound"][2] = records["test_bound"][2] = math.nan
            elif chance < 0.003:
                records = {name: values[:3] for name, values in records.items()}
            run = {"name": f"{norm}-{epochs}-{rate}-{seed}", "config": config, "data": {}, "done": True}
            runs.append({**run, "start": {}, "result": result, "records": records})
    return runs


def as_run(run):
    """The run of a summary, as the judge takes it."""
    rows = [
        {**dict(zip(run["records"], row, strict=True)), "seconds": 1.0}
        for row in zip(*run["records"].values(), strict=True)
    ]
    return Run(Path(run["name"]), "toy", run["config"], {"data": {}, "starts": []}, rows, True, run["result"])


def test_the_judge_and_the_script_agree_on_trials_drawn_at_random():
    """Verdicts and numbers of 40 trials of five claims each, by the rule of 2026-11-25."""
    generator, seen = np.random.default_rng(0), []
    for case in range(40):
        first = planned("Value", generator)
        kinds = ("UpdatesToGoal", "Value", "Kept", "Summed", "NearBest")
        claims = [dataclasses.replace(planned(kind, generator), trial=first.trial) for kind in kinds]
        gain, noise = generator.choice([-0.4, 0.0, 0.2, 0.4]), generator.choice([0.01, 0.1, 0.1])
        runs = drawn(first.trial, generator, gain, noise)
        whole = [as_run(run) for run in runs]
        for ruling, finding in zip(judge.decide(claims, whole), verdicts.decide(claims, runs), strict=True):
            said = ruling.verdict
            said = f"layer norm {said}" if said in ("ahead", "behind") else said
            assert (finding.verdict, bool(finding.why)) == (said, bool(ruling.lacking)), (
                case,
                ruling.lacking,
                finding.why,
            )
            if not finding.why:
                assert (finding.effect, *finding.interval) == pytest.approx((ruling.effect, *ruling.interval), abs=1e-9)
                assert finding.pairs == len(ruling.seeds)
            seen.append((said, bool(finding.why), finding.pairs))
    assert {said for said, *_ in seen} == {"layer norm ahead", "layer norm behind", "equal", "undecided"}
    assert {lacks for _, lacks, _ in seen} == {True, False}
    assert {5, 8} <= {pairs for said, lacks, pairs in seen if not lacks and said != "undecided"}
