"""The paired bootstrap: whether a difference between two models would be there on other test cases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

DRAWS = 10_000


@dataclass(frozen=True)
class Difference:
    """A difference of means over test cases, first minus second, with its 95 % interval."""

    mean: float
    low: float
    high: float

    def text(self, digits: int = 2) -> str:
        """The mean and its interval: `0.31 (95 %: 0.12 to 0.50)`."""
        return f"{self.mean:.{digits}f} (95 %: {self.low:.{digits}f} to {self.high:.{digits}f})"


def paired(first: np.ndarray, second: np.ndarray, draws: int = DRAWS, seed: int = 0) -> Difference:
    """The mean difference of two models over the same test cases, and its 95 % interval over resampled cases.

    Cases are drawn with replacement, the same for both models (Koehn 2004, "Statistical significance tests for machine
    translation evaluation", in the form for means). The interval shows how much other test cases would change. It says
    nothing about other seeds: if the values are means over several seeds, it holds for these seeds.

    Args:
        first, second: `[M]`, one value for each test case, in the same order.
        draws: the number of resamplings.
        seed: the seed of the resampling.

    Raises:
        ValueError: the two differ in shape, there are no cases, or a difference is not finite.
    """
    if first.shape != second.shape or first.ndim != 1 or not len(first):
        raise ValueError(f"expected two arrays [M] with M > 0, got shapes {first.shape} and {second.shape}")
    difference = first.astype(np.float64) - second.astype(np.float64)
    if not np.isfinite(difference).all():
        raise ValueError(
            f"{np.count_nonzero(~np.isfinite(difference))} of {len(difference)} differences are not finite"
        )
    generator = np.random.default_rng(seed)
    means = np.empty(draws)
    for start in range(0, draws, 500):  # in parts: all indices at once would take 800 MB for 10,000 cases
        rows = generator.integers(len(difference), size=(min(500, draws - start), len(difference)))
        means[start : start + len(rows)] = difference[rows].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Difference(float(difference.mean()), float(low), float(high))
