"""Layer norm and RMS norm over the rows of a tensor, in one call of the library."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..engine import NormArguments
from ._layout import FIRST, NORM, TYPES, in_memory, pointer, ready, ready_or_none
from ._library import LIBRARY


def _rows(tensor: Tensor, M: int, N: int) -> tuple[Tensor, int]:
    """The tensor as M rows of N neighbouring elements, and how far apart these rows are."""
    if tensor.is_contiguous() and not tensor.is_neg() and tensor.data_ptr() > FIRST:
        return tensor, N
    rows = in_memory(tensor).resolve_neg().reshape(M, N)
    if N > 1 and rows.stride(1) != 1:
        rows = rows.contiguous()
    return rows, rows.stride(0)


def _parameters(weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor | None, Tensor | None, int]:
    """Gain and bias, contiguous and of one type, and that type's number."""
    one = weight if weight is not None else bias
    if one is None:
        return None, None, 0
    dtype = one.dtype
    if dtype not in TYPES or (bias is not None and bias.dtype is not dtype):
        dtype = torch.float64
    return ready_or_none(weight, dtype), ready_or_none(bias, dtype), TYPES[dtype]


def _result(like: Tensor) -> Tensor:
    """An empty tensor of the same shape and type, in order in memory."""
    if like.is_contiguous():
        return torch.empty_like(like)  # in two thirds of the other's time
    return torch.empty_like(like, memory_format=torch.contiguous_format)


def normalize_forward(a: NormArguments, residual: Tensor | None, save: bool) -> list[Tensor]:
    """[y], with ``residual`` [y, input + residual], and with ``save`` mean and reciprocal deviation."""
    input = a.input
    M, N = a.sizes
    x, x_m = _rows(input, M, N)
    gain, shift, parameter_type = _parameters(a.weight, a.bias)
    y = _result(input)
    results, more, more_m, total = [y], None, 0, 0
    if residual is not None:
        more, more_m = _rows(residual, M, N)
        results.append(torch.empty_like(y))
        total = results[1].data_ptr()
    mean = r = 0
    if save:
        saved = normalize_saved(a)
        results += saved
        mean, r = 0 if a.norm == "rms" else saved[0].data_ptr(), saved[-1].data_ptr()
    packed = NORM.pack(
        M, N, TYPES[input.dtype], parameter_type, a.norm == "rms", x_m, more_m, 0, 0, a.eps,
        x.data_ptr(), pointer(more), pointer(gain), pointer(shift), y.data_ptr(), total, mean, r, 0, 0, 0, 0, 0,
    )  # fmt: skip
    if LIBRARY.layernorm_norm_forward(packed):
        raise MemoryError(f"layernorm: not enough memory for input {list(input.shape)}")
    return results


def normalize_saved(a: NormArguments) -> list[Tensor]:
    """Empty tensors with the shapes and types of what `normalize_forward` saves."""
    M, _ = a.sizes
    r = a.input.new_empty(M, dtype=torch.float64)
    return [r] if a.norm == "rms" else [torch.empty_like(r), r]


def normalize_backward(
    a: NormArguments, saved: Sequence[Tensor], grad: Tensor, grad_total: Tensor | None
) -> list[Tensor]:
    """The gradients of what was normalised, of weight and of bias, of those that there are."""
    input = a.input
    M, N = a.sizes
    (x, x_m), (dy, dy_m) = _rows(input, M, N), _rows(grad, M, N)
    more, more_m = (None, 0) if grad_total is None else _rows(grad_total, M, N)
    gain, shift, parameter_type = _parameters(a.weight, a.bias)
    d_x = _result(input)
    d_gain = None if gain is None else torch.empty_like(gain)
    d_bias = None if shift is None else torch.empty_like(shift)
    for s in saved:
        if s.shape != (M,) or s.dtype is not torch.float64:  # a hook on saved tensors can do that
            wrong = [(s.dtype, list(s.shape)) for s in saved]
            raise RuntimeError(f"{a.norm}_norm: expected saved statistics in float64 of shape [{M}], got {wrong}")
    *mean, r = [ready(s, torch.float64) for s in saved]  # rms has no mean
    packed = NORM.pack(
        M, N, TYPES[input.dtype], parameter_type, a.norm == "rms", x_m, 0, dy_m, more_m, 0.0, x.data_ptr(), 0,
        pointer(gain), 0, 0, 0, mean[0].data_ptr() if mean else 0, r.data_ptr(), dy.data_ptr(), pointer(more),
        d_x.data_ptr(), pointer(d_gain), pointer(d_bias),
    )  # fmt: skip
    if LIBRARY.layernorm_norm_backward(packed):
        raise MemoryError(f"layernorm: not enough memory for the gradient of input {list(input.shape)}")
    found = [d_x]
    for given, p in ((d_gain, a.weight), (d_bias, a.bias)):
        if given is not None and p is not None:
            found.append(given if given.dtype == p.dtype else given.to(p.dtype))
    return found
