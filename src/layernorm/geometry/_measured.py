"""What a measurement of a claim gives, and the limits that separate a claim that holds from one that does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

ROUNDING = 1e-10  # float64, sums of a few hundred terms: seen below 1e-13
SLOPE = 0.1  # of a fitted exponent, where higher orders and a finite layer bend the line: seen below 0.05
GAP_SLOPE = (-0.7, -0.1)  # about -1/2; the largest of a Poisson's means outweighs the rest: seen at -0.18 in 24 seeds
SPECTRAL_GAP = 0.1  # of the largest eigenvalue: what eq. 13 leaves out does not vanish, seen above 0.15
DEVIATIONS = 6.0  # standard errors, the largest of 8,000 numbers of which some are skewed: seen below 5
EIGENVALUE = 1e-6  # relative; a Rayleigh quotient's error is that of the vector squared


class Data(NamedTuple):
    """Real cases for what is trained."""

    images: Tensor  # (B, 64), 8 x 8 pixels between 0 and 1
    labels: Tensor  # (B,), 0 to 9


@dataclass(frozen=True)
class Series:
    """A line of a figure."""

    panel: str
    label: str
    x: list[float]
    y: list[float]


@dataclass(frozen=True)
class Measured:
    """What a claim's measurement found.

    Args:
        as_stated: whether it is what the claim's verdict and condition say.
        found: that, in a sentence with its numbers.
        title: the table's.
        columns: its columns, each with the format of its numbers.
        rows: texts and numbers.
        series: the figure's lines, if there is one.
        note: what a reader of the table must know.
    """

    as_stated: bool
    found: str
    title: str
    columns: dict[str, str]
    rows: Sequence[tuple[str | float, ...]]
    series: list[Series]
    note: str = ""


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent of a power law through the points: the slope of the line fitted to their logarithms."""
    u, v = (torch.tensor(values, dtype=torch.float64).log() for values in (x, y))
    u, v = u - u.mean(), v - v.mean()
    return float((u * v).sum() / u.square().sum())
