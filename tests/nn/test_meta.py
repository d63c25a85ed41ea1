"""Modules on the device `meta`, which has shapes and no numbers, and modules on the CPU where it is the default."""

import contextlib
import copy

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_leaves

import layernorm as ln
from support.networks import MODULE, NETWORKS

T, B, I, H = 3, 3, 4, 6  # noqa: E741
CLOSE = 1e-12
"""In float64: the plain equations may compute what the CPU engine does elsewhere."""

SEQUENCES = {
    "plain": lambda device: {},
    "lengths": lambda device: {"lengths": [3, 2, 1]},
    "lengths as a tensor": lambda device: {"lengths": torch.tensor([3, 2, 1], device=device)},
    "mask": lambda device: {"mask": torch.arange(T, device=device)[:, None] < torch.tensor([3, 2, 1], device=device)},
    "reset": lambda device: {"reset": (torch.arange(T * B, device=device) % 4 == 3).view(T, B)},
    "reset of numbers": lambda device: {"reset": torch.ones(T, B, device=device)},
}


def there_and_back(module, *given, **keywords):
    """The tensors that a call returns, and the gradients of the parameters; a change of its statistics is seen, too."""
    module = copy.deepcopy(module)
    results = [part for part in tree_leaves(module(*given, **keywords)) if part is not None and part.requires_grad]
    sum((part * part).sum() for part in results).backward()
    return [*results, *(p.grad for p in module.parameters()), *module.buffers()]


def networks(device, norms):
    for network in NETWORKS:
        for norm in norms:
            yield MODULE[network](I, H, norm=norm, device=device, dtype=torch.float64)


@pytest.mark.parametrize("training", [True, False])
def test_on_meta_everything_has_its_shape(training):
    for module in networks("meta", [None, "layer", "batch"]):
        like = copy.deepcopy(module).to_empty(device="cpu")
        like.load_state_dict({name: torch.ones_like(value) for name, value in like.state_dict().items()})
        x = torch.randn(T, B, I, dtype=torch.float64)
        for way in ("plain", "lengths") if module.network != "RNN" else SEQUENCES:
            expected = there_and_back(like.train(training), x, **SEQUENCES[way]("cpu"))
            keywords = SEQUENCES[way]("meta")
            with torch.device("meta") if training else contextlib.nullcontext():
                found = there_and_back(module.train(training), x.to("meta"), **keywords)
            assert [(t.shape, t.dtype, t.is_meta) for t in found] == [(t.shape, t.dtype, True) for t in expected]
    for norm in (ln.LayerNorm, ln.RMSNorm, ln.BatchNorm):
        found = there_and_back(norm(H, device="meta").train(training), torch.empty(B, H, device="meta"))
        assert all(t.is_meta for t in found)


@pytest.mark.parametrize("way", [*SEQUENCES, "packed"])
def test_where_meta_is_the_default_a_network_on_the_cpu_computes_the_same(way):
    torch.manual_seed(0)
    x = torch.randn(T, B, I, dtype=torch.float64)
    given = pack_padded_sequence(x, [3, 2, 1]) if way == "packed" else x
    keywords = {} if way == "packed" else SEQUENCES[way]("cpu")
    for module in networks("cpu", ["layer", "batch"]):
        expected = there_and_back(module, given, **keywords)
        with torch.device("meta"):
            found = there_and_back(module, given, **keywords)
        torch.testing.assert_close(found, expected, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("norm", [None, "layer", "weight"])
def test_where_meta_is_the_default_a_step_on_the_cpu_is_the_same(network, norm):
    torch.manual_seed(0)
    x = torch.randn(B, I, dtype=torch.float64)
    cell = getattr(ln, f"{network}Cell")(I, H, norm=norm, dtype=torch.float64)
    module = MODULE[network](I, H, 2, norm=norm, dtype=torch.float64)
    found = []
    for context in (contextlib.nullcontext(), torch.device("meta")):
        with context:
            step = module.stepper()
            _, state = step(x, None)
            found.append([*there_and_back(cell, x), *tree_leaves(step(x, state))])
    torch.testing.assert_close(*found, rtol=CLOSE, atol=CLOSE)
