"""Batch norm in the CPU engine's recurrent kernels against the reference: every formula, mask and type, gradients."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import layernorm as ln
from layernorm.equations.arguments import NO_CHANGES, RecurrentArguments
from layernorm.formula import PRESETS, Recurrence
from layernorm.functional._recurrent import recurrent
from support.formula_space import drawn, drawn_changes, every_formula, in_types
from support.instruction_sets import WITH_BFLOAT16, rest_of, share_of
from support.threads import threads

native = pytest.importorskip("layernorm.engines.native", exc_type=ImportError)
pytestmark = pytest.mark.usefixtures("instruction_set")

# As in test_native_recurrent.py.
CLOSE, TIMES, UNITS = 1e-10, 4.0, 8 * 2.0**-23

SHAPES = [(7, 5, 4, 6, 3), (5, 7, 3, 17, 5), (3, 4, 2, 1, 1), (7, 5, 40, 33, 16), (3, 13, 5, 16, 7), (2, 4, 0, 9, 3)]
SHAPES += [(1, 5, 70, 33, 16), (0, 4, 3, 4, 2), (1, 4, 3, 4, 2)]  # the last: the weights are not packed


def of_batch(recurrence):
    """The recurrence under batch norm. A small eps would enlarge the roundings of cases that are nearly equal."""
    return dataclasses.replace(recurrence, norm="batch", formula=dataclasses.replace(recurrence.formula, eps=0.1))


def results(engine, recurrence, arguments, reverse, population, count_padding, changes):
    """Results, moments and gradients by name; the results of a call without gradients are the same."""
    x, state, params, lengths, reset = arguments
    tensors = [t.clone().requires_grad_() for t in (x, *state, *params, *changes.restart)]
    n, m = 1 + len(state), 1 + len(state) + len(params)

    def call(x, state, params, restart):
        with ln.backends.use(engine):
            rest = changes._replace(restart=restart), lengths, reset, reverse, None, population, count_padding
            return recurrent(RecurrentArguments(x, state, params, recurrence, *rest))

    def named(output, final, moments):
        names = [f"{kind} of {gain}" for gain in recurrence.gain_names for kind in ("mean", "variance")]
        assert len(moments) == (0 if population else len(names))
        assert not any(moment.requires_grad for moment in moments)
        own = zip(recurrence.state_names, final, strict=True)
        return {"output": output, **dict(own), **dict(zip(names, moments, strict=False))}

    found = named(*call(tensors[0], tensors[1:n], tensors[n:m], tensors[m:]))
    able = [found["output"], *(found[name] for name in recurrence.state_names)]
    weights = [
        torch.randn(r.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(r) for r in able
    ]
    grads = torch.autograd.grad(able, tensors, weights, materialize_grads=True)
    names = ["input", *recurrence.state_names, *recurrence.parameter_names, "restart h", "restart c"]
    found = {name: value.detach() for name, value in found.items()}
    found |= {f"d {name}": g for name, g in zip(names, grads, strict=False)}
    with torch.no_grad():
        inference = named(*call(x, state, params, changes.restart))
    assert all(torch.equal(inference[name], found[name]) for name in inference)
    return found


def population_of(recurrence, T, H):
    """Means and variances that are not the batch's."""
    shapes = recurrence.parameter_shapes(1, H, 1)
    g = torch.Generator().manual_seed(3)
    draw = lambda name: torch.randn(T, *shapes[name], generator=g, dtype=torch.float64)  # noqa: E731
    return [m for name in recurrence.gain_names for m in (draw(name), draw(name).square() + 0.1)]


def compare(recurrence, T, B, I, H, P, reverse, lengths, reset, kind=0, padding=False, trained=False, alone=0):  # noqa: E741
    """`alone`: the last steps that one row takes by itself, where rows have lengths."""
    arguments = drawn(recurrence, T, B, I, H, P, lengths, reset)
    if lengths and T:
        shorter = max(T - alone, 1)
        arguments[3].clamp_(max=shorter)[:4] = shorter  # moments of two cases are one difference
        arguments[3][0] = T
    changes = drawn_changes(recurrence, T, B, H, P, kind) if kind else NO_CHANGES
    given = recurrence, arguments, reverse, population_of(recurrence, T, H) if trained else (), padding, changes
    got, expected = (results(engine, *given) for engine in ("native", "reference"))
    assert got.keys() == expected.keys()
    for name in expected:
        a = got[name]
        assert a.shape == expected[name].shape, name
        if a.numel():
            error = float((a - expected[name]).abs().max() / (1 + expected[name].abs().max()))
            assert error < CLOSE, (name, error)


@pytest.mark.parametrize("share", [share_of, pytest.param(rest_of, marks=pytest.mark.long)])
@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_every_formula(network, share, instruction_set):
    found = [(r, call) for r, call in every_formula(network, SHAPES) if r.norm == "layer"]
    for k, (recurrence, (*sizes, reverse, lengths, reset)) in share(enumerate(found), instruction_set):
        kind = 1 + k % 15 if k % 3 == 0 else 0
        compare(of_batch(recurrence), *sizes, reverse, lengths, reset or kind > 0, kind, k % 4 == 1, k % 5 == 4, k % 3)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    network=st.sampled_from(["LSTM", "GRU", "RNN"]), T=st.integers(0, 9), B=st.integers(4, 40),
    I=st.integers(0, 40), H=st.integers(1, 70), reverse=st.booleans(), lengths=st.booleans(), reset=st.booleans(),
    kind=st.integers(0, 15), padding=st.booleans(), trained=st.booleans(), alone=st.integers(0, 3),
)  # fmt: skip
def test_any_shape(network, T, B, I, H, reverse, lengths, reset, kind, padding, trained, alone):  # noqa: E741
    recurrence = of_batch(Recurrence(network, PRESETS["paper"][network]))
    compare(recurrence, T, B, I, H, H, reverse, lengths, reset, kind, padding, trained, alone)


@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_fewer_bits_are_as_exact_as_the_references(network):
    """Of float32 the largest error; of bfloat16, where h and its gradient are rounded at each step, the root mean
    square: a rounding of one number near 1 is a large error."""
    recurrence = of_batch(Recurrence(network, PRESETS["paper"][network]))
    T, B, H = 20, 30, 64
    arguments = drawn(recurrence, T, B, 50, H, H, True, True)
    for dtype, kind, padding in ((torch.float32, 0, False), (torch.float32, 7, True), (torch.bfloat16, 0, False)):
        x, state, params, *masks = arguments
        changes = in_types(drawn_changes(recurrence, T, B, H, H, kind), dtype, torch.float32)
        narrow = (x.to(dtype), *([t.to(dtype) for t in part] for part in (state, params)), *masks)
        wide = (narrow[0].double(), *([t.double() for t in part] for part in narrow[1:3]), *masks)
        wide_changes = in_types(changes, torch.float64, torch.float64)
        exact = results("reference", recurrence, wide, False, (), padding, wide_changes)
        theirs = results("reference", recurrence, narrow, False, (), padding, changes)
        ours = results("native", recurrence, narrow, False, (), padding, changes)
        for name, e in exact.items():
            assert ours[name].dtype == theirs[name].dtype
            errors = [found[name].double() - e for found in (ours, theirs)]
            if dtype is torch.bfloat16:
                mine, allowed = (error.square().mean().sqrt() for error in errors)
            else:
                mine, allowed = (error.abs().max() for error in errors)
            rounded_h = (
                dtype is torch.bfloat16 and ours[name].dtype is torch.float32
            )  # moments: their cases are rounded
            assert mine <= TIMES * allowed + (2.0**-9 if rounded_h else UNITS) * e.abs().max(), (dtype, name)


@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_bits_do_not_depend_on_threads(network):
    """Threads share out the units, and the columns of a product."""
    recurrence = of_batch(Recurrence(network, PRESETS["paper"][network]))
    arguments, changes = (
        drawn(recurrence, 5, 40, 33, 200, 200, True, True),
        drawn_changes(recurrence, 5, 40, 200, 200, 7),
    )
    found = []
    for number in (1, 2, 3):
        with threads(number):
            found.append(results("native", recurrence, arguments, False, (), True, changes))
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in other)


def test_a_large_mean_loses_nothing():
    """Inputs far from 0 with a small deviation, as exact as the sums themselves are rounded."""
    module = ln.GRU(3, 16, norm="batch", eps=1e-12)
    x = 1000 + torch.randn(4, 64, 3)
    got = module(x)[0]
    expected = module.double()(x.double())[0]
    assert (got - expected).abs().max() < 1000 * 3 * 2.0**-23 * 4


@pytest.mark.parametrize("eps_on", ["variance", "deviation"])
@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_equal_rows(network, eps_on):
    """What is normalised is exactly 0 at every place. Each place multiplies a gradient by 1e6 or 1e8."""
    eps = 1e-12 if eps_on == "variance" else 1e-8
    formula = dataclasses.replace(PRESETS["paper"][network], eps=eps, eps_on=eps_on)
    recurrence = Recurrence(network, formula, norm="batch")
    x, state, params, *masks = drawn(recurrence, 2, 6, 5, 16, 16, False, False)
    found = []
    for dtype in (torch.float32, torch.float64):
        rows = x[:, :1].expand(2, 6, 5), [s[:1].expand(6, 16) for s in state], params
        given = (rows[0].to(dtype), *([t.to(dtype) for t in part] for part in rows[1:]), *masks)
        found.append(results("native", recurrence, given, False, (), False, NO_CHANGES))
    assert all(t.isfinite().all() for t in found[0].values())
    assert (found[0]["output"] - found[1]["output"]).abs().max() < 1e-6
    assert torch.equal(found[0]["output"], found[0]["output"][:, :1].expand(2, 6, 16))


def test_products_in_bfloat16_where_torchs_switch_allows_them(instruction_set):
    module, x = ln.LSTM(32, 48, norm="batch").eval(), torch.randn(6, 24, 32)
    exact = module(x)[0]
    try:
        torch.set_float32_matmul_precision("medium")
        rounded = module(x)[0]
    finally:
        torch.set_float32_matmul_precision("highest")
    if instruction_set in WITH_BFLOAT16:
        assert 0 < (rounded - exact).norm() < 0.02 * exact.norm()  # three roundings of 2^-9 at each of 6 steps
    else:
        assert torch.equal(rounded, exact)


@pytest.mark.parametrize("kind", ["moments", "block"])
def test_what_a_hook_spoils_is_refused(kind):
    """Moments are (T, n), what the forward saved is one block."""
    module, x = ln.GRU(3, 5, norm="batch", bias=False), torch.randn(4, 6, 3)
    spoiled = {"moments": (4, 15), "block": None}[kind]

    def spoil(t):
        return t[..., 1:] if t.shape == spoiled or (spoiled is None and t.dim() == 1 and len(t) > 15) else t

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, spoil):
        y = module(x)[0]
    with pytest.raises(RuntimeError, match=r"gru: expected saved of shape \[.*\], torch.float32 on cpu, got \["):
        y.sum().backward()


def test_second_derivatives_are_the_references():
    module = ln.LSTM(3, 5, norm="batch").double()
    x = torch.randn(3, 6, 3, dtype=torch.float64, requires_grad=True)
    found = []
    for engine in ("native", "reference"):
        with ln.backends.use(engine):
            (d,) = torch.autograd.grad(module(x)[0].square().sum(), x, create_graph=True)
            found.append(torch.autograd.grad(d.square().sum(), [x, *module.parameters()]))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
