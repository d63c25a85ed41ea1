"""The report of experiment 6.6: Figure 6 again, on MNIST or on the small digits."""

from __future__ import annotations

from collections.abc import Sequence

from ...report.blocks import Metric, compare
from ...report.curves import curves, sensitivity
from ...report.deviations import deviations
from ...report.judge import Claim
from ...report.page import Deviation, Report
from ...report.tables import Column, geometric, learning_rates, results, update_times
from ...runs.folder import Run
from .claims import CLAIMS, EXACT
from .deviations import APART, DEVIATIONS, DIGITS, MNIST
from .network import Config

CLAIM = (
    "Layer normalization is robust to the batch size and converges faster than batch normalization applied to all "
    "layers (section 6.6, Figure 6)."
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
    "geometric mean. Lowest valid.: the lowest validation error of a run. Exact statistics: the same networks, with "
    "batch norm's mean and variance over the whole training set instead of averages over the last batches."
)


def report_mnist(runs: Sequence[Run]) -> Report:
    """Writes the report on runs of `mnist`, finished or not."""
    return _report("Permutation-invariant MNIST, Figure 6", CLAIM, CLAIMS, MNIST, (), runs)


def report_digits(runs: Sequence[Run]) -> Report:
    """Writes the report on runs of `digits`. They say nothing of the paper's claims, as their data are not the
    paper's."""
    return _report("Figure 6 on scikit-learn's digits", "", (), DIGITS, ("hidden", "held_out"), runs)


def _report(
    title: str, claim: str, claims: Sequence[Claim], data: Deviation, apart: Sequence[str], runs: Sequence[Run]
) -> Report:
    blocks, status = compare(runs, claims, prefixes=[EXACT.prefix])
    about = "Training negative log-likelihood and test error after each epoch."
    return Report(
        title=title,
        claim=claim,
        findings=[],
        status=status,
        figures=[*curves("figure6", about, blocks, METRICS), *sensitivity(blocks, ERROR)],
        tables=[results(blocks, METRICS, COLUMNS, NOTE), *learning_rates(blocks, ERROR), update_times(blocks)],
        deviations=deviations(runs, (*DEVIATIONS, data), Config(), (*APART, *apart)),
        runs=runs,
    )
