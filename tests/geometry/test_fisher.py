"""KL and Fisher matrix: closed form = autograd = expected Hessian = exact enumeration = Monte Carlo."""

import itertools

import pytest
import torch

from layernorm import geometry as geo
from support.layers import FAMILIES, NORMS, ROUNDING


def problem(H=3, I=3, B=5, seed=0):  # noqa: E741
    g = torch.Generator().manual_seed(seed)
    shapes = {"weight": (H, I), "bias": (H,), "gain": (H,)}
    parameters = {k: torch.randn(s, generator=g, dtype=torch.float64) / 2 for k, s in shapes.items()}
    parameters["gain"] += 1
    return parameters, torch.randn(B, I, generator=g, dtype=torch.float64)


def stacked_glm(parameters, X):
    """eta = W x + b with theta = (H, I+1), in the order of fisher_glm."""
    theta = parameters["theta"]
    return X @ theta[:, :-1].T + theta[:, -1]


def flat(parameters):
    return torch.cat([p.flatten() for p in parameters.values()])


def steps(parameters, seed=5):
    g = torch.Generator().manual_seed(seed)
    return {k: torch.randn(p.shape, generator=g, dtype=p.dtype) for k, p in parameters.items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_glm_closed_form_is_autograds_and_the_hessians(name):
    p, X = problem()
    theta = {"theta": torch.cat([p["weight"], p["bias"][:, None]], 1)}
    F = geo.fisher_glm(p["weight"], p["bias"], X, FAMILIES[name])
    assert F.shape == (12, 12)
    torch.testing.assert_close(F, geo.fisher(stacked_glm, theta, X, FAMILIES[name]), **ROUNDING)
    torch.testing.assert_close(F, geo.fisher_hessian(stacked_glm, theta, X, FAMILIES[name]), **ROUNDING)


def test_glm_by_hand():
    """Two Gaussians of variance 4 and one case x = 3: blocks [[9, 3], [3, 1]] / 4 on the diagonal, 0 beside it."""
    F = geo.fisher_glm(torch.ones(2, 1), torch.zeros(2), torch.tensor([[3.0]]), geo.gaussian(4.0))
    block = torch.tensor([[9.0, 3.0], [3.0, 1.0]]).double() / 4
    assert F.equal(torch.block_diag(block, block))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", FAMILIES)
def test_fisher_is_the_expected_negative_hessian(norm, name):
    p, X = problem()
    model = geo.normalized_glm(norm)
    F = geo.fisher(model, p, X, FAMILIES[name])
    assert F.shape == (15, 15)
    torch.testing.assert_close(F, geo.fisher_hessian(model, p, X, FAMILIES[name]), **ROUNDING)
    torch.testing.assert_close(F, F.T, **ROUNDING)
    assert torch.linalg.eigvalsh(F)[0] > -1e-12  # rounding of eigenvalues of size one


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["bernoulli", "categorical"])
def test_fisher_by_going_through_every_output(norm, name):
    """E[score score^T] and E[score] as sums over all y, no sampling and no covariance: 0 and F."""
    family, (p, X) = geo.FAMILIES[name], problem()
    model, keys = geo.normalized_glm(norm), list(p)
    outputs = itertools.product([0.0, 1.0], repeat=3) if name == "bernoulli" else torch.eye(3).tolist()
    F, mean = 0, 0
    for y in outputs:
        y = torch.tensor(y, dtype=torch.float64).expand(5, 3)
        leaves = [p[k].clone().requires_grad_() for k in keys]
        logs = family.log_likelihood(model(dict(zip(keys, leaves, strict=True)), X), y)
        for log in logs:  # a case each; batch norm's derivative goes through its statistics
            u = torch.cat([g.flatten() for g in torch.autograd.grad(log, leaves, retain_graph=True)])
            F, mean = F + log.exp().detach() * torch.outer(u, u) / 5, mean + log.exp().detach() * u / 5
    torch.testing.assert_close(geo.fisher(model, p, X, family), F, **ROUNDING)
    torch.testing.assert_close(mean, torch.zeros_like(mean), **ROUNDING)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", FAMILIES)
def test_monte_carlo_agrees_within_its_standard_error(norm, name):
    p, X = problem()
    model = geo.normalized_glm(norm)
    F = geo.fisher(model, p, X, FAMILIES[name])
    found = geo.fisher_monte_carlo(model, p, X, FAMILIES[name], 2000, torch.Generator().manual_seed(1))
    # four standard errors over 225 entries, plus rounding where an entry does not vary
    assert ((found.fisher - F).abs() <= 4 * found.fisher_error + 1e-12).all()
    assert (found.score.abs() <= 4 * found.score_error + 1e-12).all()
    assert found.score_error.max() > 1e-3
    # and the errors are small enough to tell: a third more would be seen
    assert ((found.fisher - 4 / 3 * F).abs() > 5 * found.fisher_error + 1e-12).any()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", FAMILIES)
def test_kl_is_the_quadratic_form_up_to_third_order(norm, name):
    p, X = problem()
    model, d = geo.normalized_glm(norm), steps(p)
    F = geo.fisher(model, p, X, FAMILIES[name])
    ds2 = geo.quadratic_form(model, p, d, X, FAMILIES[name])
    torch.testing.assert_close(ds2, flat(d) @ F @ flat(d) / 2, **ROUNDING)
    off = []
    for size in (1e-3, 1e-4):
        step = {k: t * size for k, t in d.items()}
        off.append(abs(float(geo.kl(model, p, step, X, FAMILIES[name]) / (ds2 * size**2)) - 1))
    assert off[1] < 0.01
    assert off[1] < off[0] / 5  # a tenth, but for the next order of the step of 1e-3


def test_kl_of_gaussian_glms_is_the_quadratic_form_itself():
    p, X = problem()
    theta = {"theta": torch.cat([p["weight"], p["bias"][:, None]], 1)}
    for name in ("gaussian", "wide gaussian"):
        args = (stacked_glm, theta, steps(theta), X, FAMILIES[name])
        torch.testing.assert_close(geo.kl(*args), geo.quadratic_form(*args), **ROUNDING)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", FAMILIES)
def test_fisher_vector_product_is_the_matrix_times_the_vector(norm, name):
    p, X = problem()
    v = steps(p)
    found = geo.fisher_vector_product(geo.normalized_glm(norm), p, v, X, FAMILIES[name])
    expected = geo.fisher(geo.normalized_glm(norm), p, X, FAMILIES[name]) @ flat(v)
    assert {k: t.shape for k, t in found.items()} == {k: t.shape for k, t in p.items()}
    torch.testing.assert_close(flat(found), expected, **ROUNDING)


def test_too_large_a_matrix_is_refused_before_it_is_made():
    W, X = torch.zeros(100, 100), torch.ones(2, 100)
    message = "Fisher matrix of 10100 parameters over 200 outputs exceeds .* use fisher_vector_product"
    with pytest.raises(ValueError, match=message):
        geo.fisher_glm(W, torch.zeros(100), X, "gaussian")
    parameters = {"weight": W, "bias": torch.zeros(100)}
    for dense in (geo.fisher, geo.fisher_hessian, geo.fisher_monte_carlo):
        with pytest.raises(ValueError, match=message):
            dense(geo.normalized_glm(None), parameters, X, "gaussian")
    many = torch.zeros(1, 1).expand(100_000, 1)  # a small matrix, but a Jacobian of 10^5 cases
    with pytest.raises(ValueError, match="of 1100 parameters over 10000000 outputs exceeds"):
        geo.fisher_glm(torch.zeros(100, 10), torch.zeros(100), many.expand(-1, 10), "gaussian")
    found = geo.fisher_vector_product(geo.normalized_glm(None), parameters, parameters, X, "gaussian")
    assert found["weight"].shape == (100, 100)
