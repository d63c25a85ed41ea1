"""In what order the rows of a batch take their time steps: directions, lengths and resets; and the steps one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Schedule(NamedTuple):
    """Which rows take a step at each time [T, B, 1], and which start from the zero state there; None: all, none."""

    active: Tensor | None
    cut: Tensor | None


State = tuple[Tensor, ...]
"""h [B, P], in an LSTM also c [B, H]."""


class Between(NamedTuple):
    """What happens to the state of one layer and direction between its steps, beyond lengths and resets.

    Attributes:
        restart: the state that a row starts from after a cut, like the initial one; None: zeros.
        dropout: [B, P], a factor of the h that W_hh reads, the same at every step; None: 1.
        kept: zoneout, for each part of the state [T, B, size] or [T, 1, 1]: the share of the old state that stays; None
            for a part without zoneout.
    """

    restart: Sequence[Tensor] | None = None
    dropout: Tensor | None = None
    kept: tuple[Tensor | None, ...] = ()

    @property
    def anything(self) -> bool:
        """Whether anything happens at all."""
        return self.restart is not None or self.dropout is not None or any(k is not None for k in self.kept)

    def read(self, h: Tensor) -> Tensor:
        """What W_hh reads of the h before a step."""
        return h if self.dropout is None else h * self.dropout.to(h.dtype)


NOTHING = Between()


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


def walk(step: Callable[[int, State], State], state: State, T: int, plan: Schedule, between: Between) -> list[State]:
    """All T + 1 states, the initial one first, in the order of the steps.

    ``step``: from t and the state before the step to the state after it; dropout is its own affair.
    """
    zero = state[0].new_zeros(())
    restart = [zero] * len(state) if between.restart is None else [r.to(zero.dtype) for r in between.restart]
    states = [state]
    for t in range(T):
        before = states[-1]
        old = before
        if plan.cut is not None:
            old = tuple(torch.where(plan.cut[t], new, s) for new, s in zip(restart, before, strict=True))
        after = step(t, old)
        if between.kept:
            after = tuple(
                zoned_out(None if k is None else k[t], *s) for k, *s in zip(between.kept, old, after, strict=True)
            )
        if plan.active is not None:
            after = tuple(torch.where(plan.active[t], new, s) for new, s in zip(after, before, strict=True))
        states.append(after)
    return states


def zoned_out(kept: Tensor | None, old: Tensor, new: Tensor) -> Tensor:
    """One part of the state after a step: the share ``kept`` of the old one, and the rest of the new one."""
    return new if kept is None else kept * old + (1 - kept) * new


def sequence_of(states: Sequence[State], part: int, plan: Schedule, lengths: Tensor | None, reverse: bool) -> Tensor:
    """One part of the states that `walk` has found, after each step, in the order of the input: [T, B, size]; 0 beyond
    a row's length."""
    found = [s[part] for s in states[1:]]
    whole = torch.stack(found) if found else states[0][part].new_zeros(0, *states[0][part].shape)
    if plan.active is not None:
        whole = torch.where(plan.active, whole, 0.0)
    return turned(whole, lengths, reverse)
