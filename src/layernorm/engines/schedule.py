"""In what order the rows of a batch take their time steps (directions, lengths, resets), and the loop over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .protocol import StateChanges


class Schedule(NamedTuple):
    """Which rows take a step at each time, and which start from the zero state there."""

    active: Tensor | None  # [T, B, 1] bool; None: all rows
    cut: Tensor | None  # [T, B, 1] bool; None: no row


State = tuple[Tensor, ...]
"""h [B, P], in an LSTM also c [B, H]."""


def reorder_steps(x: Tensor, lengths: Tensor | None, reverse: bool) -> Tensor:
    """Changes (T, B, ...) from the order of the input to the order of the steps, or back.

    In the reverse direction this reverses each row up to its length; padding stays in place.
    """
    if not reverse:
        return x
    if lengths is None:
        return x.flip(0)
    t = torch.arange(len(x), device=x.device)[:, None]
    source = torch.where(t < lengths, lengths - 1 - t, t)
    return x.gather(0, source.reshape(*source.shape, *(1,) * (x.dim() - 2)).expand_as(x))


def make_schedule(T: int, lengths: Tensor | None, reset: Tensor | None, reverse: bool) -> Schedule:
    """Makes the `Schedule`, in the order of the steps."""
    active, cut = None, reset
    if cut is not None and reverse:  # the reverse direction meets a cut between t-1 and t after its step at t
        cut = torch.cat([torch.zeros_like(cut[:1]), reorder_steps(cut, lengths, reverse)[:-1]])
    if lengths is not None:
        active = torch.arange(T, device=lengths.device)[:, None] < lengths
        cut = None if cut is None else cut & active
    return Schedule(*(None if mask is None else mask.unsqueeze(-1) for mask in (active, cut)))


def walk(
    step: Callable[[int, State], State], state: State, T: int, schedule: Schedule, changes: StateChanges
) -> list[State]:
    """Takes T steps and returns all T + 1 states, the initial one first, in the order of the steps.

    ``step`` is a function from t and the state before the step to the state after it. It applies the dropout of
    ``changes`` itself.
    """
    zero = state[0].new_zeros(())
    restart = [r.to(zero.dtype) for r in changes.restart] or [zero] * len(state)
    states = [state]
    for t in range(T):
        before = states[-1]
        old = before
        if schedule.cut is not None:
            old = tuple(torch.where(schedule.cut[t], new, s) for new, s in zip(restart, before, strict=True))
        after = step(t, old)
        if changes.kept:
            after = tuple(apply_zoneout(*part) for part in zip(changes.shares(t), old, after, strict=True))
        if schedule.active is not None:
            after = tuple(torch.where(schedule.active[t], new, s) for new, s in zip(after, before, strict=True))
        states.append(after)
    return states


def apply_zoneout(kept: Tensor | None, old: Tensor, new: Tensor) -> Tensor:
    """Computes one part of the state after a step with zoneout: ``kept * old + (1 - kept) * new``; None: ``new``."""
    return new if kept is None else kept * old + (1 - kept) * new


def stack_output(states: Sequence[State], schedule: Schedule, lengths: Tensor | None, reverse: bool) -> Tensor:
    """Stacks h after each step, of the states that `walk` returns, in the order of the input: [T, B, P].

    It is 0 beyond a row's length.
    """
    after = [h for h, *_ in states[1:]]
    sequence = torch.stack(after) if after else states[0][0].new_zeros(0, *states[0][0].shape)
    if schedule.active is not None:
        sequence = torch.where(schedule.active, sequence, 0.0)
    return reorder_steps(sequence, lengths, reverse)
