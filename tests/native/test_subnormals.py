"""Gradients that die out over many steps end at 0, not in subnormal numbers, which x86 takes hundreds of cycles for."""

import platform

import pytest
import torch

import layernorm as ln
from support.networks import MODULE

TINY = torch.finfo(torch.float32).tiny

x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have no price for subnormal numbers")


def input_gradient(network, engine, dtype=torch.float32):
    """The gradient of the last output with respect to 250 steps of input, back to where nothing is left of it."""
    torch.manual_seed(0)
    module = MODULE[network](4, 16, norm=None).to(dtype)
    x = torch.randn(250, 20, 4).to(dtype).requires_grad_()
    with ln.backends.use(engine):
        module(x)[0][-1].sum().backward()
    return x.grad


def subnormal(x):
    return (x != 0) & (x.abs() < TINY)


@x86
@pytest.mark.parametrize("network", MODULE)
def test_results_have_no_subnormal_numbers(network):
    exact = input_gradient(network, "reference", torch.float64)
    found = input_gradient(network, "native")
    assert subnormal(exact).any(), "there are such gradients"
    assert not subnormal(found).any()
    assert (found[0] == 0).all()
    torch.testing.assert_close(found, exact.float(), rtol=1e-4, atol=1e-6)  # the rounding of many steps


def test_threads_take_them_as_the_caller_does():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = input_gradient("LSTM", "native")
        torch.set_num_threads(2)
        two = input_gradient("LSTM", "native")
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, two)


def test_the_users_own_arithmetic_keeps_them():
    input_gradient("LSTM", "native")
    assert subnormal(torch.tensor(TINY) / 4)
    assert subnormal(ln.functional.rms_norm(torch.full((2, 4), 1.0), (4,), torch.full((4,), TINY / 4))).all()
