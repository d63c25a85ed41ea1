"""The decision on the start: regrets, the choice, and what the rule makes of verdicts."""

import dataclasses
import math
import re
from types import SimpleNamespace

import pytest

from lab_support.swaps import write
from layernorm_lab.experiments.swaps import start
from layernorm_lab.experiments.swaps.claims import Candidate, measure
from layernorm_lab.experiments.swaps.config import Config
from layernorm_lab.experiments.swaps.network import Maker
from layernorm_lab.experiments.swaps.programs import PROGRAMS
from layernorm_lab.report.judge import AHEAD, BEHIND, EQUAL, PILOT_SEEDS, TRIAL_SEEDS, UNDECIDED
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
    assert Config("characters", formula="hidden_cell") == Config("characters")


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


def by_task(*verdicts, name=start._STARTS[0].name, effect=-1.5):
    return {f"task {k}": {name: found(verdict, effect)} for k, verdict in enumerate(verdicts)}


@pytest.mark.parametrize(
    ("own", "best", "expected"),
    [
        ((AHEAD, AHEAD, BEHIND, UNDECIDED), (EQUAL,) * 4, True),
        ((AHEAD, EQUAL, EQUAL, UNDECIDED), (AHEAD,) * 4, False),
        ((AHEAD, AHEAD, BEHIND, BEHIND), (AHEAD,) * 4, False),
        ((AHEAD,) * 4, (BEHIND, BEHIND, AHEAD, AHEAD), False),
        ((AHEAD,) * 4, (BEHIND, AHEAD, AHEAD, AHEAD), True),
    ],
)
def test_the_start_becomes_the_default_if_it_helps_and_hardly_harms(own, best, expected):
    assert start.is_default(by_task(*own), by_task(*best)) is expected


def test_nothing_is_decided_without_all_runs():
    lacking = by_task(AHEAD, AHEAD)
    lacking["task 1"][start._STARTS[0].name] = found(AHEAD, whole=False)
    assert start.is_default(lacking, by_task(AHEAD, AHEAD)) is None
    assert start.is_default({}, {}) is None


@pytest.mark.parametrize(
    ("own", "effect", "expected"),
    [
        ((AHEAD, AHEAD, EQUAL), 0.0, ["line"]),
        ((AHEAD, EQUAL, EQUAL), 0.0, []),
        ((AHEAD, AHEAD, BEHIND), -1.9, ["line"]),
        ((AHEAD, AHEAD, BEHIND), -2.1, []),
    ],
)
def test_a_line_is_recommended_for_a_family(own, effect, expected, monkeypatch):
    monkeypatch.setattr(start, "families", lambda tasks: {("Adam", "LSTM", "vectors"): list(tasks)})
    decided = start.recommended(by_task(*own, name="line", effect=effect), by_task(*own, name="line", effect=effect))
    assert decided == {("Adam", "LSTM", "vectors"): expected}


def test_a_family_of_one_task_has_no_recommendation(monkeypatch):
    monkeypatch.setattr(start, "families", lambda tasks: {("SGD", "GRU", "numbers"): list(tasks)})
    decided = start.recommended(by_task(AHEAD, name="line"), by_task(AHEAD, name="line"))
    assert decided == {("SGD", "GRU", "numbers"): []}


def test_the_arms_and_seeds_are_those_of_the_page():
    page = " ".join((ROOT / "docs" / "results" / "swaps" / "start.md").read_text(encoding="utf-8").split())
    assert start.CHOICE_SEEDS == (10, 11)
    assert TRIAL_SEEDS == (10, 11, 12, 13, 14)
    assert (start._AT_BEST[0], start._AT_BEST[2]) == ((1 / 4, 1.0, 4.0, 16.0), PILOT_SEEDS[:1])
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
    names = [item.name for item in start.ARMS]
    assert len(set(names)) == len(names)
    arms = [dataclasses.replace(item, name="", over=None) for item in start.ARMS]
    assert len({Candidate.arm(item, "words").name + str(item) for item in arms}) == len(arms)
    assert math.isclose(sum(start.regrets("words", {"one": 4.0}).values()), 0.0)
