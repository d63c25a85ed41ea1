"""The original code's Adam against its formula, step by step in float64."""

import math

import pytest
import torch

from layernorm_lab.runs import checkpoint
from layernorm_lab.train.legacy_adam import LegacyAdam


def formula(start, gradients, rates):
    """The original code's update, one number at a time."""
    value, m, v = start, 0.0, 0.0
    for t, (gradient, lr) in enumerate(zip(gradients, rates, strict=True), 1):
        m = 0.1 * gradient + 0.9 * m
        v = 0.001 * gradient**2 + 0.999 * v
        value -= lr * math.sqrt(1 - 0.001**t) / (1 - 0.1**t) * m / (math.sqrt(v) + 1e-8)
    return value


@pytest.mark.parametrize("falling", [0.0, 0.02])
@pytest.mark.parametrize("fused", [True, False])
def test_it_is_its_formula(fused, falling):
    """Also where somebody else changes the step size from update to update; it is never left changed."""
    parameter = torch.nn.Parameter(torch.tensor([0.3, -2.0, 5.0], dtype=torch.float64))
    never = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))  # has no gradient
    optimizer = LegacyAdam([never, parameter], lr=0.01, fused=fused)
    start, gradients = parameter.tolist(), torch.randn(40, 3, dtype=torch.float64)
    gradients[:, 2] *= 1e-9  # where the 1e-8 beside the root matters
    rates = [0.01 * (1 - falling * t) for t in range(40)]
    for gradient, rate in zip(gradients, rates, strict=True):
        parameter.grad = gradient.clone()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        assert optimizer.param_groups[0]["lr"] == rate
    expected = [formula(value, column, rates) for value, column in zip(start, gradients.T.tolist(), strict=True)]
    # float64 throughout; the step size takes a detour of a handful of roundings
    assert parameter.tolist() == pytest.approx(expected, rel=1e-12)
    assert never.item() == 0


def test_the_first_steps_are_several_times_as_long_as_adams():
    lengths = {}
    for kind in (LegacyAdam, torch.optim.Adam):
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = kind([parameter], lr=1e-3)
        found = []
        for _ in range(10):
            before = parameter.item()
            parameter.grad = torch.ones(1)
            optimizer.step()
            found.append(before - parameter.item())
        lengths[kind] = found
    ratios = [a / b for a, b in zip(lengths[LegacyAdam], lengths[torch.optim.Adam], strict=True)]
    assert 3 < min(ratios) < max(ratios) < 7


def test_a_state_without_its_count_is_refused():
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = LegacyAdam([parameter])
    tensors, groups = checkpoint.optimizer_tensors(optimizer)
    old = [{name: value for name, value in group.items() if name != "steps"} for group in groups]
    with pytest.raises(ValueError, match="the optimiser's settings lack steps"):
        checkpoint.restore_optimizer(optimizer, tensors, old)
