"""One layer of a recurrent network in one direction over a whole sequence: the equations, the forward, the backward.

Times are in the order in which the steps are taken: a reverse direction turns its input round first and its output
last, each row by itself, so that its first step is the row's own last.

- ``lengths`` (B,): beyond its length a row's state stands still and its output is 0.
- ``reset`` (T, B): true cuts the row between t-1 and t; the step after the cut starts from the zero state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..formula import Recurrence
from ..plain import below_autocast, kernel
from ..schedule import Schedule, schedule, turned
from ._cases import Cases, Moments, Statistics
from ._gru import GRU
from ._gru_all import GRUOverAll
from ._lstm import LSTM
from ._rnn import RNN, Network, State
from ._sites import Parameters

NETWORKS: dict[str, type[Network]] = {"RNN": RNN, "LSTM": LSTM, "GRU": GRU}


def _network(p: Parameters, recurrence: Recurrence, cases: Cases | None = None) -> Network:
    if recurrence.norm == "batch" and cases is None:
        raise RuntimeError("batch norm keeps statistics between calls, which no op does")
    over_all = recurrence.network == "GRU" and recurrence.formula.gates is not None and recurrence.formula.span == "all"
    return (GRUOverAll if over_all else NETWORKS[recurrence.network])(p, recurrence, cases)


def _prepare(
    input: Tensor, params: list[Tensor], recurrence: Recurrence, plan: Schedule, lengths: Tensor | None, reverse: bool
) -> tuple[Tensor, Parameters]:
    """The input in the order of the steps, without what padding holds, and the parameters, in float32 or wider."""
    dtype = torch.promote_types(input.dtype, torch.float32)
    x = turned(input.to(dtype), lengths, reverse)
    x = x if plan.active is None else torch.where(plan.active, x, 0.0)
    return x, {name: p.to(dtype) for name, p in zip(recurrence.parameter_names, params, strict=True)}


def _run(
    input: Tensor,
    state: list[Tensor],
    params: list[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    recurrence: Recurrence,
    reverse: bool,
    cases: Cases | None = None,
) -> tuple[Tensor, list[list[Tensor]]]:
    """The output [T, B, P], and all T + 1 states, the initial one first, in the order of the steps."""
    T = input.shape[0]
    plan = schedule(T, lengths, reset, reverse)
    x, p = _prepare(input, params, recurrence, plan, lengths, reverse)
    network = _network(p, recurrence, cases)
    from_input = network.input_side(x)
    states: list[State] = [tuple(s.to(x.dtype) for s in state)]
    for t in range(T):
        before = states[-1]
        after = network.step(t, from_input[t], _zero_where(plan.cut, t, before))
        if plan.active is not None:
            after = tuple(torch.where(plan.active[t], new, old) for new, old in zip(after, before, strict=True))
        states.append(after)
    h = [s[0] for s in states[1:]]
    output = torch.stack(h) if h else states[0][0].new_zeros(0, *states[0][0].shape)
    if plan.active is not None:
        output = torch.where(plan.active, output, 0.0)
    return turned(output, lengths, reverse).to(input.dtype), [list(s) for s in states]


def _zero_where(cut: Tensor | None, t: int, state: State) -> State:
    return state if cut is None else tuple(torch.where(cut[t], 0.0, s) for s in state)


@below_autocast
def recurrent_equations(
    input: Tensor,
    state: list[Tensor],
    params: list[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    recurrence: Recurrence,
    reverse: bool,
) -> list[Tensor]:
    """[output (T, B, P), *final state], differentiable to any order."""
    output, states = _run(input, state, params, lengths, reset, recurrence, reverse)
    return [output, *(s.to(input.dtype) for s in states[-1])]


@below_autocast
def recurrent_over_cases(
    input: Tensor,
    state: list[Tensor],
    params: list[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    recurrence: Recurrence,
    reverse: bool,
    population: Mapping[str, Moments] | None,
    count_padding: bool,
) -> tuple[list[Tensor], Statistics | None]:
    """`recurrent_equations` under batch norm, and what the batch tells about the population.

    ``population``: for each gain the mean and variance (T, n) to normalise by; ``None``: the batch's own.
    ``count_padding``: whether the batch's own are over all rows, where a row that has ended has the input 0 and stands
    still in its final state, or over those that take the step.
    """
    counted = schedule(len(input), lengths, None, reverse).active
    if counted is not None and count_padding:  # beyond the longest row there is no step
        counted = counted.any(1, keepdim=True).expand_as(counted)
    cases = Cases(recurrence, counted, (input.shape[0], input.shape[1]), population)
    output, states = _run(input, state, params, lengths, reset, recurrence, reverse, cases)
    found = [output, *(s.to(input.dtype) for s in states[-1])]
    return found, cases.statistics() if population is None else None


@kernel
def recurrent_forward(
    input: Tensor,
    state: list[Tensor],
    params: list[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    recurrence: Recurrence,
    reverse: bool,
    save: bool,
) -> list[Tensor]:
    """[output (T, B, P), *final state], and with ``save`` the state before each step, for `recurrent_backward`."""
    output, states = _run(input, state, params, lengths, reset, recurrence, reverse)
    final = [s.to(input.dtype, copy=True) for s in states[-1]]
    if not save:
        return [output, *final]
    before = zip(*states[:-1], strict=True) if len(states) > 1 else [()] * len(final)
    empty = [s.new_zeros(0, *s.shape) for s in states[0]]
    return [output, *final, *(torch.stack(b) if b else e for b, e in zip(before, empty, strict=True))]


def recurrent_saved(input: Tensor, state: list[Tensor], params: list[Tensor], recurrence: Recurrence) -> list[Tensor]:
    """Empty tensors with the shapes and types of what `recurrent_forward` saves."""
    dtype = torch.promote_types(input.dtype, torch.float32)
    return [s.new_empty(input.shape[0], *s.shape, dtype=dtype) for s in state]


@kernel
def recurrent_backward(
    input: Tensor,
    state: list[Tensor],
    params: list[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    saved: list[Tensor],
    grad_output: Tensor | None,
    grad_state: Sequence[Tensor | None],
    recurrence: Recurrence,
    reverse: bool,
) -> list[Tensor]:
    """[d input, *d initial state, *d params], by hand: the state's gradient step by step, everything else at once.

    A gradient that is ``None`` is zero.
    """
    grad_output = saved[0].new_zeros(saved[0].shape) if grad_output is None else grad_output
    final = [torch.zeros_like(s) if g is None else g for s, g in zip(state, grad_state, strict=True)]
    T = input.shape[0]
    plan = schedule(T, lengths, reset, reverse)
    x, p = _prepare(input, params, recurrence, plan, lengths, reverse)
    network = _network(p, recurrence)
    before = tuple(saved if plan.cut is None else (torch.where(plan.cut, 0.0, s) for s in saved))
    activations = network.activations(x, before)
    dy = turned(grad_output, lengths, reverse).to(x.dtype)
    d: State = tuple(g.to(x.dtype) for g in final)
    steps: list[tuple[Tensor, ...]] = []
    for t in reversed(range(T)):
        after = (d[0] + dy[t], *d[1:])
        if plan.active is not None:
            after = tuple(torch.where(plan.active[t], a, 0.0) for a in after)
        previous, kept = network.step_backward(t, after, before, activations)
        steps.append(kept)
        previous = _zero_where(plan.cut, t, previous)
        if plan.active is not None:
            previous = tuple(torch.where(plan.active[t], new, old) for new, old in zip(previous, d, strict=True))
        d = previous
    if not steps:
        return [torch.zeros_like(input), *(g.clone() for g in final), *(torch.zeros_like(q) for q in params)]
    dx, grads = network.gradients(x, before, activations, tuple(torch.stack(k[::-1]) for k in zip(*steps, strict=True)))
    dx = dx if plan.active is None else torch.where(plan.active, dx, 0.0)
    like = [input, *state, *params]
    named = [grads[name] for name in recurrence.parameter_names]
    return [g.to(t.dtype) for g, t in zip([turned(dx, lengths, reverse), *d, *named], like, strict=True)]
