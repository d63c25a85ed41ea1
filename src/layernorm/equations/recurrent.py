"""One layer of a recurrent network in one direction over a whole sequence: the equations, the forward, the backward.

Times are in the order in which the steps are taken: a reverse direction turns its input round first and its output
last, each row by itself, so that its first step is the row's own last. What ``lengths`` and ``reset`` mean is said at
`RecurrentArguments`, what else happens between steps at `StateChanges`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..formula import QUANTIZED, Recurrence
from .arguments import NO_CHANGES, RecurrentArguments, StateChanges
from .batch_norm import BatchNorm
from .checks import NO_STEPS, check_recurrent, check_recurrent_gradients
from .dispatch import below_autocast, kernel
from .gru import GRU
from .gru_all import GRUOverAll
from .lstm import LSTM
from .network import Factors, Network
from .rnn import RNN
from .schedule import (
    Schedule,
    State,
    Steps,
    in_lines,
    make_schedule,
    output_of,
    reorder_steps,
    shares_of_lines,
    walk,
)
from .sites import Parameters

EVERY_ROW = Schedule(None, None)
"""Every row takes every step."""

NETWORKS: dict[str, type[Network]] = {"RNN": RNN, "LSTM": LSTM, "GRU": GRU}


def network_of(p: Parameters, recurrence: Recurrence, batch_norm: BatchNorm | None = None) -> Network:
    """Makes the layer's equations with its parameters; under batch norm with the moments of a call."""
    if recurrence.norm == "batch" and batch_norm is None:
        raise RuntimeError(NO_STEPS)
    over_all = recurrence.network == "GRU" and len(recurrence.spans) == 1
    return (GRUOverAll if over_all else NETWORKS[recurrence.network])(p, recurrence, batch_norm)


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
    schedule = make_schedule(a)
    x = in_lines(reorder_steps(a.input.to(torch.promote_types(a.input.dtype, torch.float32)), a), a)
    return (x if schedule.active is None else torch.where(schedule.active, x, 0.0)), schedule


Multiply = Callable[[Tensor, Tensor], Tensor]
"""Multiplies two tensors of the type computed in, as `torch.matmul`: what an engine can give to the driver for the
products over all steps."""

TakeSteps = Callable[[Network, Tensor, State, Schedule, StateChanges, bool], Steps]
"""Takes all steps of a call: what an engine can give to the driver, as `forward_steps`. There is a line at least.

It is given the network, W_ih x of all lines, (T, B, G*H) or of a packed call (1, lines, G*H), the initial state, and
whether the states before each step are saved, of which those after a cut may be the restart's. ``network.input_side``
makes of W_ih x what does not wait for a state, ``schedule.split`` the steps of it. `walk` does all that happens between
steps, but for the dropout of the h that W_hh reads, which a step applies. Parameters may require grad.
"""


def forward_steps(
    network: Network, zx: Tensor, state: State, schedule: Schedule, changes: StateChanges, save: bool
) -> Steps:
    """Takes the steps one after the other (`TakeSteps`)."""
    # Not `[t]` in each step: its backward makes a zero tensor of the whole sequence's size every time.
    from_input = schedule.split(network.input_side(zx))

    def step(t: int, old: State, changes: StateChanges) -> State:
        h = as_multiplied(changes.apply_dropout(old[0]), network.recurrence)
        return network.step(t, from_input[t], h @ network.p["weight_hh"].T, old)

    return walk(step, state, len(from_input), schedule, changes).joined(schedule, save)


def _drive(
    a: RecurrentArguments, save: bool, take_steps: TakeSteps, multiply: Multiply
) -> tuple[Tensor, Steps, list[Tensor]]:
    """Returns the output, as long as the input, the steps, and the moments that batch norm has found."""
    x, schedule = scheduled_input(a)
    p = parameters_by_name(a.params, a.recurrence, x.dtype)
    batch_norm = BatchNorm(a, schedule) if a.recurrence.norm == "batch" else None
    network = network_of(p, a.recurrence, batch_norm)
    zx = multiply(as_multiplied(x, a.recurrence), p["weight_ih"].T)
    state = tuple(s.to(x.dtype) for s in a.state)
    steps = take_steps(network, zx, state, schedule, shares_of_lines(a), save)
    output = output_of(steps.after, schedule, a).to(a.input.dtype)
    return output, steps, [] if batch_norm is None else batch_norm.moments_found(a)


@below_autocast
def recurrent_equations(a: RecurrentArguments) -> list[Tensor]:
    """Returns [output (T, B, P) or (lines, P), *final state], differentiable to any order, and the moments that batch
    norm has found, mean and variance (T, n) of each gain."""
    output, steps, moments = _drive(a, False, forward_steps, torch.matmul)
    return [output, *(s.to(a.input.dtype) for s in steps.final), *moments]


@kernel
def recurrent_forward(
    a: RecurrentArguments, save: bool, take_steps: TakeSteps = forward_steps, multiply: Multiply = torch.matmul
) -> list[Tensor]:
    """Returns [output, *final state, *moments found], and with ``save`` the state before each step, as many as the
    input's."""
    check_recurrent(a)
    output, steps, moments = _drive(a, save, take_steps if math.prod(a.lines) else forward_steps, multiply)
    results = [output, *(s.to(a.input.dtype, copy=True) for s in steps.final), *moments]
    return [*results, *(s if a.batch_sizes is None else s[0] for s in steps.before)] if save else results


def recurrent_saved(a: RecurrentArguments) -> list[Tensor]:
    """Returns empty tensors with the shapes and types of what `recurrent_forward` saves."""
    dtype = torch.promote_types(a.input.dtype, torch.float32)
    return [s.new_empty(*a.lines, s.shape[-1], dtype=dtype) for s in a.state]


class Contribution(NamedTuple):
    """What some steps contribute to the gradients of the input, of the parameters and of the state of restarts."""

    dzx: Tensor  # of all lines, G*H numbers each: the gradient of W_ih x
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
    ended_count: bool = False,
) -> tuple[State, Contribution]:
    """Takes steps back, by hand, from the gradients of their output, of all lines, and of the final state.

    ``before`` has the states that the steps start from. With ``ended_count`` rows that have ended count in batch norm's
    moments: so their state has a gradient from each step. Returns the gradient of the state before the first step.
    """
    activations = network.activations(zx, zh, before)
    steps: list[tuple[Tensor, ...]] = []
    restart = tuple(torch.zeros_like(s) for s in d[: len(changes.restart)])
    final, all_rows = d, changes
    if schedule.sizes is not None:
        d = tuple(part[: schedule.sizes[-1]] for part in final)
    for t, index in reversed(list(enumerate(schedule.indices(len(dy))))):
        if schedule.sizes is not None:
            d, changes = schedule.with_ended(d, final, t), all_rows.of_rows(schedule.sizes[t])
        after = (d[0] + dy[index], *d[1:])
        if schedule.active is not None:
            after = tuple(torch.where(schedule.active[index], s, 0.0) for s in after)
        shares = changes.shares(index) or [None] * len(after)
        new = tuple(s if k is None else (1 - k) * s for k, s in zip(shares, after, strict=True))
        dzh, direct, intermediates = network.step_backward(index, new, before, activations)
        steps.append(intermediates)
        through = (changes.apply_dropout(dzh @ network.p["weight_hh"]), *[None] * (len(d) - 1))
        kept = (None if k is None else k * s for k, s in zip(shares, after, strict=True))
        previous = tuple(_sum(*terms) for terms in zip(through, direct, kept, strict=True))
        if restart and schedule.cut is not None:
            met = (torch.where(schedule.cut[index], s, 0.0) for s in previous)
            restart = tuple(_add_to_first_rows(r, s) for r, s in zip(restart, met, strict=True))
        if schedule.cut is not None:
            previous = tuple(torch.where(schedule.cut[index], 0.0, s) for s in previous)
        if schedule.active is not None:
            active = schedule.active[index]
            pairs = zip(previous, d, strict=True)
            previous = tuple(torch.where(active, new, new + old if ended_count else old) for new, old in pairs)
        d = previous
    all_steps = tuple(schedule.join(k[::-1]) for k in zip(*steps, strict=True))
    dzx = network.input_backward(activations, all_steps)
    vectors = network.vector_gradients(activations, all_steps, dzx)
    factors = network.factors(schedule.apply_dropout(all_rows, before[0]), activations, all_steps)
    return d, Contribution(dzx, factors, vectors, restart)


def _add_to_first_rows(all_rows: Tensor, rows: Tensor) -> Tensor:
    n = len(rows)
    return all_rows + rows if n == len(all_rows) else torch.cat([all_rows[:n] + rows, all_rows[n:]])


def _sum(*terms: Tensor | None) -> Tensor:
    """Adds those that are not None."""
    first, *others = [term for term in terms if term is not None]
    return sum(others, first)


TakeStepsBack = Callable[..., tuple[State, Contribution]]
"""Takes all steps of a call back, as `backward_steps`; ``ended_count`` is given only under batch norm."""


@kernel
def recurrent_backward(
    a: RecurrentArguments,
    saved: Sequence[Tensor],
    grad_output: Tensor | None,
    grad_state: Sequence[Tensor | None],
    take_steps_back: TakeStepsBack = backward_steps,
    multiply: Multiply = torch.matmul,
) -> list[Tensor]:
    """Returns [d input, *d initial state, *d params, *d restart], by hand: only the state's gradient goes step by step.

    ``saved``: the moments that the forward has found, and what it has saved. A gradient that is ``None`` is zero.
    """
    check_recurrent(a)
    check_recurrent_gradients(a, saved, recurrent_saved(a), grad_output, grad_state)
    if not len(saved[0]):
        final = [torch.zeros_like(s) if g is None else g.clone() for s, g in zip(a.state, grad_state, strict=True)]
        return [torch.zeros_like(a.input), *final, *map(torch.zeros_like, a.differentiable[1 + len(final) :])]
    x, schedule = scheduled_input(a)
    p = parameters_by_name(a.params, a.recurrence, x.dtype)
    changes = shares_of_lines(a)
    moments = saved[: len(saved) - len(a.state)]
    before = starting_states([in_lines(s, a) for s in saved[len(moments) :]], schedule, changes)
    zx = multiply(x, p["weight_ih"].T)
    zh = multiply(schedule.apply_dropout(changes, before[0]), p["weight_hh"].T)
    batch_norm = BatchNorm(a, schedule, moments) if a.recurrence.norm == "batch" else None
    network = network_of(p, a.recurrence, batch_norm)
    grads = result_gradients(a, grad_output, grad_state)
    more = (True,) if a.finds_moments and a.count_padding else ()
    take_back = take_steps_back if math.prod(a.lines) else backward_steps
    d, contribution = take_back(network, zx, zh, before, *grads, schedule, changes, *more)
    return argument_gradients(a, x, schedule, p["weight_ih"], d, contribution, multiply)


def starting_states(before: Sequence[Tensor], schedule: Schedule, changes: StateChanges = NO_CHANGES) -> State:
    """Returns the states that the steps start from, of all lines: those before each step, after a cut the restart."""
    if schedule.cut is None:
        return tuple(before)
    restart = changes.restart or [before[0].new_zeros(())] * len(before)
    if schedule.sizes is not None and changes.restart:
        restart = [torch.cat([r[:n] for n in schedule.sizes]) for r in restart]
    return tuple(torch.where(schedule.cut, r.to(s.dtype), s) for r, s in zip(restart, before, strict=True))


def result_gradients(
    a: RecurrentArguments, grad_output: Tensor | None, grad_state: Sequence[Tensor | None]
) -> tuple[Tensor, State]:
    """Returns the gradients of output and final state in float32 or wider, the output's in the order of the steps."""
    compute_type = torch.promote_types(a.input.dtype, torch.float32)
    dy = a.input.new_zeros(*a.lines, a.sizes[4]) if grad_output is None else reorder_steps(grad_output, a)
    d = (torch.zeros_like(s) if g is None else g for s, g in zip(a.state, grad_state, strict=True))
    return in_lines(dy, a).to(compute_type), tuple(g.to(compute_type) for g in d)


def argument_gradients(
    a: RecurrentArguments, x: Tensor, schedule: Schedule, weight_ih: Tensor, d: State, of_steps: Contribution,
    multiply: Multiply,
) -> list[Tensor]:  # fmt: skip
    """Returns the gradients of ``a.differentiable``, from that of the initial state and what the steps contribute."""
    dx = multiply(of_steps.dzx.flatten(0, -2), weight_ih).view(a.input.shape)
    dx = dx if schedule.active is None else torch.where(schedule.active, dx, 0.0)
    d_params = parameter_gradients(x, of_steps, multiply)
    grads = [reorder_steps(dx, a), *d, *(d_params[name] for name in a.recurrence.parameter_names), *of_steps.restart]
    return [g.to(t.dtype) for g, t in zip(grads, a.differentiable, strict=True)]


def joined(parts: Sequence[Contribution]) -> Contribution:
    """Puts together what several runs of steps contribute, in their order."""
    if len(parts) == 1:
        return parts[0]
    dzx = torch.cat([part.dzx.flatten(0, -2) for part in parts])
    factors = {}
    for name in parts[0].factors:
        d, z = zip(*([factor.flatten(0, -2) for factor in part.factors[name]] for part in parts), strict=True)
        factors[name] = torch.cat(d), torch.cat(z)
    vectors = {name: torch.stack([part.vectors[name] for part in parts]).sum(0) for name in parts[0].vectors}
    restart = tuple(torch.stack(rows).sum(0) for rows in zip(*(part.restart for part in parts), strict=True))
    return Contribution(dzx, factors, vectors, restart)


def parameter_gradients(x: Tensor, of_steps: Contribution, multiply: Multiply = torch.matmul) -> Parameters:
    """Computes the gradients of the parameters by name; those of the weights are single products over all steps."""
    factors = {"weight_ih": (of_steps.dzx, x)} | of_steps.factors
    weights = {name: multiply(d.flatten(0, -2).T, z.flatten(0, -2)) for name, (d, z) in factors.items()}
    return weights | of_steps.vectors
