"""One layer of a recurrent network in one direction over a whole sequence: the equations, the forward, the backward.

Times are in the order in which the steps are taken: a reverse direction turns its input round first and its output
last, each row by itself, so that its first step is the row's own last. What ``lengths`` and ``reset`` mean is said at
`RecurrentArguments`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...formula import Recurrence
from ..checks import check_recurrent, check_recurrent_gradients
from ..dispatch import below_autocast, kernel
from ..protocol import RecurrentArguments
from ..schedule import NOTHING, Between, Schedule, schedule, sequence_of, turned, walk
from ._cases import BatchMoments, Cases, Moments
from ._gru import GRU
from ._gru_all import GRUOverAll
from ._lstm import LSTM
from ._rnn import RNN, Network, State
from ._sites import Parameters

NETWORKS: dict[str, type[Network]] = {"RNN": RNN, "LSTM": LSTM, "GRU": GRU}


def network_of(p: Parameters, recurrence: Recurrence, cases: Cases | None = None) -> Network:
    """The layer's equations with its parameters."""
    if recurrence.norm == "batch" and cases is None:
        raise RuntimeError("batch norm keeps statistics between calls, which no op does")
    over_all = recurrence.network == "GRU" and len(recurrence.spans) == 1
    return (GRUOverAll if over_all else NETWORKS[recurrence.network])(p, recurrence, cases)


def named(params: Sequence[Tensor], recurrence: Recurrence, dtype: torch.dtype) -> Parameters:
    """The parameters by name, in float32 or wider."""
    wide = torch.promote_types(dtype, torch.float32)
    return {name: p.to(wide) for name, p in zip(recurrence.parameter_names, params, strict=True)}


def in_order(a: RecurrentArguments) -> tuple[Tensor, Schedule]:
    """The input in the order of the steps, without what padding holds, in float32 or wider; and that order."""
    plan = schedule(a.input.shape[0], a.lengths, a.reset, a.reverse)
    x = turned(a.input.to(torch.promote_types(a.input.dtype, torch.float32)), a.lengths, a.reverse)
    return (x if plan.active is None else torch.where(plan.active, x, 0.0)), plan


def _run(
    a: RecurrentArguments, cases: Cases | None = None, between: Between = NOTHING
) -> tuple[Tensor, list[State], Schedule]:
    """The output [T, B, P], and all T + 1 states, the initial one first, in the order of the steps, and that order."""
    T = a.input.shape[0]
    x, plan = in_order(a)
    network = network_of(named(a.params, a.recurrence, x.dtype), a.recurrence, cases)
    from_input = network.input_side(x).unbind()  # the gradient of `[t]` would be as long as all steps, at each of them
    initial = tuple(s.to(x.dtype) for s in a.state)
    states = walk(lambda t, old: network.step(t, from_input[t], old, between.read(old[0])), initial, T, plan, between)
    return sequence_of(states, plan, a.lengths, a.reverse).to(a.input.dtype), states, plan


def _zero_where(cut: Tensor | None, t: int, state: State) -> State:
    return state if cut is None else tuple(torch.where(cut[t], 0.0, s) for s in state)


@below_autocast
def recurrent_equations(a: RecurrentArguments) -> list[Tensor]:
    """[output (T, B, P), *final state], differentiable to any order."""
    return equations_between(a, NOTHING)


@below_autocast
def equations_between(a: RecurrentArguments, between: Between, cases: Cases | None = None) -> list[Tensor]:
    """Computes `recurrent_equations` with what happens between steps."""
    output, states, _ = _run(a, cases, between)
    return [output, *(s.to(a.input.dtype) for s in states[-1])]


@below_autocast
def step_equations(a: RecurrentArguments, read: Tensor) -> list[Tensor]:
    """The state after one step, T = 1, whose W_hh reads ``read`` (B, P) instead of h; differentiable to any order."""
    p = named(a.params, a.recurrence, a.input.dtype)
    network, wide = network_of(p, a.recurrence), p["weight_ih"].dtype
    state = tuple(s.to(wide) for s in a.state)
    return [s.to(a.input.dtype) for s in network.step(0, network.input_side(a.input[0].to(wide)), state, read.to(wide))]


@below_autocast
def recurrent_over_cases(
    a: RecurrentArguments, population: Mapping[str, Moments] | None, count_padding: bool, between: Between = NOTHING
) -> tuple[list[Tensor], BatchMoments | None]:
    """`equations_between` under batch norm, and what the batch tells about the population.

    ``population``: for each gain the mean and variance (T, n) to normalise by; ``None``: the batch's own.
    ``count_padding``: whether the batch's own are over all rows, where a row that has ended has the input 0 and stands
    still in its final state, or over those that take the step.

    Raises:
        ValueError: fewer than two cases to take statistics over.
    """
    check_recurrent(a)
    T, B = a.input.shape[:2]
    if population is None and T:
        _check_cases(B if count_padding or a.lengths is None else (a.lengths > 0).sum())
    counted = schedule(T, a.lengths, None, a.reverse).active
    if counted is not None and count_padding:  # beyond the longest row there is no step
        counted = counted.any(1, keepdim=True).expand_as(counted)
    cases = Cases(a.recurrence, counted, (T, B), population)
    return equations_between(a, between, cases), cases.batch_moments() if population is None else None


def _check_cases(counted: int | Tensor) -> None:
    """Checks that there are two training cases or more; in a compiled graph when it runs."""
    expected = "expected two training cases or more under batch norm when training"
    if isinstance(counted, Tensor) and torch.compiler.is_compiling():
        torch._assert_async(counted >= 2, expected)
    elif int(counted) < 2:
        raise ValueError(f"{expected}, got {int(counted)}")


@kernel
def recurrent_forward(a: RecurrentArguments, save: bool) -> list[Tensor]:
    """[output (T, B, P), *final state], and with ``save`` the state before each step, for `recurrent_backward`."""
    check_recurrent(a)
    output, states, _ = _run(a)
    final = [s.to(a.input.dtype, copy=True) for s in states[-1]]
    if not save:
        return [output, *final]
    before = zip(*states[:-1], strict=True) if len(states) > 1 else [()] * len(final)
    empty = [s.new_zeros(0, *s.shape) for s in states[0]]
    return [output, *final, *(torch.stack(b) if b else e for b, e in zip(before, empty, strict=True))]


def recurrent_saved(a: RecurrentArguments) -> list[Tensor]:
    """Empty tensors with the shapes and types of what `recurrent_forward` saves."""
    dtype = torch.promote_types(a.input.dtype, torch.float32)
    return [s.new_empty(a.input.shape[0], *s.shape, dtype=dtype) for s in a.state]


@kernel
def recurrent_backward(
    a: RecurrentArguments, saved: Sequence[Tensor], grad_output: Tensor | None, grad_state: Sequence[Tensor | None]
) -> list[Tensor]:
    """[d input, *d initial state, *d params], by hand: the state's gradient step by step, everything else at once.

    A gradient that is ``None`` is zero.
    """
    check_recurrent(a)
    check_recurrent_gradients(a, saved, recurrent_saved(a), grad_output, grad_state)
    grad_output = saved[0].new_zeros(saved[0].shape) if grad_output is None else grad_output
    final = [torch.zeros_like(s) if g is None else g for s, g in zip(a.state, grad_state, strict=True)]
    T = a.input.shape[0]
    x, plan = in_order(a)
    p = named(a.params, a.recurrence, x.dtype)
    network = network_of(p, a.recurrence)
    before = tuple(saved if plan.cut is None else (torch.where(plan.cut, 0.0, s) for s in saved))
    activations = network.activations(x, before)
    dy = turned(grad_output, a.lengths, a.reverse).to(x.dtype)
    d: State = tuple(g.to(x.dtype) for g in final)
    steps: list[tuple[Tensor, ...]] = []
    for t in reversed(range(T)):
        after = (d[0] + dy[t], *d[1:])
        if plan.active is not None:
            after = tuple(torch.where(plan.active[t], s, 0.0) for s in after)
        previous, kept = network.step_backward(t, after, before, activations)
        steps.append(kept)
        previous = _zero_where(plan.cut, t, previous)
        if plan.active is not None:
            previous = tuple(torch.where(plan.active[t], new, old) for new, old in zip(previous, d, strict=True))
        d = previous
    if not steps:
        return [torch.zeros_like(a.input), *(g.clone() for g in final), *(torch.zeros_like(q) for q in a.params)]
    all_steps = tuple(torch.stack(k[::-1]) for k in zip(*steps, strict=True))
    dzx = network.input_backward(activations, all_steps)
    grads = network.gradients(x, before, activations, all_steps, dzx)
    dx = dzx @ p["weight_ih"]
    dx = dx if plan.active is None else torch.where(plan.active, dx, 0.0)
    found = [turned(dx, a.lengths, a.reverse), *d, *(grads[name] for name in a.recurrence.parameter_names)]
    return [g.to(t.dtype) for g, t in zip(found, a.differentiable, strict=True)]
