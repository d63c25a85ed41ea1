"""The decision on the start: regrets, the choice, and what the rule makes of verdicts."""

import dataclasses
import re
from types import SimpleNamespace

import pytest

from lab_support.runs import report_of
from lab_support.swaps import write
from layernorm_lab.experiments.swaps import start
from layernorm_lab.experiments.swaps.claims import measure, plains_of
from layernorm_lab.experiments.swaps.config import Config
from layernorm_lab.experiments.swaps.network import Maker
from layernorm_lab.experiments.swaps.programs import PROGRAMS
from layernorm_lab.report.judge import AHEAD, BEHIND, EQUAL, PILOT_SEEDS, TRIAL_SEEDS, UNDECIDED
from layernorm_lab.report.summary import read_summary
from layernorm_lab.runs.folder import find_runs
from support.repository import ROOT


def gains(config):
    made = Maker(config)(3, 8, num_layers=2)
    return {name: item.unique().tolist() for name, item in made.named_parameters() if "gain" in name}, made


def test_a_start_by_site_sets_the_recurrent_gain_alone():
    found, _ = gains(Config("words", formula="paper", start="hh0.6", forget_bias="1"))
    for name, values in found.items():
        assert values == pytest.approx([0.6 if "hh" in name else 1.0]), name
    found, made = gains(Config("words", formula="hidden", start="hh0.3"))
    assert found == {f"gain_hh_l{k}": pytest.approx([0.3]) for k in (0, 1)}
    assert (made.recurrence.formula.gates, made.recurrence.formula.cell) == ("hidden", None)
    found, _ = gains(Config("words", formula="hidden_cell", start="hh0.3"))
    assert found == {f"gain_{n}_l{k}": pytest.approx([v]) for k in (0, 1) for n, v in (("hh", 0.3), ("c", 1.0))}


def test_a_start_by_site_needs_a_recurrent_gain():
    """An RNN's norm of the sum, and a norm of the cell, have none: the arm is that with gains of 1."""
    assert Config("endings", start="hh0.3") == Config("endings")
    assert Config("words", formula="cell", start="hh0.3") == Config("words", formula="cell")
    assert Config("characters", formula="hidden_cell", start="hh0.3").start == "hh0.3"


def test_regret_is_the_share_of_the_way_to_chance():
    value = measure(PROGRAMS["words"])
    chance = value.scale * PROGRAMS["words"].chance
    of = {"best": 4.0, "half": (4.0 + chance) / 2, "lost": chance + 1}
    assert start.regrets("words", of) == {"best": 0.0, "half": pytest.approx(0.5), "lost": 1.0}
    held = {
        "best": -400.0,
        "other": -(400.0 + PROGRAMS["ppo"].chance) / 2,
    }  # of steps that a pole is held more is better
    assert start.regrets("ppo", held) == {"best": 0.0, "other": pytest.approx(0.5)}


def test_the_choice_is_the_lowest_mean_regret(tmp_path):
    tasks = ("words", "ppo")
    one, other = start.recurrent(0.1), start.recurrent(0.3)
    choice = start.Choice(tasks, (one, other), (start.ONES,))
    for task, value in (("words", 4.3), ("ppo", 150.0)):
        for arm in plains_of(task).values():
            write(tmp_path, task, value, start.CHOICE_SEEDS, norm=arm.norm, forget_bias=arm.options["forget_bias"])
    for task, values in (("words", (4.0, 4.4, 4.2)), ("ppo", (200.0, 210.0, 400.0))):
        for item, value in zip((one, other, start.ONES), values, strict=True):
            options = {"norm": "layer", **dict(item.arm(task).options)}
            write(tmp_path, task, value, start.CHOICE_SEEDS, **options)
        assert start.mean_regrets(choice, find_runs([tmp_path]).runs) is None or task == "ppo"
    means = start.mean_regrets(choice, find_runs([tmp_path]).runs)
    chances = [measure(PROGRAMS[task]).scale * PROGRAMS[task].chance for task in tasks]
    of_ppo = [(400 - held) / (400 - chances[1]) for held in (200, 210)]
    expected = [(of_ppo[0] + 0) / 2, (of_ppo[1] + 0.4 / (chances[0] - 4)) / 2]
    assert means == {one.name: pytest.approx(expected[0], abs=1e-4), other.name: pytest.approx(expected[1], abs=1e-4)}


def found(verdict, effect=0.0, whole=True):
    """What the judge says, as the rule reads it."""
    ruling = SimpleNamespace(verdict=verdict, effect=effect, claim=SimpleNamespace(measure=SimpleNamespace(margin=1.0)))
    return SimpleNamespace(verdict=verdict, known=[ruling], whole=whole)


FRESH = start.AT_OWN.start.tasks


def by_task(*verdicts, name=start._DECIDES.name, effect=-1.5):
    """The verdicts on the fresh tasks in their order; those that are not given are equal."""
    whole = [*verdicts, *[EQUAL] * (len(FRESH) - len(verdicts))]
    return {task: {name: found(verdict, effect)} for task, verdict in zip(FRESH, whole, strict=True)}


@pytest.mark.parametrize(
    ("own", "best", "expected"),
    [
        ((AHEAD,) * 6 + (BEHIND, UNDECIDED), (), True),
        ((AHEAD,) * 5 + (UNDECIDED,), (AHEAD,) * 11, False),
        ((AHEAD,) * 6 + (BEHIND, BEHIND), (AHEAD,) * 11, False),
        ((AHEAD,) * 11, (BEHIND, BEHIND, AHEAD, AHEAD), False),
        ((AHEAD,) * 11, (BEHIND, AHEAD, AHEAD, AHEAD), True),
    ],
)
def test_the_start_becomes_the_default_if_it_helps_and_hardly_harms(own, best, expected):
    assert start.is_default(by_task(*own), by_task(*best)) is expected


def test_nothing_is_decided_without_all_runs_of_all_tasks():
    ahead = by_task(*[AHEAD] * len(FRESH))
    assert start.is_default(ahead, ahead) is True
    lacking = ahead | {FRESH[1]: {start._DECIDES.name: found(AHEAD, whole=False)}}
    fewer = {task: ahead[task] for task in FRESH[:3]}
    for own, best in ((lacking, ahead), (ahead, lacking), (fewer, ahead), (ahead, fewer), ({}, {})):
        assert start.is_default(own, best) is None
        assert start.recommended(own, best, start.AT_OWN.start) == {}


@pytest.mark.parametrize(
    ("verdicts", "effect", "expected"),
    [
        ((AHEAD, AHEAD, EQUAL), 0.0, True),
        ((AHEAD, EQUAL, EQUAL), 0.0, False),
        ((AHEAD, AHEAD, BEHIND), -1.9, True),
        ((AHEAD, AHEAD, BEHIND), -2.1, False),
    ],
)
def test_a_line_is_recommended_for_a_family(verdicts, effect, expected):
    """Three of the fresh tasks with a GRU are one family."""
    of = start.AT_OWN.lines[1]
    line = of.arms[-1].name
    decided = {
        task: {item.name: found(verdict if item.name == line else EQUAL, effect) for item in of.arms}
        for task, verdict in zip(of.tasks, verdicts, strict=True)
    }
    assert start.recommended(decided, decided, of) == {("Adam", "GRU", "vectors"): [line] * expected}


def test_a_family_of_one_task_is_left_out():
    of = start.AT_OWN.lines[0]
    ahead = {task: {item.name: found(AHEAD) for item in of.arms} for task in of.tasks}
    kinds = start.recommended(ahead, ahead, of)
    assert [*kinds] == [("Adam", "LSTM", "vectors"), ("Adam", "LSTM", "numbers")], "punctuation is alone under SGD"
    assert all(names == [item.name for item in of.arms] for names in kinds.values())


@pytest.fixture(scope="module")
def fresh_runs(tmp_path_factory):
    """Runs of every arm on every fresh task with an LSTM: the start is ahead of gains of 1 on all but one."""
    place = tmp_path_factory.mktemp("fresh")
    for task in FRESH:
        program = PROGRAMS[task]
        step = 4 * program.margin * (-1 if program.metric.rising else 1)
        good = program.chance / 2 if program.chance else 0.5
        arms = {**plains_of(task), **{item.name: item.arm(task) for item in start._EVERY_ARM["LSTM"]}}
        worth = {"plain": 2, "plain, forget bias 1": 2, start._DECIDES.name: 0, start.START.name: 0}
        for name, arm in arms.items():
            value = good + step * worth.get(name, 3 if task != "pixels" else 0)
            options = {"norm": arm.norm, **arm.options}
            write(place, task, value, seeds=(*PILOT_SEEDS[:1], *TRIAL_SEEDS), valid=1.0, **options)
            worse = 0 if program.metric.rising else 9
            for rate in (1 / 4, 4.0, 16.0):
                write(place, task, value + 5 * step, PILOT_SEEDS[:1], rate, valid=worse, **options)
    return place


def test_the_report_follows_the_rule(fresh_runs):
    report = report_of(fresh_runs)
    lines = "\n".join(report.findings)
    assert "The start of an LSTM by the rule (docs/results/swaps/start.md): it becomes the default" in lines
    assert f"Layer norm for Adam, LSTM, vectors: {start.START.name} is recommended" in lines
    assert f"Layer norm for Adam, LSTM, numbers: {start.START.name} is recommended" in lines
    assert "SGD, LSTM" not in lines
    assert "The choice of" not in lines, "there are no runs of the earlier tasks"
    table = next(table for table in report.tables if table.title == start.AT_OWN.start.title)
    assert [row[0] for row in table.rows] == [*FRESH]
    assert all(row[-1].startswith("equal" if row[0] == "pixels" else "ahead") for row in table.rows)
    shown = next(table for table in report.tables if table.title == start.AT_BEST.shown[0].title)
    own = [row for row in shown.rows if row[1] == start.START.name and row[0] == "Adam, LSTM, vectors"]
    assert [row[2:] for row in own] == [["8", "0", "0.000", "0.000", "8"]]


def test_the_arms_and_seeds_are_those_of_the_page():
    page = " ".join((ROOT / "docs" / "results" / "swaps" / "start.md").read_text(encoding="utf-8").split())
    assert start.CHOICE_SEEDS == (10, 11)
    assert TRIAL_SEEDS == (10, 11, 12, 13, 14)
    assert (start.AT_BEST.start.rates, start.AT_BEST.start.pilot) == ((1 / 4, 1.0, 4.0, 16.0), PILOT_SEEDS[:1])
    for words in ("with the seeds 10 and 11", "five seeds 10 to 14", "1/4, 1, 4 and 16", "best validation of seed 0"):
        assert words in page
    assert {item.start for item in start._LSTM_STARTS} == {"hh0.1", "hh0.3", "hh0.6", "hh0.8"}
    assert all(item.forget_bias == "1" for item in (*start._LSTM_STARTS, *start._ALONE))
    assert all(item.forget_bias == "torch" for item in start._GRU_STARTS)
    chooses = {task for choice in start.CHOICES.values() for task in choice.tasks}
    others = {task: program for task, program in PROGRAMS.items() if task not in chooses}
    assert {program.network for program in others.values() if program.confirms != "start"} == {"RNN"}
    assert not any(PROGRAMS[task].confirms == "start" for task in chooses)


def test_the_fresh_tasks_are_those_of_the_page():
    page = (ROOT / "docs" / "results" / "swaps" / "start.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+), [^|]+ \| [^|]*?\b(LSTM|GRU)s?\b", page, re.MULTILINE)
    fresh = {task: program for task, program in PROGRAMS.items() if program.confirms == "start"}
    assert rows == [(task, program.network) for task, program in fresh.items()]
    assert {task for task, program in fresh.items() if program.inputs == "numbers"} == {"pixels", "loads"}
    assert [len(tasks) for tasks in start.families([*fresh]).values()] == [8, 1, 2, 3]


def test_every_arm_has_a_name_of_its_own():
    names = [item.name for item in start._ALL_ARMS]
    arms = {dataclasses.replace(item, over=None) for item in start._ALL_ARMS}
    assert len({*names}) == len(arms)


def test_what_was_chosen_is_the_lowest_mean_regret_of_the_stored_runs():
    place = ROOT / "docs" / "results" / "swaps"
    runs = [run for path in (place, place / "start") for run in read_summary(path / "summary.json.gz")]
    for what, choice in start.CHOICES.items():
        means = start.mean_regrets(choice, runs)
        assert means is not None, what
        assert start.CHOSEN[what].name == min(means, key=means.__getitem__), (what, means)
