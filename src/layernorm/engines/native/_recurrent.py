"""One layer in one direction over a whole sequence, in one planned call of the library."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..checks import check_recurrent, check_recurrent_gradients
from ..protocol import RecurrentArguments, vector_gradients
from ._layout import computed, handed
from ._memory import ready, ready_or_none
from ._plan import Plan
from ._recurrent_plan import backward_plan, forward_plan, saved_block, shares_vectors, vector_places


def recurrent_forward(a: RecurrentArguments, save: bool) -> Sequence[Tensor]:
    """[output (T, B, P), *final state], and with ``save`` what `recurrent_backward` needs, in one block."""
    if a.lengths is not None:
        check_recurrent(a)  # a plan looks at no values
    found = _planned(forward_plan, save, a)
    if found is None:
        check_recurrent(a)
        found = _planned(forward_plan, save, _in_order(a))
        assert found is not None
        n = 1 + len(a.state)
        found = [*(r.to(a.input.dtype) for r in found[:n]), *found[n:]]
    return found


def recurrent_saved(a: RecurrentArguments) -> list[Tensor]:
    """Empty tensors with the shapes and types of what `recurrent_forward` saves."""
    T, B, _, H, P = a.sizes
    _, size = saved_block(a.recurrence, int(H), int(P), a.input.dtype)  # in a graph with symbolic sizes a constant
    return [a.input.new_empty(T * B * size, dtype=computed(a.input.dtype))]


def recurrent_backward(
    a: RecurrentArguments, saved: Sequence[Tensor], grad_output: Tensor | None, grad_state: Sequence[Tensor | None]
) -> Sequence[Tensor]:
    """[d input, *d initial state, *d params]; a gradient that is ``None`` is zero."""
    if a.lengths is not None:
        check_recurrent(a)
    # That of a sum is one number in memory for all elements.
    grads = [g if g is None or g.is_contiguous() else g.contiguous() for g in (grad_output, *grad_state)]
    found = _backward(a, saved, grads)
    if found is None:
        check_recurrent(a)
        check_recurrent_gradients(a, saved, recurrent_saved(a), grad_output, grad_state)
        blocks = [ready(block, computed(a.input.dtype)) for block in saved]
        found = _backward(_in_order(a), blocks, [ready_or_none(g, handed(a.input.dtype)) for g in grads])
        assert found is not None
    dtype = a.input.dtype
    return found if dtype is computed(dtype) else [d.to(dtype) for d in found]


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


def _planned(
    plan_of: Callable[..., Plan | None], how: object, a: RecurrentArguments, more: Sequence[Tensor] = ()
) -> Sequence[Tensor] | None:
    """The results of a plan for tensors that lie as the kernels want them. None: they do not, or do not fit each other.

    ``how`` is the first argument of ``plan_of``, and ``more`` are the tensors after those that both directions have.
    """
    x, state, params, lengths, reset, recurrence, reverse = a
    plan = plan_of(how, recurrence, reverse, len(state), len(params), lengths is not None, reset is not None)
    if plan is None:
        return None
    if x.dtype is torch.bfloat16:  # the kernels take vectors in float32
        if any(p.dtype is not torch.bfloat16 for p in params):
            return None
        params = [p.float() if p.dim() == 1 else p for p in params]
    given = [x, *state]
    for first, others in plan.terms:
        total = params[first]
        for k in others:
            if _KIND(params[k]) != _KIND(total):  # their sum might fit
                return None
            total = total + params[k]
        given.append(total)
    if lengths is not None:
        given.append(lengths)
    if reset is not None:
        given.append(reset)
    given += more
    return plan.run(given)


_KIND = operator.attrgetter("shape", "dtype", "device")


def _backward(
    a: RecurrentArguments, saved: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> Sequence[Tensor] | None:
    """`recurrent_backward` of tensors that lie as the kernels want them; None: they do not. The vectors' gradients are
    in the type that is computed in."""
    if len(saved) != 1:
        return None
    more = [*saved, *[g for g in grads if g is not None]]
    results, r = _planned(backward_plan, tuple([g is not None for g in grads]), a, more), a.recurrence
    if results is None or not shares_vectors(r):
        return results
    first = 1 + len(a.state)
    end = first + len(a.params)
    d_params = list(results[first:end])
    vector_gradients(vector_places(d_params, results[end:], r), d_params, r)
    return [*results[:first], *d_params]
