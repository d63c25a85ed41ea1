"""A layer over a sequence, in chunks of steps, and step by step.

The products W_ih x and the gradients of the weights are computed over all steps at once, outside of what is compiled.
Batch norm, whose steps share moments, is not compiled: the equations compute it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...equations import recurrent as equations
from ...equations.arguments import NO_CHANGES, RecurrentArguments, StateChanges
from ...equations.checks import check_recurrent, check_recurrent_gradients
from ...equations.dispatch import kernel
from ...equations.recurrent import EVERY_ROW, Contribution
from ...equations.schedule import Schedule, State, in_lines, stack_output, with_all_rows
from ...equations.sites import Parameters
from ...equations.steps import SteppedLayer
from ...formula import Recurrence
from ._compile import chunks, compiled


def forward_steps(recurrence: Recurrence, p: Parameters, *given: Any) -> tuple[list[State], list[Tensor]]:
    """Takes steps. This is what is compiled."""
    return equations.forward_steps(equations.network_of(p, recurrence), *given)


def backward_steps(recurrence: Recurrence, p: Parameters, *given: Any) -> tuple[State, Contribution]:
    """Takes steps back. This is what is compiled."""
    return equations.backward_steps(equations.network_of(p, recurrence), *given)


def take_steps(
    recurrence: Recurrence, p: Parameters, zx: Sequence[Tensor], state: State, schedule: Schedule = EVERY_ROW,
    changes: StateChanges = NO_CHANGES,
) -> tuple[list[State], list[Tensor]]:  # fmt: skip
    """Runs `forward_steps`, compiled. Its tensors are those of single steps, so that the steps share one kernel."""
    masks = Schedule(*(None if mask is None else mask.unbind() for mask in schedule[:2]))  # type: ignore[arg-type]
    run = compiled(forward_steps, recurrence, *_compile_key(p, zx, state, schedule, changes))
    kept = tuple(None if k is None else k.unbind() for k in changes.kept)
    by_step = changes._replace(kept=kept)  # type: ignore[arg-type]
    return run(_step_parameters(p), zx, _contiguous(state), masks, by_step)


def take_steps_back(
    recurrence: Recurrence, p: Parameters, zx: Tensor, zh: Tensor, before: State, dy: Tensor, d: State,
    schedule: Schedule = EVERY_ROW, changes: StateChanges = NO_CHANGES,
) -> tuple[State, Contribution]:  # fmt: skip
    """Runs `backward_steps`, compiled."""
    run = compiled(backward_steps, recurrence, *_compile_key(p, zx, d, schedule, changes))
    return run(_step_parameters(p), zx, zh, _contiguous(before), dy.contiguous(), _contiguous(d), schedule, changes)


def _compile_key(
    p: Parameters, zx: Sequence[Tensor] | Tensor, state: State, schedule: Schedule, changes: StateChanges
) -> tuple[Any, ...]:
    """Returns what the calls that are compiled together have in common, besides their equations."""
    weight, masks = p["weight_hh"], (*schedule[:2], changes.dropout, *changes.kept)
    there = len(changes.restart), *(mask is None for mask in masks)
    return len(zx), len(state[0]) == 1, *weight.shape, weight.dtype, weight.device, *there


def _step_parameters(p: Parameters) -> Parameters:
    """Returns the parameters that steps read: all but W_ih, so that layers of any I share what is compiled."""
    return {name: q.detach().contiguous() for name, q in p.items() if name != "weight_ih"}


def _contiguous(state: State) -> State:
    return tuple(s.detach().contiguous() for s in state)


def _whole_changes(a: RecurrentArguments, dtype: torch.dtype) -> StateChanges:
    """Returns the changes of a call with a share of zoneout for each step, row and unit."""
    restart, dropout, kept = a.changes
    shapes = ((*a.lines, s.shape[1]) for s in a.state)
    shares = (None if k is None else k.expand(shape).contiguous() for k, shape in zip(kept, shapes, strict=False))
    return StateChanges(
        _contiguous(tuple(s.to(dtype) for s in restart)),
        None if dropout is None else dropout.contiguous(),
        tuple(None if k is None else in_lines(k, a) for k in shares),
    )


class _Chunk:
    """Some steps in which the same rows have lines: those of a packed call change where rows end."""

    def __init__(self, steps: slice, lines: slice, rows: int | None) -> None:
        self.steps, self.lines, self.rows = steps, lines, rows  # rows: of a packed call

    def of(self, x: Tensor) -> Tensor:
        """Returns these steps of a tensor of all lines, (steps, rows, *)."""
        return x[self.lines] if self.rows is None else x[0, self.lines].unflatten(0, (-1, self.rows))

    def masks(self, schedule: Schedule, changes: StateChanges) -> tuple[Schedule, StateChanges]:
        """Returns what happens in these steps."""
        if self.rows is not None:
            changes = changes.of_rows(self.rows)
        kept = tuple(None if k is None else self.of(k) for k in changes.kept)
        active, cut = (None if mask is None else self.of(mask) for mask in schedule[:2])
        return Schedule(active, cut), changes._replace(kept=kept)


def _chunks(schedule: Schedule, T: int) -> list[_Chunk]:
    """Cuts T steps into chunks."""
    if schedule.sizes is None:
        return [_Chunk(steps, steps, None) for steps in chunks(T)]
    found: list[_Chunk] = []
    first = line = 0
    for rows, group in itertools.groupby(schedule.sizes):
        count = len(list(group))
        for own in chunks(count):
            steps = slice(first + own.start, first + own.stop)
            found.append(_Chunk(steps, slice(line + own.start * rows, line + own.stop * rows), rows))
        first, line = first + count, line + count * rows
    return found


@kernel
def recurrent_forward(a: RecurrentArguments, save: bool) -> list[Tensor]:
    """Returns [output (T, B, P), *final state], and with ``save`` W_ih x, W_hh h and the state before each step."""
    check_recurrent(a)
    if a.recurrence.norm == "batch":
        return equations.recurrent_forward(a, save)
    if not _has_steps(a):
        return [*equations.recurrent_forward(a, False), *(recurrent_saved(a) if save else [])]
    x, schedule = equations.scheduled_input(a)
    p = equations.parameters_by_name(a.params, a.recurrence, x.dtype)
    zx = x @ p["weight_ih"].T
    state, befores, afters, zh = tuple(s.to(x.dtype) for s in a.state), list[State](), list[State](), list[Tensor]()
    ended: list[State] = []
    changes = _whole_changes(a, x.dtype)
    for chunk in _chunks(schedule, a.sizes[0]):
        if chunk.rows is not None and chunk.rows < len(state[0]):
            ended.append(tuple(s[chunk.rows :] for s in state))
            state = tuple(s[: chunk.rows] for s in state)
        after, from_hidden = take_steps(a.recurrence, p, chunk.of(zx).unbind(), state, *chunk.masks(schedule, changes))
        befores += [state, *after[:-1]]
        afters += after
        zh += from_hidden
        state = after[-1]
    output = stack_output(afters, schedule, a).to(a.input.dtype)
    results = [output, *(s.to(a.input.dtype, copy=True) for s in with_all_rows(state, ended))]
    if save:
        before = [schedule.join(s) for s in zip(*befores, strict=True)]
        saved = [zx, schedule.join(zh), *equations.starting_states(before, schedule, changes)]
        results += saved if schedule.sizes is None else [s[0] for s in saved]
    return results


def recurrent_saved(a: RecurrentArguments) -> list[Tensor]:
    """Returns empty tensors with the shapes and types of what `recurrent_forward` saves."""
    before = equations.recurrent_saved(a)
    if a.recurrence.norm == "batch":
        return before
    return [before[0].new_empty(*a.lines, a.params[0].shape[0]) for _ in range(2)] + before


@kernel
def recurrent_backward(
    a: RecurrentArguments, saved: Sequence[Tensor], grad_output: Tensor | None, grad_state: Sequence[Tensor | None]
) -> list[Tensor]:
    """Returns [d input, *d initial state, *d params, *d restart]; a gradient that is ``None`` is zero."""
    if a.recurrence.norm == "batch":
        return equations.recurrent_backward(a, saved, grad_output, grad_state)
    check_recurrent(a)
    check_recurrent_gradients(a, saved, recurrent_saved(a), grad_output, grad_state)
    if not _has_steps(a):
        return equations.recurrent_backward(a, saved[2:], grad_output, grad_state)
    x, schedule = equations.scheduled_input(a)
    p = equations.parameters_by_name(a.params, a.recurrence, x.dtype)
    dy, final = equations.result_gradients(a, grad_output, grad_state)
    d = final if schedule.sizes is None else tuple(part[: schedule.sizes[-1]] for part in final)
    zx, zh, *before = (in_lines(s, a) for s in saved)
    contributions: list[Contribution] = []
    changes = _whole_changes(a, x.dtype)
    for chunk in reversed(_chunks(schedule, a.sizes[0])):
        d = schedule.with_ended(d, final, chunk.steps.start)
        steps = chunk.of(zx), chunk.of(zh), tuple(map(chunk.of, before)), chunk.of(dy)
        d, contribution = take_steps_back(a.recurrence, p, *steps, d, *chunk.masks(schedule, changes))
        contributions.append(_of_all_rows(contribution, a))
    return equations.argument_gradients(a, x, schedule, p["weight_ih"], d, contributions[::-1])


def _of_all_rows(contribution: Contribution, a: RecurrentArguments) -> Contribution:
    """Gives the gradient of the state of restarts a row for each of the batch."""
    B = len(a.state[0])
    rows = (torch.nn.functional.pad(r, (0, 0, 0, B - len(r))) for r in contribution.restart)
    return contribution._replace(restart=tuple(rows))


def _has_steps(a: RecurrentArguments) -> bool:
    """Says whether any row takes a step."""
    return math.prod(a.lines) > 0


class CompiledLayer(SteppedLayer):
    """A layer for steps one by one: `SteppedLayer`, whose steps are compiled."""

    def take_step(self, zx: Tensor, state: State, changes: StateChanges) -> tuple[State, Tensor]:
        (after,), (zh,) = take_steps(self.recurrence, self.p, [zx], state, changes=changes)
        return after, zh

    def take_step_back(
        self, zx: Tensor, zh: Tensor, before: State, dy: Tensor, d: State, changes: StateChanges
    ) -> tuple[State, Contribution]:
        return take_steps_back(self.recurrence, self.p, zx, zh, before, dy, d, changes=changes)


prepare = CompiledLayer
