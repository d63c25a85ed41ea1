"""What a user's ``reset`` is: where sequences are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..equations.checks import check_dense, check_values, unwrapped


def as_cuts(reset: Any, shape: Sequence[int], who: str, order: str = "") -> Tensor:
    """Returns a ``reset`` mask as bool. ``order`` is added to the expected shape in the error.

    Raises:
        TypeError: it is no tensor.
        RuntimeError: it has another shape, or holds numbers other than 0 and 1. A compiled graph raises it when run.
    """
    if not isinstance(reset, Tensor):
        raise TypeError(f"{who}: expected reset to be a Tensor, got {type(reset).__name__}")
    check_dense(who, "reset", reset)
    if tuple(reset.shape) != tuple(shape):
        raise RuntimeError(f"{who}: expected reset of shape {list(shape)}{order}, got {list(reset.shape)}")
    if reset.dtype == torch.bool:
        return reset
    mask = unwrapped(reset)
    check_values(
        ((mask == 0) | (mask == 1)).all(),
        f"{who}: expected reset to be bool, or to hold only 0 and 1",
        lambda: f"{mask.dtype} with {mask[(mask != 0) & (mask != 1)][0].item()}",
    )
    return reset != 0
