"""One layer in one direction over a whole sequence, in one planned call of the library."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...equations.arguments import NO_CHANGES, RecurrentArguments, StateChanges
from ...equations.checks import check_recurrent, check_recurrent_gradients, parameter_types
from ..protocol import vector_gradients
from ._layout import compute_type, transfer_type
from ._memory import contiguous, contiguous_or_none
from ._plan import Plan
from ._recurrent_plan import (
    GIVEN,
    MADE,
    MADE_WITH_ENDED,
    backward_plan,
    between,
    forward_plan,
    saved_block,
    shares_vectors,
    slot_gradients,
)


def recurrent_forward(a: RecurrentArguments, save: bool) -> Sequence[Tensor]:
    """Returns [output, *final state], and with ``save`` what `recurrent_backward` needs, in one block."""
    if a.lengths is not None:
        check_recurrent(a)  # a plan looks at no values
    results = _run_plan(forward_plan, save, a)
    return _run_in_order(a, save) if results is None else results


def cases_forward(
    a: RecurrentArguments, population: Sequence[Tensor] | None, count_padding: bool, save: bool
) -> Sequence[Tensor]:
    """Returns [output, *final state, *moments], and with ``save`` what `cases_backward` needs, in one block.

    The moments are mean and variance (T, n) of the first gain, of the second... ``population``: those to normalise by,
    and no results; ``None``: the rows' own. ``count_padding``: as of `recurrent_over_cases`. The arguments are checked
    already (`check_cases`), and not in the reverse direction, in which a step's number is not the input's.
    """
    assert not a.reverse
    moments, cases = population or (), _cases(a, population is not None, count_padding)
    results = _run_plan(forward_plan, save, a, moments, cases)
    return _run_in_order(a, save, moments, cases) if results is None else results


def _run_in_order(
    a: RecurrentArguments, save: bool, moments: Sequence[Tensor] = (), cases: int = 0
) -> Sequence[Tensor]:
    """Runs the forward on tensors that a plan did not take."""
    check_recurrent(a)
    given = [contiguous(m, compute_type(a.input.dtype)) for m in moments]
    results, n = _run_plan(forward_plan, save, _contiguous(a), given, cases), 1 + len(a.state)
    assert results is not None
    return [*(r.to(a.input.dtype) for r in results[:n]), *results[n:]]


def _cases(a: RecurrentArguments, given: bool, count_padding: bool) -> int:
    return GIVEN if given else MADE_WITH_ENDED if count_padding and a.lengths is not None else MADE


def recurrent_saved(a: RecurrentArguments) -> list[Tensor]:
    """Returns empty tensors with the shapes and types of what `recurrent_forward` saves."""
    return _saved(a)


def _saved(a: RecurrentArguments, cases: int = 0) -> list[Tensor]:
    """Returns `recurrent_saved`; under batch norm the moments come first."""
    T, _, _, H, P = a.sizes
    shapes = a.recurrence.parameter_shapes(a.input.shape[-1], H, P) if cases else {}
    of_places = [(T, *shapes[gain]) for gain in a.recurrence.gain_names for _ in ("mean", "var")] if cases else []
    moments = [a.input.new_empty(shape, dtype=compute_type(a.input.dtype)) for shape in of_places]
    keeps_c = any(k is not None for k in a.changes.kept[1:])
    # In a graph with symbolic sizes these are constants.
    _, size = saved_block(a.recurrence, int(H), int(P), a.input.dtype, keeps_c, cases)
    return [*moments, a.input.new_empty(math.prod(a.lines) * size, dtype=compute_type(a.input.dtype))]


def recurrent_backward(
    a: RecurrentArguments, saved: Sequence[Tensor], grad_output: Tensor | None, grad_state: Sequence[Tensor | None]
) -> Sequence[Tensor]:
    """Returns [d input, *d initial state, *d params, *d restart]; a gradient that is ``None`` is zero."""
    if a.lengths is not None:
        check_recurrent(a)
    return _backward(a, saved, grad_output, grad_state)


def cases_backward(
    a: RecurrentArguments,
    given: bool,
    count_padding: bool,
    saved: Sequence[Tensor],
    grad_output: Tensor | None,
    grad_state: Sequence[Tensor | None],
) -> Sequence[Tensor]:
    """Returns `recurrent_backward` under batch norm. ``saved``: the moments, and what the forward saved. ``given``:
    the moments are a population's, not the rows' own."""
    return _backward(a, saved, grad_output, grad_state, _cases(a, given, count_padding))


def _backward(
    a: RecurrentArguments,
    saved: Sequence[Tensor],
    grad_output: Tensor | None,
    grad_state: Sequence[Tensor | None],
    cases: int = 0,
) -> Sequence[Tensor]:
    dtype = a.input.dtype
    # That of a sum is one number in memory for all elements.
    grads = [g if g is None or g.is_contiguous() else g.contiguous() for g in (grad_output, *grad_state)]
    results = _run_backward(a, saved, grads, cases)
    if results is None:
        check_recurrent(a)
        check_recurrent_gradients(a, saved, _saved(a, cases), grad_output, grad_state)
        saved = [contiguous(t, compute_type(dtype)) for t in saved]
        grads = [contiguous_or_none(g, transfer_type(dtype)) for g in grads]
        results = _run_backward(_contiguous(a), saved, grads, cases)
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
    )


def _run_plan(
    plan_of: Callable[..., Plan | None],
    variant: object,
    a: RecurrentArguments,
    extra: Sequence[Tensor] = (),
    cases: int = 0,
) -> Sequence[Tensor] | None:
    """Runs a plan on tensors that lie as the kernels want them. None: they do not, or do not fit each other.

    ``variant`` is the first argument of ``plan_of``, ``extra`` are the tensors after those that both directions have.
    """
    x, state, params, lengths, reset, recurrence, reverse, changes, batch_sizes = a
    ends = "lengths" if lengths is not None else None if batch_sizes is None else "batch_sizes"
    kind = (variant, recurrence, reverse, len(state), len(params), ends, reset is not None)
    plan = plan_of(*kind) if changes is NO_CHANGES and not cases else plan_of(*kind, between(changes), cases)
    if plan is None:
        return None
    if x.dtype is torch.bfloat16:  # the kernels take vectors in float32
        scales = 2 if recurrence.quantized else 0  # the last ones, which are in float32
        if any(p.dtype is not torch.bfloat16 for p in params[: len(params) - scales] if p.dim() == 1):
            return None
        if any(p.dtype is not torch.float32 for p in params[len(params) - scales :]):
            return None
        params = [p.float() if p.dim() == 1 else p for p in params]
    given = [x, *state]
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
    if reset is not None:
        given.append(reset)
    if changes is not NO_CHANGES:
        given += [t for t in (*changes.restart, changes.dropout, *changes.kept) if t is not None]
    given += extra
    return plan.run(given)


_SIGNATURE = operator.attrgetter("shape", "dtype", "device")


def _run_backward(
    a: RecurrentArguments, saved: Sequence[Tensor], grads: Sequence[Tensor | None], cases: int
) -> Sequence[Tensor] | None:
    """Runs the plan of `recurrent_backward`, as `_run_plan`. Adds up the vectors' gradients, in the type computed
    in."""
    if len(saved) != (1 + 2 * len(a.recurrence.gain_names) if cases else 1):
        return None
    extra = [*saved, *[g for g in grads if g is not None]]
    results, r = _run_plan(backward_plan, tuple([g is not None for g in grads]), a, extra, cases), a.recurrence
    if results is None or not shares_vectors(r):
        return results
    first = 1 + len(a.state)
    last, end = first + len(a.params), first + len(a.params) + len(a.changes.restart)
    d_params = list(results[first:last])
    vector_gradients(slot_gradients(d_params, results[end:], r), d_params, r)
    return [*results[:first], *d_params, *results[last:end]]
