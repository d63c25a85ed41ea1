"""One layer in one direction over a whole sequence.

The products of all steps with W_ih are one, and so are those that make the gradients of x, W_ih and W_hh. What waits
for the step before it there are two ways to do: `_persistent`, in one launch, and `_stepwise`. They save the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..engine import RecurrentArguments
from ..plain import kernel
from . import _persistent, _stepwise
from ._layer import LayerTensors, Saved


@kernel
def recurrent_forward(a: RecurrentArguments, save: bool) -> list[Tensor]:
    """[output (T, B, P), *final state], and with ``save`` what `recurrent_saved` tells."""
    layer = LayerTensors(a)
    with torch.cuda.device_of(a.input):
        zx = torch.mm(layer.x, layer.W_ih.t()).view(layer.T, layer.B, layer.units)
        chosen = _persistent.launch(layer)
        found = _persistent.forward(layer, zx, save, chosen) if chosen else _stepwise.forward(layer, zx, save)
    saved = [s for s in found.saved or () if s is not None]
    return [layer.turned(found.output), *(s.to(a.input.dtype) for s in found.final), *saved]


def recurrent_saved(a: RecurrentArguments) -> list[Tensor]:
    """Empty tensors with the shapes and types of what `recurrent_forward` saves: of `Saved` what there is."""
    T, B, _, H, P = a.sizes
    units = a.params[1].shape[0]
    saved = [a.input.new_empty(T, B, size) for size in (units, units, P)]
    if a.recurrence.network == "LSTM":
        saved.append(a.input.new_empty(T + 1, B, H, dtype=torch.float32))
    return saved


@kernel
def recurrent_backward(
    a: RecurrentArguments, saved: Sequence[Tensor], grad_output: Tensor | None, grad_state: Sequence[Tensor | None]
) -> list[Tensor]:
    """[d input, *d initial state, *d params]; a gradient that is ``None`` is zero."""
    like = recurrent_saved(a)
    if [(s.shape, s.dtype) for s in saved] != [(s.shape, s.dtype) for s in like]:  # a hook on saved tensors can do that
        expected, wrong = ([(s.dtype, list(s.shape)) for s in tensors] for tensors in (like, saved))
        raise RuntimeError(f"{a.recurrence.network.lower()}: expected saved tensors {expected}, got {wrong}")
    layer = LayerTensors(a)
    kept = Saved(*(s.resolve_neg().contiguous() for s in saved))
    dy = a.input.new_zeros(layer.T, layer.B, layer.P) if grad_output is None else layer.turned(grad_output)
    with torch.cuda.device_of(a.input):
        steps = (layer, kept, dy.resolve_neg().contiguous(), layer.arriving(grad_state))
        chosen = _persistent.launch(layer)
        found = _persistent.backward(*steps, chosen) if chosen else _stepwise.backward(*steps)
        dzx, dzh = found.dzx.flatten(0, 1), found.dzh.flatten(0, 1)
        d_x = layer.turned(torch.mm(dzx, layer.W_ih).view(layer.T, layer.B, layer.I))
        d_weights = torch.mm(dzx.t(), layer.x), torch.mm(dzh.t(), kept.hs.flatten(0, 1))
    d_state = [d.to(s.dtype) for d, s in zip(found.d_state, a.state, strict=True)]
    return [d_x, *d_state, *layer.parameter_gradients(found, *d_weights)]
