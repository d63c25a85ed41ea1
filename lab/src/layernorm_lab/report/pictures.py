"""Lets the networks of runs draw, for the pictures of a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ..errors import RunError
from ..runs.folder import CHECKPOINT, Run
from .arms import Arm
from .blocks import Block, Metric

Made = TypeVar("Made")


def pictures(
    blocks: Sequence[Block], metric: Metric, make: Callable[[Run, Arm, str], Iterable[Made]], failed: str
) -> tuple[list[Made], list[str]]:
    """Lets one network of each arm draw: that of the first run shown in the panels of a metric that has a checkpoint
    and did not diverge.

    `make` takes the run, its arm and a name for files. A RunError that it raises becomes a line after `failed`. Returns
    what was made, and these lines.
    """
    results: list[Made] = []
    notes = []
    for number, block in enumerate(blocks, 1):
        for arm, shown in block.shown(metric).items():
            able = [run for run in shown.runs if (run.path / CHECKPOINT).exists() and run.diverged is None]
            for run in able[:1]:
                try:
                    results += make(run, arm, f"{arm.key}-{number}" if len(blocks) > 1 else arm.key)
                except RunError as error:
                    notes.append(f"{failed}: {error}")
    return results, notes
