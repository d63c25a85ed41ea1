"""Gradients that die out over many steps end at 0, not in subnormal numbers, which cost x86 hundreds of cycles each."""

import platform

import pytest
import torch

import layernorm as ln
from support.networks import MODULE
from support.processes import python

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


@x86
def test_the_threads_that_a_backward_starts_keep_them():
    """A thread that PyTorch starts has the mode of the thread that starts it, for good. A process of its own: here
    PyTorch has its threads already."""
    program = """if True:
        import torch, layernorm as ln
        torch.set_num_threads(2)
        ln.LSTM(4, 4)(torch.randn(2, 1, 4))[0].sum().backward()
        print(torch.get_num_threads(), int((torch.full((1 << 18,), 1e-40) * 1.0 == 0).sum()))
    """
    assert python(program).stdout.split() == ["2", "0"]


@pytest.mark.parametrize("eps_on", ["variance", "deviation"])
def test_with_an_eps_of_0_small_numbers_count(eps_on):
    """Outputs and gradients do not depend on the scale of the input, also where its square is subnormal."""
    torch.manual_seed(0)
    lstm = ln.LSTM(5, 20, formula=ln.Formula(eps=0.0, eps_on=eps_on, cell=None))
    x, hx = torch.randn(6, 4, 5), (torch.randn(1, 4, 20), torch.randn(1, 4, 20))
    results = []
    for scale in (1.0, 1e-18, 1e-19):
        with ln.backends.use("native"):
            output, _ = lstm(x * scale, hx)
            results.append([output, *torch.autograd.grad(output.sum(), [lstm.weight_hh_l0, lstm.gain_ih_l0])])
    for others, bound in zip(results[1:], (1e-5, 1e-4), strict=True):  # the last squares have some 18 bits
        for one, other in zip(results[0], others, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=bound)


@pytest.mark.parametrize("network", MODULE)
def test_gradients_of_huge_inputs_are_those_in_float64(network):
    """A time in nanoseconds among the features: the deviation is so large that its inverse square is subnormal."""
    torch.manual_seed(0)
    module = MODULE[network](6, 32)
    x = torch.randn(5, 4, 6)
    x[..., 0] = 1.7e18 + 1e9 * torch.rand(5, 4)
    grads = []
    for engine, dtype in (("native", torch.float32), ("reference", torch.float64)):
        module = module.to(dtype)
        with ln.backends.use(engine):
            output, _ = module(x.to(dtype))
            grads.append(torch.autograd.grad(output.square().mean(), module.weight_ih_l0)[0].double())
    assert (grads[0] - grads[1]).abs().max() <= 1e-4 * grads[1].abs().max()  # seen: 4e-7 of the equations in float32
