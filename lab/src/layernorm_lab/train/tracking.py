"""Records for a tracker such as TensorBoard, beside those in the run's folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import RunError

if TYPE_CHECKING:
    from accelerate import Accelerator

_RUN_NAME = {"mlflow": "run_name", "trackio": "name", "wandb": "name"}
"""What each calls the name of a run. TensorBoard has only folders."""


@contextlib.contextmanager
def tracked(accelerator: Accelerator, experiment: str, path: Path, config: Mapping[str, Any]) -> Iterator[None]:
    """Opens a run of the accelerator's tracker, if it has one, and closes it. Inside the ``with`` ``accelerator.log``
    sends records to it.

    Args:
        accelerator: as `distributed.accelerator` makes it.
        experiment: its name; the tracker's project is ``layernorm-NAME``.
        path: the run's folder, whose name the run has there.
        config: the run's configuration.

    Raises:
        RunError: the tracker does not start, for example because nobody has logged in to its server.
    """
    scalars = {name: value if isinstance(value, int | float) else str(value) for name, value in config.items()}
    for name in map(str, accelerator.log_with):
        try:
            if name == "tensorboard":
                accelerator.init_trackers(f"tensorboard/{path.name}", scalars)
            else:
                accelerator.init_trackers(f"layernorm-{experiment}", scalars, {name: {_RUN_NAME[name]: path.name}})
        except Exception as error:
            raise RunError(f"{name} does not start: {error}") from error
    try:
        yield
    finally:
        while accelerator.trackers:
            accelerator.trackers.pop().finish()
