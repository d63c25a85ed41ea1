"""One layer in one direction over a whole sequence, in one call of the library."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..engine import RecurrentArguments, vector_gradients
from ._layout import (
    VECTORS,
    Given,
    Made,
    Parameters,
    computed,
    handed,
    in_memory,
    pack,
    pair,
    pointer,
    ready,
    ready_or_none,
    run,
    saved_sizes,
    saved_type,
)
from ._library import LIBRARY


class _Tensors:
    """One call's tensors as the kernels take them: `given`, and what of it has to stay until the kernel has run."""

    def __init__(self, a: RecurrentArguments) -> None:
        self.dtype = dtype = handed(a.input.dtype)
        x = in_memory(a.input)
        x = (x if x.dtype is dtype else x.to(dtype)).resolve_neg()
        self.sizes = a.sizes
        x_t, x_b, step = x.stride()
        if step != 1 and x.shape[2] > 1:
            x = x.contiguous()
            x_t, x_b, _ = x.stride()
        self.x, self.state = x, [ready(s, dtype) for s in a.state]
        self.parameters = Parameters(a.params, a.recurrence, a.input.dtype)
        self.lengths = ready_or_none(a.lengths, torch.int64)
        self.reset = ready_or_none(a.reset, torch.bool)
        masks = (pointer(self.lengths), pointer(self.reset))
        self.given = Given._make((x.data_ptr(), x_t, x_b, *pair(self.state), *self.parameters.fields, *masks))


def recurrent_forward(a: RecurrentArguments, save: bool) -> list[Tensor]:
    """[output (T, B, P), *final state], and with ``save`` what `recurrent_backward` needs."""
    tensors = _Tensors(a)
    T, B, _, H, P = tensors.sizes
    output = tensors.x.new_empty((T, B, P))
    final = [torch.empty_like(s, dtype=tensors.dtype, memory_format=torch.contiguous_format) for s in a.state]
    made, saved = Made(output.data_ptr(), *pair(final)), list[Tensor]()
    if save:
        saved = recurrent_saved(a)
        addresses = zip(saved_sizes(a.recurrence, H, P), [s.data_ptr() for s in saved], strict=True)
        made = made._replace(**dict(addresses))
    packed = pack(tensors.sizes, a.recurrence, a.reverse, tensors.given, made)
    run(LIBRARY.layernorm_recurrent_forward, packed, tensors.dtype, tensors.x.shape)
    if tensors.dtype is a.input.dtype:
        return [output, *final, *saved]
    return [output.to(a.input.dtype), *(s.to(a.input.dtype) for s in final), *saved]


def recurrent_saved(a: RecurrentArguments) -> list[Tensor]:
    """Empty tensors with the shapes and types of what `recurrent_forward` saves."""
    T, B, _, H, P = a.sizes
    sizes = saved_sizes(a.recurrence, int(H), int(P))  # in a graph with symbolic sizes these are constants
    return [a.input.new_empty(T, B, n, dtype=saved_type(name, a.input.dtype)) for name, n in sizes.items()]


def recurrent_backward(
    a: RecurrentArguments, saved: Sequence[Tensor], grad_output: Tensor | None, grad_state: Sequence[Tensor | None]
) -> list[Tensor]:
    """[d input, *d initial state, *d params]; a gradient that is ``None`` is zero."""
    tensors = _Tensors(a)
    (T, B, _, H, P), dtype = tensors.sizes, tensors.dtype
    wide = computed(dtype)
    expected = [(saved_type(name, dtype), [T, B, n]) for name, n in saved_sizes(a.recurrence, H, P).items()]
    got = [(s.dtype, list(s.shape)) for s in saved]
    if got != expected:  # a hook on saved tensors can do that
        raise RuntimeError(f"expected saved tensors {expected}, got {got}")
    kept = dict(zip(saved_sizes(a.recurrence, H, P), [ready(s, s.dtype) for s in saved], strict=True))
    arriving = [ready_or_none(g, dtype) for g in (grad_output, *grad_state, None)][:3]
    results = [torch.empty(t.shape, dtype=wide if t.dim() == 1 else dtype) for t in a.differentiable]
    d_x, d_state, d_params = results[0], results[1 : 1 + len(a.state)], results[1 + len(a.state) :]
    d_vectors = torch.empty(VECTORS, a.params[1].shape[0], dtype=wide)
    d_output, d_h_n, d_c_n = map(pointer, arriving)
    d_h0, d_c0 = pair(d_state)
    weights = {f"d_w_{name}": d_params[k].data_ptr() for name, k in _weights(a).items()}
    made = Made(
        d_output=d_output, d_h_n=d_h_n, d_c_n=d_c_n, d_x=d_x.data_ptr(), d_h0=d_h0, d_c0=d_c0,
        d_vectors=d_vectors.data_ptr(), **weights, **{name: s.data_ptr() for name, s in kept.items()},
    )  # fmt: skip
    packed = pack(tensors.sizes, a.recurrence, a.reverse, tensors.given, made)
    run(LIBRARY.layernorm_recurrent_backward, packed, dtype, tensors.x.shape)
    vector_gradients(d_vectors, d_params, a.recurrence)
    if wide is a.input.dtype:
        return results
    return [r.to(t.dtype) for r, t in zip(results, a.differentiable, strict=True)]


def _weights(a: RecurrentArguments) -> dict[str, int]:
    """Where among the parameters the weights are."""
    names = a.recurrence.parameter_names
    return {side: names.index(f"weight_{side}") for side in ("ih", "hh", "hr") if f"weight_{side}" in names}
