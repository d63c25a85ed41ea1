"""Section 5.2.2 and the appendix: curvature along growing weights, ds^2 along the gains."""

import pytest
import torch

from layernorm import geometry as geo
from support.layers import problem

ROUNDING = 1e-10  # float64; ratios of sums of a few hundred terms


@pytest.mark.parametrize("scale", [0.5, 2.0, 10.0])
@pytest.mark.parametrize("unit", [0, 2])
def test_each_sigma_divides_a_block_by_the_scale(scale, unit):
    for norm, cross in {"batch": 1 / scale, "weight": 1 / scale, "layer": scale**-2, "rms": scale**-2}.items():
        found = geo.curvature_ratio(*problem(), "categorical", norm, scale, unit=unit)
        assert found.diagonal == pytest.approx(scale**-2, rel=ROUNDING)
        assert found.cross == pytest.approx(cross, rel=ROUNDING)
        assert found.output_change < ROUNDING


@pytest.mark.parametrize("norm", ["batch", "weight", "layer", "rms"])
def test_every_entry_scales_as_its_block(norm):
    """Not only the blocks' norms; and the rows of biases and gains, with one sigma less."""
    W, b, gain, X = problem()
    grown = W.clone()
    grown[slice(1) if norm in ("batch", "weight") else slice(None)] *= 2
    factor = torch.ones(4, 5, dtype=torch.float64)
    factor[slice(1) if norm in ("batch", "weight") else slice(None), :3] /= 2
    factor = torch.outer(factor.flatten(), factor.flatten())
    for form in ("blocks", "exact"):
        before, after = (geo.fisher_normalized(w, b, gain, X, "categorical", norm, form=form) for w in (W, grown))
        torch.testing.assert_close(after, before * factor, rtol=1e-10, atol=1e-13)


def test_independent_outputs_have_no_cross_blocks_under_batch_norm():
    assert geo.curvature_ratio(*problem(), "poisson", "batch", 2.0).cross is None
    assert geo.curvature_ratio(*problem(), "poisson", "layer", 2.0).cross == pytest.approx(1 / 4, rel=ROUNDING)


@pytest.mark.parametrize("norm", ["batch", "weight", "layer", "rms"])
def test_the_angle_of_a_step_falls_with_the_square_of_the_norm(norm):
    W, b, gain, X = problem()
    model, family = geo.normalized_glm(norm), geo.FAMILIES["bernoulli"]
    y = family.sample(torch.zeros(6, 4), torch.Generator().manual_seed(1)).double()

    def loss(weight):
        return -family.log_likelihood(model({"weight": weight, "bias": b, "gain": gain}, X), y).mean()

    small, large = (geo.step_angles(loss, s * W, 1e-4).angles[0] for s in (1, 10))
    assert (small > 1e-7).all()
    # the arc tangent's third order: 1e-4^2 at most, and a change of length within the step under layer norm
    torch.testing.assert_close(small / large, torch.full_like(small, 100), rtol=1e-2, atol=0)
    if norm in ("batch", "weight"):  # each step is orthogonal to w_i
        norms = geo.step_angles(loss, W, 0.1, steps=20).norms
        assert (norms.diff(dim=0) > 0).all()
    else:  # to W as a whole
        norms = geo.step_angles(loss, W, 0.1, steps=20).norms.norm(dim=1)
        assert (norms.diff() > 0).all()


def test_step_angles_by_hand():
    """From (1, 0) by (0, 1): 45 degrees, then from (1, 1) by the same: to (1, 2)."""
    found = geo.step_angles(lambda w: -w[0, 1], torch.tensor([[1.0, 0.0]]), 1.0, steps=2)
    torch.testing.assert_close(found.norms, torch.tensor([[1.0], [2**0.5]], dtype=torch.float64))
    turned = torch.atan(torch.tensor([1.0, 2.0], dtype=torch.float64))
    torch.testing.assert_close(found.angles[:, 0], torch.stack([turned[0], turned[1] - turned[0]]))


@pytest.mark.parametrize("norm", ["batch", "weight", "layer", "rms", None])
@pytest.mark.parametrize("name", ["gaussian", "bernoulli", "poisson", "categorical"])
def test_gain_metric_is_the_quadratic_form_of_the_step(norm, name):
    W, b, gain, X = problem()
    gain[1] *= -1  # a step along gain_i w_i, not along w_i
    delta = torch.tensor([0.5, -1.0, 2.0, 0.1], dtype=torch.float64)
    found = geo.gain_metric(W, b, gain, X, name, norm, delta)
    if norm:
        parameters = {"weight": W, "bias": b, "gain": gain}
        step = {"weight": torch.zeros_like(W), "bias": torch.zeros_like(b), "gain": delta}
    else:
        parameters = {"weight": gain[:, None] * W, "bias": b}
        weights = parameters["weight"]
        step = {"weight": (delta / weights.norm(dim=1))[:, None] * weights, "bias": torch.zeros_like(b)}
    expected = geo.quadratic_form(geo.normalized_glm(norm), parameters, step, X, name)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)  # rounding
    assert found > 1e-3


def test_ds2_against_the_scale_of_the_inputs():
    W, b, gain, X = problem()
    scales = [1e-3, 1e-1, 1.0, 10.0, 1e3]
    found = geo.gain_metric_by_scale(W, b, gain, X, geo.gaussian(2.0), torch.ones(4), scales)
    for norm, ds2 in found.items():
        grows = norm in ("weight", None)
        expected = ds2[2] * (torch.tensor(scales, dtype=torch.float64) ** 2 if grows else torch.ones(5).double())
        torch.testing.assert_close(ds2, expected, rtol=1e-11, atol=0)  # rounding
    others = geo.gain_metric_by_scale(W, b, gain, X, "categorical", torch.arange(4.0), scales)
    for norm in ("batch", "layer", "rms"):  # whatever the family
        torch.testing.assert_close(others[norm], others[norm][:1].expand(5), rtol=1e-11, atol=0)
