"""Layer norm and RMS norm over the last axis, and the two ops made of them.

z_hat = (z - mean(z)) / sqrt(var(z) + eps)        (layer, eq. 3)
z_hat = z / sqrt(mean(z^2) + eps)                 (rms)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .arguments import NormArguments
from .checks import check_norm, check_norm_gradients
from .dispatch import below_autocast, kernel


def centre(z: Tensor) -> Tensor:
    """Computes z - mean(z), twice: the second time removes the rounding error of the first mean, which is as large
    as |mean| * 2^-24 and would otherwise be all that is left of a constant row, or of one with |mean| >> deviation."""
    z = z - z.mean(-1, keepdim=True)
    return z - z.mean(-1, keepdim=True)


def standardize(z: Tensor, norm: str, eps: float, eps_on: str = "variance") -> tuple[Tensor, Tensor]:
    """Computes z_hat and the reciprocal deviation r, (..., N) -> (..., N), (..., 1), in z's own type."""
    u = centre(z) if norm == "layer" else z
    r = reciprocal_deviation((u * u).mean(-1, keepdim=True), eps, eps_on)
    return u * r, r


def reciprocal_deviation(square: Tensor, eps: float, eps_on: str) -> Tensor:
    """Computes 1 / sqrt(square + eps), or 1 / (sqrt(square) + eps)."""
    if eps_on == "variance":
        return torch.rsqrt(square + eps)
    flat = square == 0  # sqrt has no finite derivative there
    return 1 / (torch.where(flat, 0.0, torch.where(flat, 1.0, square).sqrt()) + eps)


def standardize_backward(d: Tensor, z_hat: Tensor, r: Tensor, norm: str, eps_on: str) -> Tensor:
    """Computes the gradient of z from d of z_hat:  r * (d - mean(d) - z_hat * mean(d * z_hat));  rms has no mean(d)."""
    direction = z_hat
    if eps_on == "deviation":  # (sqrt(var) + eps)/sqrt(var) times as much flows through the deviation
        square = (z_hat * z_hat).mean(-1, keepdim=True)
        direction = torch.where(square == 0, 0.0, z_hat / torch.where(square == 0, 1.0, square).sqrt())
    d = d - direction * (d * z_hat).mean(-1, keepdim=True)
    return r * (d - d.mean(-1, keepdim=True) if norm == "layer" else d)


def compute_type(input: Tensor) -> torch.dtype:
    """Returns the type that the two ops compute in. In float64, rounded once at the end, a result is correctly rounded,
    and no sum of squares of a narrower type overflows; Apple's GPUs have no float64."""
    return torch.float32 if input.device.type == "mps" else torch.float64


def _rows(tensor: Tensor, a: NormArguments, copy: bool = False) -> Tensor:
    """Reshapes (*, *normalized_shape) -> (M, N), in the type computed in."""
    leading = a.input.shape[: a.input.dim() - len(a.normalized_shape)]
    return tensor.reshape(math.prod(leading), math.prod(a.normalized_shape)).to(compute_type(a.input), copy=copy)


def _like(rows: Tensor, tensor: Tensor) -> Tensor:
    """Reshapes rows like a tensor, in its type."""
    return rows.to(tensor.dtype).reshape(tensor.shape)


@below_autocast
def normalize_equations(a: NormArguments) -> Tensor:
    """Computes y = z_hat * weight + bias, like input; differentiable to any order."""
    y, _ = standardize(_rows(a.input, a), a.norm, a.eps)
    if a.weight is not None:
        y = y * a.weight.flatten()
    if a.bias is not None:
        y = y + a.bias.flatten()
    return _like(y, a.input)


@kernel
def normalize_forward(a: NormArguments, residual: Tensor | None, save: bool) -> list[Tensor]:
    """Returns [y] or [y, input + residual], and with ``save`` mean (M,) and reciprocal deviation (M,) of what is
    normalised, rms without the mean; statistics in the type computed in.

    `normalize_equations` in place: the sweeps over fresh memory that this saves are most of its time.
    """
    check_norm(a, residual)
    total = []
    if residual is not None:
        a = a._replace(input=a.input + residual)
        total = [a.input.contiguous()]
    u = _rows(a.input, a, copy=True)
    statistics = []
    if a.norm == "layer":
        mean = u.mean(-1, keepdim=True)
        rest = u.sub_(mean).mean(-1, keepdim=True)  # the mean's rounding error: see `centre`
        u.sub_(rest)
        statistics.append((mean + rest).squeeze(-1))
    r = torch.rsqrt(torch.linalg.vector_norm(u, dim=-1, keepdim=True).square_() / u.shape[-1] + a.eps)
    u.mul_(r)
    if a.weight is not None:
        u.mul_(a.weight.flatten())
    if a.bias is not None:
        u.add_(a.bias.flatten())
    return [_like(u, a.input), *total, *([*statistics, r.squeeze(-1)] if save else [])]


@kernel
def normalize_backward(
    a: NormArguments, saved: Sequence[Tensor], grad: Tensor, grad_total: Tensor | None
) -> list[Tensor]:
    """Returns the gradients of ``a.input``, which was normalised, and of weight and bias where there are such; sums
    over rows in the type computed in. ``grad_total`` is the gradient of ``a.input`` from elsewhere.

    `standardize_backward` in place.
    """
    check_norm(a, None)
    check_norm_gradients(a, saved, normalize_saved(a), grad, grad_total)
    z_hat, d = _rows(a.input, a, copy=True), _rows(grad, a, copy=True)
    if a.norm == "layer":
        z_hat.sub_(saved[0][:, None])
    r = saved[-1][:, None]
    z_hat.mul_(r)
    product = d * z_hat
    grads = [] if a.weight is None else [_like(product.sum(0), a.weight)]
    grads += [] if a.bias is None else [_like(d.sum(0), a.bias)]
    if a.weight is not None:
        d.mul_(a.weight.flatten())
        product.mul_(a.weight.flatten())
    d.sub_(z_hat.mul_(product.mean(-1, keepdim=True)))
    if a.norm == "layer":
        d.sub_(d.mean(-1, keepdim=True))
    d.mul_(r)
    if grad_total is not None:
        d.add_(_rows(grad_total, a))
    return [_like(d, a.input), *grads]


def normalize_saved(a: NormArguments) -> list[Tensor]:
    """Returns empty tensors with the shapes and types of what `normalize_forward` saves."""
    M, _ = a.sizes
    return [a.input.new_empty(M, dtype=compute_type(a.input)) for _ in range(2 if a.norm == "layer" else 1)]
