"""One layer in one direction over a whole sequence, in one planned call of the library."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...equations.arguments import NO_CHANGES, RecurrentArguments, StateChanges
from ...equations.checks import check_recurrent, check_recurrent_gradients, parameter_types
from ...equations.schedule import make_schedule, reorder_steps
from ._layout import compute_type, transfer_type
from ._memory import contiguous, contiguous_or_none
from ._plan import Plan
from ._recurrent_plan import (
    add_vector_gradients,
    backward_plan,
    between,
    forward_plan,
    moments_of,
    saved_block,
    shares_vectors,
)


def recurrent_forward(a: RecurrentArguments, save: bool) -> Sequence[Tensor]:
    """Returns [output, *final state, *moments found], and with ``save`` what the backward needs, in one block."""
    # The C++ side checks shapes and types, but not the values of lengths, nor that batch norm has two rows.
    if a.lengths is not None or a.finds_moments:
        check_recurrent(a)
    if a.recurrence.norm == "batch" and a.reverse:
        output, *results = recurrent_forward(_in_order_of_steps(a), save)
        return [reorder_steps(output, a), *results]
    planned = _run_plan(forward_plan, save, a, a.population)
    return _run_in_order(a, save) if planned is None else planned


def _run_in_order(a: RecurrentArguments, save: bool) -> Sequence[Tensor]:
    """Runs the forward on tensors that a plan did not take."""
    check_recurrent(a)
    a, dtype, n = _contiguous(a), a.input.dtype, 1 + len(a.state)
    results = _run_plan(forward_plan, save, a, a.population)
    assert results is not None
    return [*(r.to(dtype) for r in results[:n]), *results[n:]]


def _in_order_of_steps(a: RecurrentArguments) -> RecurrentArguments:
    """Turns a call in the reverse direction round: under batch norm the kernels count each row's steps as they are
    taken."""
    cut = make_schedule(a).cut
    return a._replace(input=reorder_steps(a.input, a), reset=None if cut is None else cut.view(a.lines), reverse=False)


def recurrent_saved(a: RecurrentArguments) -> list[Tensor]:
    """Returns empty tensors with the shapes and types of what `recurrent_forward` saves."""
    _, _, _, H, P = a.sizes
    keeps_c = any(k is not None for k in a.changes.kept[1:])
    # In a graph with symbolic sizes these are constants.
    _, size = saved_block(a.recurrence, int(H), int(P), a.input.dtype, keeps_c, moments_of(a))
    return [a.input.new_empty(math.prod(a.lines) * size, dtype=compute_type(a.input.dtype))]


def recurrent_backward(
    a: RecurrentArguments, saved: Sequence[Tensor], grad_output: Tensor | None, grad_state: Sequence[Tensor | None]
) -> Sequence[Tensor]:
    """Returns [d input, *d initial state, *d params, *d restart]; a gradient that is ``None`` is zero."""
    if a.lengths is not None:
        check_recurrent(a)
    if a.recurrence.norm == "batch" and a.reverse:
        grad = None if grad_output is None else reorder_steps(grad_output, a)
        d_input, *others = recurrent_backward(_in_order_of_steps(a), saved, grad, grad_state)
        return [reorder_steps(d_input, a), *others]
    dtype = a.input.dtype
    # That of a sum is one number in memory for all elements.
    grads = [g if g is None or g.is_contiguous() else g.contiguous() for g in (grad_output, *grad_state)]
    results = _run_backward(a, saved, grads)
    if results is None:
        check_recurrent(a)
        check_recurrent_gradients(a, saved, recurrent_saved(a), grad_output, grad_state)
        saved = [contiguous(t, compute_type(dtype)) for t in saved]
        grads = [contiguous_or_none(g, transfer_type(dtype)) for g in grads]
        results = _run_backward(_contiguous(a), saved, grads)
        assert results is not None
    return results if dtype is compute_type(dtype) else [d.to(dtype) for d in results]


def _contiguous(a: RecurrentArguments) -> RecurrentArguments:
    """Returns the same numbers in contiguous tensors, in the type that the library takes."""
    dtype, changes = transfer_type(a.input.dtype), a.changes
    compute = compute_type(a.input.dtype)
    shares = changes.kept
    if len({k.numel() == 1 for k in shares if k is not None}) > 1:
        shares = [None if k is None else k.expand(*a.lines, s.shape[1]) for k, s in zip(shares, a.state, strict=True)]
    return a._replace(
        input=contiguous(a.input, dtype),
        state=[contiguous(s, dtype) for s in a.state],
        params=[contiguous(p, t) for p, t in zip(a.params, parameter_types(a.recurrence, dtype).values(), strict=True)],
        lengths=contiguous_or_none(a.lengths, torch.int64),
        batch_sizes=contiguous_or_none(a.batch_sizes, torch.int64),
        reset=contiguous_or_none(a.reset, torch.bool),
        changes=StateChanges(
            [contiguous(s, dtype) for s in changes.restart],
            contiguous_or_none(changes.dropout, compute),
            [contiguous_or_none(k, compute) for k in shares],
        ),
        population=[contiguous(m, compute) for m in a.population],
    )


def _run_plan(
    plan_of: Callable[..., Plan | None],
    variant: object,
    a: RecurrentArguments,
    extra: Sequence[Tensor],
) -> Sequence[Tensor] | None:
    """Runs a plan on tensors that lie as the kernels want them. None: they do not, or do not fit each other.

    ``variant`` is the first argument of ``plan_of``, ``extra`` are the tensors after those that both directions have.
    """
    recurrence, params, changes, lengths, batch_sizes = a.recurrence, a.params, a.changes, a.lengths, a.batch_sizes
    ends = "lengths" if lengths is not None else None if batch_sizes is None else "batch_sizes"
    kind = (variant, recurrence, a.reverse, len(a.state), len(params), ends, a.reset is not None)
    batch = recurrence.norm == "batch"
    plan = plan_of(*kind, between(changes), moments_of(a)) if batch or changes is not NO_CHANGES else plan_of(*kind)
    if plan is None:
        return None
    if a.input.dtype is torch.bfloat16:  # the kernels take vectors in float32
        scales = 2 if recurrence.quantized else 0  # the last ones, which are in float32
        if any(p.dtype is not torch.bfloat16 for p in params[: len(params) - scales] if p.dim() == 1):
            return None
        if any(p.dtype is not torch.float32 for p in params[len(params) - scales :]):
            return None
        params = [p.float() if p.dim() == 1 else p for p in params]
    given = [a.input, *a.state]
    for first, others in plan.terms:
        total = params[first]
        for k in others:
            if _SIGNATURE(params[k]) != _SIGNATURE(total):  # their sum might fit
                return None
            total = total + params[k]
        given.append(total)
    if lengths is not None:
        given.append(lengths)
    if batch_sizes is not None:
        given.append(batch_sizes)
    if a.reset is not None:
        given.append(a.reset)
    if changes is not NO_CHANGES:
        given += [t for t in (*changes.restart, changes.dropout, *changes.kept) if t is not None]
    given += extra
    return plan.run(given)


_SIGNATURE = operator.attrgetter("shape", "dtype", "device")


def _run_backward(
    a: RecurrentArguments, saved: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> Sequence[Tensor] | None:
    """Runs the plan of `recurrent_backward`, as `_run_plan`. Adds up the vectors' gradients, in the type computed
    in."""
    if len(saved) != (1 + 2 * len(a.recurrence.gain_names) if a.finds_moments else 1):
        return None
    extra = [*a.population, *saved, *[g for g in grads if g is not None]]
    results, r = _run_plan(backward_plan, tuple([g is not None for g in grads]), a, extra), a.recurrence
    if results is None or not shares_vectors(r):
        return results
    first = 1 + len(a.state)
    last, end = first + len(a.params), first + len(a.params) + len(a.changes.restart)
    d_params = list(results[first:last])
    add_vector_gradients(d_params, results[end:], r)
    return [*results[:first], *d_params, *results[last:end]]
