"""The report of experiment 6.6: Figure 6 again, on MNIST or on the small digits."""

from __future__ import annotations

import dataclasses

from ...report.arms import Said
from ...report.blocks import Metric
from ...report.outline import Curves, Outline, Results
from ...report.tables import Column, geometric
from .claims import EXACT
from .config import Config
from .deviations import APART, DEVIATIONS, DIGITS, MNIST

CLAIM = (
    Said(
        "Layer normalization is robust to the batch size and converges faster than batch normalization applied to all "
        "layers (section 6.6, Figure 6).",
        ("layer", "batch"),
    ),
)

ERROR = Metric("valid_error", "validation error", percent=True)
METRICS = (
    Metric("train_nll", "training NLL, nats", chosen=ERROR.name, log=True),
    Metric("test_error", "test error", chosen=ERROR.name, percent=True),
)
COLUMNS = (
    Column("test error, %", "test_error", scale=100),
    Column("lowest valid., %", ERROR.name, "lowest", scale=100),
    Column("train NLL", "train_nll", digits=1, text=geometric),
)
NOTE = (
    "Test error and train NLL after the last epoch, the latter in nats a case over the whole training set, as a "
    "geometric mean. Lowest valid.: the lowest validation error of a run.",
    Said(
        "Exact statistics: the same networks, with batch norm's mean and variance over the whole training set instead "
        "of averages over the last batches.",
        ("batch*",),
    ),
)


OUTLINE = Outline(
    title="Permutation-invariant MNIST, Figure 6 of the paper",
    claim=CLAIM,
    config=Config(),
    curves=[Curves("figure6", "Training negative log-likelihood and test error after each epoch.", METRICS)],
    results=[Results(COLUMNS, NOTE)],
    chosen=ERROR,
    concluded=METRICS[1],
    deviations=(*DEVIATIONS, MNIST),
    apart=APART,
    prefixes=[EXACT.prefix],
)

OF_DIGITS = dataclasses.replace(
    OUTLINE,
    title="Figure 6 of the paper, on scikit-learn's digits",
    claim=(),
    deviations=(*DEVIATIONS, DIGITS),
    apart=(*APART, "hidden", "held_out"),
)
"""The report on runs of `digits`. They say nothing of the paper's claims, as their data are not the paper's."""
