"""`layernorm sample`: builds a run's network from its configuration and newest checkpoint, and lets it draw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..catalogue import EXPERIMENTS, find
from ..errors import RunError, UsageError
from ..protocol import Experiment, Sampler, SampleSettings
from ..runs import folder
from ..runs.files import make_folder, write_atomic
from ..runs.folder import Run


def sampler(experiment: Experiment) -> Sampler:
    """An experiment's sampler.

    Raises:
        UsageError: it has none. The message names the experiments that have one.
    """
    if experiment.sampler is None:
        able = [name for name in EXPERIMENTS if find(name).sampler is not None]
        raise UsageError(f"{experiment.name} has nothing to sample; experiments that have: {', '.join(able) or 'none'}")
    return experiment.sampler


def find_run(experiment: Experiment, path: Path) -> Run:
    """The run in a folder.

    Raises:
        RunError: the folder holds no run, or a run of another experiment, or the run has no checkpoint yet.
    """
    if not path.is_dir():
        raise RunError(f"{path} is not a folder; give the folder of one run")
    run = folder.read(path)
    if run.experiment != experiment.name:
        raise RunError(f"{path} holds a run of {run.experiment}, not of {experiment.name}")
    if not (path / folder.CHECKPOINT).exists():
        raise RunError(f"the run in {path} has no checkpoint yet")
    return run


def draw(experiment: Experiment, path: Path, options: Any, settings: SampleSettings) -> Sequence[str]:
    """Lets the network of the run in a folder draw, and writes the pictures.

    Returns:
        lines to print: the notes, and the files written.

    Raises:
        RunError, UsageError: the run, an option or the data set cannot be used. The message says why.
    """
    run = find_run(experiment, path)
    out = make_folder(settings.out or path / "samples")
    drawn = sampler(experiment).draw(run, options, settings.data)
    files = {out / f"{picture.name}.{picture.kind}": picture.content for picture in drawn.pictures}
    for file, content in files.items():
        write_atomic(file, content)
    return [*drawn.notes, *(f"wrote {file}" for file in files)]
