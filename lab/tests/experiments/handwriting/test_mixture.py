"""The density of a pen's next point, against scipy's, and what is drawn from it."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from layernorm_lab.experiments.handwriting import mixture


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_the_density_is_scipys(scale):
    random = np.random.default_rng(0)
    y, points = random.normal(0, scale, (5, 1 + 6 * 4)), random.normal(0, 2, (5, 3))
    points[:, 2] = [0, 1, 1, 0, 1]
    found = mixture.log_density(torch.from_numpy(y), torch.from_numpy(points))
    for row, point, value in zip(y, points, found, strict=True):
        pi, mu1, mu2, s1, s2, rho = row[1:].reshape(6, 4)
        weights = np.exp(pi) / np.exp(pi).sum()
        s1, s2, rho = np.exp(s1), np.exp(s2), np.tanh(rho)
        density = 0.0
        for j in range(4):
            across = rho[j] * s1[j] * s2[j]
            gaussian = multivariate_normal([mu1[j], mu2[j]], [[s1[j] ** 2, across], [across, s2[j] ** 2]])
            density += weights[j] * gaussian.pdf(point[:2])
        end = 1 / (1 + math.exp(row[0]))
        assert float(value) == pytest.approx(math.log(density) + math.log(end if point[2] else 1 - end), rel=1e-9)


def test_the_density_integrates_to_one():
    y = torch.tensor([0.3, 0.1, -0.4, 0.2, 1.0, 0.0, -0.5, -0.3, 0.2, 0.1, -0.6, 0.8, -1.2], dtype=torch.float64)
    axis = torch.linspace(-12, 12, 481, dtype=torch.float64)
    grid = torch.stack([*torch.meshgrid(axis, axis, indexing="ij")], -1)
    total = 0.0
    for end in (0.0, 1.0):
        points = torch.cat([grid, torch.full((*grid.shape[:2], 1), end, dtype=torch.float64)], -1)
        total += float(mixture.log_density(y, points).exp().sum()) * 0.05**2
    assert total == pytest.approx(1, rel=1e-6)


def test_the_density_is_finite_far_out_and_at_the_edge():
    y = torch.zeros(1 + 6)
    y[6] = 20.0  # rho is 1 in float32
    for point in ([30.0, 30.0, 0.0], [1e4, 1e4, 1.0]):
        assert torch.isfinite(mixture.log_density(y, torch.tensor(point)))
    assert mixture.log_density(torch.zeros(7), torch.tensor([0.0, 0.0, 1.0])) == pytest.approx(
        -math.log(2 * math.pi) - math.log(2)
    )


@pytest.mark.parametrize("extreme", [-1e3, -50.0, 50.0, 1e3])
@pytest.mark.parametrize("number", range(6, 13))  # of the second component's six, and of the first one's rho
def test_no_component_makes_a_loss_or_a_gradient_infinite(number, extreme):
    y = torch.zeros(1 + 6 * 2)
    y[number] = extreme
    y.requires_grad_()
    value = mixture.log_density(y, torch.tensor([0.5, -0.3, 1.0]))
    assert torch.isfinite(value)
    assert torch.autograd.grad(value, y)[0].isfinite().all()
    drawn = mixture.draw_point(y.detach(), 0.0, torch.Generator().manual_seed(0))
    assert drawn.isfinite().all()


@pytest.mark.parametrize("bias", [50.0, 1e6, 1e300])
def test_a_large_bias_draws_the_most_probable_components_mean(bias):
    y = torch.tensor([5.0, 0.2, 0.1, -1.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    drawn = mixture.draw_point(y, bias, torch.Generator().manual_seed(0))
    assert drawn[:2].tolist() == [-1.0, 2.0]


def test_drawn_points_have_the_mixtures_moments():
    y = torch.tensor([1.0, 0.0, 0.5, 2.0, math.log(0.5), math.log(2.0), 0.7])
    random = torch.Generator().manual_seed(0)
    drawn = torch.stack([mixture.draw_point(y, 0.0, random) for _ in range(4000)])
    assert drawn[:, 0].mean() == pytest.approx(0.5, abs=0.03)
    assert drawn[:, 1].mean() == pytest.approx(2.0, abs=0.12)
    assert float(torch.corrcoef(drawn[:, :2].T)[0, 1]) == pytest.approx(math.tanh(0.7), abs=0.04)
    assert drawn[:, 2].mean() == pytest.approx(1 / (1 + math.e), abs=0.03)
    neat = torch.stack([mixture.draw_point(y, 2.0, random) for _ in range(1000)])
    assert neat[:, 0].std() == pytest.approx(0.5 * math.exp(-2), rel=0.1)
