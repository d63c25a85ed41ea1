"""`--on`: runs as jobs, by submitit's stand-in for a scheduler, which starts each as a process of this machine."""

import os
import signal
import threading
import time

import pytest

from lab_support import processes
from lab_support.command import refused
from lab_support.runs import outcome
from layernorm_lab import catalogue, cli
from layernorm_lab.cli import run, scheduled
from layernorm_lab.cli.options import parse_run
from layernorm_lab.runs import checkpoint, files, folder
from layernorm_lab.runs.environment import command_line

EXPERIMENT = catalogue.find_experiment("digits")
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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # submitit leaves these jobs' logs open
@pytest.mark.parametrize("options", [[], ["--restart"]])
def test_a_job_is_shown_and_gives_what_a_run_here_gives(options, tmp_path, monkeypatch, capsys):
    """submitit's debug jobs are calls in this process. One of the two finds a file in the way."""
    monkeypatch.setattr(scheduled, "SECONDS", 0.01)
    here, there = (
        parse_run(
            EXPERIMENT, [*COMMAND[2:], *options, "--threads", "1", "--seeds", *seeds, "--out", str(tmp_path / place)]
        )
        for place, seeds in (("here", "0"), ("there", "10"))
    )
    object.__setattr__(there.settings, "on", "debug")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "digits-layer-b128-s1").write_text("in the way")
    assert run.make_runs(EXPERIMENT, here) == []
    (failure,) = run.make_runs(EXPERIMENT, there)
    assert failure.name == "digits-layer-b128-s1"
    assert failure.why.startswith("cannot create the folder")
    name = "digits-layer-b128-s0"
    assert outcome(tmp_path / "there" / name) == outcome(tmp_path / "here" / name)
    assert f"[2/2] {name}: train NLL" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("options", [[], ["--restart"]])
def test_a_job_gives_what_one_process_gives_also_if_its_scheduler_stops_it(options, tmp_path, capsys):
    """SIGUSR2 is what submitit has a scheduler send before it ends a job. The job is queued again."""
    name = "digits-layer-b128-s0"
    assert cli.main([*COMMAND, "--threads", "1", "--seeds", "0", "--out", str(tmp_path / "here")]) == 0
    capsys.readouterr()
    sender = signal_to(tmp_path / "jobs" / name, signal.SIGUSR2)
    assert cli.main([*JOBS, *options, "--seeds", "0", "--out", str(tmp_path / "jobs")]) == 0
    sender.join()
    assert f"[1/1] {name}: train NLL" in capsys.readouterr().err
    assert outcome(tmp_path / "jobs" / name) == outcome(tmp_path / "here" / name)
    starts = folder.read_run(tmp_path / "jobs" / name).environment["starts"]
    assert [start["update"] > 0 for start in starts] == [False, True]
    assert {start["command"] for start in starts} == {command_line()}


@pytest.mark.long
def test_a_job_that_is_killed_is_named_and_the_same_command_resumes_it(tmp_path, capsys):
    path = tmp_path / "digits-layer-b128-s0"
    sender = signal_to(path, signal.SIGKILL)
    assert cli.main([*JOBS, "--seeds", "0", "--out", str(tmp_path)]) == 1
    sender.join()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("layernorm: digits-layer-b128-s0 failed: its job ")
    assert last.endswith(" was ended, perhaps for lack of memory; the same command resumes")
    assert cli.main([*JOBS, "--seeds", "0", "--out", str(tmp_path)]) == 0
    assert len(folder.read_run(path).environment["starts"]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--on", "local", "--ask", "60"], "--ask must have words such as timeout_min=60, got '60'"),
        (["--on", "local", "--ask", "timeout=60"], "unknown word of --ask 'timeout'; did you mean 'timeout_min'?"),
        (["--on", "local", "--ask", "slurm_...=1"], "unknown word of --ask 'slurm_...'"),
        (["--on", "local", "--ask", "timeout_min=\N{SUPERSCRIPT TWO}"], '--on local: Parameter "timeout_min" expected'),
        (["--on", "local", "--ask", "slurm_x=1"], "--on local: Unknown argument 'x'"),
        (["--on", "local", "--ask", "timeout_min=abc"], '--on local: Parameter "timeout_min" expected type'),
        (["--on", "slurm"], "--on slurm: "),
        (["--ask", "timeout_min=60"], "--ask is for jobs: also give --on slurm"),
    ],
)
def test_what_cannot_be_asked_for(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))  # without Slurm's programs
    assert cli.main([*COMMAND, "--seeds", "0", *options, "--out", str(tmp_path)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]  # on a slow machine after "reading the data ..."
    assert message in last


def test_a_scheduler_that_refuses_a_job(tmp_path, monkeypatch, capsys):
    """Slurm's programs are stand-ins: there is no such partition."""
    for name, content in (("srun", ""), ("sbatch", "echo invalid partition >&2; exit 1"), ("scancel", "")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{content}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert cli.main([*COMMAND, "--seeds", "0", "--on", "slurm", "--out", str(tmp_path / "runs")]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "layernorm: --on slurm: invalid partition"


def test_jobs_of_each_of_torchruns_processes_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "0")
    refused([*JOBS, "--seeds", "0", "--out", str(tmp_path)], 2, "--on makes each run in one process", capsys)


@pytest.mark.long
def test_ctrl_c_cancels_the_jobs_and_the_same_command_resumes(tmp_path, capsys):
    path = tmp_path / "digits-layer-b128-s0"
    command = [*JOBS, "--epochs", "6000", "--seeds", "0", "--out", str(tmp_path)]
    with processes.command(*command, errors=tmp_path / "said") as job:
        end = time.monotonic() + 120
        while not (path / folder.CHECKPOINT).exists() and time.monotonic() < end:
            time.sleep(0.05)
        os.killpg(job.pid, signal.SIGINT)  # a terminal sends it to all
    assert job.exitcode == 130
    assert (tmp_path / "said").read_text().splitlines()[-1] == "layernorm: interrupted; the same command resumes"
    texts = [path.read_text() for path in (tmp_path / "said", *(tmp_path / "jobs").glob("*.err"))]
    assert len(texts) == 2
    assert not any("Traceback" in text for text in texts)
    assert not (path / folder.RESULT).exists()
    with files.locked(path):
        pass  # nobody makes it any more
    assert checkpoint.read_state(path / folder.CHECKPOINT).update > 0
