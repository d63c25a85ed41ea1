"""The families against torch.distributions and autograd."""

import pytest
import torch
from torch import distributions as dist

from layernorm import geometry as geo
from support.layers import FAMILIES


def torchs(family, eta):
    """The same distribution of torch's, its events over the last axis."""
    if family.name == "gaussian":
        return dist.Independent(dist.Normal(eta, family.phi**0.5), 1)
    if family.name == "bernoulli":
        return dist.Independent(dist.Bernoulli(logits=eta), 1)
    if family.name == "poisson":
        return dist.Independent(dist.Poisson(eta.exp()), 1)
    return dist.OneHotCategorical(logits=eta)


@pytest.fixture
def eta():
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("name", FAMILIES)
def test_log_likelihood_and_kl_are_torchs(name, eta):
    family = FAMILIES[name]
    y = family.sample(eta, torch.Generator().manual_seed(1))
    close = {"rtol": 1e-12, "atol": 1e-14}  # rounding: torch's Poisson and Bernoulli add in another order
    torch.testing.assert_close(family.log_likelihood(eta, y), torchs(family, eta).log_prob(y), **close)
    other = eta.flip(0)
    expected = dist.kl_divergence(torchs(family, eta), torchs(family, other))
    torch.testing.assert_close(family.kl(eta, other), expected, **close)
    assert (expected > 0.01).any()


@pytest.mark.parametrize("name", FAMILIES)
def test_mean_and_covariance_are_the_log_partitions_derivatives(name, eta):
    family = FAMILIES[name]
    close = {"rtol": 1e-12, "atol": 1e-15}  # rounding
    for row in eta:
        torch.testing.assert_close(family.mean(row), torch.func.grad(family.log_partition)(row), **close)
        hessian = torch.func.hessian(family.log_partition)(row)
        torch.testing.assert_close(family.covariance(row), family.phi * hessian, **close)


@pytest.mark.parametrize("name", FAMILIES)
def test_samples_have_the_mean_and_covariance(name, eta):
    family, S = FAMILIES[name], 40_000
    y = family.sample(eta[0].expand(S, -1), torch.Generator().manual_seed(2))
    centred = y - family.mean(eta[0])
    products = centred[:, :, None] * centred[:, None, :]
    # five standard errors, over 9 numbers: a right sampler fails one seed in 200,000
    assert (centred.mean(0).abs() < 5 * y.std(0) / S**0.5).all()
    assert ((products.mean(0) - family.covariance(eta[0])).abs() <= 5 * products.std(0) / S**0.5 + 1e-12).all()


def test_bernoulli_far_out():
    """A softplus that switches to the identity at 20 would be off by 2e-9 there."""
    eta = torch.tensor([[25.0]], dtype=torch.float64)
    y = torch.ones_like(eta)
    expected = -torch.log1p(torch.exp(-eta[0]))
    torch.testing.assert_close(
        geo.FAMILIES["bernoulli"].log_likelihood(eta, y), expected, rtol=1e-3, atol=0
    )  # A(25) - 25 leaves three digits of 1.4e-11
