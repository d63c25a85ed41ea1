"""What a command shows of its runs: plain lines in a pipe; on a terminal bars that move, with the time left."""

import sys
import threading
import time

import pytest

from layernorm_lab.cli.waiting import waiting
from layernorm_lab.experiments.mnist.digits import Config
from layernorm_lab.runs.checkpoint import State
from layernorm_lab.train import progress
from layernorm_lab.train.task import Course


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless it is moved on."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    return now


class Display:
    """Keeps what rich would show, by bar."""

    def __init__(self):
        self.bars, self.console = [], self

    def add_task(self, description, **fields):
        self.bars.append({"description": description, "completed": 0, **fields})
        return len(self.bars) - 1

    def update(self, bar, **fields):
        self.bars[bar].update(fields)

    def print(self, text, **options):
        self.said = text


COURSE = Course(updates=40, updates_per_epoch=10, shown={"loss": "loss {:.1f}"})


def at(update, **metrics):
    state = State()
    state.update, state.metrics = update, metrics
    return state


def test_lines_say_what_is_left_once_it_is_known(clock, capsys):
    (lines,) = progress.progress().__enter__()
    lines.begin(1, 2, "a")
    lines.update(at(0), COURSE)
    clock[0] += 5.0
    lines.update(at(4), COURSE)
    assert capsys.readouterr().err == ""
    clock[0] += 5.0
    lines.update(at(8, loss=0.5), COURSE)
    assert capsys.readouterr().err == "[1/2] a: epoch 0.8 of 4, loss 0.5, 40 s left\n"
    lines.begin(2, 2, "b")
    clock[0] += 10.0
    lines.update(at(20), COURSE)  # resumed from here, so that the pace is not known
    assert capsys.readouterr().err == "[2/2] b: epoch 2.0 of 4\n"


def test_bars_move_before_the_first_run_is_over(clock):
    """Two runs of 40 updates, the second twice as long as the first: 1 s an update, with 2 s before the first one."""
    display = Display()
    bars = progress.Bars(display, progress.Whole(display, [40.0, 80.0]))
    whole, own = display.bars
    bars.begin(1, 2, "a")
    assert (whole["total"], whole["completed"], own["description"], own["note"]) == (120.0, 0, "a", "starts")
    clock[0] += 2.0
    bars.update(at(0), COURSE)
    assert (own["total"], own["completed"], own["note"], whole["note"]) == (40, 0, "", "")
    clock[0] += 10.0
    bars.update(at(10, loss=0.5), COURSE)
    assert (own["completed"], own["note"]) == (10, "loss 0.5, 30 s left")
    assert (whole["completed"], whole["note"]) == (10.0, "about 2 min left")  # 110 updates at 12 s for 10
    bars.end("done")
    assert (whole["completed"], own["visible"], display.said) == (40.0, False, "[1/2] a: done")


def test_what_was_made_before_takes_no_time(clock):
    display = Display()
    bars = progress.Bars(display, progress.Whole(display, ()))
    whole = display.bars[0]
    bars.begin(1, 3, "a")
    bars.end("done before")
    assert (whole["total"], whole["completed"], whole["note"]) == (3.0, 1.0, "")
    bars.begin(2, 3, "b")
    bars.update(at(20), COURSE)  # resumed
    assert (whole["completed"], whole["note"]) == (1.5, "")
    clock[0] += 8.0
    bars.update(at(30), COURSE)
    assert (whole["completed"], whole["note"]) == (1.75, "about 40 s left")  # a quarter of a run took 8 s


def test_runs_count_by_their_updates():
    assert Config(epochs=30, batch_size=4).relative_updates == 32 * Config(epochs=30, batch_size=128).relative_updates


@pytest.mark.parametrize(("terminal", "written"), [(True, "loading ...\r           \r"), (False, "")])
def test_what_is_waited_for_is_said_at_once_on_a_terminal(terminal, written, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with pytest.raises(ValueError, match="in between"), waiting("loading"):
        raise ValueError("in between")
    assert capsys.readouterr().err == written


def test_a_long_wait_has_lines_in_a_file(monkeypatch, capsys):
    monkeypatch.setattr("layernorm_lab.cli.waiting.SILENCE", 0.01)
    threads = threading.active_count()
    with waiting("loading"):
        time.sleep(0.2)
    assert threading.active_count() == threads
    assert capsys.readouterr().err.startswith("loading ... 0 s\nloading ... 0 s\n")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with waiting("loading"):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""
