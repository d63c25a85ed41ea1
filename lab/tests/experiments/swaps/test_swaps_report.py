"""The report on `swaps` says what the written records hold, and the judge's verdicts on them."""

import dataclasses

import pytest

from lab_support.runs import report_of, shown
from lab_support.swaps import write
from layernorm_lab.experiments.swaps import claims as rules
from layernorm_lab.experiments.swaps import report as swaps_report
from layernorm_lab.experiments.swaps.claims import (
    ARMS,
    CHOICE,
    CHOOSING_TASKS,
    RULE,
    TRIAL,
    TRIED,
    claims_of,
    measure,
    plains_of,
)
from layernorm_lab.experiments.swaps.programs import PROGRAMS
from layernorm_lab.experiments.swaps.report import report_swaps
from layernorm_lab.report.judge import PILOT_SEEDS, TRIAL_SEEDS
from layernorm_lab.report.rendering import write_report
from layernorm_lab.runs import folder

PLAIN = {"norm": "none"}
PAPER, MATCHED = {"formula": "paper"}, {"formula": "cell", "start": "match"}


@pytest.fixture
def whole(tmp_path):
    """On `words` the paper's formula is behind and diverges, matched it is ahead; on `ppo`, where more is better, both
    are ahead; on `endings` and `digits` there are pilots."""
    write(tmp_path, "words", 4.2, **PLAIN)
    write(tmp_path, "words", 4.6, diverged=100, **PAPER)
    write(tmp_path, "words", 4.0, **MATCHED)
    write(tmp_path, "ppo", 150.0, **PLAIN)
    write(tmp_path, "ppo", 250.0, **PAPER)
    write(tmp_path, "ppo", 350.0, **MATCHED)
    for rate, value in ((1 / 16, 0.4), (1 / 4, 0.2), (1.0, 0.3), (4.0, 0.5), (16.0, 0.6)):
        write(tmp_path, "endings", value, PILOT_SEEDS, rate, **PLAIN)
        write(tmp_path, "endings", value - 0.1, PILOT_SEEDS, rate, **PAPER)
    write(tmp_path, "endings", 0.25, rate=1 / 4, **PLAIN)
    write(tmp_path, "endings", 0.15, rate=1 / 4, **PAPER)
    return tmp_path


def test_the_tables_have_the_verdicts(whole, capsys, tmp_path):
    report = report_of(whole)
    own, best, rates = report.tables
    assert own.columns == ["task", "family", "plain", "plain, forget bias 1", "paper", "cell, matched"]
    assert own.rows[0] == [
        "words",
        "SGD",
        "4.200",
        "-",
        "behind -3.400 (-3.400 to -3.400)",
        "ahead 0.200 (0.200 to 0.200)",
    ]
    assert own.rows[2] == ["ppo", "Adam", "150", "-", "ahead 100 (100 to 100)", "ahead 200 (200 to 200)"]
    assert best.columns == ["task", "family", "plain", "plain, forget bias 1", "paper"]
    assert best.rows[0] == ["words", "SGD", "-", "-", "-"]
    assert best.rows[1][2:] == ["25.0, x 0.25", "-", "x 0.25: ahead 10.0 (10.0 to 10.0)"]
    assert rates.rows[-1] == ["ppo", "cell, matched", "-", "-", "350", "-", "-", "60"]
    assert [row[3:5] for row in rates.rows if row[:2] == ["words", "paper"]] == [["-", "5 of 5 diverged"]]
    markdown = shown(report, capsys)
    assert "data of words" in markdown
    assert "data of ppo" in markdown
    write_report(report, tmp_path / "report")


def test_four_pairs_have_no_verdict(tmp_path):
    """At the best of three rates one seed chooses, by its validation; four are compared by their test cases."""
    for rate in (1 / 4, 1.0, 4.0):
        write(tmp_path, "letters", 3.0 - rate / 10, rate=rate, valid=rate, **PLAIN)
        write(tmp_path, "letters", 1.0 + rate / 10, rate=rate, valid=6.0 - rate, **PAPER)
    report = report_of(tmp_path)
    three = next(table for table in report.tables if table.title.startswith("Candidates at the best of three"))
    assert three.rows == [["letters", "SGD", "2.975, x 0.25", "-", "x 4: 1.575 (1.575 to 1.575)"]]
    assert not any("three rates" in finding for finding in report.findings)


def test_an_rnn_has_one_formula(whole):
    """The formulas that an RNN does not have stand for the paper's: one claim, which is shown for each of them."""
    claims = {name: claim for name, (claim,) in claims_of("endings", TRIED).items()}  # and one plain network
    assert claims["sonnet, matched"].ahead == claims["cell, matched"].ahead != claims["paper"].ahead
    assert claims["cell, matched"].ahead.options["formula"] == "paper"


def test_an_arm_outside_the_trial_is_neither_judged_nor_counted(tmp_path):
    """Holm's procedure is over the trial's arms, of which there are four at most, and over those that have runs."""
    for seed, better in zip(TRIAL_SEEDS, (1.0, 1.8, 2.4, 0.5, 1.3), strict=True):
        write(tmp_path, "words", 4.0, (seed,), **PLAIN)
        write(tmp_path, "words", 4.0 - 0.1 * better, (seed,), **PAPER)
    for seed, worse in zip(TRIAL_SEEDS, (1.0, 1.4, 0.6, 1.1, 0.9), strict=True):
        write(tmp_path, "words", 4.0 + 0.1 * worse, (seed,), **MATCHED)
    write(tmp_path, "words", 3.0, formula="kiros")
    write(tmp_path, "words", 3.0, PILOT_SEEDS, formula="cell")
    report = report_of(tmp_path)
    assert report.tables[0].columns == ["task", "family", "plain", "plain, forget bias 1", "paper", "cell, matched"]
    (curves,) = report.figures
    labels = [curve.label for curve in curves.rows[0][0].curves]
    assert labels == ["plain", "paper", "cell, matched"]  # no pilot beside the trial
    paper, matched = report.tables[0].rows[0][4:]
    assert paper.startswith("ahead 0.14")  # a chance of 1.3 %, of two comparisons the less clear
    assert matched.startswith("behind")


def test_figures_have_a_panel_for_each_task(whole):
    curves, rates = report_of(whole).figures
    titles = [panel.title for row in curves.rows for panel in row]
    assert titles == ["words", "ppo", "endings"] or titles == ["words", "endings", "ppo"]
    assert [curve.label for curve in curves.rows[0][0].curves] == ["plain", "cell, matched"]
    assert [panel.title for row in rates.rows for panel in row] == ["endings"]
    assert rates.rows[0][0].curves[0].x == [1 / 16, 1 / 4, 1.0, 4.0, 16.0]


def test_the_findings_count_and_follow_the_rule(whole):
    findings = report_of(whole).findings
    assert (
        "At the programs' own settings: paper is ahead on 1, behind on 1, equal on 0, undecided on 0 of 2 tasks."
        in findings
    )
    assert (
        "Each arm at its best learning rate: paper is ahead on 1, behind on 0, equal on 0, undecided on 0 of 1 tasks."
        in findings
    )
    assert findings[-1] == f"The rule: {RULE} By it: these runs are not all that it needs."


def better(task, share):
    """A value that is better than 50 margins by a share of them."""
    return 50 * PROGRAMS[task].margin * (1 + share if PROGRAMS[task].metric.rising else 1 - share)


def write_plains(place, task, biased=0.0):
    """Runs of both plain networks. That with a forget bias of 1 is better by a share."""
    write(place, task, better(task, 0.0), **PLAIN)
    if len(plains_of(task)) > 1:
        write(place, task, better(task, biased), norm="none", forget_bias="1")


def options_of(item):
    return {"norm": item.norm, "formula": item.formula, "start": item.start, "eps": item.eps}


def test_the_better_plain_network_counts(tmp_path):
    """An arm is ahead of the network with torch's forget bias, and behind the one with a forget bias of 1."""
    for task, biased, verdict in (("words", 0.5, "behind"), ("tagger", -0.5, "ahead"), ("digits", 0.299, "equal")):
        write_plains(tmp_path, task, biased)
        write(tmp_path, task, better(task, 0.3), **PAPER)
        found = next(row for row in report_of(tmp_path).tables[0].rows if row[0] == task)
        assert found[4].split()[0] == verdict
        assert found[2] != found[3] != "-"


def test_the_choice(tmp_path):
    """Of the arms that are behind on as many tasks the one is taken that is ahead on more, for each family, too."""
    gained = {item.name: 0.0 for item in CHOICE} | {"sum, 0.3": 0.3, "sum, matched": 0.3}
    for task in CHOOSING_TASKS:
        write_plains(tmp_path, task)
        for item in CHOICE:
            share = gained[item.name]
            if item.name == "sum, eps 1" and rules.family(task) == "SGD":
                share = 0.2
            if item.name == "sum, 0.3" and task == "words":
                share = -0.3
            if item.name == "sum, matched" and task in ("words", "digits"):
                share = -0.3
            if not any(item.arm(task) == other.arm(task) for other in CHOICE[: CHOICE.index(item)]):
                write(tmp_path, task, better(task, share), **options_of(item))
    told = report_swaps(folder.find_runs([tmp_path]).runs).findings[-2]
    assert told.endswith("By it: for all sum, eps 1; for Adam sum, 0.3; for SGD sum, eps 1.")


@pytest.fixture
def candidates(monkeypatch):
    """Two candidates, as if they had been chosen."""
    two = tuple(item for item in CHOICE if item.name in ("sum, 0.3", "sum, eps 1"))
    of = dataclasses.replace(rules.CONFIRMING, arms=(TRIAL[0], *two))
    rounds = tuple(of if item is rules.CONFIRMING else item for item in rules.ROUNDS)
    for module in (rules, swaps_report):
        for name, value in (("CHOSEN", two), ("CONFIRMING", of), ("ROUNDS", rounds)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    return two


def test_the_rule(tmp_path, candidates):
    """Under Adam one is ahead on half of the tasks and behind on none; under SGD the other is behind on one."""
    first, second = candidates
    for place, task in enumerate(rules.CONFIRMING_TASKS):
        write_plains(tmp_path, task)
        write(tmp_path, task, better(task, 0.0), **PAPER)
        adam = rules.family(task) == "Adam"
        write(tmp_path, task, better(task, 0.3 * (place % 2) if adam else -0.3), **options_of(first))
        write(tmp_path, task, better(task, -0.3 if task in ("maze", "dates") else 0.3), **options_of(second))
    findings = report_swaps(folder.find_runs([tmp_path]).runs).findings
    assert findings[-1].endswith("By it: for Adam, AdamW, Adamax and RMSprop sum, 0.3; for SGD none.")
    assert (
        "The confirmation, by test cases, Adam: sum, 0.3 is ahead on 4, behind on 0, equal on 4, undecided on 0 of 8 "
        "tasks." in findings
    )


def test_nothing_decides_for_no_arm(candidates):
    assert rules.chosen({}) == {}
    assert rules.recommended({}) is None
    assert rules.recommended({task: {} for task in rules.CONFIRMING_TASKS[:3]}) is None


@pytest.mark.parametrize("task", PROGRAMS)
def test_a_measure_shows_its_margin(task):
    number = measure(PROGRAMS[task])
    assert round(number.margin, number.digits) == pytest.approx(number.margin)
    assert len({item.name for item in ARMS}) == len(ARMS)
    name = PROGRAMS[task].metric.name
    assert number.metric == ("test_" if PROGRAMS[task].confirms else "") + name
    assert number.chooses.metric == name  # rates are chosen on the validation


def test_short_runs_alone_are_shown(tmp_path):
    write(tmp_path, "words", 4.2, (0,), updates=300, **PLAIN)
    report = report_of(tmp_path)
    assert [table.title for table in report.tables] == ["All learning rates"]
    assert report.findings == []
