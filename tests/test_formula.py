"""`Formula`, its presets, and what a `Recurrence` says of parameters."""

import itertools

import pytest

import layernorm as ln
from layernorm.formula import PLAIN, PRESETS, Recurrence, resolve


def test_the_papers_formulas():
    assert PRESETS["paper"]["LSTM"] == ln.Formula(gates="split", span="joint", cell="output")
    assert PRESETS["paper"]["GRU"] == ln.Formula(gates="split", span="joint", cell=None)
    assert PRESETS["paper"]["RNN"] == ln.Formula(gates="sum", cell=None)
    assert PRESETS["cell"]["LSTM"] == ln.Formula(gates=None, cell="output")
    assert all(f.eps == 1e-5 and f.eps_on == "variance" for f in PRESETS["paper"].values())


@pytest.mark.parametrize(
    ("network", "formula", "names"),
    [
        ("RNN", "paper", ["weight_ih", "weight_hh", "bias_ih", "bias_hh", "gain"]),
        (
            "LSTM",
            "paper",
            ["weight_ih", "weight_hh", "bias_ih", "bias_hh", "gain_ih", "gain_hh", "gain_c", "bias_c"],
        ),
        ("GRU", "paper", ["weight_ih", "weight_hh", "bias_ih", "bias_hh", "gain_ih", "gain_hh"]),
        ("LSTM", "cell", ["weight_ih", "weight_hh", "bias_ih", "bias_hh", "gain_c", "bias_c"]),
        (
            "GRU",
            "kiros",
            ["weight_ih", "weight_hh", "bias_ih", "gain_ih", "gain_hh", "norm_bias_ih", "norm_bias_hh"],
        ),
        ("LSTM", "sonnet", ["weight_ih", "weight_hh", "bias_ih", "bias_hh", "gain"]),
    ],
)
def test_parameter_names(network, formula, names):
    assert list(Recurrence(network, resolve(formula, network)).parameter_names) == names


def test_parameter_shapes():
    shapes = Recurrence("LSTM", resolve("paper", "LSTM"), projected=True).parameter_shapes(3, 5, 2)
    assert shapes == {
        "weight_ih": (20, 3), "weight_hh": (20, 2), "bias_ih": (20,), "bias_hh": (20,), "weight_hr": (2, 5),
        "gain_ih": (20,), "gain_hh": (20,), "gain_c": (5,), "bias_c": (5,),
    }  # fmt: skip


def test_biases_inside_and_own():
    names = Recurrence("GRU", ln.Formula(bias_inside=True)).parameter_names
    assert {"bias_ih", "bias_hh", "norm_bias_ih", "norm_bias_hh"} <= set(names)
    assert "norm_bias_ih" not in Recurrence("GRU", ln.Formula(bias_inside=True, gate_bias=False)).parameter_names
    assert not [n for n in Recurrence("LSTM", ln.Formula(bias_inside=True), bias=False).parameter_names if "bias" in n]


def test_encoding_is_its_own_inverse():
    fields = itertools.product(("split", "sum", None), ("joint", "per_gate"), ("output", "carry", None), (True, False))
    for gates, span, cell, inside in fields:
        formula = ln.Formula(gates, span, cell, inside, eps=1e-3, eps_on="deviation", forget_bias=1.0)
        recurrence = Recurrence("LSTM", formula, "rms", bias=False, projected=True)
        assert Recurrence.decode(recurrence.encode()) == recurrence


def test_eps_overrides_the_presets():
    assert resolve("keras", "LSTM").eps == 1e-3
    assert resolve("keras", "LSTM", eps=1e-6).eps == 1e-6


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ln.Formula(gates="both"), ValueError, r"gates must be one of \['split', 'sum', None\], got 'both'"),
        (lambda: ln.Formula(biases="hidden"), ValueError, r"biases must be one of \['both', 'input'\], got 'hidden'"),
        (lambda: ln.Formula(bias_again=True), ValueError, "bias_again=True needs bias_inside=True"),
        (lambda: ln.Formula(eps=-1.0), ValueError, "eps must be a number >= 0"),
        (lambda: resolve("papr", "LSTM"), ValueError, "did you mean 'paper'"),
        (lambda: resolve("keras", "GRU"), ValueError, "formula 'keras' is defined for LSTM, not for GRU"),
        (lambda: resolve("cell", "RNN"), ValueError, "not for RNN"),
        (lambda: resolve(3, "RNN"), TypeError, "must be a preset's name or a Formula, got int"),
        (lambda: resolve(ln.Formula(forget_bias=1.0), "RNN"), ValueError, "needs an LSTM or GRU; RNN has no"),
        (lambda: resolve(ln.Formula(gates=None), "GRU"), ValueError, "normalises nothing in GRU"),
        (lambda: resolve(PLAIN, "LSTM"), ValueError, "say norm=None"),
    ],
)
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
