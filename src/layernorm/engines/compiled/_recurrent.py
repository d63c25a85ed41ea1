"""A layer over a sequence, in chunks of steps, and step by step: what the driver of the equations is given.

The products W_ih x and the gradients of the weights are computed over all steps at once, outside of what is compiled.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...equations import recurrent as equations
from ...equations.arguments import NO_CHANGES, RecurrentArguments, StateChanges
from ...equations.network import Network
from ...equations.recurrent import EVERY_ROW, Contribution
from ...equations.recurrent import recurrent_saved as recurrent_saved
from ...equations.schedule import Schedule, State, Steps, Walk, walk, with_all_rows
from ...equations.sites import Parameters
from ...equations.steps import SteppedLayer
from ...formula import Recurrence
from ._compile import chunks, compiled


def forward_chunk(
    recurrence: Recurrence,
    p: Parameters,
    zx: Sequence[Tensor],
    state: State,
    schedule: Schedule,
    changes: StateChanges,
) -> list[State]:
    """Takes steps from W_ih x of each. Returns the state after each. This is what is compiled."""
    network = equations.network_of(p, recurrence)

    def step(t: int, old: State, changes: StateChanges) -> State:
        return network.step(t, network.input_side(zx[t]), changes.apply_dropout(old[0]) @ p["weight_hh"].T, old)

    return walk(step, state, len(zx), schedule, changes).after


def backward_chunk(recurrence: Recurrence, p: Parameters, *given: Any) -> tuple[State, Contribution]:
    """Takes steps back. This is what is compiled."""
    return equations.backward_steps(equations.network_of(p, recurrence), *given)


def run_chunk(
    recurrence: Recurrence, p: Parameters, zx: Sequence[Tensor], state: State, schedule: Schedule = EVERY_ROW,
    changes: StateChanges = NO_CHANGES,
) -> list[State]:  # fmt: skip
    """Runs `forward_chunk`, compiled. Its tensors are those of single steps, so that the steps share one kernel."""
    masks = Schedule(*(None if mask is None else mask.unbind() for mask in schedule[:2]))  # type: ignore[arg-type]
    run = compiled(forward_chunk, recurrence, *_compile_key(p, zx, state, schedule, changes))
    kept = tuple(None if k is None else k.unbind() for k in changes.kept)
    by_step = changes._replace(kept=kept)  # type: ignore[arg-type]
    return run(_step_parameters(p), zx, _contiguous(state), masks, by_step)


def run_chunk_back(
    recurrence: Recurrence, p: Parameters, zx: Tensor, zh: Tensor, before: State, dy: Tensor, d: State,
    schedule: Schedule = EVERY_ROW, changes: StateChanges = NO_CHANGES,
) -> tuple[State, Contribution]:  # fmt: skip
    """Runs `backward_chunk`, compiled."""
    run = compiled(backward_chunk, recurrence, *_compile_key(p, zx, d, schedule, changes))
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


class _Chunk:
    """Some steps in which the same rows have lines: those of a packed call change where rows end."""

    def __init__(self, steps: slice, lines: slice, rows: int | None) -> None:
        self.steps, self.lines, self.rows = steps, lines, rows  # rows: of a packed call

    def of(self, x: Tensor) -> Tensor:
        """Returns these steps of a tensor of all lines, (steps, rows, *)."""
        return x[self.lines] if self.rows is None else x[0, self.lines].unflatten(0, (-1, self.rows))

    def masks(self, schedule: Schedule, changes: StateChanges, like: State) -> tuple[Schedule, StateChanges]:
        """Returns what happens in these steps, to states like this one; each unit has a share of zoneout of its own."""
        if self.rows is not None:
            changes = changes.of_rows(self.rows)
        active, cut = (None if mask is None else self.of(mask) for mask in schedule[:2])
        shares = zip(changes.kept, like, strict=False)
        kept = tuple(None if k is None else self.of(k).expand(-1, -1, s.shape[1]).contiguous() for k, s in shares)
        restart = _contiguous(tuple(r.to(like[0].dtype) for r in changes.restart))
        dropout = None if changes.dropout is None else changes.dropout.contiguous()
        return Schedule(active, cut), StateChanges(restart, dropout, kept)


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


def take_steps(
    network: Network, zx: Tensor, state: State, schedule: Schedule, changes: StateChanges, save: bool
) -> Steps:
    """Takes the steps of a call in chunks (`TakeSteps`)."""
    before, after, ended = list[State](), list[State](), list[State]()
    for chunk in _chunks(schedule, len(zx)):
        if chunk.rows is not None and chunk.rows < len(state[0]):
            ended.append(tuple(s[chunk.rows :] for s in state))
            state = tuple(s[: chunk.rows] for s in state)
        masks = chunk.masks(schedule, changes, state)
        states = run_chunk(network.recurrence, network.p, chunk.of(zx).unbind(), state, *masks)
        before += [state, *states[:-1]]
        after += states
        state = states[-1]
    return Walk(before, after, with_all_rows(state, ended)).joined(schedule, save)


def take_steps_back(
    network: Network, zx: Tensor, zh: Tensor, before: State, dy: Tensor, final: State, schedule: Schedule,
    changes: StateChanges,
) -> tuple[State, Contribution]:  # fmt: skip
    """Takes the steps of a call back in chunks, as `equations.backward_steps` does one by one."""
    B, d, found = len(final[0]), final, list[Contribution]()
    if schedule.sizes is not None:
        d = tuple(part[: schedule.sizes[-1]] for part in final)
    for chunk in reversed(_chunks(schedule, len(dy))):
        d = schedule.with_ended(d, final, chunk.steps.start)
        steps = chunk.of(zx), chunk.of(zh), tuple(map(chunk.of, before)), chunk.of(dy)
        masks = chunk.masks(schedule, changes, d)
        d, contribution = run_chunk_back(network.recurrence, network.p, *steps, d, *masks)
        rows = tuple(torch.nn.functional.pad(r, (0, 0, 0, B - len(r))) for r in contribution.restart)
        found.append(contribution._replace(restart=rows))
    return d, equations.joined(found[::-1])


def recurrent_forward(a: RecurrentArguments, save: bool) -> list[Tensor]:
    """Returns [output, *final state], and with ``save`` the state before each step."""
    return equations.recurrent_forward(a, save, take_steps)


def recurrent_backward(
    a: RecurrentArguments, saved: Sequence[Tensor], grad_output: Tensor | None, grad_state: Sequence[Tensor | None]
) -> list[Tensor]:
    """Returns [d input, *d initial state, *d params, *d restart]; a gradient that is ``None`` is zero."""
    return equations.recurrent_backward(a, saved, grad_output, grad_state, take_steps_back)


class CompiledLayer(SteppedLayer):
    """A layer for steps one by one: `SteppedLayer`, whose steps are compiled."""

    def take_step(self, zx: Tensor, state: State, changes: StateChanges) -> State:
        (after,) = run_chunk(self.recurrence, self.p, [zx], state, changes=changes)
        return after

    def take_step_back(
        self, zx: Tensor, zh: Tensor, before: State, dy: Tensor, d: State, changes: StateChanges
    ) -> tuple[State, Contribution]:
        return run_chunk_back(self.recurrence, self.p, zx, zh, before, dy, d, changes=changes)


prepare = CompiledLayer
