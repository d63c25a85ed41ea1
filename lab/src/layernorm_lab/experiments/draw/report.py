"""The report of experiment 6.4: Figure 4 again, and samples."""

from __future__ import annotations

from collections.abc import Sequence

from ...report.arms import NORMS, Arm, Said
from ...report.blocks import Block, Metric
from ...report.outline import Curves, Extra, Outline, Results
from ...report.page import Picture
from ...report.pictures import pictures
from ...report.tables import Column, mean
from ...runs.folder import Run
from . import samples
from .config import Config
from .deviations import APART, DEVIATIONS
from .network import Drawing

CLAIM = (
    Said(
        "Layer normalization speeds DRAW up: it converges almost twice as fast as the baseline, and after 200 epochs "
        "its bound on the test images is 82.09 nats against 82.36 (section 6.4, Figure 4).",
        ("layer", "none"),
    ),
)

PAPER = {"none": "82.36", "layer": "82.09"}
"""The bound that the paper reports after 200 epochs of 64 glimpses."""

VALID = Metric("valid_bound", "validation bound, nats", log_x=True)
TEST = Metric(
    "test_bound",
    "test bound, nats",
    chosen=VALID.name,
    levels={f"{NORMS[norm]}, in the paper after 200 epochs": float(bound) for norm, bound in PAPER.items()},
)
METRICS = (
    VALID,
    TEST,
    Metric("test_kl", "KL part, nats", chosen=VALID.name),
    Metric("test_reconstruction", "reconstruction part, nats", chosen=VALID.name),
)
COLUMNS = (
    Column("test bound, nats", TEST.name),
    Column("KL", "test_kl", text=mean),
    Column("reconstr.", "test_reconstruction", text=mean),
)


ABOUT = (
    "The bound on -log p of the validation images and of the test images, and its two parts on these. Grey: what "
    "the paper reports after 200 epochs of 64 glimpses."
)
NOTE = (
    "Nats an image over all test images after the last epoch: an upper bound on -log p(x), from one draw of z an "
    "image, and its two parts."
)


def _samples(blocks: Sequence[Block]) -> Extra:
    drawn, notes = pictures(blocks, TEST, _draw, "no samples")
    return Extra(status=notes, pictures=drawn)


def _draw(run: Run, arm: Arm, name: str) -> list[Picture]:
    """Digits of a run, and how some of them came about."""
    drawing = samples.draw_digits(run, 50, seed=0)
    about = (
        f"{arm.name.capitalize()}, {run.config['glimpses']} glimpses, seed {run.config['seed']}, after "
        f"{run.records[-1]['update']} updates"
    )
    digits = f"{about}: 50 digits drawn from the prior, none chosen; grey is a probability."
    few = Drawing(drawing.canvas[:, :5], drawing.window[:, :5])
    canvas = (
        f"{about}: how the first five came about. Red: the square that the write grid spans; its line is as wide as "
        "the filters are blunt."
    )
    return [
        Picture(f"digits-{name}", "png", digits, samples.sheet(drawing)),
        Picture(f"canvas-{name}", "png", canvas, samples.strip(few)),
    ]


OUTLINE = Outline(
    title="DRAW on binarised MNIST, Figure 4 of the paper",
    claim=CLAIM,
    config=Config(),
    curves=[Curves("figure4", ABOUT, METRICS)],
    results=[
        Results(COLUMNS, NOTE, [("paper", NORMS[norm], {"test bound, nats": bound}) for norm, bound in PAPER.items()])
    ],
    chosen=VALID,
    concluded=TEST,
    deviations=DEVIATIONS,
    apart=APART,
    extra=_samples,
)
