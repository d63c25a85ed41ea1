"""`--on`: runs as jobs, by submitit's stand-in for a scheduler, which starts each as a process of this machine."""

import os
import signal
import threading
import time

import pytest

from lab_support.command import refused
from lab_support.runs import outcome
from layernorm_lab import cli
from layernorm_lab.runs import files, folder

COMMAND = ["run", "digits", "--hidden", "16", "--norm", "layer", "--batch-size", "128", "--epochs", "60"]
JOBS = [*COMMAND, "--threads", "1", "--checkpoint-seconds", "0", "--on", "local"]


def signal_to(path, number):
    """A thread that sends a signal to the process that makes a run, once the run has a checkpoint."""

    def send():
        end = time.monotonic() + 120
        while not (path / folder.CHECKPOINT).exists() and time.monotonic() < end:
            time.sleep(0.005)
        process = files.holder(path)
        assert process != os.getpid(), "the run is made here"
        os.kill(process, number)

    sender = threading.Thread(target=send)
    sender.start()
    return sender


def test_a_job_gives_what_one_process_gives_also_if_its_scheduler_stops_it(tmp_path, capsys):
    """SIGUSR2 is what submitit has a scheduler send before it ends a job. The job is queued again."""
    name = "digits-layer-b128-s0"
    assert cli.main([*COMMAND, "--threads", "1", "--seeds", "0", "--out", str(tmp_path / "here")]) == 0
    capsys.readouterr()
    sender = signal_to(tmp_path / "jobs" / name, signal.SIGUSR2)
    assert cli.main([*JOBS, "--seeds", "0", "--out", str(tmp_path / "jobs")]) == 0
    sender.join()
    assert f"[1/1] {name}: train NLL" in capsys.readouterr().err
    assert outcome(tmp_path / "jobs" / name) == outcome(tmp_path / "here" / name)
    assert len(folder.read_run(tmp_path / "jobs" / name).environment["starts"]) == 2


@pytest.mark.long
def test_a_job_that_is_killed_is_named_and_the_same_command_resumes_it(tmp_path, capsys):
    path = tmp_path / "digits-layer-b128-s0"
    sender = signal_to(path, signal.SIGKILL)
    assert cli.main([*JOBS, "--seeds", "0", "--out", str(tmp_path)]) == 1
    sender.join()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("layernorm: digits-layer-b128-s0 failed: its job ")
    assert f"ended without a result (finished); see {tmp_path}/jobs/" in last
    assert cli.main([*JOBS, "--seeds", "0", "--out", str(tmp_path)]) == 0
    assert len(folder.read_run(path).environment["starts"]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--on", "local", "--ask", "60"], "--ask must have words such as timeout_min=60, got '60'"),
        (["--on", "local", "--ask", "minutes=60"], "--on local: "),
        (["--on", "slurm"], "--on slurm: "),
    ],
)
def test_what_cannot_be_asked_for(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))  # without Slurm's programs
    refused([*COMMAND, "--seeds", "0", *options, "--out", str(tmp_path)], 2, message, capsys)
