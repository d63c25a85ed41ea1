"""A layer over a sequence, in chunks of steps, and step by step.

The products W_ih x and the gradients of the weights are computed over all steps at once, outside of what is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...formula import Recurrence
from .. import reference
from ..checks import check_recurrent, check_recurrent_gradients
from ..dispatch import kernel
from ..protocol import RecurrentArguments
from ..reference import _recurrent as equations
from ..reference import _steps
from ..reference._recurrent import EVERY, Share
from ..reference._sites import Parameters
from ..schedule import Schedule, State, sequence_of
from ._compile import chunks, compiled


def forward_steps(recurrence: Recurrence, p: Parameters, *given: Any) -> tuple[list[State], list[Tensor]]:
    """What is compiled forward."""
    return equations.forward_steps(equations.network_of(p, recurrence), *given)


def backward_steps(recurrence: Recurrence, p: Parameters, *given: Any) -> tuple[State, Share]:
    """What is compiled backward."""
    return equations.backward_steps(equations.network_of(p, recurrence), *given)


def take_steps(
    recurrence: Recurrence, p: Parameters, zx: Sequence[Tensor], state: State, plan: Schedule = EVERY
) -> tuple[list[State], list[Tensor]]:
    """`forward_steps`, compiled. All comes and goes step by step: the steps make equal kernels, which are made once."""
    masks = Schedule(*(None if mask is None else mask.unbind() for mask in plan))  # type: ignore[arg-type]
    run = compiled(forward_steps, recurrence, *_kind(p, zx, state, plan))
    return run(_inner(p), zx, _in_memory_order(state), masks)


def take_steps_back(
    recurrence: Recurrence, p: Parameters, zx: Tensor, zh: Tensor, before: State, dy: Tensor, d: State,
    plan: Schedule = EVERY,
) -> tuple[State, Share]:  # fmt: skip
    """`backward_steps`, compiled."""
    run = compiled(backward_steps, recurrence, *_kind(p, zx, d, plan))
    return run(_inner(p), zx, zh, _in_memory_order(before), dy.contiguous(), _in_memory_order(d), plan)


def _kind(p: Parameters, zx: Sequence[Tensor] | Tensor, state: State, plan: Schedule) -> tuple[Any, ...]:
    """What calls have in common that are compiled together, besides their equations."""
    weight = p["weight_hh"]
    return len(zx), len(state[0]) == 1, *weight.shape, weight.dtype, weight.device, *(mask is None for mask in plan)


def _inner(p: Parameters) -> Parameters:
    """The parameters that steps read. Of W_ih they only get the products: layers of any I share what is compiled."""
    return {name: q.detach().contiguous() for name, q in p.items() if name != "weight_ih"}


def _in_memory_order(state: State) -> State:
    return tuple(s.detach().contiguous() for s in state)


def _some(plan: Schedule, chunk: slice) -> Schedule:
    return Schedule(*(None if mask is None else mask[chunk] for mask in plan))


@kernel
def recurrent_forward(a: RecurrentArguments, save: bool) -> list[Tensor]:
    """[output (T, B, P), *final state], and with ``save`` W_ih x, W_hh h and the state before each step."""
    check_recurrent(a)
    if not _any_step(a):
        return [*reference.recurrent_forward(a, False), *(recurrent_saved(a) if save else [])]
    x, plan = equations.in_order(a)
    p = equations.named(a.params, a.recurrence, x.dtype)
    zx = x @ p["weight_ih"].T
    rows, states, zh = zx.unbind(), [tuple(s.to(x.dtype) for s in a.state)], list[Tensor]()
    for chunk in chunks(len(rows)):
        after, from_hidden = take_steps(a.recurrence, p, rows[chunk], states[-1], _some(plan, chunk))
        states += after
        zh += from_hidden
    output = sequence_of(states, plan, a.lengths, a.reverse).to(a.input.dtype)
    results = [output, *(s.to(a.input.dtype, copy=True) for s in states[-1])]
    if save:
        before = (torch.stack(s) for s in zip(*states[:-1], strict=True))
        results += [zx, torch.stack(zh), *equations.started(list(before), plan)]
    return results


def recurrent_saved(a: RecurrentArguments) -> list[Tensor]:
    """Empty tensors with the shapes and types of what `recurrent_forward` saves."""
    before = reference.recurrent_saved(a)
    return [before[0].new_empty(*a.input.shape[:2], a.params[0].shape[0]) for _ in range(2)] + before


@kernel
def recurrent_backward(
    a: RecurrentArguments, saved: Sequence[Tensor], grad_output: Tensor | None, grad_state: Sequence[Tensor | None]
) -> list[Tensor]:
    """[d input, *d initial state, *d params]; a gradient that is ``None`` is zero."""
    check_recurrent(a)
    check_recurrent_gradients(a, saved, recurrent_saved(a), grad_output, grad_state)
    zx, zh, *before = saved
    if not _any_step(a):
        return reference.recurrent_backward(a, before, grad_output, grad_state)
    x, plan = equations.in_order(a)
    p = equations.named(a.params, a.recurrence, x.dtype)
    dy, d = equations.arriving(a, grad_output, grad_state)
    shares: list[Share] = []
    for chunk in reversed(chunks(len(x))):
        steps = zx[chunk], zh[chunk], tuple(s[chunk] for s in before), dy[chunk]
        d, share = take_steps_back(a.recurrence, p, *steps, d, _some(plan, chunk))
        shares.append(share)
    return equations.leaving(a, x, plan, p["weight_ih"], d, shares[::-1])


def _any_step(a: RecurrentArguments) -> bool:
    """Whether there is a step of a row."""
    return a.input.shape[0] * a.input.shape[1] > 0


class Prepared(_steps.Prepared):
    """A layer for steps one by one: the reference's, whose steps are compiled."""

    def take_step(self, zx: Tensor, state: State) -> tuple[State, Tensor]:
        (after,), (zh,) = take_steps(self.recurrence, self.p, [zx], state)
        return after, zh

    def take_step_back(self, zx: Tensor, zh: Tensor, before: State, dy: Tensor, d: State) -> tuple[State, Share]:
        return take_steps_back(self.recurrence, self.p, zx, zh, before, dy, d)


def prepare(params: Sequence[Tensor], recurrence: Recurrence) -> Prepared:
    """Prepares a layer for steps one by one."""
    return Prepared(params, recurrence)
