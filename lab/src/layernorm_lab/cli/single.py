"""Makes one run of a request, from the checks of its folder to its result."""

from __future__ import annotations

import dataclasses
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..catalogue import find_experiment
from ..config import field_of, flag
from ..errors import Interrupted, error_line
from ..protocol import Experiment
from ..runs.checkpoint import State
from ..runs.folder import RunFolder, read_run
from ..train import distributed
from ..train.batches import NOISE, derive_seed
from ..train.loop import Fit
from ..train.progress import Progress, duration, glance
from ..train.task import Accelerator, Course
from ..train.tracking import tracked
from .options import Request, Settings


def identity(experiment: Experiment, request: Request, config: Any) -> dict[str, Any]:
    """Returns the values that tell a run from every other, as they are saved in its folder."""
    return {"experiment": experiment.name, **dataclasses.asdict(config), "precision": request.settings.precision}


def flags(config: Any) -> dict[str, str]:
    """Returns the option of each of these values that is one."""
    return {item.name: flag(item) for item in (*dataclasses.fields(config), field_of(Settings, "precision"))}


def make_run(
    experiment: Experiment, request: Request, config: Any, path: Path, accelerator: Accelerator, display: Progress
) -> str:
    """Makes one run, or resumes it, unless it is done. Returns a note on how it ended."""
    settings = request.settings
    folder = RunFolder(path, writes=accelerator.is_main_process)
    wanted = identity(experiment, request, config)
    if not settings.restart and folder.finished(wanted):  # before anything is written: the folder may be read-only
        return done_before(path)
    with folder.open():
        if settings.restart and folder.writes:
            folder.clear()
        accelerator.wait_for_everyone()  # no process reads the folder before the main process has cleared it
        folder.check_config(wanted, flags(config))  # again: another command may have written here after the first check
        if folder.finished(wanted):
            return done_before(path)
        data = experiment.load(config, settings.data)
        folder.check_data(data.facts)
        accelerator.wait_for_everyone()  # the main process writes nothing before every process has read the folder
        task = experiment.task(config, data, accelerator)
        folder.start(wanted)
        torch.manual_seed(derive_seed(config.seed, NOISE, accelerator.process_index))
        fit = Fit(task, folder, accelerator, data.facts, settings.checkpoint_seconds)
        with tracked(accelerator, experiment.name, path, wanted):
            metrics = fit.run(display)
        accelerator.free_memory()
        spent = duration(fit.state.seconds)
        if fit.state.diverged is not None:
            return f"diverged at update {fit.state.diverged}, {spent}"
        return f"{glance(task.shown, metrics)}{spent}"


class Reporting(Progress):
    """A display that only tells, at most once in so many seconds, what `tell` makes of it."""

    seconds: float
    spoke = 0.0

    def update(self, state: State, task: Course) -> None:
        if time.perf_counter() - self.spoke >= self.seconds:
            self.spoke = time.perf_counter()
            self.tell(state, task.course)

    def tell(self, state: State, course: Course) -> None:
        """Sends a message to the process that shows it."""
        raise NotImplementedError


class Outcome(NamedTuple):
    """How a run ended in another process: the note on it, and of one that failed the traceback."""

    note: str
    failed: bool = False
    traceback: str = ""


def attempt_run(name: str, request: Request, run: int, path: Path, display: Progress) -> Outcome:
    """Makes one run, by its place in `request.configs`, of an experiment by its name. What fails is part of what it
    returns; `Interrupted` is raised."""
    try:
        settings = request.settings
        accelerator = distributed.accelerator(settings.device, settings.precision, settings.track, path.parent)
        return Outcome(make_run(find_experiment(name), request, request.configs[run], path, accelerator, display))
    except Interrupted:
        raise
    except Exception as error:
        return Outcome(error_line(error), True, traceback.format_exc())


def cut_off(how: str, request: Request) -> str:
    """Words why a run has no result whose process was ended: in which way, and what to do."""
    return f"{how}, perhaps for lack of memory; {resuming(request)}"


def resuming(request: Request) -> str:
    """Words how an interrupted run goes on."""
    return f"the same command{' without --restart' if request.settings.restart else ''} resumes"


def done_before(path: Path) -> str:
    """Words the note on a run that needs no training."""
    lost = read_run(path).diverged
    return "done before" if lost is None else f"diverged before, at update {lost}"
