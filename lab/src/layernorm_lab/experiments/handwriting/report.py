"""The report of experiment 6.5: Figure 5 again, the networks' sizes, and samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...errors import RunError
from ...report.arms import Arm, Said
from ...report.blocks import Block, Metric
from ...report.outline import Curves, Extra, Outline, Results
from ...report.page import Picture
from ...report.pictures import pictures
from ...report.tables import Column
from ...runs.folder import Run
from . import pen, samples
from .config import Config
from .deviations import APART, DEVIATIONS

CLAIM = (
    Said(
        "Layer normalization reaches a log-likelihood comparable to the baseline's much faster (section 6.5, Figure "
        "5: between -700 and -900 nats a sequence of 500 points).",
        ("layer", "none"),
    ),
)

SENTENCE = "layer normalization"
"""The text of the report's samples."""

NLL = Metric("valid_nll", "validation NLL, nats in 500 points")
METRICS = (dataclasses.replace(NLL, log_x=True), NLL)
COLUMNS = (Column("NLL", NLL.name, digits=1), Column("lowest NLL", NLL.name, "lowest", digits=1))


ABOUT = (
    "Validation negative log-likelihood against updates, as in the paper's Figure 5 (left), and the same on a "
    "linear axis."
)
NOTE = "Nats in 500 points over the validation lines, after the last update and at the best evaluation."


def _samples(blocks: Sequence[Block]) -> Extra:
    written, failed = pictures(blocks, NLL, _write, "No sample")
    inch = max((pen.scale(item.strokes) for item in written), default=1.0)
    drawn = [Picture(item.name, "png", item.caption, pen.png(item.strokes, inch)) for item in written]
    return Extra(_sizes(blocks), failed, pictures=drawn)


def _sizes(blocks: Sequence[Block]) -> list[str]:
    """Counts the networks' numbers of parameters."""
    counts = {}
    for block in blocks:
        for arm in block.arms:
            name = f"{arm.name} with {block.title}" if block.title else arm.name
            try:
                counts[name] = sum(parameter.numel() for parameter in samples.network(block.runs(arm)[0]).parameters())
            except RunError:
                continue
    text = ", ".join(f"{count:,} ({name})" for name, count in counts.items())
    return [f"Parameters: {text}."] if counts else []


class _Written(NamedTuple):
    """The writing of a network, with the name of its picture and the caption."""

    name: str
    caption: str
    strokes: list[np.ndarray]


def _write(run: Run, arm: Arm, name: str) -> list[_Written]:
    """Lets a run's network write, at bias 0 and 1."""
    model, mean, deviation = samples.trained_synthesis(run)
    writings = []
    for bias in (0.0, 1.0):
        points, finished = samples.write_text(model, samples.TextOptions(text=SENTENCE, bias=bias))
        end = "stopped by itself" if finished else "cut off, its window had not read to the end"
        caption = (
            f'"{SENTENCE}" written with {arm.name} after {run.records[-1]["update"]} updates, seed '
            f"{run.config['seed']}, bias {bias:g} ({len(points)} points, {end})."
        )
        writings.append(_Written(f"sample-{name}-bias{bias:g}", caption, pen.strokes(points, mean, deviation)))
    return writings


OUTLINE = Outline(
    title="Handwriting synthesis, Figure 5 of the paper",
    claim=CLAIM,
    config=Config(),
    curves=[Curves("figure5", ABOUT, METRICS, "update")],
    results=[Results(COLUMNS, NOTE)],
    chosen=NLL,
    digits=1,
    deviations=DEVIATIONS,
    apart=APART,
    extra=_samples,
)
