"""How a gradient grows over time in an LSTM at its start, which the recurrent gains decide."""

import pytest
import torch

import layernorm as ln
from layernorm.formula import PRESETS

FEATURES, UNITS, CASES, SHORT, LONG = 20, 64, 2, 10, 1000
INPUTS = {
    "noise": lambda: torch.randn(LONG, CASES, FEATURES, dtype=torch.float64),
    "constant": lambda: torch.randn(1, CASES, FEATURES, dtype=torch.float64).expand(LONG, -1, -1),
}
FORMULAS = {of["LSTM"]: name for name, of in PRESETS.items() if "LSTM" in of and of["LSTM"].gates == "split"}.values()
"""The formulas in which W_hh h has a gain of its own, each once."""


def start(formula, gain_init):
    return ln.LSTM(FEATURES, UNITS, formula=formula, gain_init=gain_init, forget_bias=1.0, dtype=torch.float64)


def growth(lstm, inputs):
    """By parameter, how many times as large its largest gradient is after 1,000 steps as after 10."""
    v, of = torch.randn(CASES, UNITS, dtype=torch.float64), []
    for steps in (SHORT, LONG):
        loss = (lstm(inputs[:steps])[0][-1] * v).sum()
        of.append([float(d.abs().max()) for d in torch.autograd.grad(loss, list(lstm.parameters()))])
    return {name: long / short for (name, _), short, long in zip(lstm.named_parameters(), *of, strict=True)}


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("formula", FORMULAS)
def test_from_the_steady_start_no_gradient_grows_by_a_decade(formula, inputs):
    torch.manual_seed(0)
    grown = growth(start(formula, "steady"), INPUTS[inputs]())
    assert max(grown.values()) < 10, grown


@pytest.mark.parametrize("formula", FORMULAS)
def test_with_gains_of_1_every_gradient_of_the_gates_explodes_on_noise(formula):
    """So that the test above can fail."""
    torch.manual_seed(0)
    grown = growth(start(formula, 1.0), INPUTS["noise"]())
    assert min(grown[name] for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0")) > 10, grown
