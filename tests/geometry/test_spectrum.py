"""Deep networks: neuron blocks and the largest eigenvalue."""

import pytest
import torch

import layernorm as ln
from layernorm import geometry as geo


def network():
    """A layer-normalised network of 4, 5 and 3 units as a module, its parameters and inputs, in float64."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 5), ln.LayerNorm(5), torch.nn.Tanh(), torch.nn.Linear(5, 3)]
    module = torch.nn.Sequential(*layers).double()
    parameters = {k: p.detach() for k, p in module.named_parameters()}
    X = torch.randn(7, 4, dtype=torch.float64)
    return lambda p, x: torch.func.functional_call(module, p, (x,)), parameters, X


@pytest.mark.parametrize("family", geo.FAMILIES)
def test_neuron_blocks_are_the_whole_matrixs(family):
    model, parameters, X = network()
    F = geo.fisher(model, parameters, X, family)
    start = 0
    for name, p in parameters.items():
        blocks = geo.neuron_blocks(model, parameters, X, family, name)
        N = p[0].numel()
        assert blocks.shape == (len(p), N, N)
        for i, block in enumerate(blocks):
            own = slice(start + i * N, start + (i + 1) * N)
            torch.testing.assert_close(block, F[own, own], rtol=1e-11, atol=1e-14)  # rounding
        start += p.numel()


@pytest.mark.parametrize("family", geo.FAMILIES)
def test_power_iteration_finds_the_largest_eigenvalue(family):
    model, parameters, X = network()
    expected = torch.linalg.eigvalsh(geo.fisher(model, parameters, X, family))

    def product(v):
        return geo.fisher_vector_product(model, parameters, v, X, family)

    found = geo.power_iteration(product, parameters, generator=torch.Generator().manual_seed(0))
    assert found.iterations < 1000
    assert found.residual <= 1e-8 * found.value
    # a Rayleigh quotient's error is residual^2 / gap: rounding remains
    assert found.value == pytest.approx(float(expected[-1]), rel=1e-12)
    assert sum(float(t.square().sum()) for t in found.vector.values()) == pytest.approx(1, rel=1e-12)


def test_power_iteration_on_a_known_matrix():
    """The largest by magnitude, also a negative one; its residual tells what too few steps have left."""
    diagonal = torch.tensor([1.0, -4.0, 3.0], dtype=torch.float64)
    like, g = {"x": diagonal}, torch.Generator().manual_seed(0)
    found = geo.power_iteration(lambda v: {"x": diagonal * v["x"]}, like, generator=g)
    assert found.value == pytest.approx(-4, rel=1e-14)
    early = geo.power_iteration(lambda v: {"x": diagonal * v["x"]}, like, iterations=2, generator=g)
    assert early.iterations == 2
    assert early.residual > 0.1
    assert min(abs(early.value - d) for d in diagonal.tolist()) <= early.residual
    zero = geo.power_iteration(lambda v: {"x": 0 * v["x"]}, like, generator=g)
    assert (zero.value, zero.residual, zero.iterations) == (0, 0, 1)


def test_a_large_layers_eigenvalue_without_its_matrix():
    """12,100 parameters, of which a dense matrix is refused: lambda of a Gaussian GLM is that of [x, 1]'s moment."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(5, 120, generator=g, dtype=torch.float64)
    parameters = {"weight": torch.zeros(100, 120).double(), "bias": torch.zeros(100).double()}
    model = geo.normalized_glm(None)
    with pytest.raises(ValueError, match="use fisher_vector_product"):
        geo.fisher(model, parameters, X, "gaussian")
    found = geo.power_iteration(
        lambda v: geo.fisher_vector_product(model, parameters, v, X, "gaussian"), parameters, generator=g
    )
    x1 = torch.cat([X, torch.ones(5, 1)], 1)
    assert found.value == pytest.approx(float(torch.linalg.eigvalsh(x1 @ x1.T / 5)[-1]), rel=1e-12)
