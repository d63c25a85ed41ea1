"""The report of experiment 6.7: how fast each norm learns, its test error, and its units near the border."""

from __future__ import annotations

from ...report.arms import Said
from ...report.blocks import Metric
from ...report.outline import Curves, Outline, Results
from ...report.tables import Column, low_to_high, mean
from . import border_report
from .config import Config
from .deviations import APART, DEVIATIONS

CLAIM = (
    Said(
        "With convolutional networks layer normalization speeds learning up over the baseline (section 6.7, without "
        "figures or a protocol).",
        ("layer*", "none"),
    ),
    Said(
        "Batch normalization outperforms layer normalization there, because units whose receptive fields lie near the "
        "border of the image are rarely turned on and so have very different statistics from the rest of their layer "
        "(section 6.7).",
        ("layer*", "batch"),
    ),
)

ERROR = Metric("valid_error", "validation error", percent=True)
LOSS = Metric("train_nll", "training loss, nats", chosen=ERROR.name, log=True)
METRICS = (LOSS, Metric("test_error", "test error", chosen=ERROR.name, percent=True))

TEST = "test error, %"
COLUMNS = (
    Column(TEST, "all_test_error", "test", scale=100, digits=1),
    Column("valid.", ERROR.name, scale=100, digits=1, text=mean),
    Column("loss", LOSS.name, text=low_to_high),
    Column("gradient", "first_gradient_norm", "first", digits=3, text=low_to_high),
)


ABOUT = "Training loss and test error after each epoch, both on the first images of their part, in evaluation mode."
NOTE = (
    "After the last epoch. Test error: of finished runs over all test images. Valid.: the validation error in "
    "percent. Loss: of training, in nats, and gradient: its norm at update 0, both lowest to highest seed."
)

OUTLINE = Outline(
    title="Convolutional networks on CIFAR-10",
    claim=CLAIM,
    config=Config(),
    curves=[Curves("curves", ABOUT, METRICS)],
    results=[Results(COLUMNS, NOTE)],
    chosen=ERROR,
    digits=1,
    also=[LOSS],
    deviations=DEVIATIONS,
    apart=APART,
    whose="the public code",
    extra=lambda blocks: border_report.measured(blocks, ERROR),
)
