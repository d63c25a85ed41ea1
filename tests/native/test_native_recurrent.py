"""The CPU engine's recurrent kernels against the reference: every formula, shape, mask and type, with gradients."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import layernorm as ln
from layernorm.engines import reference
from layernorm.equations.arguments import NO_CHANGES
from layernorm.formula import PLAIN, PRESETS, Recurrence
from support.formula_space import arguments_of, drawn, drawn_changes, every_formula, in_types
from support.instruction_sets import rest_of, share_of
from support.threads import threads

native = pytest.importorskip("layernorm.engines.native", exc_type=ImportError)
pytestmark = pytest.mark.usefixtures("instruction_set")

# Sums in another order: float64, relative to 1 + the largest value.
CLOSE = 1e-10
# Times the reference's own float32 error, and so many units in the last place of the largest value beside it.
TIMES, UNITS = 4.0, 8 * 2.0**-23


def both_ways(engine, arguments, recurrence, reverse, grads=None, changes=NO_CHANGES):
    """Results and gradients, and the results of a call that saves nothing."""
    n = 1 + len(arguments[1])
    a = arguments_of(arguments, recurrence, reverse, changes)
    found = engine.recurrent_forward(a, True)
    grads = grads or [torch.ones_like(r) for r in found[:n]]
    back = engine.recurrent_backward(a, found[n:], grads[0], grads[1:])
    return [*found[:n], *back], engine.recurrent_forward(a, False)


def compare(recurrence, T, B, I, H, P, reverse, lengths, reset, kind=0):  # noqa: E741
    """``kind``: what happens between steps, as in `drawn_changes`."""
    arguments = drawn(recurrence, T, B, I, H, P, lengths, reset)
    changes = drawn_changes(recurrence, T, B, H, P, kind) if kind else NO_CHANGES
    g = torch.Generator().manual_seed(1)
    results = reference.recurrent_forward(arguments_of(arguments, recurrence, reverse), False)
    grads = [torch.randn(r.shape, dtype=r.dtype, generator=g) for r in results]
    expected, _ = both_ways(reference, arguments, recurrence, reverse, grads, changes)
    got, inference = both_ways(native, arguments, recurrence, reverse, grads, changes)
    assert all(map(torch.equal, got, inference))
    names = ["output", *recurrence.state_names, "input", *recurrence.state_names, *recurrence.parameter_names]
    names += ["restart h", "restart c"][: len(changes.restart)]
    for name, a, b in zip(names, got, expected, strict=True):
        assert a.shape == b.shape, name
        if a.numel():
            error = float((a - b).abs().max() / (1 + b.abs().max()))
            assert error < CLOSE, (name, error)


# Of so few units the forward packs the weights for more than 8 rows in a call, the backward for more than 24 or 32.
SHAPES = [(11, 3, 4, 6, 3), (5, 7, 3, 17, 5), (3, 1, 2, 1, 1), (7, 5, 40, 33, 16), (3, 13, 5, 16, 7), (0, 2, 3, 4, 2)]
SHAPES += [(3, 0, 2, 5, 2), (9, 1, 1, 31, 9), (3, 11, 0, 3, 2)]
SHAPES += [(1, 2, 70, 33, 16), (2, 3, 5, 13, 5), (4, 2, 0, 9, 3)]  # few rows: the weights are not packed


SHARES = [share_of, pytest.param(rest_of, marks=pytest.mark.long)]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_every_formula(network, share, instruction_set):
    for recurrence, (*sizes, reverse, lengths, reset) in share(every_formula(network, SHAPES), instruction_set):
        compare(recurrence, *sizes, reverse=reverse, lengths=lengths, reset=reset)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_every_formula_with_what_happens_between_steps(network, share, instruction_set):
    found = enumerate(list(every_formula(network, SHAPES))[:: 3 if network == "LSTM" else 2])
    for k, (recurrence, (*sizes, reverse, lengths, reset)) in share(found, instruction_set):
        compare(recurrence, *sizes, reverse, lengths, reset or k % 3 > 0, kind=1 + k % 15)


@pytest.mark.parametrize(("T", "B"), [(1, 32), (8, 4), (4, 7), (9, 2), (1, 33)])
@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_few_rows_of_many_units(network, T, B):
    """The forward packs the weights for more than 32 rows in a call, over more than 8 steps for more than 16."""
    compare(Recurrence(network, PRESETS["paper"][network]), T, B, 131, 133, 133, False, True, True)


@pytest.mark.parametrize("formula", [PLAIN, PRESETS["paper"]["LSTM"], PRESETS["tf1"]["LSTM"]])
def test_derivatives_that_are_cut_at_the_gates(formula):
    compare(Recurrence("LSTM", formula, gate_clip=0.1), 6, 5, 7, 17, 17, False, True, True)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    network=st.sampled_from(["LSTM", "GRU", "RNN"]), plain=st.booleans(), T=st.integers(0, 9), B=st.integers(0, 40),
    I=st.integers(0, 40), H=st.integers(1, 70), reverse=st.booleans(), lengths=st.booleans(), reset=st.booleans(),
    kind=st.integers(0, 15),
)  # fmt: skip
def test_any_shape(network, plain, T, B, I, H, reverse, lengths, reset, kind):  # noqa: E741
    formula = PLAIN if plain else PRESETS["paper"][network]
    compare(Recurrence(network, formula), T, B, I, H, H, reverse, lengths, reset, kind)


HALF = [("LSTM", 7), ("GRU", 0), ("RNN", 7)]
HALF += [pytest.param(*other, marks=pytest.mark.long) for other in (("LSTM", 0), ("GRU", 7), ("RNN", 0))]


@pytest.mark.parametrize(("network", "kind"), HALF)
def test_blocks_of_steps_and_of_rows(network, kind):
    """Sizes at which every loop over blocks goes round more than once."""
    compare(Recurrence(network, PRESETS["paper"][network]), 20, 130, 70, 96, 96, True, True, True, kind)


@pytest.mark.parametrize("kind", [0, 7, 15])
@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_float32_is_as_exact_as_the_references(network, kind):
    recurrence = Recurrence(network, PRESETS["paper"][network])
    arguments = drawn(recurrence, 30, 20, 50, 64, 64, True, True)
    changes = drawn_changes(recurrence, 30, 20, 64, 64, kind)
    narrow = (arguments[0].float(), *([t.float() for t in a] for a in arguments[1:3]), *arguments[3:])
    for dtype in (torch.float32,) if kind else (torch.float32, torch.bfloat16):
        given = (narrow[0].to(dtype), *([t.to(dtype) for t in a] for a in narrow[1:3]), *narrow[3:])
        wide = (given[0].double(), *([t.double() for t in a] for a in given[1:3]), *given[3:])
        given_changes = in_types(changes, dtype, torch.float32)
        wide_changes = in_types(given_changes, torch.float64, torch.float64)
        exact, _ = both_ways(reference, wide, recurrence, False, None, wide_changes)
        theirs, _ = both_ways(reference, given, recurrence, False, None, given_changes)
        ours, _ = both_ways(native, given, recurrence, False, None, given_changes)
        for e, t, o in zip(exact, theirs, ours, strict=True):
            assert o.dtype == dtype
            allowed = TIMES * (t.double() - e).abs().max() + UNITS * e.abs().max()
            assert (o.double() - e).abs().max() <= allowed


@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_sums_over_thousands_of_rows(network, norm):
    """Of each step's moments, and of the parameters' gradients: a sum in order would be off by many roundings. Under
    batch norm gradients cancel in the sums, in which the terms' own roundings are left.

    Without it the bounds of the parameters' gradients are the engine's own, as the equations' error is that of a
    library's product, which is small on some processors. A weight's gradient is a sum of 210 blocks of at most 384
    rows: 15 units are the root of 210. In one block it is off by 19 to 77. A vector's has shorter sums: 2 units."""
    recurrence = replace(Recurrence(network, PRESETS["paper"][network]), norm=norm)
    rows, beside = (5000, 4 * 2.0**-24) if norm == "batch" else (40_000, 2.0**-24)
    x, state, params, *masks = drawn(recurrence, 2, rows, 3, 8, 8, False, False)
    narrow = x.float(), *([t.float() for t in a] for a in (state, params)), *masks
    wide = narrow[0].double(), *([t.double() for t in a] for a in narrow[1:3]), *masks
    exact, theirs, ours = (
        both_ways(engine, given, recurrence, False)[0]
        for engine, given in ((reference, wide), (reference, narrow), (native, narrow))
    )
    for number, (e, t, o) in enumerate(zip(exact, theirs, ours, strict=True), len(params) - len(exact)):
        if norm == "layer" and number >= 0:
            allowed = (15 if e.dim() == 2 else 2) * 2.0**-24 * e.abs().max()
        else:
            allowed = TIMES * (t.double() - e).abs().max() + beside * e.abs().max()
        assert (o.double() - e).abs().max() <= allowed


@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_bfloat16_is_as_exact_with_what_happens_between_steps(network):
    """In the root mean square, beside the plain call's. Dropout's factor of 1.4 stands before the rounding of h and
    before that of its gradient: twice as much is allowed."""
    recurrence, plain = Recurrence(network, PRESETS["paper"][network]), []
    x, *tensors, lengths, reset = drawn(recurrence, 30, 20, 50, 64, 64, True, True)
    given = (x.bfloat16(), *([t.bfloat16() for t in part] for part in tensors), lengths, reset)
    wide = (given[0].double(), *([t.double() for t in part] for part in given[1:3]), lengths, reset)
    for kind in (0, 7, 15):
        changes = in_types(drawn_changes(recurrence, 30, 20, 64, 64, kind), torch.bfloat16, torch.float32)
        exact, _ = both_ways(reference, wide, recurrence, False, None, in_types(changes, torch.float64, torch.float64))
        found, _ = both_ways(native, given, recurrence, False, None, changes)
        sizes = [((f.double() - e).square().sum() / e.square().sum()).sqrt() for f, e in zip(found, exact, strict=True)]
        plain = plain or sizes
        worst = max(plain)
        assert all(size <= 2 * (plain[k] if k < len(plain) else worst) for k, size in enumerate(sizes)), (kind, sizes)


@pytest.mark.parametrize(("network", "kind"), HALF)
def test_bits_do_not_depend_on_threads_or_on_other_rows(network, kind):
    recurrence = Recurrence(network, PRESETS["paper"][network])
    arguments = drawn(recurrence, 12, 70, 33, 40, 40, True, True)
    changes = drawn_changes(recurrence, 12, 70, 40, 40, kind)
    few_changes = drawn_changes(recurrence, 10, 1, 900, 900, kind)
    few = drawn(recurrence, 10, 1, 33, 900, 900, True, True)  # fewer rows than threads: columns are shared out
    calls, found = ((arguments, changes), (few, few_changes)), []
    for number in (1, 2, 3):
        with threads(number):
            found.append([t for a, c in calls for t in both_ways(native, a, recurrence, False, None, c)[0]])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))
    x = arguments[0]
    poisoned = x.clone()
    poisoned[:, 1::2] = float("nan")
    a = arguments_of(arguments, recurrence, changes=changes)
    found = [native.recurrent_forward(a._replace(input=given), False) for given in (x, poisoned)]
    assert torch.equal(found[0][0][:, ::2], found[1][0][:, ::2])


@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    ("dtype", "most", "inputs", "units"),
    [
        (torch.float32, 8, 37, 21),
        (torch.float32, 16, 140, 133),
        (torch.float64, 8, 37, 21),
        (torch.bfloat16, 8, 37, 21),
    ],
)
def test_bits_of_few_rows_do_not_depend_on_their_number(network, dtype, most, inputs, units):
    """Few rows are multiplied together by weights that are not packed: in any tile the sums are the same."""
    recurrence = Recurrence(network, PRESETS["paper"][network])
    x, state, params, *masks = drawn(recurrence, 1, most, inputs, units, units, False, False)
    x, state, params = x.to(dtype), [s.to(dtype) for s in state], [p.to(dtype) for p in params]

    def of_rows(x, state):
        """What belongs to a row: results, and the gradients of input and state."""
        found, _ = both_ways(native, (x, state, params, *masks), recurrence, False)
        n = 1 + len(state)
        return [found[0][0], *found[1:n], found[n][0], *found[n + 1 : 2 * n]]

    first, last = (of_rows(x[:, k : k + 1], [s[k : k + 1] for s in state]) for k in (0, most - 1))
    assert not any(t.isnan().any() for t in first)
    for rows in range(2, most + 1):
        few = x[:, :rows].clone()
        few[:, 1 : rows - 1] = float("nan")
        found = of_rows(few, [s[:rows] for s in state])
        assert all(torch.equal(a[0], b[0]) for a, b in zip(first, found, strict=True))
    assert all(torch.equal(a[0], b[-1]) for a, b in zip(last, found, strict=True))


def test_padding_may_hold_anything():
    """Neither results nor gradients know what lies beyond a row's length."""
    module, x, lengths = ln.LSTM(5, 7, bidirectional=True), torch.randn(6, 3, 5), torch.tensor([6, 2, 0])
    found = []
    for fill in (0.0, float("nan")):
        y = torch.where((torch.arange(6)[:, None] < lengths)[..., None], x, fill).requires_grad_()
        with ln.backends.use("native"):
            output, _ = module(y, lengths=lengths)
        found.append([output, *torch.autograd.grad(output.sum(), [y, *module.parameters()])])
    assert all(map(torch.equal, *found))


def test_strided_input():
    module, x = ln.GRU(6, 9, batch_first=True).double(), torch.randn(4, 5, 12, dtype=torch.float64)
    for view in (x[..., :6], x[..., ::2], x.transpose(0, 1)[..., 3:9], x[:1, :, :6].expand(4, 5, 6)):
        torch.testing.assert_close(module(view)[0], module(view.contiguous())[0], rtol=0, atol=1e-13)


def test_extreme_sums_saturate():
    """Gates at infinity, as torch's: exact zeros and ones, no NaN."""
    for size in (1e3, 1e30):
        lstm, mine = torch.nn.LSTM(3, 4), ln.LSTM(3, 4, norm=None)
        mine.load_state_dict(lstm.state_dict())
        x = torch.randn(5, 2, 3) * size
        torch.testing.assert_close(mine(x)[0], lstm(x)[0], rtol=1e-5, atol=1e-6)
