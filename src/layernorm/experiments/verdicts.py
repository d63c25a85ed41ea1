"""Verdicts on a claim from a few seeds: a side is ahead only where its worst seed beats the other's best."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .run_folder import Run


def order(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> str:
    """The verdict on pairs of values over seeds, lower being better, if the paper claims that the first are lower."""
    ahead = [max(a) < min(b) for a, b in zip(first, second, strict=True)]
    behind = [min(a) > max(b) for a, b in zip(first, second, strict=True)]
    if all(ahead):
        return "as the paper claims"
    if all(behind):
        return "against the paper's claim"
    return "mixed" if any(ahead) or any(behind) else "no difference larger than the spread over seeds"


def too_little(*groups: Sequence[Run], unit: str = "epoch") -> str | None:
    """Why some runs allow no verdict; None if they do.

    Args:
        groups: each of runs that differ in the seed alone.
        unit: what a record is called.
    """
    lacking = ["one seed"] if min(map(len, groups)) < 2 else []
    if min(len(run.records) for group in groups for run in group) < 2:
        lacking.append(f"one {unit}")
    return f"no verdict from {' and '.join(lacking)}" if lacking else None


def spread(values: Sequence[float]) -> str:
    """The mean over seeds and, from two on, the lowest and the highest."""
    mean = f"{statistics.fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.2f}-{max(values):.2f})"
