"""Layer norm and RMS norm over the last axis, and the two ops made of them.

z_hat = (z - mean(z)) / sqrt(var(z) + eps)        (layer, eq. 3)
z_hat = z / sqrt(mean(z^2) + eps)                 (rms)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def centre(z: Tensor) -> Tensor:
    """z - mean(z), twice: the second time takes away the rounding error of the first mean, which is as large as
    |mean| * 2^-24 and would otherwise be all that is left of a constant row, or of one with |mean| >> deviation."""
    z = z - z.mean(-1, keepdim=True)
    return z - z.mean(-1, keepdim=True)


def standardize(z: Tensor, norm: str, eps: float, eps_on: str = "variance") -> tuple[Tensor, Tensor]:
    """z_hat and the reciprocal deviation r, (..., N) -> (..., N), (..., 1), in z's own type."""
    u = centre(z) if norm == "layer" else z
    square = (u * u).mean(-1, keepdim=True)
    if eps_on == "variance":
        r = torch.rsqrt(square + eps)
    else:
        flat = square == 0  # sqrt has no finite derivative there
        r = 1 / (torch.where(flat, 0.0, torch.where(flat, 1.0, square).sqrt()) + eps)
    return u * r, r


def standardize_backward(d: Tensor, z_hat: Tensor, r: Tensor, norm: str, eps_on: str = "variance") -> Tensor:
    """The gradient of z, given d of z_hat:  r * (d - mean(d) - z_hat * mean(d * z_hat));  rms has no mean(d)."""
    direction = z_hat
    if eps_on == "deviation":  # (sqrt(var) + eps)/sqrt(var) times as much flows through the deviation
        square = (z_hat * z_hat).mean(-1, keepdim=True)
        direction = torch.where(square == 0, 0.0, z_hat / torch.where(square == 0, 1.0, square).sqrt())
    d = d - direction * (d * z_hat).mean(-1, keepdim=True)
    return r * (d - d.mean(-1, keepdim=True) if norm == "layer" else d)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type that the two ops compute in: rounded once at the end, a result is the correctly rounded one."""
    return torch.float32 if dtype.itemsize < 4 else torch.float64


def _rows(input: Tensor, normalized_shape: list[int]) -> Tensor:
    """(*, *normalized_shape) -> (M, N) in the wide type."""
    leading = input.shape[: input.dim() - len(normalized_shape)]
    return input.reshape(math.prod(leading), math.prod(normalized_shape)).to(wide(input.dtype))


def _affine(z_hat: Tensor, weight: Tensor | None, bias: Tensor | None, like: Tensor) -> Tensor:
    y = z_hat if weight is None else z_hat * weight.flatten()
    y = y if bias is None else y + bias.flatten()
    return y.to(like.dtype).reshape(like.shape)


def normalize_equations(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float, norm: str
) -> Tensor:
    """y = z_hat * weight + bias, like input; differentiable to any order."""
    z_hat, _ = standardize(_rows(input, normalized_shape), norm, eps)
    return _affine(z_hat, weight, bias, input)


def normalize_forward(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float, norm: str
) -> list[Tensor]:
    """[y, mean (M,), reciprocal deviation (M,)], rms without the mean; statistics in the wide type."""
    x = _rows(input, normalized_shape)
    z_hat, r = standardize(x, norm, eps)
    statistics = [r.squeeze(-1)]
    if norm == "layer":
        mean = x.mean(-1, keepdim=True)
        statistics = [(mean + (x - mean).mean(-1, keepdim=True)).squeeze(-1), *statistics]
    return [_affine(z_hat, weight, bias, input), *statistics]


def normalize_backward(
    grad: Tensor,
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    saved: list[Tensor],
    norm: str,
) -> list[Tensor]:
    """The gradients of input, weight and bias, of those that there are; sums over rows in the wide type."""
    x, dy, r = _rows(input, normalized_shape), _rows(grad, normalized_shape), saved[-1][:, None]
    z_hat = (x - saved[0][:, None] if norm == "layer" else x) * r
    d = dy if weight is None else dy * weight.flatten()
    grads = [standardize_backward(d, z_hat, r, norm).to(input.dtype).reshape(input.shape)]
    if weight is not None:
        grads.append((dy * z_hat).sum(0).to(weight.dtype).reshape(weight.shape))
    if bias is not None:
        grads.append(dy.sum(0).to(bias.dtype).reshape(bias.shape))
    return grads


def normalize_saved(input: Tensor, normalized_shape: list[int], norm: str) -> list[Tensor]:
    """Empty tensors with the shapes and types of what `normalize_forward` returns after y."""
    M = math.prod(input.shape[: input.dim() - len(normalized_shape)])
    return [input.new_empty(M, dtype=wide(input.dtype)) for _ in range(2 if norm == "layer" else 1)]
