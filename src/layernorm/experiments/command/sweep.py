"""What `layernorm run` does: every run of the request, then the report."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..errors import RunError, UsageError
from ..protocol import Experiment
from ..runs.folder import RunFolder, read
from ..train import distributed
from ..train.batches import NOISE, derive_seed
from ..train.loop import Fit
from ..train.progress import Progress, duration, glance, progress
from .options import Request, Settings

if TYPE_CHECKING:
    from accelerate import Accelerator


def out_folder(experiment: Experiment, request: Request) -> Path:
    """Where the runs go unless --out says it: what makes them other runs than the preset's is in the folder's name."""
    if request.settings.out is not None:
        return request.settings.out
    preset, config = experiment.presets[request.preset].config, request.configs[0]
    told = {item.name for item in dataclasses.fields(config) if item.metadata["several"]} | set(request.told)
    names = [experiment.name, *([request.preset] if request.preset != experiment.default_preset else [])]
    for name, value in vars(preset).items():
        if name not in told and getattr(config, name) != value:
            names.append(f"{name.replace('_', '-')}-{getattr(config, name)}")
    if request.settings.precision != Settings.precision:
        names.append(request.settings.precision)
    return Path("runs") / "-".join(names)


def run(experiment: Experiment, request: Request) -> Path | None:
    """Makes the runs that are not done yet.

    Returns:
        the folder that holds them, or None in a process that is not the main one.

    Raises:
        RunError, UsageError, Interrupted: as the message says; runs that are done stay done. A run that diverges is
            done, and the next one begins: `check_outcome` says whether that was all.
    """
    settings, out = request.settings, out_folder(experiment, request)
    _check(experiment, request, out)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    # else accelerate warns, and chooses by itself
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
    accelerator = distributed.accelerator(settings.device, settings.precision)
    with progress(accelerator.is_main_process) as display:
        for number, config in enumerate(request.configs, 1):
            name = experiment.run_name(config, request.told)
            display.begin(number, len(request.configs), name)
            display.end(_run(experiment, request, config, out / name, accelerator, display))
    return out if accelerator.is_main_process else None


def check_outcome(experiment: Experiment, request: Request, out: Path) -> None:
    """Looks at how the runs of a request ended. One that diverged is no failure where others are there to report.

    Raises:
        RunError: all of them diverged; the message names the first and its update.
    """
    runs = [read(out / experiment.run_name(config, request.told)) for config in request.configs]
    if all(run.diverged is not None for run in runs):
        lost = f"{runs[0].path.name} diverged at update {runs[0].diverged}"
        more = f" (as did all {len(runs)} runs)" if len(runs) > 1 else ""
        why = "the training loss, a weight or a metric is not finite; try a lower --learning-rate"
        raise RunError(f"{lost}{more}: {why}")


def _check(experiment: Experiment, request: Request, out: Path) -> None:
    """Compares every configuration with the data, then with what its folder holds, before anything is made.

    Finished runs need their data no more.
    """
    restart = request.settings.restart
    paths = [out / experiment.run_name(item, request.told) for item in request.configs]
    wanted = {path: _identity(experiment, request, item) for path, item in zip(paths, request.configs, strict=True)}
    for (path, identity), config in zip(wanted.items(), request.configs, strict=True):
        if restart or not RunFolder(path).finished(identity):
            data = experiment.load(config, request.settings.data)
            try:
                experiment.check(config, data)
            except ValueError as error:
                raise UsageError(str(error)) from error
    for path, identity in wanted.items():
        if not restart:
            RunFolder(path).check_config(identity)


def _identity(experiment: Experiment, request: Request, config: Any) -> dict[str, Any]:
    """What makes a run this run and no other, as its folder keeps it."""
    return {"experiment": experiment.name, **dataclasses.asdict(config), "precision": request.settings.precision}


def _run(
    experiment: Experiment, request: Request, config: Any, path: Path, accelerator: Accelerator, display: Progress
) -> str:
    """One run, and a note on how it went."""
    settings = request.settings
    folder = RunFolder(path, writes=accelerator.is_main_process)
    wanted = _identity(experiment, request, config)
    if not settings.restart and folder.finished(wanted):  # it may be in a place where nothing can be written
        return _before(path)
    with folder.open():
        if settings.restart and folder.writes:
            folder.clear()
        accelerator.wait_for_everyone()  # nobody looks into the folder before the main process has cleared it
        folder.check_config(wanted)  # again: since all were compared, another command may have been here
        if folder.finished(wanted):
            return _before(path)
        data = experiment.load(config, settings.data)
        folder.check_data(data.facts)
        accelerator.wait_for_everyone()  # nor does the main process write before everyone has looked
        task = experiment.task(config, data, accelerator)
        folder.start(wanted)
        torch.manual_seed(derive_seed(config.seed, NOISE, accelerator.process_index))
        fit = Fit(task, folder, accelerator, data.facts, settings.checkpoint_seconds)
        metrics = fit.run(display)
        accelerator.free_memory()
        spent = duration(fit.state.seconds)
        if fit.state.diverged is not None:
            return f"diverged at update {fit.state.diverged}, {spent}"
        return f"{glance(task.shown, metrics)}{spent}"


def _before(path: Path) -> str:
    """A note on a run that needs no training."""
    lost = read(path).diverged
    return "done before" if lost is None else f"diverged before, at update {lost}"
