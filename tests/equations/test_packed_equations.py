"""Packed calls by the plain equations, whose backward is by hand, and by the compiled engine."""

import pytest
import torch

from layernorm import backends
from layernorm.engines import reference
from layernorm.equations.recurrent import recurrent_equations
from layernorm.formula import Recurrence, resolve
from support import packing
from support.formula_space import every_formula

SHAPES = [(6, 3, 4, 6, 3), (5, 7, 3, 7, 5), (3, 1, 2, 2, 1), (1, 2, 3, 5, 2)]


@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_by_hand(network):
    for k, (recurrence, (*sizes, reverse, _, reset)) in enumerate(every_formula(network, SHAPES)):
        if k % 3 == 0:
            packing.compare(reference, *packing.both_calls(recurrence, *sizes, reverse, reset, k % 16, seed=k))


@pytest.mark.parametrize(
    ("network", "reverse"),
    [
        ("LSTM", True),
        ("GRU", False),
        *(pytest.param(*it, marks=pytest.mark.long) for it in (("LSTM", False), ("GRU", True))),
    ],
)
def test_by_autograd(network, reverse):
    """The equations themselves, differentiated twice."""
    recurrence = Recurrence(network, resolve("paper", network))
    _, packed, _ = packing.both_calls(recurrence, 3, 3, 2, 3, 3, reverse, True, 7)

    def run(*tensors):
        n = 1 + len(packed.state)
        own = {"input": tensors[0], "state": tensors[1:n], "params": tensors[n : n + len(packed.params)]}
        changes = packed.changes._replace(restart=tensors[n + len(packed.params) :])
        return tuple(recurrent_equations(packed._replace(**own, changes=changes)))

    inputs = [t.requires_grad_() for t in packed.differentiable]
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("network", "T", "B", "reverse"),
    [("RNN", 3, 2, True), *(pytest.param("LSTM", 20, 3, r, marks=pytest.mark.long) for r in (False, True))],
)
def test_compiled(network, T, B, reverse):
    recurrence = Recurrence(network, resolve("paper", network))
    calls = packing.both_calls(recurrence, T, B, 2, 3, 3, reverse, True, 7)
    packing.compare(backends.engine("compiled"), *calls)
