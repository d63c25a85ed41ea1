"""The report of experiment 6.7: how fast each norm learns, its test error, and its units near the border."""

from __future__ import annotations

from collections.abc import Sequence

from ...report.arms import NORMS
from ...report.blocks import Metric, compare
from ...report.curves import curves, sensitivity
from ...report.deviations import deviations
from ...report.page import Report
from ...report.tables import Column, learning_rates, low_to_high, mean, results, update_times
from ...runs.folder import Run
from . import units
from .claims import CLAIMS
from .deviations import APART, DEVIATIONS
from .network import Config

CLAIM = (
    "With convolutional networks layer normalization speeds learning up over the baseline, and batch normalization "
    "outperforms it; because units whose receptive fields lie near the border of the image are rarely turned on and so "
    "have very different statistics from the rest of their layer (section 6.7, without figures or a protocol)."
)

REPRODUCTION = {"none": "8.96", "batch": "8.25", "weight": "8.28", "layer": "10.49"}
"""Test errors of a third party's ConvPool-CNN-C after 200 epochs, in percent."""

ERROR = Metric("valid_error", "validation error", percent=True)
LOSS = Metric("train_nll", "training loss, nats", chosen=ERROR.name, log=True)
METRICS = (LOSS, Metric("test_error", "test error", chosen=ERROR.name, percent=True))

TEST = "test error, %"
COLUMNS = (
    Column(TEST, "all_test_error", "test", scale=100, digits=1),
    Column("valid.", ERROR.name, scale=100, digits=1, text=mean),
    Column("loss", LOSS.name, text=mean),
    Column("gradient", "first_gradient_norm", "first", digits=3, text=low_to_high),
)


def report_convnets(runs: Sequence[Run]) -> Report:
    """Writes the report on runs of `convnets`, finished or not."""
    blocks, status = compare(runs, CLAIMS)
    border = units.measured(blocks, ERROR)
    about = "Training loss and test error after each epoch, both on the first images of their part, in evaluation mode."
    note = (
        "After the last epoch. Test error: of finished runs over all test images. Valid.: the validation error in "
        "percent; loss: of training, in nats. Gradient: its norm at update 0, lowest to highest seed. [R]: a third "
        "party's reproduction with the whole network and data set, after 200 epochs."
    )
    others = [("[R]", NORMS[norm], {TEST: error}) for norm, error in REPRODUCTION.items()]
    return Report(
        title="Convolutional networks on CIFAR-10",
        claim=CLAIM,
        findings=[],
        status=[*status, *border.damaged],
        figures=[*curves("curves", about, blocks, METRICS), *sensitivity(blocks, ERROR, LOSS), *border.figures],
        tables=[
            results(blocks, METRICS, COLUMNS, note, others),
            *learning_rates(blocks, ERROR, digits=1),
            update_times(blocks),
            *border.tables,
        ],
        deviations=deviations(runs, DEVIATIONS, Config(), APART),
        runs=runs,
    )
