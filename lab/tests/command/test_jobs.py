"""`--jobs`: runs on worker processes, which fail alone, stop with their parent and give what one process gives."""

import contextlib
import os
import signal
import threading
import time

import pytest

from lab_support import processes
from lab_support.command import refused
from lab_support.runs import outcome
from layernorm.isolation import Worker
from layernorm_lab import cli
from layernorm_lab.runs import files, folder

COMMAND = ["run", "digits", "--hidden", "16", "--norm", "layer", "--batch-size", "128", "--seeds", "0"]
RATES = [*COMMAND, "--epochs", "60", "--learning-rate", "0.001", "0.01"]
"""Two runs of a second or so each."""

RUNS = ["digits-layer-b128-lr0.001-s0", "digits-layer-b128-lr0.01-s0"]
KILLED = "its worker process was ended by SIGKILL, perhaps for lack of memory; the same command resumes"


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """What the runs of `RATES` give in this process."""
    place = tmp_path_factory.mktemp("unbroken")
    assert cli.main([*RATES, "--out", str(place)]) == 0
    return [outcome(place / name) for name in RUNS]


def started(place, *options):
    """A command of its own, writing a checkpoint after every block; `place` must be new."""
    options = ["--out", str(place), "--checkpoint-seconds", "0", *options]
    return processes.command(*RATES, *options, errors=place / "said")


def until(condition, seconds=120):
    """Waits; a machine may be busy."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


@contextlib.contextmanager
def held_when_begun(command, *paths):
    """Each run's process stands still from its first checkpoint to the end of the ``with``, which has their numbers:
    runs are short, and one could be over before the other begins."""
    held = {}
    while len(held) < len(paths):
        assert command.is_alive()
        for path in paths:
            if path not in held and (path / folder.CHECKPOINT).exists():
                held[path] = files.holder(path)
                os.kill(held[path], signal.SIGSTOP)
        time.sleep(0.01)
    try:
        yield list(held.values())
    finally:
        for process in held.values():
            with contextlib.suppress(ProcessLookupError):  # it was killed
                os.kill(process, signal.SIGCONT)


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_two_workers_give_what_one_process_gives(unbroken, tmp_path, capsys):
    assert cli.main([*RATES, "--jobs", "2", "--out", str(tmp_path)]) == 0
    assert [outcome(tmp_path / name) for name in RUNS] == unbroken
    text = capsys.readouterr()
    assert all(f"[{number}/2] {name}: train NLL" in text.err for number, name in enumerate(RUNS, 1))
    assert text.out.splitlines()[-1] == f"report: {tmp_path}/report/index.html"
    (start,) = folder.read_run(tmp_path / RUNS[0]).environment["starts"]
    assert start["threads"] == 1
    assert cli.main([*RATES, "--jobs", "2", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"[{number}/2] {name}: done before" for number, name in enumerate(RUNS, 1)
    ]


@pytest.mark.parametrize(
    "how", ["SIGKILL", *(pytest.param(how, marks=pytest.mark.long) for how in ("Ctrl-C", "SIGTERM"))]
)
def test_an_ended_parent_leaves_no_worker_and_the_same_command_resumes(unbroken, how, tmp_path):
    paths = [tmp_path / name for name in RUNS]
    with started(tmp_path, "--jobs", "2") as command, held_when_begun(command, *paths) as workers:
        assert len({command.pid, *workers}) == 3
        if how == "Ctrl-C":
            os.killpg(command.pid, signal.SIGINT)  # a terminal sends it to all
        else:
            os.kill(command.pid, signal.Signals[how])
    said = (tmp_path / "said").read_text()
    if how == "SIGKILL":
        until(lambda: not any(map(is_alive, workers)))
    else:
        assert command.exitcode == 130
        assert said.splitlines()[-1] == "layernorm: interrupted; the same command resumes"
        assert not any(map(is_alive, workers))
    assert "Traceback" not in said
    assert not all((path / folder.RESULT).exists() for path in paths), "it was broken off"
    # on workers in one case: the others start sooner
    assert cli.main([*RATES, *(["--jobs", "2"] if how == "SIGTERM" else []), "--out", str(tmp_path)]) == 0
    assert [outcome(path) for path in paths] == unbroken
    assert [len(folder.read_run(path).environment["starts"]) for path in paths] == [2, 2]


def test_a_worker_that_is_ended_saves_its_run_and_the_others_go_on(tmp_path):
    path = tmp_path / RUNS[0]
    with started(tmp_path, "--jobs", "1") as command, held_when_begun(command, path) as (worker,):
        os.kill(worker, signal.SIGTERM)
    assert command.exitcode == 1
    last = (tmp_path / "said").read_text().splitlines()[-1]
    assert last == f"layernorm: {RUNS[0]} failed: was interrupted by a signal; the same command resumes"
    assert not folder.read_run(path).done
    assert folder.read_run(tmp_path / RUNS[1]).done


def test_a_run_that_fails_does_not_stop_the_others(tmp_path, capsys):
    (tmp_path / "digits-layer-b128-s1").write_text("in the way")
    command = [*COMMAND, "1", "2", "--epochs", "2", "--jobs", "1", "--out", str(tmp_path)]
    assert cli.main(command) == 1
    text = capsys.readouterr()
    last = text.err.splitlines()[-1]
    assert last.startswith("layernorm: digits-layer-b128-s1 failed: cannot create the folder")
    assert all((tmp_path / f"digits-layer-b128-s{seed}" / folder.RESULT).exists() for seed in (0, 2))
    assert "report:" in text.out


@pytest.mark.long
def test_where_all_fail_each_has_its_line_and_there_is_no_report(tmp_path, capsys):
    for seed in (0, 1):
        (tmp_path / f"digits-layer-b128-s{seed}").write_text("in the way")
    assert cli.main([*COMMAND, "1", "--epochs", "2", "--jobs", "1", "--out", str(tmp_path)]) == 1
    text = capsys.readouterr()
    assert [line.split(":")[1] for line in text.err.splitlines()[-2:]] == [
        f" digits-layer-b128-s{seed} failed" for seed in (0, 1)
    ]
    assert "report:" not in text.out


def test_a_worker_that_is_killed_costs_its_run_alone(tmp_path, capsys):
    first, second = (tmp_path / name for name in RUNS)

    def kill():
        until((first / folder.CHECKPOINT).exists)
        worker = files.holder(first)
        assert worker != os.getpid(), "the run is made here"
        os.kill(worker, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    code = cli.main([*RATES, "--jobs", "1", "--checkpoint-seconds", "0", "--out", str(tmp_path)])
    killer.join()
    assert code == 1
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == f"layernorm: {RUNS[0]} failed: {KILLED}"
    assert not (first / folder.RESULT).exists()
    assert (second / folder.RESULT).exists()


def test_a_worker_that_is_killed_before_it_has_its_run_costs_that_run_alone(tmp_path, monkeypatch, capsys):
    """The pipe breaks where the run is given; that is not the end of our own output."""
    give, killed = Worker.give, []

    def give_to_the_dead(worker, item):
        if not killed:
            killed.append(worker.process.kill())
            worker.process.join()
        give(worker, item)

    monkeypatch.setattr(Worker, "give", give_to_the_dead)
    assert cli.main([*RATES, "--jobs", "1", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (f"layernorm: {RUNS[0]} failed: {KILLED}")
    assert (tmp_path / RUNS[1] / folder.RESULT).exists()


def test_the_end_of_the_process_that_starts_the_workers(tmp_path, monkeypatch, capsys):
    def fail(*arguments):
        raise EOFError("unexpected EOF")

    monkeypatch.setattr("multiprocessing.forkserver.connect_to_new_process", fail)
    message = "a worker process was ended while it started, before it had a run; give the same command again"
    refused([*RATES, "--jobs", "2", "--out", str(tmp_path)], 1, message, capsys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--threads", "2"], "--threads must be 0 or 1 where --jobs gives each run one thread, got 2"),
        ([], "--jobs makes each run in one process, torchrun makes one run in several"),
    ],
)
def test_jobs_beside_several_threads_or_processes_are_refused(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "0")
    refused([*RATES, "--jobs", "2", *options, "--out", str(tmp_path)], 2, message, capsys)
    assert not list(tmp_path.iterdir())


def test_one_process_of_accelerates_launcher_where_several_were_asked_for(tmp_path, monkeypatch, capsys):
    """What its environment has with `accelerate launch --cpu --num_processes 2`."""
    for name, value in {"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    refused([*RATES, "--out", str(tmp_path)], 2, "accelerate launch --cpu starts one process", capsys)
    assert not list(tmp_path.iterdir())
