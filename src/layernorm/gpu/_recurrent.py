"""One layer in one direction over a whole sequence.

The products of all steps with W_ih are one, and so are those that make the gradients of x, W_ih and W_hh. What waits
for the step before it there are two ways to do: `_whole`, in one launch, and `_stepwise`. They save the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..formula import GATES, Recurrence
from ..plain import kernel
from . import _stepwise, _whole
from ._call import Call


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
    """[output (T, B, P), *final state], and with ``save`` what `recurrent_saved` tells."""
    call = Call(input, state, params, lengths, reset, recurrence, reverse)
    with torch.cuda.device_of(input):
        zx = torch.mm(call.x, call.W_ih.t()).view(call.T, call.B, call.units)
        chosen = _whole.launch(call)
        found = _whole.forward(call, zx, save, chosen) if chosen else _stepwise.forward(call, zx, save)
    return [call.turned(found.output), *(s.to(input.dtype) for s in found.final), *found.saved]


def recurrent_saved(
    input: Tensor, state: Sequence[Tensor], params: Sequence[Tensor], recurrence: Recurrence
) -> list[Tensor]:
    """Empty tensors with the shapes and types of what `recurrent_forward` saves, in the order of the steps: zx, zh
    (T, B, G*H), h before each step (T, B, P), of an LSTM the initial c and c after each step (T + 1, B, H), float32.
    """
    (T, B, _), (units, P) = input.shape, params[1].shape
    saved = [input.new_empty(T, B, size) for size in (units, units, P)]
    if recurrence.network == "LSTM":
        saved.append(input.new_empty(T + 1, B, units // GATES["LSTM"], dtype=torch.float32))
    return saved


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
    """[d input, *d initial state, *d params]; a gradient that is ``None`` is zero."""
    like = recurrent_saved(input, state, params, recurrence)
    if [(s.shape, s.dtype) for s in saved] != [(s.shape, s.dtype) for s in like]:  # a hook on saved tensors can do that
        expected, wrong = ([(s.dtype, list(s.shape)) for s in tensors] for tensors in (like, saved))
        raise RuntimeError(f"{recurrence.network.lower()}: expected saved tensors {expected}, got {wrong}")
    call = Call(input, state, params, lengths, reset, recurrence, reverse)
    kept = [s.resolve_neg().contiguous() for s in saved]
    dy = input.new_zeros(call.T, call.B, call.P) if grad_output is None else call.turned(grad_output)
    with torch.cuda.device_of(input):
        steps = (call, kept, dy.resolve_neg().contiguous(), call.arriving(grad_state))
        chosen = _whole.launch(call)
        found = _whole.backward(*steps, chosen) if chosen else _stepwise.backward(*steps)
        dzx, dzh = found.dzx.flatten(0, 1), found.dzh.flatten(0, 1)
        d_x = call.turned(torch.mm(dzx, call.W_ih).view(call.T, call.B, call.I))
        d_weights = torch.mm(dzx.t(), call.x), torch.mm(dzh.t(), kept[2].flatten(0, 1))
    return [
        d_x, *(d.to(s.dtype) for d, s in zip(found.d_state, state, strict=True)),
        *call.parameter_gradients(found, *d_weights),
    ]  # fmt: skip
