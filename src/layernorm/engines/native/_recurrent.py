"""One layer in one direction over a whole sequence, in one call of the library."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from ...formula import GATES, Recurrence
from ..protocol import RecurrentArguments, RecurrentKind, Run, vector_gradients
from ._layout import (
    check_saved,
    computed,
    handed,
    ready,
    ready_or_none,
    saved_sizes,
    shares_vectors,
    vector_places,
)
from ._recurrent_plan import Signature, backward_plan, forward_plan, present_terms


def recurrent_forward(a: RecurrentArguments, save: bool) -> list[Tensor]:
    """[output (T, B, P), *final state], and with ``save`` what `recurrent_backward` needs, in one block."""
    found = _forward(a, save)
    if found is None:
        found, n = _forward(_in_order(a), save), 1 + len(a.state)
        assert found is not None
        found[:n] = [r.to(a.input.dtype) for r in found[:n]]
    return found


def recurrent_forward_plan(kind: RecurrentKind, save: bool) -> Run | None:
    """`recurrent_forward` of tensors that lie as the kernels want them. No plan: numbers have to be converted."""
    signature = _of_kind(kind)
    if signature is None:
        return None
    plan, r = forward_plan(signature, save), signature.recurrence

    def run(*tensors: Tensor) -> Sequence[Tensor] | None:
        given = _added_up(tensors, kind, r)
        return None if given is None else plan.run(*given)

    return run


def recurrent_backward_plan(kind: RecurrentKind, arriving: tuple[bool, ...]) -> Run | None:
    """`recurrent_backward`, likewise."""
    signature = _of_kind(kind)
    if signature is None:
        return None
    plan, r = backward_plan(signature, arriving), signature.recurrence
    n = 1 + kind.states + kind.params

    def run(*tensors: Tensor) -> Sequence[Tensor] | None:
        given = _added_up(tensors[:n], kind, r)
        results = None if given is None else plan.run(*given, *tensors[n:])
        return None if results is None else _gradients(results, 1 + kind.states, n, r)

    return run


def _of_kind(kind: RecurrentKind) -> Signature | None:
    """None: the tensors do not fit each other, or do not lie as the kernels want them."""
    r, dims = Recurrence.decode(kind.recurrence), (len(kind.shape), len(kind.weight_hh))
    counts = (len(r.state_names), len(r.parameter_names))
    if dims != (3, 2) or counts != (kind.states, kind.params) or kind.dtype is not computed(kind.dtype):
        return None
    (T, B, I), P, H = kind.shape, kind.weight_hh[1], kind.weight_hh[0] // GATES[r.network]  # noqa: E741
    if H < 1 or P < 1 or (P != H and not r.projected) or (kind.strides[2] != 1 and I > 1):
        return None
    return Signature(r, (T, B, I, H, P), kind.strides, kind.dtype, kind.reverse, False, False, kind.threads)


def _added_up(tensors: Sequence[Tensor], kind: RecurrentKind, recurrence: Recurrence) -> list[Tensor] | None:
    """Input, state and the weights and vectors that the parameters make. None: parameters that make one vector differ,
    though their sum may fit."""
    first = 1 + kind.states
    given, params = list(tensors[:first]), tensors[first:]
    for term, *more in present_terms(recurrence):
        total = params[term]
        for k in more:
            if _KIND(params[k]) != _KIND(total):
                return None
            total = total + params[k]
        given.append(total)
    return given


_KIND = operator.attrgetter("shape", "dtype", "device")


def recurrent_saved(a: RecurrentArguments) -> list[Tensor]:
    """Empty tensors with the shapes and types of what `recurrent_forward` saves."""
    T, B, _, H, P = a.sizes
    # In a graph with symbolic sizes this is a constant.
    size = sum(saved_sizes(a.recurrence, int(H), int(P), a.input.dtype))
    return [a.input.new_empty(T * B * size, dtype=computed(a.input.dtype))]


def recurrent_backward(
    a: RecurrentArguments, saved: Sequence[Tensor], grad_output: Tensor | None, grad_state: Sequence[Tensor | None]
) -> list[Tensor]:
    """[d input, *d initial state, *d params]; a gradient that is ``None`` is zero."""
    dtype, wide = a.input.dtype, computed(a.input.dtype)
    grads = [ready_or_none(g, handed(dtype)) for g in (grad_output, *grad_state)]
    found = _backward(a, saved, grads)
    if found is None:
        T, B, _, H, P = a.sizes
        for block in saved:
            check_saved(block, T * B * sum(saved_sizes(a.recurrence, H, P, dtype)), wide)
        found = _backward(_in_order(a), saved, grads)
        assert found is not None
    if wide is dtype:
        return found
    return [d.to(dtype) for d in found]


def _in_order(a: RecurrentArguments) -> RecurrentArguments:
    """The same numbers, in the type that is handed over, and each tensor in order in memory."""
    dtype = handed(a.input.dtype)
    return a._replace(
        input=ready(a.input, dtype),
        state=[ready(s, dtype) for s in a.state],
        params=[ready(p, dtype) for p in a.params],
        lengths=ready_or_none(a.lengths, torch.int64),
        reset=ready_or_none(a.reset, torch.bool),
    )


def _tensors(a: RecurrentArguments) -> list[Tensor]:
    """What is given to a plan."""
    tensors, params, wide = [a.input, *a.state], a.params, computed(a.input.dtype)
    if wide is not a.input.dtype:
        params = [p.to(wide) if p.dim() == 1 else p for p in params]  # the kernels take vectors in it
    for first, *more in present_terms(a.recurrence):
        total = params[first]
        for k in more:
            total = total + params[k]
        tensors.append(total)
    return tensors + [mask for mask in (a.lengths, a.reset) if mask is not None]


def _of_call(a: RecurrentArguments) -> Signature | None:
    """None: the kernels do not take this input as it is."""
    x = a.input
    if x.dtype is not handed(x.dtype) or not (x.stride(2) == 1 or x.shape[2] <= 1 or not x.numel()):
        return None
    masks = (a.lengths is not None, a.reset is not None)
    return Signature(a.recurrence, a.sizes, x.stride(), x.dtype, a.reverse, *masks, torch.get_num_threads())


def _forward(a: RecurrentArguments, save: bool) -> list[Tensor] | None:
    """`recurrent_forward` of tensors that lie as the kernels want them; None: they do not."""
    signature = _of_call(a)
    if signature is None:
        return None
    results = forward_plan(signature, save).run(*_tensors(a))
    return None if results is None else list(results)


def _backward(a: RecurrentArguments, saved: Sequence[Tensor], grads: Sequence[Tensor | None]) -> list[Tensor] | None:
    """`recurrent_backward` of tensors that lie as the kernels want them; None: they do not. The vectors' gradients are
    in the type that is computed in."""
    signature = _of_call(a)
    if signature is None:
        return None
    plan = backward_plan(signature, tuple([g is not None for g in grads]))
    results = plan.run(*_tensors(a), *saved, *[g for g in grads if g is not None])
    return None if results is None else _gradients(results, 1 + len(a.state), len(a.differentiable), a.recurrence)


def _gradients(results: Sequence[Tensor], first: int, end: int, recurrence: Recurrence) -> list[Tensor]:
    """Of input, state and parameters, those of the parameters from ``first`` to ``end``; the vectors' gradients that
    `own_places` put behind them are added up."""
    if not shares_vectors(recurrence):
        return list(results)
    d_params = list(results[first:end])
    vector_gradients(vector_places(d_params, results[end:], recurrence), d_params, recurrence)
    return [*results[:first], *d_params]
