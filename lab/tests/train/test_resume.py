"""The command is killed, at moments of its own choosing and of ours, and ends as if it had not been."""

import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from lab_support.runs import outcome
from layernorm_lab.runs import checkpoint

NAME = "digits-batch-b4-s0"
COMMAND = ["run", "digits", "--norm", "batch", "--batch-size", "4", "--seeds", "0", "--epochs", "3", "--hidden", "32"]
COMMAND += ["--threads", "1", "--checkpoint-seconds", "0.02"]

# Kills itself with SIGKILL at the n-th call of a function in the middle of writing a checkpoint.
SUICIDE = """
import fcntl, os, signal, sys
from layernorm_lab import cli
from layernorm_lab.runs import files
moment, count = sys.argv[1], int(sys.argv[2])
original, calls = getattr(os, moment.removesuffix("-half")), 0

def path(opened):
    if sys.platform == "darwin":
        return fcntl.fcntl(opened, fcntl.F_GETPATH, bytes(1024)).rstrip(bytes(1)).decode()
    return os.readlink(f"/proc/self/fd/{opened}")

def deadly(*arguments):
    global calls
    named = arguments[-1] if moment == "replace" else path(arguments[0])
    if "checkpoint.safetensors" in str(named):
        calls += 1
        if calls == count:
            if moment == "fsync-half":
                os.ftruncate(arguments[0], 1000)
            os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments)

setattr(os, moment.removesuffix("-half"), deadly)
cli.main(sys.argv[3:])
"""


def start(out, *before, **options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, *before, *COMMAND, "--out", str(out)], env=environment, **options)


def wait_for_records(out, count, process):
    path = out / NAME / "records.jsonl"
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, "the command ended before it could be stopped"
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken")
    with start(out, "-m", "layernorm", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        errors = process.stderr.read()
    assert process.returncode == 0
    # standard error is no terminal here: whole lines, no control characters
    assert all(line.startswith("[1/1] ") for line in errors.splitlines())
    assert "\x1b" not in errors
    assert "\r" not in errors
    return outcome(out / NAME)


@pytest.mark.parametrize(
    "moments", [[("fsync-half", 3)], pytest.param([("replace", 3), ("fsync-half", 5)], marks=pytest.mark.long)]
)
def test_killed_while_writing_checkpoints_and_in_between(moments, tmp_path, unbroken):
    for moment, count in moments:
        with start(tmp_path, "-c", SUICIDE, moment, str(count), stderr=subprocess.DEVNULL) as process:
            pass
        assert process.returncode == -signal.SIGKILL
        checkpoint.load_checkpoint(tmp_path / NAME / "checkpoint.safetensors")  # the previous one, whole
        assert list((tmp_path / NAME).glob(".checkpoint*.tmp"))
    with start(tmp_path, "-m", "layernorm", stderr=subprocess.DEVNULL) as process:
        wait_for_records(tmp_path, 2, process)
        process.kill()
    assert not (tmp_path / NAME / "result.json").exists()
    with start(tmp_path, "-m", "layernorm", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        pass
    assert process.returncode == 0
    assert outcome(tmp_path / NAME) == unbroken
    starts = json.loads((tmp_path / NAME / "environment.json").read_text())["starts"]
    updates = [entry["update"] for entry in starts]
    assert len(updates) == len(moments) + 2
    assert updates == sorted(set(updates))  # every start went on from further ahead
    assert not list((tmp_path / NAME).glob(".*.tmp"))


def test_ctrl_c_on_a_terminal_saves_and_says_how_to_go_on(tmp_path, unbroken):
    ours, theirs = pty.openpty()
    with start(tmp_path, "-m", "layernorm", stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        wait_for_records(tmp_path, 1, process)
        process.send_signal(signal.SIGINT)
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
    assert process.returncode == 130
    assert b"interrupted; the same command resumes" in screen
    assert b"Traceback" not in screen
    assert "━".encode() in screen  # the bar
    with start(tmp_path, "-m", "layernorm", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        pass
    assert outcome(tmp_path / NAME) == unbroken
