"""Rows of docs/limits.md that no other test covers: what is refused, and what differs from torch without an error."""

import copy
import pickle

import pytest
import torch

import layernorm as ln


@pytest.mark.parametrize("make", [lambda: ln.LSTM(3, 4), lambda: ln.GRUCell(3, 4), lambda: ln.LayerNorm(3)])
def test_complex_inputs_are_refused(make):
    with pytest.raises(RuntimeError, match=r"expected input of a floating-point type, got torch\.complex64"):
        make()(torch.randn(5, 3, dtype=torch.complex64))


def test_a_network_with_weight_norm_is_not_pickled():
    with pytest.raises(RuntimeError, match="parametrized modules is only supported through state_dict"):
        pickle.dumps(ln.LSTM(3, 4, norm="weight"))


@pytest.mark.parametrize(("norm", "refused"), [("weight", True), ("layer", False)])
def test_two_calls_of_backward_after_two_steps(norm, refused):
    step = ln.LSTM(3, 4, norm=norm).stepper()
    first, second = (step(torch.randn(2, 3))[0].sum() for _ in range(2))
    first.backward()
    if refused:
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            second.backward()
    else:
        second.backward()


def test_batched_gradients_of_a_network_and_of_its_stepper():
    module, x = ln.GRU(3, 4), torch.randn(5, 2, 3)
    y, parameters = module(x)[0], list(module.parameters())
    grads = torch.randn(3, *y.shape)
    batched = torch.autograd.grad(y, parameters, grads, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(y, parameters, grad, retain_graph=True) for grad in grads]
    torch.testing.assert_close(batched, tuple(map(torch.stack, zip(*each, strict=True))))
    stepped = module.stepper()(x[0])[0]
    with pytest.raises(RuntimeError, match="Batching rule not implemented"):
        torch.autograd.grad(stepped, parameters, grads[:, 0], is_grads_batched=True)


def test_a_stepper_runs_no_global_hooks():
    seen = []
    module = ln.LSTM(3, 4)
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
    try:
        module.stepper()(torch.randn(2, 3))
        assert seen == []
        module(torch.randn(5, 2, 3))
        assert seen == [module]
    finally:
        handle.remove()


def test_torchs_update_bn_skips_recurrent_batch_norm():
    model = torch.nn.Sequential(ln.GRU(3, 4, norm="batch"))
    before = copy.deepcopy(dict(model.named_buffers()))
    torch.optim.swa_utils.update_bn([torch.randn(5, 4, 3)], model)
    torch.testing.assert_close(dict(model.named_buffers()), before, rtol=0, atol=0)
    ln.update_bn([torch.randn(5, 4, 3)], model)
    assert any(not torch.equal(before[name], buffer) for name, buffer in model.named_buffers())
