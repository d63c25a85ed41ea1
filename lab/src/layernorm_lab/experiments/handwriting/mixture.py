"""The density of a pen's next point: a mixture of bivariate Gaussians, and a Bernoulli variable for a stroke's end."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

BOUNDED = 15.0
"""The network's outputs for sigma and rho are clipped to +-15, which gives deviations from 3e-7 to 3e6, far from those
of any pen. Beyond about 40 a square overflows in float32, and one such component makes every gradient NaN, no matter
how small its share is."""


class Mixture(NamedTuple):
    """Parameters `(..., M)` and `end` `(...)` as the network gives them, with sigma and rho clipped to `BOUNDED`.

    pi is their softmax, sigma their exp, rho their tanh. The probability of a stroke's end is sigmoid(-end).
    """

    end: Tensor
    pi: Tensor
    mu1: Tensor
    mu2: Tensor
    sigma1: Tensor
    sigma2: Tensor
    rho: Tensor


def split(y: Tensor) -> Mixture:
    """Splits the parameters in the network's output `(..., 1 + 6 M)`."""
    pi, mu1, mu2, *others = y[..., 1:].chunk(6, -1)
    return Mixture(y[..., 0], pi, mu1, mu2, *(part.clamp(-BOUNDED, BOUNDED) for part in others))


def log_density(y: Tensor, point: Tensor) -> Tensor:
    r"""Computes the logarithm of the density of points, in nats.

    .. math::
        \log \sum_j \pi^j \mathcal{N}(x_1, x_2 | \mu^j, \sigma^j, \rho^j) + \log \Pr(x_3),\qquad
        \mathcal{N} = \frac{e^{-Z / 2(1 - \rho^2)}}{2 \pi \sigma_1 \sigma_2 \sqrt{1 - \rho^2}},\quad
        \frac{Z}{1 - \rho^2} = z_2^2 + \left(z_1 - \rho z_2\right)^2 \cosh^2 \hat\rho

    with `z = (x - mu) / sigma`. The last form avoids a difference of large numbers.

    Args:
        y: `(..., 1 + 6 M)`.
        point: `(..., 3)`: x, y, and 1 if a stroke ends here.

    Returns:
        `(...)`.

    Source: Graves 2013, eqs. 18-26 (and 15-17 for the end of a stroke).
    """
    part = split(y)
    z1 = (point[..., 0:1] - part.mu1) * torch.exp(-part.sigma1)
    z2 = (point[..., 1:2] - part.mu2) * torch.exp(-part.sigma2)
    # log cosh r = |r| + log(1 + exp(-2 |r|)) - log 2, and 1 - tanh^2 r = 1 / cosh^2 r
    log_cosh = part.rho.abs() + F.softplus(-2 * part.rho.abs()) - math.log(2)
    apart = (z1 - torch.tanh(part.rho) * z2) * torch.exp(log_cosh)
    gaussian = log_cosh - part.sigma1 - part.sigma2 - 0.5 * (apart.square() + z2.square()) - math.log(2 * math.pi)
    mixed = torch.logsumexp(F.log_softmax(part.pi, -1) + gaussian, -1)
    return mixed - F.softplus((2 * point[..., 2] - 1) * part.end)


def draw_point(y: Tensor, bias: float, generator: torch.Generator) -> Tensor:
    """Draws the next point `(3,)`, by the output `(1 + 6 M,)`. With a larger bias, at least 0, it is nearer to the most
    probable one: `sigma = exp(s - bias)`, `pi` is the softmax of `p (1 + bias)`.

    Source: Graves 2013, eqs. 61-62.
    """
    part = split(y)
    # the largest is subtracted, in float64, so that no bias leads to infinity
    sharp = (part.pi - part.pi.max()).double() * (1 + bias)
    j = int(torch.multinomial(torch.softmax(sharp, -1).to(y.dtype), 1, generator=generator))
    z1, z2 = torch.randn(2, generator=generator, dtype=y.dtype)
    rho = torch.tanh(part.rho[j])
    x1 = part.mu1[j] + torch.exp(part.sigma1[j] - bias) * z1
    x2 = part.mu2[j] + torch.exp(part.sigma2[j] - bias) * (rho * z1 + torch.sqrt(1 - rho.square()) * z2)
    end = torch.rand((), generator=generator) < torch.sigmoid(-part.end)
    return torch.stack([x1, x2, end.to(y.dtype)])
