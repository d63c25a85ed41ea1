"""The command is killed, at moments of its own choosing and of ours, and ends as if it had not been."""

import json
import os
import pty
import re
import signal
import time

import pytest

from lab_support import processes
from lab_support.killing_itself import killing_itself, signalling_itself
from lab_support.runs import outcome
from layernorm_lab.runs import checkpoint

NAME = "digits-batch-b4-s0"
COMMAND = ["run", "digits", "--norm", "batch", "--batch-size", "4", "--seeds", "0", "--epochs", "3", "--hidden", "32"]
COMMAND += ["--threads", "1", "--checkpoint-seconds", "0.02"]  # 900 updates


def start(out, function=processes.run_command, *arguments, **options):
    return processes.process(function, *arguments, [*COMMAND, "--out", str(out)], **options)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken")
    with start(out, errors=out / "said") as process:
        pass
    assert process.exitcode == 0
    errors = (out / "said").read_text()
    # standard error is no terminal here: whole lines, no control characters; where a step takes seconds it says so
    assert [line for line in errors.splitlines() if not re.match(r"\[1/1\] |[a-z ]+ \.\.\. \d+ s$", line)] == []
    assert "\x1b" not in errors
    assert "\r" not in errors
    return outcome(out / NAME)


@pytest.mark.parametrize(
    "moments", [[("fsync-half", 3)], pytest.param([("replace", 3), ("fsync-half", 5)], marks=pytest.mark.long)]
)
def test_killed_while_writing_checkpoints_and_in_between(moments, tmp_path, unbroken):
    for moment, count in moments:
        with start(tmp_path, killing_itself, moment, count) as process:
            pass
        assert process.exitcode == -signal.SIGKILL
        checkpoint.load_checkpoint(tmp_path / NAME / "checkpoint.safetensors")  # the previous one, whole
        assert list((tmp_path / NAME).glob(".checkpoint*.tmp"))
    with start(tmp_path, signalling_itself, "SIGKILL", 200) as process:
        pass
    assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / NAME / "result.json").exists()
    with start(tmp_path) as process:
        pass
    assert process.exitcode == 0
    assert outcome(tmp_path / NAME) == unbroken
    starts = json.loads((tmp_path / NAME / "environment.json").read_text())["starts"]
    updates = [entry["update"] for entry in starts]
    assert len(updates) == len(moments) + 2
    assert updates == sorted(set(updates))  # every start went on from further ahead
    assert not list((tmp_path / NAME).glob(".*.tmp"))


def test_ctrl_c_on_a_terminal_saves_and_says_how_to_go_on(tmp_path, unbroken):
    ours, theirs = pty.openpty()
    terminal = os.ttyname(theirs)
    with start(tmp_path, signalling_itself, "SIGINT", 200, output=terminal, errors=terminal) as process:
        while process.is_alive() and not (tmp_path / NAME).exists():  # until it has opened the terminal
            time.sleep(0.01)
        os.close(theirs)  # then the command alone has it open
        screen = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux's way of saying that the other side is closed
                break
            if not part:
                break
            screen += part
    os.close(ours)
    assert process.exitcode == 130
    assert b"interrupted; the same command resumes" in screen
    assert b"Traceback" not in screen
    assert "━".encode() in screen  # the bar
    with start(tmp_path) as process:
        pass
    assert outcome(tmp_path / NAME) == unbroken
