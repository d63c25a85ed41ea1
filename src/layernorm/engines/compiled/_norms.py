"""The norm ops: the functions of `layernorm.equations`, compiled for rows of one length."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import unwrap
from typing import Any

from torch import Tensor

from ...equations import norms as equations
from ...equations.arguments import NormArguments
from ...equations.checks import check_norm, check_norm_gradients
from ...equations.dispatch import kernel
from ...equations.norms import normalize_saved as normalize_saved
from ._compile import compiled

# Without what `dispatch.kernel` does around them, which no compiler can trace.
FORWARD, BACKWARD = unwrap(equations.normalize_forward), unwrap(equations.normalize_backward)

Affine = tuple[Tensor | None, Tensor | None]
"""Weight and bias, (N,)."""


def forward_rows(fixed: tuple[Any, ...], affine: Affine, x: Tensor, residual: Tensor | None) -> list[Tensor]:
    """Computes the forward of rows. This is what is compiled."""
    (N, eps, norm, save), (weight, bias) = fixed, affine
    return FORWARD(NormArguments(x, (N,), weight, bias, eps, norm), residual, save)


def backward_rows(fixed: tuple[Any, ...], affine: Affine, x: Tensor, *given: Any) -> list[Tensor]:
    """Computes the backward of rows. This is what is compiled."""
    (N, eps, norm), (weight, bias) = fixed, affine
    return BACKWARD(NormArguments(x, (N,), weight, bias, eps, norm), *given)


@kernel
def normalize_forward(a: NormArguments, residual: Tensor | None, save: bool) -> list[Tensor]:
    """Returns [y] or [y, input + residual], and with ``save`` the statistics that the equations save."""
    check_norm(a, residual)
    if not a.input.numel():
        return equations.normalize_forward(a, residual, save)
    run = compiled(forward_rows, (a.sizes[1], a.eps, a.norm, save), *_compile_key(a, residual))
    outputs = run(_affine(a), _rows(a.input, a), _rows(residual, a))
    results = 1 if residual is None else 2
    return [*(t.reshape(a.input.shape) for t in outputs[:results]), *outputs[results:]]


@kernel
def normalize_backward(
    a: NormArguments, saved: Sequence[Tensor], grad: Tensor, grad_total: Tensor | None
) -> list[Tensor]:
    """Returns the gradients of what was normalised, and of weight and bias where there are such."""
    check_norm(a, None)
    check_norm_gradients(a, saved, normalize_saved(a), grad, grad_total)
    if not a.input.numel():
        return equations.normalize_backward(a, saved, grad, grad_total)
    run = compiled(backward_rows, (a.sizes[1], a.eps, a.norm), *_compile_key(a, grad_total))
    grads = run(_affine(a), _rows(a.input, a), saved, _rows(grad, a), _rows(grad_total, a))
    return [d.reshape(t.shape) for d, t in zip(grads, a.differentiable, strict=True)]


def _rows(tensor: Tensor | None, a: NormArguments) -> Tensor | None:
    """Reshapes (*, *normalized_shape) -> (M, N)."""
    return None if tensor is None else tensor.detach().reshape(a.sizes).contiguous()


def _affine(a: NormArguments) -> Affine:
    weight, bias = (None if p is None else p.detach().flatten().contiguous() for p in (a.weight, a.bias))
    return weight, bias


def _compile_key(a: NormArguments, other: Tensor | None) -> tuple[Any, ...]:
    """Returns what the calls that are compiled together have in common, besides their equations."""
    types = [None if p is None else p.dtype for p in (a.weight, a.bias)]
    return a.sizes[0] == 1, a.input.dtype, a.device, *types, other is None
