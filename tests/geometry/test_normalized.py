"""The normalised generalised linear model, eqs. 13 and 14: the paper's blocks, and the exact matrix."""

import pytest
import torch

from layernorm import geometry as geo
from support.layers import FAMILIES, NORMS, ROUNDING, problem


def natural_parameters(W, b, gain, X, norm, eps=0.0):
    """Eq. 13's eta, written out; its derivatives by reverse mode, (B, H, H, I+2)."""
    theta = torch.cat([W, b[:, None], gain[:, None]], 1)

    def eta(theta):
        W, b, gain = theta[:, :-2], theta[:, -2], theta[:, -1]
        a = X @ W.T
        if norm in ("batch", "layer"):
            axis = 0 if norm == "batch" else 1
            a = (a - a.mean(axis, keepdim=True)) / (a.var(axis, unbiased=False, keepdim=True) + eps).sqrt()
        elif norm == "rms":
            a = a / (a.square().mean(1, keepdim=True) + eps).sqrt()
        elif norm == "weight":
            a = a / (W.square().sum(1) + eps).sqrt()
        return a * gain + b

    return eta(theta), torch.func.jacrev(eta)(theta)


def assembled(family, eta, J):
    precision = family.covariance(eta) / family.phi**2
    J = J.flatten(2)
    return torch.einsum("bip,bij,bjq->pq", J, precision, J) / len(eta)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_exact_and_blocks_are_those_of_the_equations(norm, name, eps):
    """Exact: all derivatives. Blocks: d eta_i of unit i's own parameters alone."""
    *layer, X = problem()
    family = FAMILIES[name]
    eta, J = natural_parameters(*layer, X, norm, eps)
    exact = geo.fisher_normalized(*layer, X, family, norm, form="exact", eps=eps)
    assert exact.shape == (20, 20)
    torch.testing.assert_close(exact, assembled(family, eta, J), **ROUNDING)
    own = J * torch.eye(4, dtype=torch.float64)[None, :, :, None]
    blocks = geo.fisher_normalized(*layer, X, family, norm, eps=eps)
    torch.testing.assert_close(blocks, assembled(family, eta, own), **ROUNDING)


@pytest.mark.parametrize("name", FAMILIES)
def test_exact_layer_norm_by_hand(name):
    """d eta_i / d w_j = g_i / sigma (delta_ij - 1/H - z_i z_j / H) x: the blocks' chi_i is the case j = i."""
    W, b, gain, X = problem()
    family, H = FAMILIES[name], 4
    a = X @ W.T
    sigma = a.std(1, unbiased=False, keepdim=True)
    z = (a - a.mean(1, keepdim=True)) / sigma
    factor = torch.eye(H, dtype=torch.float64) - 1 / H - z[:, :, None] * z[:, None, :] / H
    by_weight = (gain / sigma)[:, :, None, None] * factor[..., None] * X[:, None, None, :]
    eye = torch.eye(H, dtype=torch.float64).expand(len(X), H, H)
    J = torch.cat([by_weight, eye[..., None], (eye * z[:, :, None])[..., None]], -1)
    exact = geo.fisher_normalized(W, b, gain, X, family, "layer", form="exact")
    torch.testing.assert_close(exact, assembled(family, z * gain + b, J), **ROUNDING)


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("name", FAMILIES)
def test_monte_carlo_finds_the_exact_matrix(norm, name):
    W, b, gain, X = problem()
    exact = geo.fisher_normalized(W, b, gain, X, FAMILIES[name], norm, form="exact")
    order = torch.arange(20).reshape(4, 5)  # w_i, b_i, g_i by unit -> all weights, all biases, all gains
    order = torch.cat([order[:, :3].flatten(), order[:, 3], order[:, 4]])
    found = geo.fisher_monte_carlo(
        geo.normalized_glm(norm), {"weight": W, "bias": b, "gain": gain}, X, FAMILIES[name], 1500,
        torch.Generator().manual_seed(2),
    )  # fmt: skip
    margin = 5 * found.fisher_error + 1e-12  # five standard errors over 400 entries, and rounding
    assert ((found.fisher - exact[order][:, order]).abs() <= margin).all()
    if norm == "layer":  # and it tells the exact matrix from the paper's blocks
        blocks = geo.fisher_normalized(W, b, gain, X, FAMILIES[name], norm)
        assert ((found.fisher - blocks[order][:, order]).abs() > 2 * margin).any()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_gap_between_blocks_and_exact(name):
    for norm in ("batch", "weight", None):
        assert geo.block_form_gap(*problem(), FAMILIES[name], norm) < 1e-13  # rounding
    for norm in ("layer", "rms"):
        gaps = [geo.block_form_gap(*problem(H=H), FAMILIES[name], norm) for H in (4, 64)]
        # H - 1 cross terms of size 1/H beside one of size 1: about 1/sqrt(H) of the norm
        assert gaps[0] > 0.1
        assert gaps[1] < 0.6 * gaps[0]


def test_without_norm_and_gain_one_it_is_the_glm():
    W, b, _, X = problem()
    keep = [i for i in range(20) if i % 5 != 4]  # without the gains' rows
    F = geo.fisher_normalized(W, b, torch.ones(4), X, "poisson", None)[keep][:, keep]
    torch.testing.assert_close(F, geo.fisher_glm(W, b, X, "poisson"), **ROUNDING)


def test_the_weights_own_direction_has_no_curvature_under_a_norm():
    """The output does not depend on ||w_i|| under batch and weight norm, nor on ||W|| under layer and RMS norm."""
    W, b, gain, X = problem()
    radial = torch.cat([W, torch.zeros(4, 2)], 1).flatten()
    for norm in NORMS:
        F = geo.fisher_normalized(W, b, gain, X, "gaussian", norm, form="exact")
        assert (F @ radial).norm() < 1e-13 if norm else (F @ radial).norm() > 0.1
    one = radial.clone()
    one[5:] = 0
    for norm in NORMS:
        F = geo.fisher_normalized(W, b, gain, X, "gaussian", norm, form="exact")
        assert (F @ one).norm() < 1e-13 if norm in ("batch", "weight") else (F @ one).norm() > 0.01


@pytest.mark.parametrize("norm", NORMS)
def test_the_model_is_the_equations(norm):
    W, b, gain, X = problem()
    model = geo.normalized_glm(norm, 0.1)
    eta, _ = natural_parameters(W, b, gain, X, norm, 0.1)
    torch.testing.assert_close(model({"weight": W, "bias": b, "gain": gain}, X), eta, **ROUNDING)
    eta, _ = natural_parameters(W, b, torch.ones_like(gain), X, norm, 0.1)
    torch.testing.assert_close(model({"weight": W, "bias": b}, X), eta, **ROUNDING)
