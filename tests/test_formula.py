"""`Formula`, its presets, and what a `Recurrence` says of parameters."""

import dataclasses
import itertools

import pytest

import layernorm as ln
from layernorm.formula import CHOICES, PLAIN, PRESETS, Place, Recurrence, resolve
from support.formula_space import every_formula


def test_the_papers_formulas():
    assert PRESETS["paper"]["LSTM"] == ln.Formula(gates="split", span="joint", cell="output")
    assert PRESETS["paper"]["GRU"] == ln.Formula(gates="split", span="joint", cell=None)
    assert PRESETS["paper"]["RNN"] == ln.Formula(gates="sum", cell=None)
    assert PRESETS["cell"]["LSTM"] == ln.Formula(gates=None, cell="output")
    assert all(f.eps == 1e-5 and f.eps_on == "variance" for f in PRESETS["paper"].values())


def test_the_sum_is_sonnets_formula_without_its_constant():
    assert PRESETS["sum"].keys() == {"LSTM", "GRU", "RNN"}
    assert PRESETS["sum"]["LSTM"] == dataclasses.replace(PRESETS["sonnet"]["LSTM"], forget_bias=0.0)
    assert PRESETS["sum"]["RNN"] == PRESETS["paper"]["RNN"]
    assert ln.LSTM(3, 4, formula="sum").recurrence.formula == ln.Formula(gates="sum", cell=None)


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
    fields = itertools.product(CHOICES["gates"], ("joint", "per_gate"), ("output", "carry", None), (True, False))
    for gates, span, cell, inside in fields:
        formula = ln.Formula(gates, span, cell, inside, eps=1e-3, eps_on="deviation", forget_bias=1.0)
        recurrence = Recurrence("LSTM", formula, "rms", bias=False, projected=True, gate_clip=10.0)
        assert Recurrence.decode(recurrence.encoded) == recurrence


@pytest.mark.parametrize(
    ("fields", "same"),
    [({"eps": 0}, {"eps": 0.0}), ({"forget_bias": -0.0}, {}), ({"forget_bias": 1}, {"forget_bias": 1.0}),
     ({"bias_inside": 1, "gate_bias": 0}, {"bias_inside": True, "gate_bias": False})],
)  # fmt: skip
def test_equal_formulas_are_one_key(fields, same):
    one, other = (Recurrence("LSTM", ln.Formula(**given)) for given in (fields, same))
    assert (one, hash(one), repr(one.formula)) == (other, hash(other), repr(other.formula))


def test_eps_overrides_the_presets():
    assert resolve("keras", "LSTM").eps == 1e-3
    assert resolve("keras", "LSTM", eps=1e-6).eps == 1e-6


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: ln.Formula(gates="both"),
            ValueError,
            r"gates must be one of \['split', 'hidden', 'sum', None\], got 'both'",
        ),
        (lambda: ln.Formula(biases="hidden"), ValueError, r"biases must be one of \['both', 'input'\], got 'hidden'"),
        (lambda: ln.Formula(bias_again=True), ValueError, "bias_again=True needs bias_inside=True"),
        (lambda: ln.Formula("hidden", bias_inside=True, bias_again=True), ValueError, "needs a norm of W x"),
        (lambda: ln.Formula(bias_inside="no"), ValueError, r"bias_inside must be one of \[False, True\], got 'no'"),
        (lambda: ln.Formula(eps=-1.0), ValueError, "eps must be a finite number >= 0, got -1.0"),
        (lambda: ln.Formula(eps=float("inf")), ValueError, "eps must be a finite number >= 0, got inf"),
        (lambda: ln.Formula(eps="small"), TypeError, "eps must be a number, got str"),
        (lambda: ln.Formula(eps=True), TypeError, "eps must be a number, got bool"),
        (lambda: ln.Formula(forget_bias=None), TypeError, "forget_bias must be a number, got NoneType"),
        (lambda: resolve("papr", "LSTM"), ValueError, "did you mean 'paper'"),
        (lambda: resolve("keras", "GRU"), ValueError, "formula 'keras' is defined for LSTM, not for GRU"),
        (lambda: resolve("cell", "RNN"), ValueError, "not for RNN"),
        (lambda: resolve(3, "RNN"), TypeError, "must be a preset's name or a Formula, got int"),
        (lambda: resolve(ln.Formula(forget_bias=1.0), "RNN"), ValueError, "needs an LSTM or GRU; RNN has no"),
        (lambda: resolve(ln.Formula(gates=None), "GRU"), ValueError, "normalises nothing in GRU"),
        (lambda: resolve(PLAIN, "LSTM"), ValueError, "pass norm=None"),
    ],
)
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_which_parameter_stands_where():
    """The authors' program: a bias inside LN(W x), once more outside, and the normalisations' own."""
    places = Recurrence("LSTM", resolve("kiros", "LSTM")).places
    assert places.input == Place("gain_ih", "bias_ih", ("norm_bias_ih", "bias_ih"))
    assert places.hidden == Place("gain_hh", None, ("norm_bias_hh",))
    assert places.both == Place()
    assert places.cell == Place("gain_c", None, ("bias_c",))
    places = Recurrence("RNN", resolve("paper", "RNN")).places
    assert places[:3] == (Place(), Place(), Place("gain", None, ("bias_ih", "bias_hh")))
    assert Recurrence("GRU").places[:3] == (Place(inside="bias_ih"), Place(inside="bias_hh"), Place())
    assert Recurrence("GRU", resolve("paper", "GRU"), bias=False).places.input == Place("gain_ih")


@pytest.mark.parametrize(
    ("network", "span", "spans"),
    [
        ("LSTM", "joint", [(0, 4)]), ("LSTM", "all", [(0, 4)]), ("LSTM", "per_gate", [(0, 1), (1, 2), (2, 3), (3, 4)]),
        ("GRU", "joint", [(0, 2), (2, 3)]), ("GRU", "all", [(0, 3)]), ("RNN", "joint", [(0, 1)]),
    ],
)  # fmt: skip
def test_which_gates_are_normalised_together(network, span, spans):
    assert list(Recurrence(network, ln.Formula("split", span, cell=None)).spans) == spans


def test_what_a_grus_reset_gate_multiplies():
    for gates, span, expected in (
        ("split", "joint", "hidden"), ("split", "all", "hidden"), ("hidden", "all", "hidden"),
        (None, "joint", "hidden"),
        ("sum", "joint", "product"), ("sum", "per_gate", "product"), ("sum", "all", "sum"),
    ):  # fmt: skip
        assert Recurrence("GRU", ln.Formula(gates, span, cell=None)).reset_multiplies == expected
    assert Recurrence("LSTM", ln.Formula("sum", "all")).reset_multiplies is None


@pytest.mark.parametrize("network", ["RNN", "LSTM", "GRU"])
def test_every_parameter_that_is_no_weight_is_in_some_vector(network):
    for recurrence, _ in every_formula(network, [(1, 1, 3, 4, 2)]):
        named = [name for terms in recurrence.vectors for name in terms]
        assert set(named) == {name for name in recurrence.parameter_names if not name.startswith("weight")}
        again = recurrence.formula.bias_again and recurrence.formula.gates is not None and recurrence.bias
        assert len(named) - len(set(named)) == (1 if again else 0), "only what is added again stands in two places"


def test_the_fields_that_a_formula_changes():
    assert ln.Formula().changed == frozenset()
    assert ln.Formula(span="all", eps=1e-3).changed == {"span", "eps"}
