"""One layer of a recurrent network in one direction over a whole sequence: the equations, the forward, the backward.

Times are in the order in which the steps are taken: a reverse direction turns its input round first and its output
last, each row by itself, so that its first step is the row's own last. What ``lengths`` and ``reset`` mean is said at
`RecurrentArguments`, what else happens between steps at `StateChanges`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...formula import QUANTIZED, Recurrence
from ..checks import check_recurrent, check_recurrent_gradients
from ..dispatch import below_autocast, kernel
from ..protocol import NO_CHANGES, RecurrentArguments, StateChanges
from ..schedule import Schedule, make_schedule, reorder_steps, stack_output, walk
from ._cases import BatchMoments, Cases, Moments
from ._gru import GRU
from ._gru_all import GRUOverAll
from ._lstm import LSTM
from ._rnn import RNN, Factors, Network, State
from ._sites import Parameters

EVERY_ROW = Schedule(None, None)
"""Every row takes every step."""

NETWORKS: dict[str, type[Network]] = {"RNN": RNN, "LSTM": LSTM, "GRU": GRU}


def network_of(p: Parameters, recurrence: Recurrence, cases: Cases | None = None) -> Network:
    """Makes the layer's equations with its parameters."""
    if recurrence.norm == "batch" and cases is None:
        raise RuntimeError("batch norm keeps statistics between calls, which no op does")
    over_all = recurrence.network == "GRU" and len(recurrence.spans) == 1
    return (GRUOverAll if over_all else NETWORKS[recurrence.network])(p, recurrence, cases)


def parameters_by_name(params: Sequence[Tensor], recurrence: Recurrence, dtype: torch.dtype) -> Parameters:
    """Returns the parameters by name, in float32 or wider."""
    compute_type = torch.promote_types(dtype, torch.float32)
    p = {name: p.to(compute_type) for name, p in zip(recurrence.parameter_names, params, strict=True)}
    if recurrence.quantized:
        p |= {name: p[name] * p.pop(f"{name}_scale")[:, None] for name in QUANTIZED}
    return p


def as_multiplied(x: Tensor, recurrence: Recurrence) -> Tensor:
    """Returns vectors as the weights multiply them: rounded, if these are quantized, to the largest number / 127."""
    if not recurrence.quantized:
        return x
    scale = x.abs().amax(-1, keepdim=True) / 127
    inverse = torch.where(scale >= torch.finfo(x.dtype).tiny, 1 / scale, 0.0)
    return (x * inverse).round() * scale


def scheduled_input(a: RecurrentArguments) -> tuple[Tensor, Schedule]:
    """Returns the input in the order of the steps, without what padding holds, in float32 or wider; the schedule."""
    schedule = make_schedule(a.input.shape[0], a.lengths, a.reset, a.reverse)
    x = reorder_steps(a.input.to(torch.promote_types(a.input.dtype, torch.float32)), a.lengths, a.reverse)
    return (x if schedule.active is None else torch.where(schedule.active, x, 0.0)), schedule


def _run_equations(a: RecurrentArguments, cases: Cases | None = None) -> tuple[Tensor, list[State], Schedule]:
    """Returns the output [T, B, P], all T + 1 states in the order of the steps, the initial first, and the schedule."""
    x, schedule = scheduled_input(a)
    p = parameters_by_name(a.params, a.recurrence, x.dtype)
    network = network_of(p, a.recurrence, cases)
    x = as_multiplied(x, a.recurrence)
    from_input = network.input_side(x @ p["weight_ih"].T).unbind()  # `[t]` would have a gradient as long as all steps

    def step(t: int, old: State) -> State:
        h = as_multiplied(a.changes.apply_dropout(old[0]), a.recurrence)
        return network.step(t, from_input[t], h @ p["weight_hh"].T, old)

    states = walk(step, tuple(s.to(x.dtype) for s in a.state), len(x), schedule, a.changes)
    return stack_output(states, schedule, a.lengths, a.reverse).to(a.input.dtype), states, schedule


@below_autocast
def recurrent_equations(a: RecurrentArguments, cases: Cases | None = None) -> list[Tensor]:
    """Returns [output (T, B, P), *final state], differentiable to any order."""
    output, states, _ = _run_equations(a, cases)
    return [output, *(s.to(a.input.dtype) for s in states[-1])]


@below_autocast
def recurrent_over_cases(
    a: RecurrentArguments,
    population: Mapping[str, Moments] | None,
    count_padding: bool,
) -> tuple[list[Tensor], BatchMoments | None]:
    """Computes `recurrent_equations` under batch norm, and the batch's moments for the population.

    ``population``: for each gain the mean and variance (T, n) to normalise by; ``None``: the batch's own.
    ``count_padding``: whether the batch's own are over all rows, where a row that has ended has the input 0 and stands
    still in its final state, or over those that take the step.

    Raises:
        ValueError: fewer than two cases to take statistics over.
    """
    check_cases(a, population is None, count_padding)
    T, B = a.input.shape[:2]
    cases = Cases(a.recurrence, counted_rows(a, count_padding), (T, B), population)
    return recurrent_equations(a, cases), cases.batch_moments() if population is None else None


def counted_rows(a: RecurrentArguments, count_padding: bool) -> Tensor | None:
    """Returns which rows count in the moments at each step, (T, B, 1) bool; None: all."""
    counted = make_schedule(a.input.shape[0], a.lengths, None, a.reverse).active
    if counted is not None and count_padding:  # beyond the longest row there is no step
        counted = counted.any(1, keepdim=True).expand_as(counted)
    return counted


def check_cases(a: RecurrentArguments, training: bool, count_padding: bool) -> None:
    """Checks the arguments of a call under batch norm: `check_recurrent`, and in training that there are two training
    cases or more; in a compiled graph when it runs."""
    check_recurrent(a)
    T, B = a.input.shape[:2]
    if not training or not T:
        return
    counted: int | Tensor = B if count_padding or a.lengths is None else (a.lengths > 0).sum()
    expected = "expected two training cases or more under batch norm when training"
    if isinstance(counted, Tensor) and torch.compiler.is_compiling():
        torch._assert_async(counted >= 2, expected)
    elif int(counted) < 2:
        raise ValueError(f"{expected}, got {int(counted)}")


@kernel
def recurrent_forward(a: RecurrentArguments, save: bool) -> list[Tensor]:
    """Returns [output (T, B, P), *final state], and with ``save`` the state before each step."""
    check_recurrent(a)
    output, states, _ = _run_equations(a)
    final = [s.to(a.input.dtype, copy=True) for s in states[-1]]
    if not save:
        return [output, *final]
    before = zip(*states[:-1], strict=True) if len(states) > 1 else [()] * len(final)
    empty = [s.new_zeros(0, *s.shape) for s in states[0]]
    return [output, *final, *(torch.stack(b) if b else e for b, e in zip(before, empty, strict=True))]


def recurrent_saved(a: RecurrentArguments) -> list[Tensor]:
    """Returns empty tensors with the shapes and types of what `recurrent_forward` saves."""
    dtype = torch.promote_types(a.input.dtype, torch.float32)
    return [s.new_empty(a.input.shape[0], *s.shape, dtype=dtype) for s in a.state]


@kernel
def recurrent_backward(
    a: RecurrentArguments, saved: Sequence[Tensor], grad_output: Tensor | None, grad_state: Sequence[Tensor | None]
) -> list[Tensor]:
    """Returns [d input, *d initial state, *d params, *d restart], by hand: only the state's gradient goes step by step.

    A gradient that is ``None`` is zero.
    """
    check_recurrent(a)
    check_recurrent_gradients(a, saved, recurrent_saved(a), grad_output, grad_state)
    if not len(saved[0]):
        final = [torch.zeros_like(s) if g is None else g.clone() for s, g in zip(a.state, grad_state, strict=True)]
        return [torch.zeros_like(a.input), *final, *map(torch.zeros_like, a.differentiable[1 + len(final) :])]
    x, schedule = scheduled_input(a)
    p = parameters_by_name(a.params, a.recurrence, x.dtype)
    before = starting_states(saved, schedule, a.changes)
    zx, zh = x @ p["weight_ih"].T, a.changes.apply_dropout(before[0]) @ p["weight_hh"].T
    network = network_of(p, a.recurrence)
    grads = result_gradients(a, grad_output, grad_state)
    d, share = backward_steps(network, zx, zh, before, *grads, schedule, a.changes)
    return argument_gradients(a, x, schedule, p["weight_ih"], d, [share])


def starting_states(before: Sequence[Tensor], schedule: Schedule, changes: StateChanges = NO_CHANGES) -> State:
    """Returns the states that the steps start from, [T, B, size]: those before each step, after a cut the restart."""
    if schedule.cut is None:
        return tuple(before)
    restart = changes.restart or [before[0].new_zeros(())] * len(before)
    return tuple(torch.where(schedule.cut, r.to(s.dtype), s) for r, s in zip(restart, before, strict=True))


def result_gradients(
    a: RecurrentArguments, grad_output: Tensor | None, grad_state: Sequence[Tensor | None]
) -> tuple[Tensor, State]:
    """Returns the gradients of output and final state in float32 or wider, the output's in the order of the steps."""
    compute_type = torch.promote_types(a.input.dtype, torch.float32)
    T, B, _, _, P = a.sizes
    dy = a.input.new_zeros(T, B, P) if grad_output is None else reorder_steps(grad_output, a.lengths, a.reverse)
    d = (torch.zeros_like(s) if g is None else g for s, g in zip(a.state, grad_state, strict=True))
    return dy.to(compute_type), tuple(g.to(compute_type) for g in d)


def argument_gradients(
    a: RecurrentArguments, x: Tensor, schedule: Schedule, weight_ih: Tensor, d: State, shares: Sequence[Share]
) -> list[Tensor]:
    """Returns the gradients of ``a.differentiable``, from that of the initial state and all contributions."""
    dx = concatenate([share.dzx for share in shares]) @ weight_ih
    dx = dx if schedule.active is None else torch.where(schedule.active, dx, 0.0)
    d_params = parameter_gradients(x, shares)
    grads = [reorder_steps(dx, a.lengths, a.reverse), *d, *(d_params[name] for name in a.recurrence.parameter_names)]
    grads += [torch.stack(parts).sum(0) for parts in zip(*(share.restart for share in shares), strict=True)]
    return [g.to(t.dtype) for g, t in zip(grads, a.differentiable, strict=True)]


def forward_steps(
    network: Network,
    zx: Sequence[Tensor],
    state: State,
    schedule: Schedule = EVERY_ROW,
    changes: StateChanges = NO_CHANGES,
) -> tuple[list[State], list[Tensor]]:
    """Takes steps from W_ih x of each, [B, G*H]. Returns the state after each, and W_hh h of each, [B, G*H]."""
    zh: list[Tensor] = []

    def step(t: int, old: State) -> State:
        zh.append(changes.apply_dropout(old[0]) @ network.p["weight_hh"].T)
        return network.step(t, network.input_side(zx[t]), zh[t], old)

    return walk(step, state, len(zx), schedule, changes)[1:], zh


class Share(NamedTuple):
    """What some steps contribute to the gradients of the input, of the parameters and of the state of restarts."""

    dzx: Tensor  # [T, B, G*H], the gradient of W_ih x
    factors: Factors  # of the gradients of the other weights
    vectors: Parameters  # the gradients of gains and biases
    restart: State  # the gradient of the state that rows start from after a cut; empty: that is zeros


def backward_steps(
    network: Network,
    zx: Tensor,
    zh: Tensor,
    before: State,
    dy: Tensor,
    d: State,
    schedule: Schedule = EVERY_ROW,
    changes: StateChanges = NO_CHANGES,
) -> tuple[State, Share]:
    """Takes steps back, by hand, from the gradients of their output [T, B, P] and of the state after the last one.

    ``before`` has the states that the steps start from. Returns the gradient of the state before the first step.
    """
    activations = network.activations(zx, zh, before)
    steps: list[tuple[Tensor, ...]] = []
    restart = tuple(torch.zeros_like(s) for s in d[: len(changes.restart)])
    for t in reversed(range(len(dy))):
        after = (d[0] + dy[t], *d[1:])
        if schedule.active is not None:
            after = tuple(torch.where(schedule.active[t], s, 0.0) for s in after)
        shares = changes.shares(t) or [None] * len(after)
        new = tuple(s if k is None else (1 - k) * s for k, s in zip(shares, after, strict=True))
        dzh, direct, intermediates = network.step_backward(t, new, before, activations)
        steps.append(intermediates)
        through = (changes.apply_dropout(dzh @ network.p["weight_hh"]), *[None] * (len(d) - 1))
        kept = (None if k is None else k * s for k, s in zip(shares, after, strict=True))
        previous = tuple(_sum(*terms) for terms in zip(through, direct, kept, strict=True))
        if restart and schedule.cut is not None:
            restart = tuple(r + torch.where(schedule.cut[t], s, 0.0) for r, s in zip(restart, previous, strict=True))
        if schedule.cut is not None:
            previous = tuple(torch.where(schedule.cut[t], 0.0, s) for s in previous)
        if schedule.active is not None:
            previous = tuple(torch.where(schedule.active[t], new, old) for new, old in zip(previous, d, strict=True))
        d = previous
    all_steps = tuple(torch.stack(k[::-1]) for k in zip(*steps, strict=True))
    dzx = network.input_backward(activations, all_steps)
    vectors = network.vector_gradients(activations, all_steps, dzx)
    factors = network.factors(changes.apply_dropout(before[0]), activations, all_steps)
    return d, Share(dzx, factors, vectors, restart)


def _sum(*terms: Tensor | None) -> Tensor:
    """Adds those that are not None."""
    first, *others = [term for term in terms if term is not None]
    return sum(others, first)


def parameter_gradients(x: Tensor, shares: Sequence[Share]) -> Parameters:
    """Computes the gradients of the parameters by name; those of the weights are single products over all steps."""
    factors = {"weight_ih": (concatenate([share.dzx for share in shares]), x)}
    for name in shares[0].factors:
        d, z = zip(*(share.factors[name] for share in shares), strict=True)
        factors[name] = concatenate(d), concatenate(z)
    vectors = {name: concatenate([share.vectors[name][None] for share in shares]).sum(0) for name in shares[0].vectors}
    return {name: d.flatten(0, 1).T @ z.flatten(0, 1) for name, (d, z) in factors.items()} | vectors


def concatenate(parts: Sequence[Tensor]) -> Tensor:
    """Puts the parts one behind the other along the first dimension."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
