"""Which gates are normalised together, and weights whose products have the mean 0 there."""

from __future__ import annotations

import torch
from torch import Tensor

from ..formula import GATES, Recurrence


def share(recurrence: Recurrence) -> int:
    """How many gates are normalised together, but for the last span, which has what is left: a GRU's joint spans are
    r with z, and n."""
    f, gates = recurrence.formula, GATES[recurrence.network]
    if f.gates is None or f.span == "all":
        return gates
    return 1 if f.span == "per_gate" else 2 if recurrence.network == "GRU" else gates


def spans(recurrence: Recurrence, H: int) -> list[tuple[int, int]]:
    """First and last unit, exclusive, of each span among the G*H summed inputs."""
    units, step = GATES[recurrence.network] * H, share(recurrence) * H
    return [(first, min(first + step, units)) for first in range(0, units, step)]


def centred(weight: Tensor, recurrence: Recurrence, side: str) -> Tensor:
    """W minus the mean of its rows in each span: W x loses its mean there, which layer norm would take away, and in 16
    bits no digits to it. The same under rms or no norm.

    ``side``: ``"ih"`` or ``"hh"``. The n rows of a GRU's W_hh stay as they are in a sum: r multiplies before the norm.
    """
    f = recurrence.formula
    if recurrence.norm != "layer" or f.gates is None:
        return weight.resolve_neg().contiguous()
    H = len(weight) // GATES[recurrence.network]
    gated = side == "hh" and recurrence.network == "GRU" and f.gates == "sum" and f.span != "all"
    wide = weight.resolve_neg().to(torch.float64, memory_format=torch.contiguous_format)  # a copy: there is no float64
    parts = spans(recurrence, H)
    for first, last in parts[: len(parts) - gated]:
        wide[first:last] -= wide[first:last].mean(0)
    return wide.to(weight.dtype)
