"""Which units are normalised together, and weights whose products have the mean 0 there."""

from __future__ import annotations

import torch
from torch import Tensor

from ..formula import GATES, Recurrence


def share(recurrence: Recurrence) -> int:
    """How many gates are normalised together, but for the last span, which has what is left. Where no gate is
    normalised, all: nothing cuts up the product with W_hh then."""
    first, last = recurrence.spans[0]
    return last - first if recurrence.formula.gates else GATES[recurrence.network]


def spans(recurrence: Recurrence, H: int) -> list[tuple[int, int]]:
    """First and last unit, exclusive, of each span among the G*H summed inputs, where they are normalised."""
    return [(first * H, last * H) for first, last in recurrence.spans]


def centred(weight: Tensor, recurrence: Recurrence, side: str) -> Tensor:
    """W minus the mean of its rows in each span: W x loses its mean there, which layer norm would take away, and in 16
    bits no digits to it. The same under rms or no norm.

    ``side``: ``"ih"`` or ``"hh"``. Where r multiplies the product U h, before the norm, the n rows of U stay as they
    are.
    """
    if recurrence.norm != "layer" or recurrence.formula.gates is None:
        return weight.resolve_neg().contiguous()
    parts = spans(recurrence, len(weight) // GATES[recurrence.network])
    if side == "hh" and recurrence.reset_multiplies == "product":
        parts = parts[:-1]
    wide = weight.resolve_neg().to(torch.float64, memory_format=torch.contiguous_format)  # a copy: there is no float64
    for first, last in parts:
        wide[first:last] -= wide[first:last].mean(0)
    return wide.to(weight.dtype)
