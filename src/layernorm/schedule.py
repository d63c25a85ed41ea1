"""In what order the rows of a batch take their time steps: directions, lengths and resets."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Schedule(NamedTuple):
    """Which rows take a step at each time [T, B, 1], and which start from the zero state there; None: all, none."""

    active: Tensor | None
    cut: Tensor | None


def turned(x: Tensor, lengths: Tensor | None, reverse: bool) -> Tensor:
    """(T, B, ...) from the order of the input to that of the steps, and back again: in the reverse direction each row
    the other way round, what lies beyond its length where it was."""
    if not reverse:
        return x
    if lengths is None:
        return x.flip(0)
    t = torch.arange(len(x), device=x.device)[:, None]
    source = torch.where(t < lengths, lengths - 1 - t, t)
    return x.gather(0, source.reshape(*source.shape, *(1,) * (x.dim() - 2)).expand_as(x))


def schedule(T: int, lengths: Tensor | None, reset: Tensor | None, reverse: bool) -> Schedule:
    """`Schedule` in the order of the steps."""
    active, cut = None, reset
    if cut is not None and reverse:  # a cut before time t is met after step t
        cut = torch.cat([torch.zeros_like(cut[:1]), turned(cut, lengths, reverse)[:-1]])
    if lengths is not None:
        active = torch.arange(T, device=lengths.device)[:, None] < lengths
        cut = None if cut is None else cut & active
    return Schedule(*(None if mask is None else mask.unsqueeze(-1) for mask in (active, cut)))
