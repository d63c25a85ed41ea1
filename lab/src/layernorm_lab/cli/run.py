"""`layernorm run`: makes every run that its words ask for, in this process or on workers, and the report on them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..config import field_of, flag
from ..errors import Failure, Failures, RunError, UsageError
from ..protocol import Experiment
from ..runs.folder import RunFolder, read_run
from ..train import distributed
from ..train.progress import progress
from . import jobs, single
from .options import Request, Settings, parse_run
from .waiting import waiting


def run(experiment: Experiment, words: Sequence[str]) -> None:
    """Runs the command `layernorm run EXPERIMENT` with these words."""
    request = parse_run(experiment, words)
    with distributed.processes_ended():
        failures = make_runs(experiment, request)
    if failures is None:  # another process is the main one
        return
    if len(failures) < len(request.configs):
        with waiting("drawing the report"):
            from .report import write_report  # matplotlib takes half a second, which help and errors need not wait for

        out = out_folder(experiment, request)
        write_report([out], out / "report")
    check_outcome(experiment, request, failures)


def out_folder(experiment: Experiment, request: Request) -> Path:
    """Names the folder of the runs: --out, or else a name with every option that differs from the preset's."""
    if request.settings.out is not None:
        return request.settings.out
    preset = experiment.presets[request.preset].config
    in_names = {item.name for item in dataclasses.fields(preset) if item.metadata["in_name"]}
    names = [experiment.name, *([request.preset] if request.preset != experiment.default_preset else [])]
    for name, value in vars(preset).items():
        if name not in in_names.union(request.swept_options):
            others = [getattr(config, name) for config in request.configs if getattr(config, name) != value]
            names += [f"{name.replace('_', '-')}-{other}" for other in others[:1]]  # a norm may fix it in some
    if request.settings.precision != Settings.precision:
        names.append(request.settings.precision)
    return Path("runs") / "-".join(names)


def make_runs(experiment: Experiment, request: Request) -> list[Failure] | None:
    """Makes the runs that are not done yet.

    Returns:
        the runs that failed on workers, or None in a process that is not the main one. A run that diverges counts as
        done, and the next one begins. `check_outcome` raises an error if all runs diverged.

    Raises:
        RunError, UsageError, Interrupted: the message says why. Runs that are done stay done. Without workers the first
            run that fails ends the command.
    """
    elsewhere = request.settings.jobs or request.settings.on != "here"
    if elsewhere and "LOCAL_RANK" in os.environ:
        raise UsageError(
            f"{'--jobs' if request.settings.jobs else '--on'} makes each run in one process, torchrun makes one run in "
            "several: use one of the two"
        )
    if {"ACCELERATE_MIXED_PRECISION", "MASTER_ADDR"} <= os.environ.keys() and "RANK" not in os.environ:
        # of the processes that were asked for accelerate's launcher has started one, and says nothing
        raise UsageError(
            "accelerate launch --cpu starts one process, whatever its --num_processes: use "
            "torchrun --nproc-per-node N -m layernorm_lab run ..."
        )
    paths = _paths(experiment, request)
    # other data sets show by themselves how far they are read
    with waiting("reading the data") if experiment.embedded else contextlib.nullcontext():
        _check_request(experiment, request, paths)
    return (_elsewhere if elsewhere else _in_this_process)(experiment, request, paths)


def _elsewhere(experiment: Experiment, request: Request, paths: Sequence[Path]) -> list[Failure]:
    """Makes the runs that are not done on workers, or as jobs of a scheduler."""
    left = {}
    with progress() as (display,):
        for number, (path, config) in enumerate(zip(paths, request.configs, strict=True)):
            if _is_done(experiment, request, config, path):
                display.begin(number + 1, len(paths), path.name)
                display.end(single.done_before(path))
            else:
                left[number] = path
    if not left:
        return []
    if request.settings.on == "here":
        return jobs.make_on_workers(experiment, request, left)
    from . import scheduled

    return scheduled.make_as_jobs(experiment, request, left)


def _in_this_process(experiment: Experiment, request: Request, paths: Sequence[Path]) -> list[Failure] | None:
    settings = request.settings
    if settings.threads:
        torch.set_num_threads(settings.threads)
    # without it accelerate warns, and chooses a number by itself
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
    with waiting("starting"):
        out = out_folder(experiment, request)
        accelerator = distributed.accelerator(settings.device, settings.precision, settings.track, out)
    with progress(accelerator.is_main_process, sizes=request.sizes) as (display,):
        for number, (path, config) in enumerate(zip(paths, request.configs, strict=True), 1):
            display.begin(number, len(paths), path.name)
            display.end(single.make_run(experiment, request, config, path, accelerator, display))
    return [] if accelerator.is_main_process else None


def check_outcome(experiment: Experiment, request: Request, failures: Sequence[Failure]) -> None:
    """Raises `Failures` if some runs failed, and a RunError that names the first one if all diverged."""
    if failures:
        raise Failures(failures)
    runs = [read_run(path) for path in _paths(experiment, request)]
    if all(run.diverged is not None for run in runs):
        lost = f"{runs[0].path.name} diverged at update {runs[0].diverged}"
        more = f" (as did all {len(runs)} runs)" if len(runs) > 1 else ""
        rate = field_of(request.configs[0], "learning_rate")
        why = f"the training loss, a weight or a metric is not finite; try a lower {flag(rate)}"
        raise RunError(f"{lost}{more}: {why}")


def _paths(experiment: Experiment, request: Request) -> list[Path]:
    """Names the folders of the runs."""
    out = out_folder(experiment, request)
    return [out / experiment.run_name(config, request.swept_options) for config in request.configs]


def _is_done(experiment: Experiment, request: Request, config: Any, path: Path) -> bool:
    """Tells whether a run is finished and is not to be restarted."""
    wanted = single.identity(experiment, request, config)
    return not request.settings.restart and RunFolder(path).finished(wanted)


def _check_request(experiment: Experiment, request: Request, paths: Sequence[Path]) -> None:
    """Compares every configuration with the data, then with its folder, before any run is made. Data of unfinished runs
    are so prepared once, before workers ask for them."""
    for path, config in zip(paths, request.configs, strict=True):
        if not _is_done(experiment, request, config, path):
            data = experiment.load(config, request.settings.data)
            try:
                experiment.check(config, data)
            except ValueError as error:
                raise UsageError(str(error)) from error
    for path, config in zip(paths, request.configs, strict=True):
        if not request.settings.restart:
            RunFolder(path).check_config(single.identity(experiment, request, config), single.flags(config))
