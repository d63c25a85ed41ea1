"""In what order the rows of a batch take their time steps (directions, lengths, resets), and the loop over them.

A line is one step of one row. Tensors that have a number for every line are ``[T, B, *]`` here. Those of a packed call,
which has lines only for the steps that there are, are ``[1, lines, *]``. So a sum over the first two dimensions is the
same for both, and so is what is computed of all lines at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import Index, RecurrentArguments, StateChanges
from .checks import unwrapped

State = tuple[Tensor, ...]
"""h [B, P], in an LSTM also c [B, H]."""


class Schedule(NamedTuple):
    """Which rows take a step at each time, and which start from the zero state there. Times are in the order of steps.

    Attributes:
        active: [T, B, 1] bool; None: all rows that have a line.
        cut: [T, B, 1] bool, or [1, lines, 1]; None: no row.
        sizes: of a packed call how many rows, the first ones, take each step; None: it is not packed.
    """

    active: Tensor | None
    cut: Tensor | None
    sizes: Sequence[int] | None = None

    def indices(self, T: int) -> list[Index]:
        """Returns the `Index` of each step."""
        if self.sizes is None:
            return list(range(T))
        first_lines = itertools.accumulate(self.sizes, initial=0)
        return [(0, slice(first, end)) for first, end in itertools.pairwise(first_lines)]

    def split(self, x: Tensor) -> Sequence[Tensor]:
        """Splits a tensor of all lines into those of each step."""
        return x.unbind() if self.sizes is None else x[0].split(list(self.sizes))

    def join(self, steps: Sequence[Tensor]) -> Tensor:
        """Makes a tensor of all lines from those of each step, one at least."""
        return torch.stack(list(steps)) if self.sizes is None else torch.cat(list(steps))[None]

    def apply_dropout(self, changes: StateChanges, h: Tensor) -> Tensor:
        """Applies the dropout to the h before each step, of all lines at once."""
        if self.sizes is None or changes.dropout is None:
            return changes.apply_dropout(h)
        return self.join([changes.of_rows(len(part)).apply_dropout(part) for part in self.split(h)])

    def with_ended(self, d: State, final: State, t: int) -> State:
        """Adds to the gradient of the state after step t the rows that end with this step: those of the final state."""
        n = None if self.sizes is None else self.sizes[t]
        if n is None or n == len(d[0]):
            return d
        return tuple(torch.cat([part, last[len(part) : n]]) for part, last in zip(d, final, strict=True))


def lines_of(batch_sizes: Tensor, lines: int) -> tuple[Tensor, Tensor]:
    """Returns of which time and of which row each line of a packed call is, (lines,) each."""
    times = torch.arange(len(batch_sizes), device=batch_sizes.device).repeat_interleave(batch_sizes, output_size=lines)
    return times, torch.arange(lines, device=batch_sizes.device) - (batch_sizes.cumsum(0) - batch_sizes)[times]


def count_rows(a: RecurrentArguments) -> Tensor:
    """Returns how many rows count in batch norm's moments at each step, (T,).

    With ``count_padding`` all rows of a padded call count, up to the last step of any.
    """
    if a.batch_sizes is not None:
        return unwrapped(a.batch_sizes)
    T, B = a.lines
    if a.lengths is None:
        return torch.full((T,), B, device="cpu")
    active = torch.arange(T, device=a.lengths.device)[:, None] < a.lengths
    return torch.where(active.any(1), B, 0) if a.count_padding else active.sum(1)


def _own_lines(batch_sizes: Tensor, lines: int) -> Tensor:
    """Returns the line of each row's step in the reverse direction: its last one first."""
    times, rows = lines_of(batch_sizes, lines)
    lengths = (
        (batch_sizes[:, None] > torch.arange(int(batch_sizes[0]), device=batch_sizes.device)).sum(0)
        if lines
        else batch_sizes
    )
    return (batch_sizes.cumsum(0) - batch_sizes)[lengths[rows] - 1 - times] + rows


def reorder_steps(x: Tensor, a: RecurrentArguments) -> Tensor:
    """Changes a tensor of all lines, as the call has it, from the order of the input to the order of steps, or back.

    In the reverse direction this reverses each row up to its length; padding stays in place.
    """
    if not a.reverse:
        return x
    if a.batch_sizes is not None:
        return x.index_select(0, _own_lines(unwrapped(a.batch_sizes), len(x)).to(x.device))
    if a.lengths is None:
        return x.flip(0)
    t = torch.arange(len(x), device=x.device)[:, None]
    source = torch.where(t < a.lengths, a.lengths - 1 - t, t)
    return x.gather(0, source.reshape(*source.shape, *(1,) * (x.dim() - 2)).expand_as(x))


def in_lines(x: Tensor, a: RecurrentArguments) -> Tensor:
    """Returns a tensor of all lines in the form of this module from that of a call, (T, B, *) or (lines, *)."""
    return x if a.batch_sizes is None else x[None]


def shares_of_lines(a: RecurrentArguments) -> StateChanges:
    """Returns the changes with zoneout's shares in the form of this module; one number stands for all lines."""
    if not a.changes.kept:
        return a.changes
    kept = [None if k is None else in_lines(k.expand(*a.lines, -1), a) for k in a.changes.kept]
    return a.changes._replace(kept=kept)


def make_schedule(a: RecurrentArguments) -> Schedule:
    """Makes the `Schedule`, in the order of the steps."""
    cut, reverse = a.reset, a.reverse
    if a.batch_sizes is not None:
        sizes: list[int] = unwrapped(a.batch_sizes).tolist()
        # Shifted by one step, as below; the n rows at a step are the first n rows of the step before.
        if cut is not None and reverse:
            times = reorder_steps(cut, a).split(sizes)
            met = [before[:n] for before, n in zip(times, sizes[1:], strict=False)]
            cut = torch.cat([torch.zeros_like(cut[: sum(sizes[:1])]), *met])
        return Schedule(None, None if cut is None else cut[None, :, None], sizes)
    active = None
    if cut is not None and reverse:  # the reverse direction meets a cut between t-1 and t after its step at t
        cut = torch.cat([torch.zeros_like(cut[:1]), reorder_steps(cut, a)[:-1]])
    if a.lengths is not None:
        active = torch.arange(len(a.input), device=a.lengths.device)[:, None] < a.lengths
        cut = None if cut is None else cut & active
    active, cut = (None if mask is None else mask.unsqueeze(-1) for mask in (active, cut))
    return Schedule(active, cut)


def unpacked(a: RecurrentArguments) -> RecurrentArguments:
    """Returns a packed call as one with lengths: all rows with T steps each."""
    if a.batch_sizes is None:
        return a
    sizes = unwrapped(a.batch_sizes)
    times, rows = (index.to(a.input.device) for index in lines_of(sizes, len(a.input)))
    T, B = len(sizes), len(a.state[0])

    def padded(x: Tensor) -> Tensor:
        return x.new_zeros(T, B, *x.shape[1:]).index_put((times, rows), x)

    lengths = (sizes[:, None] > torch.arange(B, device=sizes.device)).sum(0).to(a.input.device)
    kept = [k if k is None else k[None] if k.numel() == 1 else padded(k) for k in a.changes.kept]
    return a._replace(
        input=padded(a.input),
        lengths=lengths,
        reset=None if a.reset is None else padded(a.reset),
        changes=a.changes._replace(kept=kept) if kept else a.changes,
        batch_sizes=None,
    )


class Walk(NamedTuple):
    """The states of a sequence: those before and after each step, in order, and the final one of all rows."""

    before: list[State]
    after: list[State]
    final: State

    def joined(self, schedule: Schedule, save: bool) -> Steps:
        """Returns the same of all lines."""
        if not self.after:
            shapes = [(0, *s.shape) if schedule.sizes is None else (1, 0, s.shape[1]) for s in self.final]
            none = tuple(self.final[0].new_empty(shape) for shape in (*shapes, shapes[0]))
            return Steps(none[-1], none[:-1], self.final)
        before = tuple(map(schedule.join, zip(*self.before, strict=True))) if save else ()
        return Steps(schedule.join([h for h, *_ in self.after]), before, self.final)


class Steps(NamedTuple):
    """All steps of a call: h after each, of all lines; the states before each, where they are saved; the final one."""

    after: Tensor
    before: State
    final: State


def walk(
    step: Callable[[int, State, StateChanges], State], state: State, T: int, schedule: Schedule, changes: StateChanges
) -> Walk:
    """Takes T steps from the initial state.

    ``step`` is a function from t, the state before the step and the changes of its rows to the state after it. It
    applies their dropout itself. The rows of a packed call that have ended leave the state.
    """
    zero = state[0].new_zeros(())
    befores: list[State] = []
    afters: list[State] = []
    ended: list[State] = []
    after = state
    for t, index in enumerate(schedule.indices(T)):
        before = after
        if schedule.sizes is not None and schedule.sizes[t] < len(before[0]):
            n = schedule.sizes[t]
            ended.append(tuple(part[n:] for part in before))
            before, changes = tuple(part[:n] for part in before), changes.of_rows(n)
        old = before
        if schedule.cut is not None:
            restart = [r.to(zero.dtype) for r in changes.restart] or [zero] * len(state)
            old = tuple(torch.where(schedule.cut[index], new, s) for new, s in zip(restart, before, strict=True))
        after = step(t, old, changes)
        if changes.kept:
            after = tuple(apply_zoneout(*part) for part in zip(changes.shares(index), old, after, strict=True))
        if schedule.active is not None:
            after = tuple(torch.where(schedule.active[index], new, s) for new, s in zip(after, before, strict=True))
        befores.append(before)
        afters.append(after)
    return Walk(befores, afters, with_all_rows(after, ended))


def with_all_rows(state: State, ended: Sequence[State]) -> State:
    """Puts the rows that have ended, the longest of them last, back behind those that have not."""
    return tuple(torch.cat(parts) for parts in zip(state, *reversed(ended), strict=True)) if ended else state


def apply_zoneout(kept: Tensor | None, old: Tensor, new: Tensor) -> Tensor:
    """Computes one part of the state after a step with zoneout: ``kept * old + (1 - kept) * new``; None: ``new``."""
    return new if kept is None else kept * old + (1 - kept) * new


def output_of(after: Tensor, schedule: Schedule, a: RecurrentArguments) -> Tensor:
    """Returns h after each step in the order and the form of the input; it is 0 beyond a row's length."""
    if schedule.active is not None:
        after = torch.where(schedule.active, after, 0.0)
    return reorder_steps(after if schedule.sizes is None else after[0], a)
