"""`layernorm sample`: builds a run's network from its configuration and newest checkpoint, and lets it draw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..catalogue import EXPERIMENTS, find_experiment
from ..errors import RunError, UsageError
from ..protocol import Experiment, Sampler, SampleSettings
from ..runs import folder
from ..runs.files import make_folder, write_atomic
from ..runs.folder import Run


def find_sampler(experiment: Experiment) -> Sampler:
    """Finds an experiment's sampler. The error for one without names the experiments that have one."""
    if experiment.sampler is None:
        able = [name for name in EXPERIMENTS if find_experiment(name).sampler is not None]
        raise UsageError(f"{experiment.name} has nothing to sample; experiments that have: {', '.join(able) or 'none'}")
    return experiment.sampler


def read_run_of(experiment: Experiment, path: Path) -> Run:
    """Reads the run in a folder, which must be of this experiment and have a checkpoint."""
    if not path.is_dir():
        raise RunError(f"{path} is not a folder; give the folder of one run")
    run = folder.read_run(path)
    if run.experiment != experiment.name:
        raise RunError(f"{path} holds a run of {run.experiment}, not of {experiment.name}")
    run.checkpoint()
    return run


def write_drawings(experiment: Experiment, path: Path, options: Any, settings: SampleSettings) -> Sequence[str]:
    """Lets the network of the run in a folder draw, and writes the pictures. Returns lines to print: the notes, and the
    files written."""
    run = read_run_of(experiment, path)
    out = make_folder(settings.out or path / "samples")
    drawn = find_sampler(experiment).draw(run, options, settings.data)
    files = {out / f"{picture.name}.{picture.kind}": picture.content for picture in drawn.pictures}
    for file, content in files.items():
        write_atomic(file, content)
    return [*drawn.notes, *(f"wrote {file}" for file in files)]
