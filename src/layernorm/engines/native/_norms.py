"""Layer norm and RMS norm over the rows of a tensor, in one planned call of the library."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...equations.arguments import NormArguments
from ...equations.checks import check_norm, check_norm_gradients
from ...formula import CACHED
from ._layout import TYPES, Norm
from ._memory import contiguous, contiguous_or_none
from ._plan import CALL, OTHER, ROWS, M, Plan, TensorSpec

Shape = tuple[int, ...]


def normalize_forward(a: NormArguments, residual: Tensor | None, save: bool) -> Sequence[Tensor]:
    """Returns [y] or [y, input + residual], and with ``save`` the tensors of `normalize_saved`."""
    x, normalized_shape, weight, bias, eps, norm = a
    plan = forward_plan(save, normalized_shape, eps, norm, weight is not None, bias is not None, residual is not None)
    given = [x]  # then those that there are
    if weight is not None:
        given.append(weight)
    if bias is not None:
        given.append(bias)
    if residual is not None:
        given.append(residual)
    results = None if plan is None else plan.run(given)
    if results is None:
        check_norm(a, residual)
        # What passes differs from the plan only in memory layout or parameter types, so the second call, on contiguous
        # copies, fits.
        return normalize_forward(_contiguous(a), contiguous_or_none(residual, x.dtype), save)
    return results


def normalize_saved(a: NormArguments) -> list[Tensor]:
    """Returns empty tensors with the shapes and types of what `normalize_forward` saves: (2, M), the means of the M
    rows and their reciprocal deviations; of RMS norm, which has no means, (1, M)."""
    return [a.input.new_empty((1 if a.norm == "rms" else 2, a.sizes[0]), dtype=torch.float64)]


def normalize_backward(
    a: NormArguments, saved: Sequence[Tensor], grad: Tensor, grad_total: Tensor | None
) -> Sequence[Tensor]:
    """Returns the gradients of what was normalised, and of weight and bias where there are such."""
    x, normalized_shape, weight, bias, eps, norm = a
    plan = backward_plan(normalized_shape, eps, norm, weight is not None, bias is not None, grad_total is not None)
    given = [x, *saved, grad]
    if weight is not None:
        given.append(weight)
    if bias is not None:
        given.append(bias)
    if grad_total is not None:
        given.append(grad_total)
    grads = None if plan is None or len(saved) != 1 else plan.run(given)
    if grads is None:
        check_norm(a, None)
        check_norm_gradients(a, saved, normalize_saved(a), grad, grad_total)
        statistics, total = [contiguous(saved[0], torch.float64)], contiguous_or_none(grad_total, x.dtype)
        grads = normalize_backward(_contiguous(a), statistics, contiguous(grad, x.dtype), total)
        return [d.to(t.dtype) for d, t in zip(grads, a.differentiable, strict=True)]
    return grads


def _contiguous(a: NormArguments) -> NormArguments:
    """Returns the same numbers in contiguous tensors, weight and bias of one type."""
    types = {p.dtype for p in (a.weight, a.bias) if p is not None}
    dtype = types.pop() if len(types) == 1 and types <= TYPES.keys() else torch.float64
    x = contiguous(a.input, a.input.dtype)
    return a._replace(input=x, weight=contiguous_or_none(a.weight, dtype), bias=contiguous_or_none(a.bias, dtype))


@functools.lru_cache(CACHED)
def forward_plan(
    save: bool, normalized_shape: Shape, eps: float, norm: str, weight: bool, bias: bool, residual: bool
) -> Plan | None:
    """Plans a forward. It takes x, and of gain, bias, residual those that there are. It makes y, with a residual the
    sum, and with ``save`` the statistics. None: there are no such sizes.

    Args:
        normalized_shape, eps, norm: as in `NormArguments`.
        weight, bias, residual: whether there is such.
    """
    given = [_like_x("x", normalized_shape), *_parameters(normalized_shape, gain=weight, bias=bias)]
    made = [_like_x("y", normalized_shape)]
    if residual:
        given.append(_like_x("residual", normalized_shape))
        made.append(_like_x("total", normalized_shape))
    if save:
        made.append(_statistics(norm))
    return _plan("norm_forward", normalized_shape, eps, norm, given, made)


@functools.lru_cache(CACHED)
def backward_plan(normalized_shape: Shape, eps: float, norm: str, weight: bool, bias: bool, total: bool) -> Plan | None:
    """Plans a backward, as `forward_plan`. It takes x, the statistics, the gradient of y, and of gain, bias and the
    gradient of the sum those that there are. It makes the gradients of x, gain and bias."""
    given = [_like_x("x", normalized_shape), _statistics(norm), _like_x("d_y", normalized_shape)]
    given += _parameters(normalized_shape, gain=weight, bias=bias)
    if total:
        given.append(_like_x("d_total", normalized_shape))
    made = [_like_x("d_x", normalized_shape), *_parameters(normalized_shape, d_gain=weight, d_bias=bias)]
    return _plan("norm_backward", normalized_shape, eps, norm, given, made)


def _plan(
    function: str, shape: Shape, eps: float, norm: str, given: Sequence[TensorSpec], made: Sequence[TensorSpec]
) -> Plan | None:
    N = math.prod(shape)
    if not shape or min(shape) < 0 or max(*shape, N) >= 2**63:
        return None
    return Plan(function, Norm(N=N, rms=norm == "rms", eps=eps), given, made)


def _like_x(name: str, normalized_shape: Shape) -> TensorSpec:
    strides = f"{name}_m" if name in ("x", "residual", "d_y", "d_total") else ""  # those of the results are N
    return TensorSpec(name, normalized_shape, CALL, ROWS, strides)


def _parameters(normalized_shape: Shape, **included: bool) -> list[TensorSpec]:
    return [TensorSpec(name, normalized_shape, OTHER) for name, present in included.items() if present]


def _statistics(norm: str) -> TensorSpec:
    """Describes the tensor of `normalize_saved`."""
    return TensorSpec("r", (1, M), torch.float64) if norm == "rms" else TensorSpec("mean", (2, M), torch.float64)
