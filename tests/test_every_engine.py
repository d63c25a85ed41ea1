"""What every engine has in common: the fields of a formula that it knows, and the functions of `Engine`."""

import dataclasses
import inspect

import pytest
import torch

import layernorm as ln
from layernorm.engines.protocol import Engine, Kind
from layernorm.equations.arguments import RecurrentArguments
from layernorm.formula import Formula, Recurrence

ENGINES = [name for name in ln.backends.ENGINES if name in ln.backends.available()]
OPS = ("normalize", "recurrent", "steps")
FUNCTIONS = [name for name, member in vars(Engine).items() if inspect.isfunction(member) and not name.startswith("_")]


def test_the_reference_knows_every_field_of_a_formula():
    assert {field.name for field in dataclasses.fields(Formula)} == ln.backends.engine("reference").FORMULA_FIELDS


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_knows_no_field_that_a_formula_has_not(name):
    """Its list is written down by hand: a new field of `Formula` is run by an engine only when the engine names it."""
    assert {field.name for field in dataclasses.fields(Formula)} >= ln.backends.engine(name).FORMULA_FIELDS


def test_an_engine_is_never_given_a_field_that_it_does_not_know(monkeypatch):
    engine = ln.backends.engine("reference")
    monkeypatch.setattr(engine, "FORMULA_FIELDS", engine.FORMULA_FIELDS - {"forget_bias"})
    x, unknown = (
        torch.zeros(1),
        Recurrence("GRU", Formula(cell=None, forget_bias=0.37)),
    )
    with ln.backends.use("reference"):
        with pytest.raises(RuntimeError, match="no kernel for recurrent"):
            ln.backends.choose("recurrent", x, unknown)
        known = Recurrence("GRU", Formula(cell=None, eps=0.37))
        assert ln.backends.choose("recurrent", x, known).name == "reference"


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_has_the_functions_of_the_protocol(name):
    engine = ln.backends.engine(name)
    for function in FUNCTIONS:
        op = {"prepare": "steps"}.get(function, function.split("_")[0])
        if op in OPS and not engine.supports(Kind(op, torch.device("cpu"), torch.float32)).yes:
            continue
        expected = [p for p in inspect.signature(getattr(Engine, function)).parameters if p != "self"]
        given = inspect.signature(getattr(engine, function)).parameters.values()
        assert [p.name for p in given if p.default is p.empty] == expected, function


def test_the_native_engine_tells_what_it_saves_as_it_saves_it():
    """The sizes come from the library: those announced are those returned, for each way a gradient can go."""
    pytest.importorskip("layernorm.engines.native", exc_type=ImportError)
    native = ln.backends.engine("native")
    for network in ("RNN", "LSTM", "GRU"):
        for gates, span in (("split", "joint"), ("hidden", "joint"), ("sum", "joint"), ("sum", "all"), (None, "joint")):
            r = Recurrence(network, Formula(gates, span, cell="output" if network == "LSTM" else None))
            state = [torch.randn(2, 17)] * len(r.state_names)
            params = [torch.randn(*shape) for shape in r.parameter_shapes(3, 17).values()]
            a = RecurrentArguments(torch.randn(4, 2, 3), state, params, r)
            for call in (a, a._replace(recurrence=dataclasses.replace(r, norm="batch"))):
                saved = native.recurrent_forward(call, True)[1 + len(state) :]
                announced = [*call.new_moments(), *native.recurrent_saved(call)]
                assert [s.shape for s in saved] == [s.shape for s in announced]
