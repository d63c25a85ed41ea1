"""The output distributions of section 5.2: exponential families with the natural parameter eta and a dispersion phi."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from . import _checks

Sampler = Callable[[Tensor, float, torch.Generator | None], Tensor]


@dataclass(frozen=True)
class Family:
    r"""An exponential family of H outputs, eq. 10, as data.

    .. math:: \log p(y \mid \eta) = \frac{\eta^T y - A(\eta)}{\phi} + c(y, \phi), \qquad
              E[y] = \nabla A(\eta), \quad \mathrm{Cov}[y] = \phi \nabla^2 A(\eta)

    Args:
        name: the family's name.
        log_partition: A, ``(*, H) -> (*)``.
        mean: the gradient of A, which is the transfer function, ``(*, H) -> (*, H)``.
        hessian: the Hessian of A, ``(*, H) -> (*, H, H)``.
        log_base: c, ``(y (*, H), phi) -> (*)``.
        sampler: ``(eta (*, H), phi, generator) -> y (*, H)``.
        phi: the dispersion. It is the variance of a Gaussian, and 1 for the other families.

    Source: Ba, Kiros, Hinton 2016, eqs. 10 and 11; McCullagh, Nelder, "Generalized Linear Models", 1989.
    """

    name: str
    log_partition: Callable[[Tensor], Tensor]
    mean: Callable[[Tensor], Tensor]
    hessian: Callable[[Tensor], Tensor]
    log_base: Callable[[Tensor, float], Tensor]
    sampler: Sampler
    phi: float = 1.0

    def covariance(self, eta: Tensor) -> Tensor:
        """Computes Cov[y | eta], ``(*, H) -> (*, H, H)``."""
        return self.phi * self.hessian(eta)

    def log_likelihood(self, eta: Tensor, y: Tensor) -> Tensor:
        """Computes log p(y | eta), eq. 10, ``(*, H), (*, H) -> (*)``. A categorical y is one-hot."""
        return ((eta * y).sum(-1) - self.log_partition(eta)) / self.phi + self.log_base(y, self.phi)

    def sample(self, eta: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draws one y for each eta, ``(*, H) -> (*, H)``."""
        return self.sampler(eta, self.phi, generator)

    def kl(self, eta: Tensor, other: Tensor) -> Tensor:
        r"""Computes KL(p(. | eta) || p(. | other)), the Bregman divergence of A over phi, ``(*, H), (*, H) -> (*)``.

        .. math:: \frac{A(\eta') - A(\eta) - \nabla A(\eta)^T (\eta' - \eta)}{\phi}

        It is a difference of numbers of the size of A. A divergence below about 1e-16 of that is lost to rounding.
        """
        linear = (self.mean(eta) * (other - eta)).sum(-1)
        return (self.log_partition(other) - self.log_partition(eta) - linear) / self.phi


def _softmax_hessian(eta: Tensor) -> Tensor:
    p = eta.softmax(-1)
    return torch.diag_embed(p) - p[..., :, None] * p[..., None, :]


def _one_of(eta: Tensor, phi: float, generator: torch.Generator | None) -> Tensor:
    H = eta.shape[-1]
    drawn = torch.multinomial(eta.softmax(-1).reshape(-1, H), 1, replacement=True, generator=generator)
    return F.one_hot(drawn.reshape(eta.shape[:-1]), H).to(eta)


def _normal(eta: Tensor, phi: float, generator: torch.Generator | None) -> Tensor:
    return eta + math.sqrt(phi) * torch.randn(eta.shape, generator=generator, dtype=eta.dtype, device=eta.device)


def _zero(y: Tensor, phi: float) -> Tensor:
    return y.new_zeros(y.shape[:-1])


def gaussian(variance: float = 1.0) -> Family:
    """Makes the family of H independent Gaussians with mean eta and a common variance, which is phi.

    Args:
        variance: > 0.

    Returns:
        The family.

    Raises:
        ValueError: the variance is not finite, or not above 0.
    """
    return Family(
        "gaussian",
        log_partition=lambda eta: eta.square().sum(-1) / 2,
        mean=lambda eta: eta,
        hessian=lambda eta: torch.diag_embed(torch.ones_like(eta)),
        log_base=lambda y, phi: -(y.square() / phi + math.log(2 * math.pi * phi)).sum(-1) / 2,
        sampler=_normal,
        phi=_checks.positive("variance", variance),
    )


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        gaussian(),
        Family(
            "bernoulli",
            # softplus with its default threshold is the identity above 20, which is not exact enough in float64
            log_partition=lambda eta: F.softplus(eta, threshold=50).sum(-1),
            mean=torch.sigmoid,
            hessian=lambda eta: torch.diag_embed(eta.sigmoid() * (-eta).sigmoid()),
            log_base=_zero,
            sampler=lambda eta, phi, generator: torch.bernoulli(eta.sigmoid(), generator=generator),
        ),
        Family(
            "poisson",
            log_partition=lambda eta: eta.exp().sum(-1),
            mean=torch.exp,
            hessian=lambda eta: torch.diag_embed(eta.exp()),
            log_base=lambda y, phi: -torch.lgamma(y + 1).sum(-1),
            sampler=lambda eta, phi, generator: torch.poisson(eta.exp(), generator=generator),
        ),
        Family(
            "categorical",
            log_partition=lambda eta: eta.logsumexp(-1),
            mean=lambda eta: eta.softmax(-1),
            hessian=_softmax_hessian,
            log_base=_zero,
            sampler=_one_of,
        ),
    )
}


def as_family(family: str | Family) -> Family:
    """Returns the family itself, or the one of `FAMILIES` by its name."""
    if isinstance(family, Family):
        return family
    if not isinstance(family, str) or family not in FAMILIES:
        raise ValueError(f"expected family to be a Family or one of {', '.join(FAMILIES)}, got {family!r}")
    return FAMILIES[family]
