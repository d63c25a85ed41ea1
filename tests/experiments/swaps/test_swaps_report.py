"""The report on `swaps` says what the written records hold, and the judge's verdicts on them."""

import pytest

from layernorm.experiments.report.judge import FRESH, PILOT
from layernorm.experiments.report.rendering import write_report
from layernorm.experiments.runs import folder
from layernorm.experiments.swaps.claims import CANDIDATES, RULE, claims_of, measure, recommended
from layernorm.experiments.swaps.network import Config
from layernorm.experiments.swaps.programs import PROGRAMS
from layernorm.experiments.swaps.report import report_swaps
from support.runs import report_of, shown, write_run

PLAIN = {"norm": "none"}
PAPER, MATCHED = {"formula": "paper"}, {"formula": "cell", "start": "match"}


def write(place, task, value, seeds=FRESH, rate=1.0, diverged=None, **options):
    """Runs of an arm whose last three evaluations are this value, a little different for each seed and formula."""
    name = PROGRAMS[task].metric.name
    for seed in seeds:
        config = vars(Config(task=task, seed=seed, learning_rate=rate, **options))
        change = 1e-4 * ((seed + len(options.get("formula", ""))) % 3)
        ends = [value * share + change for share in (1.5, 1.1, 1.0, 0.9)]
        records = [
            {"update": PROGRAMS[task].updates * place // 4, "epoch": place / 4, "seconds_per_update": 0.01, name: end}
            for place, end in enumerate(ends, 1)
        ]
        facts = {"name": f"data of {task}", "fingerprint": task, "original": False}
        path = place / "-".join(map(str, (task, *options.values(), rate, seed)))
        write_run(path, "swaps", config, facts, [] if diverged else records, diverged=diverged)


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
        write(tmp_path, "endings", value, PILOT, rate, **PLAIN)
        write(tmp_path, "endings", value - 0.1, PILOT, rate, **PAPER)
    write(tmp_path, "endings", 0.25, rate=1 / 4, **PLAIN)
    write(tmp_path, "endings", 0.15, rate=1 / 4, **PAPER)
    return tmp_path


def test_the_tables_have_the_verdicts(whole, capsys, tmp_path):
    report = report_of(whole)
    own, best, rates = report.tables
    assert own.columns == ["task", "plain", "paper", "cell, matched"]
    assert own.rows[0] == ["words", "4.200", "behind -3.400 (-3.400 to -3.400)", "ahead 0.200 (0.200 to 0.200)"]
    assert own.rows[2] == ["ppo", "150", "ahead 100 (100 to 100)", "ahead 200 (200 to 200)"]
    assert best.columns == ["task", "plain", "paper"]
    assert best.rows[0] == ["words", "-", "-"]
    assert best.rows[1][2:] == ["ahead 10.0 (10.0 to 10.0)"]
    assert rates.rows[-1] == ["ppo", "cell, matched", "-", "-", "350", "-", "-", "60"]
    assert [row[3:5] for row in rates.rows if row[:2] == ["words", "paper"]] == [["-", "5 of 5 diverged"]]
    markdown = shown(report, capsys)
    assert "data of words" in markdown
    assert "data of ppo" in markdown
    write_report(report, tmp_path / "report")


def test_an_rnn_has_one_formula(whole):
    """The formulas that an RNN does not have stand for the paper's: one claim, which is shown for each of them."""
    claims = claims_of("endings", (1.0,))
    assert claims["sonnet, matched"].ahead == claims["cell, matched"].ahead != claims["paper"].ahead
    assert claims["cell, matched"].ahead.options["formula"] == "paper"


def test_an_arm_outside_the_trial_is_neither_judged_nor_counted(tmp_path):
    """Holm's procedure is over the trial's arms: a chance of 1.3 % decides among three, not among eight."""
    for seed, better in zip(FRESH, (1.0, 1.8, 2.4, 0.5, 1.3), strict=True):
        write(tmp_path, "words", 4.0, (seed,), **PLAIN)
        write(tmp_path, "words", 4.0 - 0.1 * better, (seed,), **PAPER)
    write(tmp_path, "words", 3.0, formula="kiros")
    write(tmp_path, "words", 3.0, PILOT, formula="cell")
    report = report_of(tmp_path)
    assert report.tables[0].columns == ["task", "plain", "paper"]
    (curves,) = report.figures
    assert [curve.label for curve in curves.rows[0][0].curves] == ["plain", "paper"]  # no pilot beside the trial
    assert report.tables[0].rows[0][2].startswith("ahead 0.14")


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
        "paper, at the programs' own settings: ahead on 1, behind on 1, equal on 0, undecided on 0 of 2 tasks."
        in findings
    )
    assert "paper, each at its best rate: ahead on 1, behind on 0, equal on 0, undecided on 0 of 1 tasks." in findings
    assert findings[-1] == f"The rule: {RULE} These runs are not of all tasks."


def test_the_rule(tmp_path):
    """Matched is ahead on most tasks and behind on none; the paper's start is behind on one."""
    for place, task in enumerate(PROGRAMS):
        up = -1 if PROGRAMS[task].metric.rising else 1
        size = 50 * PROGRAMS[task].margin
        write(tmp_path, task, size, **PLAIN)
        write(tmp_path, task, size * (1 + up * (0.5 if place == 3 else -0.5)), **PAPER)
        write(tmp_path, task, size * (1 if place == 3 else 1 - up * 0.4), **MATCHED)
    report = report_swaps(folder.find_runs([tmp_path]).runs)
    assert report.findings[-1].endswith("By it the recommended arm is cell, matched.")


def test_nothing_decides_for_no_arm():
    assert recommended([]) is None


@pytest.mark.parametrize("task", PROGRAMS)
def test_a_measure_shows_its_margin(task):
    number = measure(PROGRAMS[task])
    assert round(number.margin, number.digits) == pytest.approx(number.margin)
    assert len({item.name for item in CANDIDATES}) == len(CANDIDATES)


def test_short_runs_alone_are_shown(tmp_path):
    write(tmp_path, "words", 4.2, (0,), updates=300, **PLAIN)
    report = report_of(tmp_path)
    assert [table.title for table in report.tables] == ["All rates"]
    assert report.findings == []
