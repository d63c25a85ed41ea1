"""Numbers for made data that are the same on every CPU: whole numbers are drawn, and results are rounded."""

from __future__ import annotations

import torch
from torch import Tensor

_PARTS, _TERMS, _GRID = 2**16, 12, 2**10


def uniform(generator: torch.Generator, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Draws float64 numbers from `low` to `high`, all steps of a fine grid alike."""
    return low + (high - low) * torch.randint(_PARTS, shape, generator=generator).double() / _PARTS


def noise(generator: torch.Generator, *shape: int) -> Tensor:
    """Draws float64 numbers of mean 0 and variance 1, as sums of 12 uniform ones. `torch.randn` would not be the same
    everywhere in its last bits."""
    total = torch.zeros(shape, dtype=torch.int64)
    for _ in range(_TERMS):
        total += torch.randint(_PARTS, shape, generator=generator)
    return (2 * total - _TERMS * (_PARTS - 1)).double() / (2 * _PARTS)


def rounded(values: Tensor) -> Tensor:
    """Rounds float64 numbers to a grid, as float32. What functions such as the sine get wrong in the last bit is gone
    then."""
    return (values * _GRID).round().div(_GRID).float()
