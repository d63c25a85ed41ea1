"""Tensors whose elements are not in memory, and gradients of other shapes than the kernels' results."""

import pytest
import torch

import layernorm as ln

pytest.importorskip("layernorm.engines.native", exc_type=ImportError)

T, B, I, H = 4, 3, 5, 6  # noqa: E741


def emptied(tensor):
    """The tensor after its memory was given back: it has elements and no storage."""
    tensor.untyped_storage().resize_(0)
    return tensor


def lstm_tensors():
    shapes = ln.LSTM(I, H).recurrence.parameter_shapes(I, H)
    return torch.randn(T, B, I), [torch.randn(B, H), torch.randn(B, H)], {n: torch.randn(s) for n, s in shapes.items()}


NO_STORAGE = "expected a tensor with its elements in memory, got a tensor of shape .* without storage"


@pytest.mark.parametrize("at", [0, 2])  # with an offset the address is not zero
@pytest.mark.parametrize("which", ["input", "residual", "weight", "bias"])
def test_norms_refuse_tensors_without_storage(which, at):
    given = {"input": (7, 9), "residual": (7, 9), "weight": (9,), "bias": (9,)}
    tensors = {name: torch.randn(at + 7, *shape)[at] for name, shape in given.items()}
    emptied(tensors[which])
    with pytest.raises(RuntimeError, match=NO_STORAGE):
        ln.functional.add_layer_norm(tensors["input"], tensors["residual"], (9,), tensors["weight"], tensors["bias"])


@pytest.mark.parametrize("which", ["input", "h", "c", "weight_ih", "bias_hh", "gain_c", "reset"])
def test_networks_refuse_tensors_without_storage(which):
    x, state, parameters = lstm_tensors()
    reset = torch.zeros(T, B, dtype=torch.bool)
    named = {"input": x, "h": state[0], "c": state[1], "reset": reset, **parameters}
    emptied(named[which])
    with pytest.raises(RuntimeError, match=NO_STORAGE):
        ln.functional.lstm(x, tuple(state), parameters, reset=reset)


def test_steps_refuse_tensors_without_storage():
    module = ln.LSTM(I, H)
    step = module.stepper()
    _, state = step(torch.randn(B, I))
    with pytest.raises(RuntimeError, match=NO_STORAGE):
        step(emptied(torch.randn(B, I)), state)


@pytest.mark.parametrize("call", ["norm", "network", "steps"])
def test_backwards_refuse_tensors_without_storage(call):
    """Whether a hook has put one in the place of what was saved, or it is a gradient."""
    module = torch.nn.LayerNorm(I) if call == "norm" else ln.LSTM(I, H)
    forward = {
        "norm": lambda: ln.LayerNorm(I)(torch.randn(B, I, requires_grad=True)),
        "network": lambda: module(torch.randn(T, B, I))[0],
        "steps": lambda: module.stepper()(torch.randn(B, I))[0],
    }[call]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: emptied(t.clone()), lambda t: t):
        spoilt = forward()
    with pytest.raises(RuntimeError, match=NO_STORAGE):
        spoilt.sum().backward()
    y = forward()
    with pytest.raises(RuntimeError, match=NO_STORAGE):
        y.backward(emptied(torch.ones_like(y)))


def test_torchs_own_zeros_are_zeros():
    """`torch._efficientzerotensor` has elements, all 0, and no memory."""
    zeros, module = torch._efficientzerotensor, ln.LSTM(I, H)
    bias = torch.randn(I)
    y = ln.functional.layer_norm(zeros((B, I)), (I,), None, bias)
    assert torch.equal(y, bias.expand(B, I))
    y, total = ln.functional.add_layer_norm(torch.ones(B, I), zeros((I, B)).t(), (I,), zeros((I,)), zeros((I,)))
    assert torch.equal(y, torch.zeros(B, I))
    assert torch.equal(total, torch.ones(B, I))
    state = torch.zeros(1, B, H)
    for x, hx in ((zeros((T, B, I)), None), (torch.zeros(T, B, I), (zeros((1, B, H)), zeros((1, B, H))))):
        assert torch.equal(module(x, hx)[0], module(torch.zeros(T, B, I), (state, state))[0])
    x = torch.randn(T, B, I, requires_grad=True)
    module(x)[0].backward(zeros((T, B, H)))
    assert torch.equal(x.grad, torch.zeros_like(x))
    x = torch.randn(B, I, requires_grad=True)
    ln.LayerNorm(I)(x).backward(zeros((B, I)))
    assert torch.equal(x.grad, torch.zeros_like(x))
    output, _ = module.stepper()(x)
    output.backward(zeros((B, H)))
    assert torch.equal(module.weight_ih_l0.grad, torch.zeros_like(module.weight_ih_l0))


def more_rows(tensor):
    """What a hook makes of what was saved: every tensor fits to every other, and no gradient to them."""
    statistics = tensor.dtype == torch.float64  # of a norm, (2, M)
    return torch.cat([tensor, tensor], 1 if tensor.dim() == 3 or statistics else 0)


def test_a_gradient_that_does_not_fit_to_what_was_saved_is_refused():
    x = torch.randn(B, I, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, more_rows):
        y = ln.functional.layer_norm(x, (I,))
    with pytest.raises(RuntimeError, match=rf"expected a gradient like input, torch.float32 \[{2 * B}, {I}\]"):
        y.sum().backward()
    module, x = ln.LSTM(I, H, norm=None, bias=False), torch.randn(T, B, I)
    saved_parameters = {tuple(p.shape) for p in module.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t, lambda t: t if tuple(t.shape) in saved_parameters else more_rows(t)
    ):
        y, _ = module(x)
    with pytest.raises(RuntimeError, match=rf"expected grad_output of shape \[{T}, {2 * B}, {H}\]"):
        y.sum().backward()
