"""The result of measuring a claim, and the limits that separate a claim that holds from one that does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

NORMS = ("batch", "weight", "layer", "rms", None)
"""The norms that the claims are measured under."""

ROUNDING = 1e-10  # float64, sums of a few hundred terms: seen below 1e-13
SLOPE = 0.1  # error of a fitted exponent: higher orders and a finite layer bend the line. Seen below 0.05
GAP_SLOPE = (-0.7, -0.1)  # about -1/2. The largest of a Poisson's means outweighs the rest: seen at -0.18 in 24 seeds
SPECTRAL_GAP = 0.1  # relative to the largest eigenvalue, of Gaussian and Bernoulli outputs. Seen above 0.25
DEVIATIONS = 6.0  # standard errors: the largest of 8,000 numbers, of which some are skewed. Seen below 5
EIGENVALUE = 1e-6  # relative error of a Rayleigh quotient, the square of the vector's where the iteration has ended


class Data(NamedTuple):
    """Real training cases, for the claims about training."""

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
    """The result of measuring a claim.

    Args:
        as_stated: whether the numbers are as the claim's verdict and condition say.
        found: the result in a sentence, with its numbers.
        title: the table's title.
        columns: the table's columns, each with the format of its numbers.
        rows: the table's rows of texts and numbers.
        series: the lines of the figure; none where there is no figure.
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
    """Fits the exponent of a power law through the points: the slope of the line fitted to their logarithms."""
    u, v = (torch.tensor(values, dtype=torch.float64).log() for values in (x, y))
    u, v = u - u.mean(), v - v.mean()
    return float((u * v).sum() / u.square().sum())
