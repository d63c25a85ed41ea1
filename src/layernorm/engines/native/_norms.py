"""Layer norm and RMS norm over the rows of a tensor, in one planned call of the library."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..protocol import NormArguments, NormKind, Run
from ._layout import NORM, TYPES, ready, ready_or_none
from ._plan import Kind, Plan, in_order

POINTERS = (
    "x", "residual", "gain", "bias", "y", "total", "mean", "r", "d_y", "d_total", "d_x", "d_gain", "d_bias",
)  # fmt: skip
WORD = {name: NORM.size // 8 - len(POINTERS) + i for i, name in enumerate(POINTERS)}
"""Where in `Norm` an address is, in words of 8 bytes: they are the last."""


def normalize_forward(a: NormArguments, residual: Tensor | None, save: bool) -> list[Tensor]:
    """[y], with ``residual`` [y, input + residual], and with ``save`` `normalize_saved`'s: calls without a plan."""
    a, residual = _in_order(a), ready_or_none(residual, a.input.dtype)
    run = normalize_forward_plan(_kind(a, residual), save)
    assert run is not None
    found = run(*[t for t in (a.input, a.weight, a.bias, residual) if t is not None])
    assert found is not None
    return list(found)


def normalize_saved(a: NormArguments) -> list[Tensor]:
    """Empty tensors with the shapes and types of what `normalize_forward` saves: the means of the M rows and their
    reciprocal deviations, (2, M); of RMS norm, which has no means, (1, M)."""
    return [a.input.new_empty((1 if a.norm == "rms" else 2, a.sizes[0]), dtype=torch.float64)]


def normalize_backward(
    a: NormArguments, saved: Sequence[Tensor], grad: Tensor, grad_total: Tensor | None
) -> list[Tensor]:
    """The gradients of what was normalised, of weight and of bias, of those that there are: calls without a plan."""
    wanted = [t.dtype for t in (a.input, a.weight, a.bias) if t is not None]
    a, dtype = _in_order(a), a.input.dtype
    grad, grad_total = ready(grad, dtype), ready_or_none(grad_total, dtype)
    run = normalize_backward_plan(_kind(a, grad, grad_total))
    assert run is not None
    statistics = ready(saved[0], torch.float64)
    found = run(*[t for t in (a.input, statistics, grad, a.weight, grad_total) if t is not None])
    assert found is not None
    return [d.to(dtype) for d, dtype in zip(found, wanted, strict=True)]


def _in_order(a: NormArguments) -> NormArguments:
    """The same numbers, each tensor in order in memory, weight and bias of one type."""
    types = {p.dtype for p in (a.weight, a.bias) if p is not None}
    dtype = types.pop() if len(types) == 1 and types <= TYPES.keys() else torch.float64
    x = ready(a.input, a.input.dtype)
    return a._replace(input=x, weight=ready_or_none(a.weight, dtype), bias=ready_or_none(a.bias, dtype))


def _kind(a: NormArguments, *more: Tensor | None) -> NormKind:
    weight, bias = (None if p is None else p.dtype for p in (a.weight, a.bias))
    strides = tuple([None if t is None else t.stride() for t in more])
    x, normalized_shape = a.input, tuple(a.normalized_shape)
    return NormKind(x.dtype, x.shape, x.stride(), normalized_shape, weight, bias, a.eps, a.norm, strides)


@functools.lru_cache(4096)
def normalize_forward_plan(kind: NormKind, save: bool) -> Run | None:
    """Given x, gain, bias, residual, those that there are; made y, the sum if there is a residual, and with ``save``
    the statistics."""
    if not _fits(kind):
        return None
    (residual,) = kind.more
    given = {"x": Kind(*kind[:3]), **_parameters(kind, gain=kind.weight, bias=kind.bias)}
    made = {"y": in_order(*kind[:2])}
    if residual is not None:
        given["residual"], made["total"] = Kind(*kind[:2], residual), in_order(*kind[:2])
    if save:
        made["statistics"] = _statistics(kind)
    return _plan("norm_forward", kind, given, made)


@functools.lru_cache(4096)
def normalize_backward_plan(kind: NormKind) -> Run | None:
    """Given x, the statistics, the gradient of y, gain, and the gradient of the sum, those that there are; made the
    gradients of x, gain and bias."""
    if not _fits(kind):
        return None
    d_y, d_total = kind.more
    assert d_y is not None
    given = {"x": Kind(*kind[:3]), "statistics": _statistics(kind), "d_y": Kind(*kind[:2], d_y)}
    given |= _parameters(kind, gain=kind.weight)
    if d_total is not None:
        given["d_total"] = Kind(*kind[:2], d_total)
    made = {"d_x": in_order(*kind[:2]), **_parameters(kind, d_gain=kind.weight, d_bias=kind.bias)}
    return _plan("norm_backward", kind, given, made)


def _fits(kind: NormKind) -> bool:
    """Whether the input ends with the sizes that are normalised over."""
    dims = len(kind.normalized_shape)
    return dims > 0 and kind.shape[-dims:] == kind.normalized_shape


def _parameters(kind: NormKind, **types: torch.dtype | None) -> dict[str, Kind]:
    return {name: in_order(dtype, kind.normalized_shape) for name, dtype in types.items() if dtype is not None}


def _rows(kind: NormKind) -> int:
    """M."""
    return math.prod(kind.shape[: len(kind.shape) - len(kind.normalized_shape)])


def _statistics(kind: NormKind) -> Kind:
    """`normalize_saved`."""
    return in_order(torch.float64, (1 if kind.norm == "rms" else 2, _rows(kind)))


def _plan(function: str, kind: NormKind, given: Mapping[str, Kind], made: Mapping[str, Kind]) -> Run | None:
    """None: the kernels do not take such tensors as they lie."""
    types = {t for t in (kind.weight, kind.bias) if t is not None}
    M, N = _rows(kind), math.prod(kind.normalized_shape)
    apart = [_apart(given.get(name), M, N) for name in ("x", "residual", "d_y", "d_total")]
    if None in apart or len(types) > 1 or not {kind.dtype, *types} <= TYPES.keys():
        return None
    parameter_type = TYPES[types.pop()] if types else 0
    call = NORM.pack(M, N, parameter_type, kind.norm == "rms", *apart, kind.eps, *(0 for _ in POINTERS))
    places = []
    for tensor, name in enumerate((*given, *made)):
        if name != "statistics":
            places.append((WORD[name], tensor, 0))
        elif kind.norm == "rms":
            places.append((WORD["r"], tensor, 0))
        else:
            places += [(WORD["mean"], tensor, 0), (WORD["r"], tensor, M * torch.float64.itemsize)]
    return Plan(function, kind.dtype, call, list(given.values()), list(made.values()), places).run


def _apart(kind: Kind | None, M: int, N: int) -> int | None:
    """How many elements rows of N neighbours are apart; None: it is not M such rows at one distance."""
    if kind is None:
        return 0
    try:
        rows = torch.empty_strided(kind.shape, kind.strides, device="meta").view(M, N)
    except RuntimeError:
        return None
    return rows.stride(0) if N == 1 or M * N == 0 or rows.stride(1) == 1 else None
