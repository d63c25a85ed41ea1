"""What the runs of experiment 6.7 show."""

from __future__ import annotations

from collections.abc import Sequence

from ..report.page import Report
from ..runs.folder import Run


def report(runs: Sequence[Run]) -> Report:
    """The report on runs of `convnets`, finished or not."""
    return Report(title="CIFAR-10", claim="", findings=[], status=[], figures=[], tables=[], deviations=[], runs=runs)
