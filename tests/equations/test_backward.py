"""The hand-derived backward against autograd through the equations, in float64, over the whole space of formulas."""

import dataclasses
import itertools

import pytest
import torch

from layernorm.engines import reference
from layernorm.equations import batch_norm, sites
from layernorm.equations.arguments import NO_CHANGES, NormArguments, RecurrentArguments
from layernorm.equations.norms import normalize_equations
from layernorm.equations.recurrent import recurrent_equations
from layernorm.formula import CHOICES, PLAIN, PRESETS, Formula, Recurrence
from support.formula_space import with_changes

FORMULAS = [
    Formula(gates, span, cell, inside, gate_bias, cell_bias, eps_on=eps_on)
    for gates, span, cell, inside, gate_bias, cell_bias, eps_on in itertools.product(
        CHOICES["gates"], ("joint", "per_gate"), ("output", "carry", None), (False, True), (True, False),
        (True, False), ("variance", "deviation"),
    )
    if (gates is not None or (span == "joint" and not inside and gate_bias))
    and (cell is not None or cell_bias)
]  # fmt: skip
"""Every formula, those that differ in a field without effect only once."""


def setting(recurrence, lengths, reset):
    g = torch.Generator().manual_seed(3)
    T, B, I, H = 4, 3, 2, 4  # noqa: E741
    P = 3 if recurrence.projected else H
    sizes = (P, H) if recurrence.network == "LSTM" else (H,)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=g).requires_grad_()

    state = [draw(B, size) for size in sizes]
    params = [draw(*shape) for shape in recurrence.parameter_shapes(I, H, P).values()]
    masks = (torch.tensor([4, 2, 0]) if lengths else None, torch.rand(T, B, generator=g) < 0.4 if reset else None)
    return draw(T, B, I), state, params, *masks


def compare(recurrence, reverse, lengths=True, reset=True, kind=0, **batch_norm):
    """``kind``: what happens between steps, as in `drawn_changes`."""
    x, state, params, *masks = setting(recurrence, lengths, reset)
    a = RecurrentArguments(x, state, params, recurrence, NO_CHANGES, *masks, reverse)
    a = with_changes(a, kind)._replace(**batch_norm)
    compare_call(a)


def compare_call(a):
    x, state, params, recurrence = a[:4]
    restart = [r.requires_grad_() for r in a.changes.restart]
    n = 1 + len(state)
    outputs = recurrent_equations(a)[:n]  # without moments, which have no gradient
    grads = [torch.randn_like(o) for o in outputs]
    inputs = [x, *state, *params, *restart]
    expected = torch.autograd.grad(outputs, inputs, grads, materialize_grads=True)
    with torch.no_grad():
        kept = reference.recurrent_forward(a, True)[n:]
        got = reference.recurrent_backward(a, kept, grads[0], grads[1:])
    names = ["input", *recurrence.state_names, *recurrence.parameter_names]
    names += [f"restart {name}" for name in recurrence.state_names[: len(restart)]]
    for name, a, b in zip(names, got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_every_formula(network, norm):
    for k, formula in enumerate(FORMULAS):
        if network != "LSTM" and (formula.cell is not None or not formula.cell_bias):
            continue
        forget_bias = 0.0 if network == "RNN" else 0.5
        formula = Formula(**{**formula.__dict__, "forget_bias": forget_bias})
        projected = network == "LSTM" and k % 3 == 0
        compare(Recurrence(network, formula, norm, k % 5 != 0, projected), reverse=k % 2 == 0, kind=k % 16)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_directions_lengths_and_resets(network, reverse, lengths, reset):
    compare(
        Recurrence(network, Formula(gates="split", cell="output" if network == "LSTM" else None)),
        reverse,
        lengths,
        reset,
    )


def test_relu():
    compare(Recurrence("RNN", Formula(gates="sum", cell=None), nonlinearity="relu"), reverse=False)


@pytest.mark.parametrize("formula", [PLAIN, Formula(), Formula(gates="sum", cell="carry")])
def test_derivatives_that_are_cut_at_the_gates(formula):
    compare(Recurrence("LSTM", formula, gate_clip=0.2), reverse=False)


def under_batch_norm(network, formula, **more):
    """A small eps would enlarge the roundings of rows that are nearly equal."""
    return Recurrence(network, dataclasses.replace(formula, eps=0.1), norm="batch", **more)


@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_every_formula_under_batch_norm(network):
    """At the last two of four steps one row is left: their moments are those of the step before, or of all rows."""
    formulas = [f for f in FORMULAS if network == "LSTM" or (f.cell is None and f.cell_bias)]
    formulas += [dataclasses.replace(f, span="all") for f in formulas if network == "GRU" and f.gates]
    for k, formula in enumerate(formulas[::3]):
        recurrence = under_batch_norm(network, formula, projected=network == "LSTM" and k % 3 == 0)
        compare(recurrence, k % 2 == 1, k % 7 > 0, k % 5 > 1, 1 + k % 15 if k % 4 == 1 else 0, count_padding=k % 3 == 1)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_batch_norm_of_a_packed_call_and_by_a_population(network, reverse):
    recurrence = under_batch_norm(network, PRESETS["paper"][network])
    x, state, params, *_ = setting(recurrence, False, False)
    sizes = torch.tensor([3, 2, 2, 1, 1])
    packed = RecurrentArguments(
        x.detach().flatten(0, 1)[:9].requires_grad_(), state, params, recurrence, reverse=reverse, batch_sizes=sizes
    )
    for a in (packed, RecurrentArguments(x, state, params, recurrence, reverse=reverse)):
        for population in ((), [torch.rand_like(m) + 0.1 for m in a.empty_moments()]):
            compare_call(a._replace(population=population))


def test_the_check_sees_a_wrong_gradient(monkeypatch):
    """One sign turned in the normalisation's backward fails the comparison."""
    right = sites.standardize_backward
    monkeypatch.setattr(sites, "standardize_backward", lambda *a, **k: -right(*a, **k))
    with pytest.raises(AssertionError, match="input: "):
        compare(Recurrence("GRU", Formula(cell=None)), reverse=False)


def test_the_check_sees_a_gradient_that_batch_norm_loses(monkeypatch):
    """That of moments by steps which have none of their own."""
    right = batch_norm.BatchNorm.backward
    monkeypatch.setattr(batch_norm.BatchNorm, "backward", lambda self, d, s, later: right(self, d, s, None))
    with pytest.raises(AssertionError, match="input: "):
        compare(under_batch_norm("GRU", Formula(cell=None)), reverse=False)


@pytest.mark.parametrize(("norm", "given"), [("layer", 2), ("layer", 1), ("layer", 0), ("rms", 1), ("rms", 0)])
def test_normalize(norm, given):
    """``given``: how many of gain and bias."""
    x, w, b = (torch.randn(*s, dtype=torch.float64).requires_grad_() for s in ((5, 2, 7), (2, 7), (2, 7)))
    weight, offset = [*(w, b)[:given], None, None][:2]
    a = NormArguments(x, (2, 7), weight, offset, 1e-5, norm)
    y = normalize_equations(a)
    g = torch.randn_like(y)
    inputs = [t for t in (x, weight, offset) if t is not None]
    with torch.no_grad():
        z, *saved = reference.normalize_forward(a, None, True)
        got = reference.normalize_backward(a, saved, g, None)
    torch.testing.assert_close(z, y, rtol=1e-14, atol=1e-14)
    for a, e in zip(got, torch.autograd.grad(y, inputs, g), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-11, atol=1e-12)
