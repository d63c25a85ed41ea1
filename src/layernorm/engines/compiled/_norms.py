"""The norm ops: the reference's functions, compiled for rows of one length."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import unwrap
from typing import Any

from torch import Tensor

from .. import reference
from ..checks import check_norm, check_norm_gradients
from ..dispatch import kernel
from ..protocol import NormArguments
from ..reference import normalize_saved as normalize_saved
from ._compile import compiled

# Without what `dispatch.kernel` does around them, which no compiler can trace.
FORWARD, BACKWARD = unwrap(reference.normalize_forward), unwrap(reference.normalize_backward)

Affine = tuple[Tensor | None, Tensor | None]
"""Weight and bias, (N,)."""


def forward_rows(fixed: tuple[Any, ...], affine: Affine, x: Tensor, residual: Tensor | None) -> list[Tensor]:
    """What is compiled forward."""
    (N, eps, norm, save), (weight, bias) = fixed, affine
    return FORWARD(NormArguments(x, (N,), weight, bias, eps, norm), residual, save)


def backward_rows(fixed: tuple[Any, ...], affine: Affine, x: Tensor, *given: Any) -> list[Tensor]:
    """What is compiled backward."""
    (N, eps, norm), (weight, bias) = fixed, affine
    return BACKWARD(NormArguments(x, (N,), weight, bias, eps, norm), *given)


@kernel
def normalize_forward(a: NormArguments, residual: Tensor | None, save: bool) -> list[Tensor]:
    """[y], with ``residual`` [y, input + residual], and with ``save`` the statistics that the reference saves."""
    check_norm(a, residual)
    if not a.input.numel():
        return reference.normalize_forward(a, residual, save)
    run = compiled(forward_rows, (a.sizes[1], a.eps, a.norm, save), *_kind(a, residual))
    found = run(_affine(a), _rows(a.input, a), _rows(residual, a))
    results = 1 if residual is None else 2
    return [*(t.reshape(a.input.shape) for t in found[:results]), *found[results:]]


@kernel
def normalize_backward(
    a: NormArguments, saved: Sequence[Tensor], grad: Tensor, grad_total: Tensor | None
) -> list[Tensor]:
    """The gradients of what was normalised, of weight and of bias, those that there are."""
    check_norm(a, None)
    check_norm_gradients(a, saved, normalize_saved(a), grad, grad_total)
    if not a.input.numel():
        return reference.normalize_backward(a, saved, grad, grad_total)
    run = compiled(backward_rows, (a.sizes[1], a.eps, a.norm), *_kind(a, grad_total))
    found = run(_affine(a), _rows(a.input, a), saved, _rows(grad, a), _rows(grad_total, a))
    return [d.reshape(t.shape) for d, t in zip(found, a.differentiable, strict=True)]


def _rows(tensor: Tensor | None, a: NormArguments) -> Tensor | None:
    """(*, *normalized_shape) -> (M, N)."""
    return None if tensor is None else tensor.detach().reshape(a.sizes).contiguous()


def _affine(a: NormArguments) -> Affine:
    weight, bias = (None if p is None else p.detach().flatten().contiguous() for p in (a.weight, a.bias))
    return weight, bias


def _kind(a: NormArguments, more: Tensor | None) -> tuple[Any, ...]:
    """What calls have in common that are compiled together, besides their equations."""
    types = [None if p is None else p.dtype for p in (a.weight, a.bias)]
    return a.sizes[0] == 1, a.input.dtype, a.device, *types, more is None
