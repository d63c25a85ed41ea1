"""`--on slurm`: each run of a request as a job of a scheduler, by submitit.

A job makes its run as a worker does. What it has to say it writes into a file in `jobs`, beside the folders of the
runs, which all machines must share. A job that its scheduler stops, as at the end of its time, is queued again, and
its run goes on from its checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from layernorm.isolation import ctrl_c_ignored

from ..errors import Failure, Interrupted, RunError, UsageError, error_line, unknown
from ..protocol import Experiment
from ..runs.checkpoint import State
from ..runs.files import make_folder, read_json, write_json
from ..runs.folder import RunFolder
from ..train.progress import Progress, progress
from ..train.task import Course
from .options import Request
from .single import Outcome, Reporting, attempt_run, cut_off

try:
    import submitit
    from submitit.core.utils import FailedJobError, UncompletedJobError
except ImportError as error:
    raise UsageError(f"--on needs the package submitit, pip install submitit: {error}") from error

FOLDER = "jobs"
"""The folder of submitit's files and of the jobs' messages, in that of the runs."""

SECONDS = 2.0
"""The seconds between two messages of a job, and between two looks at all jobs."""

ASKED: Mapping[str, Any] = {"name": "layernorm", "timeout_min": 60}
"""What a job asks for, unless `--ask` says otherwise. submitit's own time is 5 minutes."""

WORDS = ("timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node", "name", "slurm_...")
"""The words of `--ask`."""

TIMES = 1000
"""The number of times that a job may reach the end of its time, and be queued again."""


class _Job(submitit.helpers.Checkpointable):
    """Makes one run of a request, on another machine. The run's environment names the command that asked for it."""

    def __init__(self) -> None:
        self.words = sys.argv

    def __call__(self, name: str, request: Request, run: int, path: Path, said: Path) -> Outcome:
        sys.argv = self.words
        if request.settings.threads:
            torch.set_num_threads(request.settings.threads)
        if request.settings.on == "local":
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # `_cancel` sends it, and submitit ignores it
        elif request.settings.on == "slurm":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as submitit does: its own signal queues the job again
        try:
            return attempt_run(name, request, run, path, _WritingProgress(said))
        except (Interrupted, KeyboardInterrupt):
            sys.exit("layernorm: interrupted; the same command resumes")


class _WritingProgress(Reporting):
    """A job's display: a file that the command reads."""

    seconds = SECONDS

    def __init__(self, path: Path) -> None:
        self.path = path

    def tell(self, state: State, course: Course) -> None:
        with contextlib.suppress(RunError):  # a display that cannot be written stops no training
            write_json(self.path, {"state": asdict(state), "course": asdict(course)})


@dataclass
class _Post:
    """A run, its job and its display."""

    run: int
    path: Path
    said: Path
    display: Progress
    job: Any = None
    begun: bool = False


def make_as_jobs(experiment: Experiment, request: Request, runs: Mapping[int, Path]) -> list[Failure]:
    """Makes some of a request's runs, whose folders are given by the run's place in `request.configs`, as jobs. A run
    that fails does not stop the others. Returns those that failed.

    Raises:
        Interrupted: Ctrl-C was pressed, and the jobs were cancelled; local ones have saved their runs.
        UsageError: there is no such scheduler here, or it knows nothing of what a job should ask for.
        RunError: the scheduler refused a job, and the others were cancelled.
    """
    folder = make_folder(next(iter(runs.values())).parent / FOLDER)
    local = request.settings.on == "local"
    executor = _executor(folder, request)
    # cleared here, not by the jobs: one that is queued again must go on
    going_on = replace(request, settings=replace(request.settings, restart=False))
    failures: list[Failure] = []
    sizes = [size if place in runs else 0.0 for place, size in enumerate(request.sizes)]
    with progress(lines=len(runs), sizes=sizes) as displays:
        waiting = deque(
            _Post(run, path, folder / f"{path.name}.json", display)
            for (run, path), display in zip(runs.items(), displays, strict=True)
        )
        posts: list[_Post] = []
        try:
            while waiting or posts:
                while waiting and len(posts) < (request.settings.jobs or len(runs)):
                    post = waiting.popleft()
                    post.said.unlink(missing_ok=True)
                    if request.settings.restart:
                        try:
                            _clear(post.path)
                        except RunError as error:
                            failures += _told(post, request, Outcome(error_line(error), True))
                            continue
                    # a terminal sends Ctrl-C to its processes, too, and submitit's would print tracebacks
                    with ctrl_c_ignored() if local else contextlib.nullcontext():
                        post.job = executor.submit(_Job(), experiment.name, going_on, post.run, post.path, post.said)
                    posts.append(post)
                time.sleep(SECONDS / 2)
                for post in [*posts]:
                    _show(post, len(request.configs))
                    if post.job.done():
                        posts.remove(post)
                        failures += _ended(post, request)
        except KeyboardInterrupt:
            raise Interrupted from None
        except FailedJobError as error:
            raise RunError(f"--on {request.settings.on}: {' '.join(str(error).split())}") from error
        finally:
            _cancel([post.job for post in posts], local)  # those that are not over
    return failures


def _clear(path: Path) -> None:
    folder = RunFolder(path)
    with folder.open():
        folder.clear()


def _cancel(jobs: Sequence[Any], local: bool) -> None:
    """Ends jobs. Local ones ignore the SIGINT by which submitit would end them; they save their runs, which is waited
    for."""
    for job in jobs:
        if local:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(job.job_id), signal.SIGTERM)
        else:
            job.cancel(check=False)
    while local and not all(job.done() for job in jobs):
        time.sleep(0.1)


def _executor(folder: Path, request: Request) -> submitit.AutoExecutor:
    """Makes submitit's executor, with what the jobs ask for."""
    asked = dict(ASKED)
    for word in request.settings.ask.split():
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"--ask must have words such as timeout_min=60, got {word!r}")
        if name == "slurm_..." or (name not in WORDS and not name.startswith("slurm_")):
            raise unknown("word of --ask", name, WORDS)
        asked[name] = int(value) if value.isdecimal() else value
    try:
        executor = submitit.AutoExecutor(folder, cluster=request.settings.on, slurm_max_num_timeout=TIMES)
        executor.update_parameters(**asked)
    except (RuntimeError, ValueError, NameError, TypeError, AssertionError) as error:
        raise UsageError(f"--on {request.settings.on}: {' '.join(str(error).split())}") from error
    return executor


def _show(post: _Post, total: int) -> None:
    """Shows the newest message of a job."""
    if not post.said.exists():
        return
    with contextlib.suppress(RunError, KeyError, TypeError):  # the next message will be whole
        message = read_json(post.said)
        state, course = State(**message["state"]), Course(**message["course"])
        _begin(post, total)
        post.display.update(state, course)


def _begin(post: _Post, total: int) -> None:
    if not post.begun:
        post.begun = True
        post.display.begin(post.run + 1, total, post.path.name)


def _ended(post: _Post, request: Request) -> list[Failure]:
    """Takes the outcome of a job that is over."""
    job, log = post.job, post.job.paths.stderr
    said = f"; see {log}" if log.exists() and log.stat().st_size else ""
    try:
        outcome: Outcome = job.result()
    except FailedJobError as error:
        outcome = Outcome(f"its job {job.job_id} failed{said}", True, str(error))
    except UncompletedJobError as error:
        state = "" if job.state == "FINISHED" else f" ({job.state.lower()})"  # a local job's process ends in any case
        outcome = Outcome(cut_off(f"its job {job.job_id} was ended{state}", request) + said, True, str(error))
    post.said.unlink(missing_ok=True)
    return _told(post, request, outcome)


def _told(post: _Post, request: Request, outcome: Outcome) -> list[Failure]:
    """Shows how a run ended."""
    _begin(post, len(request.configs))
    post.display.end(f"failed: {outcome.note}" if outcome.failed else outcome.note)
    return [Failure(post.path.name, outcome.note, outcome.traceback)] if outcome.failed else []
