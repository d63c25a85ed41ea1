"""One layer of summed inputs under a norm: the model of section 5."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..functional import layer_norm, rms_norm
from . import _checks


def normalized(
    weight: Tensor, inputs: Tensor, norm: str | None, eps: float = 0.0, bias_inside: Tensor | None = None
) -> Tensor:
    r"""Computes a layer's normalised summed inputs, before gain and bias.

    .. math:: \frac{a_i - \mu_i}{\sigma_i}, \qquad a_i = w_i^T x

    ============  =============================  ==========================================
    norm          mu_i                           sigma_i
    ============  =============================  ==========================================
    ``"batch"``   mean of a_i over the cases     sqrt(biased variance over the cases + eps)
    ``"weight"``  0                              sqrt(\|w_i\|^2 + eps)
    ``"layer"``   mean of a case's a over units  sqrt(biased variance over the units + eps)
    ``"rms"``     0                              sqrt(mean square over the units + eps)
    ``None``      0                              1
    ============  =============================  ==========================================

    Args:
        weight: ``(H, I)``, a row for each unit.
        inputs: ``(B, I)``, a row for each training case.
        norm: one of the above.
        eps: 0 by default, not the library's 1e-5, because only without eps is the output exactly invariant to
            re-scaling.
        bias_inside: ``(H,)``, added to a before it is normalised.

    Returns:
        ``(B, H)``, differentiable, also under `torch.func`. Where a sigma is zero, the result is not finite. Where it
        is zero up to rounding, as under batch norm for equal cases, the result is noise. The functions that take a
        layer's weight refuse such a layer; those that take a model cannot see it.

    Raises:
        ValueError: there is no such norm; there are too few units or cases for its statistics; a shape does not fit; or
            eps is negative.
        TypeError: an argument is not a floating-point tensor.

    Source: Ba, Kiros, Hinton 2016, section 5.1.
    """
    H, I = _checks.shaped("weight", weight, "H", "I").shape  # noqa: E741
    _checks.shaped("inputs", inputs, "B", I)
    _checks.norm_fits(norm, weight, inputs)
    eps = _checks.positive("eps", eps, zero=True)
    a = inputs @ weight.T
    if bias_inside is not None:
        a = a + _checks.shaped("bias_inside", bias_inside, H)
    if norm == "layer":  # by the library's own op, so that Table 1 is measured on it
        return layer_norm(a, (a.shape[-1],), None, None, eps)
    if norm == "rms":
        return rms_norm(a, (a.shape[-1],), None, eps)
    if norm == "batch":
        centred = a - a.mean(0)
        return centred / (centred.square().mean(0) + eps).sqrt()
    if norm == "weight":
        return a / (weight.square().sum(1) + eps).sqrt()
    return a


class Responses(NamedTuple):
    """z, sigma and chi of eq. 14, from derivatives written by hand, beside those of autograd."""

    z: Tensor  # (B, H), (a - mu) / sigma
    sigma: Tensor  # (B, H)
    chi: Tensor  # (B, H, I)


def responses(W: Tensor, X: Tensor, norm: str | None, eps: float) -> Responses:
    """Computes z, sigma and chi_i = x - dmu_i/dw_i - z_i dsigma_i/dw_i for each case and unit (eq. 14)."""
    a = X @ W.T
    (B, H), x = a.shape, X[:, None, :]
    mean = a.mean(-1, keepdim=True)
    if norm == "layer":
        sigma = ((a - mean).square().mean(-1, keepdim=True) + eps).sqrt()
        z = (a - mean) / sigma
        chi = x * (1 - 1 / H - z.square() / H)[..., None]
    elif norm == "rms":
        sigma = (a.square().mean(-1, keepdim=True) + eps).sqrt()
        z = a / sigma
        chi = x * (1 - z.square() / H)[..., None]
    elif norm == "batch":
        centre = X - X.mean(0)
        covariance = centre.T @ centre / B
        sigma = ((centre @ W.T).square().mean(0) + eps).sqrt()  # w^T covariance w would lose digits
        z = centre @ W.T / sigma
        chi = centre[:, None, :] - z[..., None] * (W @ covariance / sigma[:, None])
    elif norm == "weight":
        sigma = (W.square().sum(1) + eps).sqrt()
        z = a / sigma
        chi = x - z[..., None] * (W / sigma[:, None])
    else:
        sigma, z, chi = a.new_ones(()), a, x.expand(B, H, -1)
    return Responses(z, sigma.expand(B, H), chi)


def standard_layer(units: int, inputs: int, cases: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draws a layer to measure on: weight (H, I), inputs (B, I) away from zero mean, gain (H,), bias (H,)."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return normal(units, inputs), normal(cases, inputs) + 0.5, 1 + 0.3 * normal(units), normal(units)
