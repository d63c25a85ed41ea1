"""The GPU engine's recurrent networks against the reference in float64: every formula, shape, mask and type."""

import dataclasses

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from formula_space import every_formula
from layernorm import reference
from layernorm.engine import RecurrentArguments
from layernorm.formula import PLAIN, PRESETS, Formula, Recurrence
from rounding import assert_near, moved

gpu = pytest.importorskip("layernorm.gpu", exc_type=ImportError)

from layernorm.gpu._launch import Persistent  # noqa: E402

FLOATS = [torch.float32, torch.bfloat16, torch.float16]


def setting(recurrence, T, B, I, H, P, lengths, reset, dtype, device, seed=0):  # noqa: E741
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=g).to(dtype).to(device)

    P = P if recurrence.projected else H
    state = [draw(B, size) for size in ((P, H) if recurrence.network == "LSTM" else (H,))]
    shapes = recurrence.parameter_shapes(I, H, P).values()
    params = [draw(*s) / (max(1, s[-1]) ** 0.5 if len(s) > 1 else 1) for s in shapes]
    masks = [
        torch.randint(0, T + 1, (B,), generator=g).to(device) if lengths else None,
        (torch.rand(T, B, generator=g) < 0.3).to(device) if reset else None,
    ]
    return draw(T, B, I), state, params, *masks


def both_ways(engine, arguments, recurrence, reverse, grads):
    """Results and gradients, and the results of a call that saves nothing."""
    a = RecurrentArguments(*arguments, recurrence, reverse)
    n = 1 + len(a.state)
    found = engine.recurrent_forward(a, True)
    announced = engine.recurrent_saved(a)
    assert [(s.shape, s.dtype) for s in found[n:]] == [(s.shape, s.dtype) for s in announced]
    back = engine.recurrent_backward(a, found[n:], grads[0], grads[1:])
    places = [t.data_ptr() for t in (*found, *back) if t.numel()]
    assert len(set(places)) == len(places)  # autograd takes gradients as they are, and adds to them in place
    return [*found[:n], *back], engine.recurrent_forward(a, False)


def converted(arguments, dtype, device):
    x, state, params, *masks = arguments
    to = {"dtype": dtype, "device": device}
    return (
        x.to(**to),
        [s.to(**to) for s in state],
        [p.to(**to) for p in params],
        *(m if m is None else m.to(device) for m in masks),
    )


def all_moved(arguments, dtype):
    """What half a unit in the last place of every number can change shows in float64."""
    g = torch.Generator().manual_seed(2)

    def move(t):
        return moved(t, dtype, g)

    x, state, params, *masks = arguments
    return move(x), [move(s) for s in state], [move(p) for p in params], *(m if m is None else m.cpu() for m in masks)


def of_the_reference(arguments, recurrence, reverse, grads):
    """Of every result and gradient the name, and what `assert_near` compares it with."""
    dtype, wide = arguments[0].dtype, [d.cpu().double() for d in grads]
    calls = (
        (converted(arguments, torch.float64, "cpu"), wide),
        (converted(arguments, dtype, "cpu"), [d.cpu() for d in grads]),
        (all_moved(arguments, dtype), wide),
    )
    found = [both_ways(reference, given, recurrence, reverse, d)[0] for given, d in calls]
    names = ["output", *recurrence.state_names, "d input", *(f"d {n}" for n in recurrence.state_names)]
    return list(zip([*names, *(f"d {name}" for name in recurrence.parameter_names)], *found, strict=True))


def assert_all_near(found, expected):
    for result, (name, *others) in zip(found, expected, strict=True):
        assert_near(name, result, *others)


def compare(recurrence, T, B, I, H, P, reverse, lengths, reset, device, dtype=torch.float32):  # noqa: E741
    arguments = setting(recurrence, T, B, I, H, P, lengths, reset, dtype, device)
    g = torch.Generator().manual_seed(1)
    P = P if recurrence.projected else H
    shapes = [(T, B, P), *(s.shape for s in arguments[1])]
    grads = [torch.randn(shape, generator=g).to(dtype).to(device) for shape in shapes]
    expected = of_the_reference(arguments, recurrence, reverse, grads)
    got, inference = both_ways(gpu, arguments, recurrence, reverse, grads)
    assert_all_near(got, expected)
    assert_all_near(inference, expected[: len(inference)])


SHAPES = [(3, 3, 4, 6, 3), (4, 7, 3, 17, 5), (3, 1, 2, 1, 1), (2, 5, 40, 33, 16), (2, 13, 5, 16, 7), (0, 2, 3, 4, 2)]
SHAPES += [(3, 0, 2, 5, 2), (3, 4, 0, 3, 2)]


@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_every_formula(network, device):
    step = (
        {"LSTM": 5, "GRU": 3, "RNN": 2}[network] if gpu.INTERPRETED else 1
    )  # a kernel's run takes the interpreter 20 ms
    for recurrence, arguments in list(every_formula(network, SHAPES))[::step]:
        compare(recurrence, *arguments, device)


@pytest.fixture
def whole(monkeypatch):
    """In one launch: under the interpreter by one program, which then waits for no other."""
    if gpu.INTERPRETED:

        def launch(layer):
            possible = layer.T and layer.B and gpu._persistent.covers(layer.recurrence)
            groups = -(-layer.B // 16)
            units = max(16, 1 << (layer.H - 1).bit_length())
            return Persistent(units, 16, 1, groups, 16, 2) if possible else None

        monkeypatch.setattr(gpu._persistent, "launch", launch)


PAPER = [Recurrence(network, PRESETS["paper"][network]) for network in ("LSTM", "GRU", "RNN")]


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    network=st.sampled_from(["LSTM", "GRU", "RNN"]), plain=st.booleans(), T=st.integers(0, 5), B=st.integers(0, 40),
    I=st.integers(0, 40), H=st.integers(1, 70), reverse=st.booleans(), lengths=st.booleans(), reset=st.booleans(),
    dtype=st.sampled_from(FLOATS),
)  # fmt: skip
def test_any_shape_and_type(network, plain, T, B, I, H, reverse, lengths, reset, dtype, device):  # noqa: E741
    formula = PLAIN if plain else PRESETS["paper"][network]
    compare(Recurrence(network, formula), T, B, I, H, H, reverse, lengths, reset, device, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("recurrence", PAPER, ids=lambda r: r.network)
def test_16_bits(recurrence, dtype, device):
    compare(recurrence, 4, 5, 20, 48, 48, False, True, True, device, dtype)
    if recurrence.network == "LSTM":
        compare(dataclasses.replace(recurrence, projected=True), 4, 5, 20, 48, 12, True, True, True, device, dtype)


COVERED = [
    *PAPER, *(dataclasses.replace(r, norm="rms") for r in PAPER), *(dataclasses.replace(r, bias=False) for r in PAPER),
    *(Recurrence(r.network, PLAIN) for r in PAPER), Recurrence("LSTM", PRESETS["cell"]["LSTM"]),
    Recurrence("LSTM", PRESETS["sonnet"]["LSTM"]), Recurrence("LSTM", Formula(span="per_gate", cell=None)),
    Recurrence("GRU", PRESETS["haste"]["GRU"]), Recurrence("GRU", Formula(span="per_gate", cell=None, forget_bias=1.0)),
    Recurrence("RNN", Formula(cell=None), nonlinearity="relu"),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "recurrence", COVERED, ids=lambda r: f"{r.network}-{r.formula.gates}-{r.formula.span}-{r.norm}"
)
@pytest.mark.usefixtures("whole")
def test_in_one_launch(recurrence, dtype, device):
    k = COVERED.index(recurrence)
    compare(recurrence, 3, 5, 7, 20, 20, k % 2 == 0, k % 4 < 2, k % 3 < 2, device, dtype)
    if recurrence in PAPER:
        compare(recurrence, 1, 17, 7, 33, 33, True, True, True, device, dtype)


@pytest.mark.parametrize("forward", ["whole", "step by step"])
@pytest.mark.parametrize("recurrence", PAPER, ids=lambda r: r.network)
def test_both_ways_save_the_same(recurrence, forward, device, monkeypatch, request):
    """A backward may go the other way than its forward: products may since have another precision, which decides."""
    arguments = setting(recurrence, 3, 4, 6, 8, 8, True, True, torch.float32, device)
    ones = [torch.ones(3, 4, 8, device=device), *(torch.ones_like(s) for s in arguments[1])]
    n = len(ones)
    expected = of_the_reference(arguments, recurrence, True, ones)
    request.getfixturevalue("whole")
    in_one = gpu._persistent.launch
    order = (in_one, lambda layer: None) if forward == "whole" else (lambda layer: None, in_one)
    monkeypatch.setattr(gpu._persistent, "launch", order[0])
    a = RecurrentArguments(*arguments, recurrence, True)
    found = gpu.recurrent_forward(a, True)
    monkeypatch.setattr(gpu._persistent, "launch", order[1])
    back = gpu.recurrent_backward(a, found[n:], ones[0], ones[1:])
    assert_all_near([*found[:n], *back], expected)


@pytest.mark.parametrize("way", ["whole", "step by step"])
@pytest.mark.parametrize(
    "recurrence", [*PAPER, Recurrence("GRU", Formula("sum", "all", None))], ids=lambda r: r.network
)
def test_weights_with_a_large_common_part(recurrence, way, device, request):
    """Which layer norm takes away again: in 16 bits the products are not to lose their digits to it."""
    if way == "whole":
        request.getfixturevalue("whole")
    x, state, params, *masks = setting(recurrence, 4, 5, 20, 24, 24, False, False, torch.float32, device)
    shifted = [(p + 8.0 if p.dim() > 1 else p).to(torch.bfloat16) for p in params]
    arguments = (x.to(torch.bfloat16), [s.to(torch.bfloat16) for s in state], shifted, *masks)
    n = 1 + len(state)
    wide = RecurrentArguments(*converted(arguments, torch.float64, "cpu"), recurrence, False)
    exact = reference.recurrent_forward(wide, False)[:n]
    found = gpu.recurrent_forward(RecurrentArguments(*arguments, recurrence, False), False)
    for a, e in zip(found, exact, strict=True):
        assert (a.cpu().double() - e).abs().max() <= 0.06 * max(1.0, float(e.abs().max()))


def rows_of(results, states):
    """What there is a row of: output, final state, d input, d initial state."""
    return results[: 2 * (1 + states)]


def of_rows(arguments, rows):
    x, state, params, lengths, reset = arguments
    return x[:, rows], [s[rows] for s in state], params, lengths[rows], reset[:, rows]


@pytest.mark.parametrize("recurrence", PAPER, ids=lambda r: r.network)
def test_a_step_of_a_row_does_not_depend_on_other_rows(recurrence, device):
    """To the bit, given its summed inputs: the products are torch's, which may depend on the number of rows."""
    dtype = torch.bfloat16
    arguments = setting(recurrence, 3, 9, 8, 20, 20, True, True, dtype, device)
    states = len(arguments[1])
    ones = [torch.ones(3, 9, 20, dtype=dtype, device=device), *(torch.ones_like(s) for s in arguments[1])]
    together, _ = both_ways(gpu, arguments, recurrence, False, ones)
    again, _ = both_ways(gpu, arguments, recurrence, False, ones)
    assert all(map(torch.equal, together, again))
    spoilt = [t.clone() for t in (arguments[0], *arguments[1])]
    for t in spoilt:
        t[..., 4, :] = float("nan")
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    found, _ = both_ways(gpu, (spoilt[0], spoilt[1:], *arguments[2:]), recurrence, False, ones)
    for k, (a, b) in enumerate(zip(rows_of(found, states), rows_of(together, states), strict=True)):
        row = 1 if k in (0, 1 + states) else 0  # the sequences have their rows in the second place
        assert torch.equal(
            a.index_select(row, torch.tensor(others, device=device)),
            b.index_select(row, torch.tensor(others, device=device)),
        )
    assert found[0][0, 4].isnan().all() or not arguments[3][4]


def test_layouts(device):
    """Tensors that lie otherwise in memory give what contiguous ones give."""
    recurrence = PAPER[0]
    arguments = setting(recurrence, 3, 4, 6, 8, 8, True, True, torch.float32, device)
    ones = [torch.ones(3, 4, 8, device=device), *(torch.ones_like(s) for s in arguments[1])]

    def strided(a):
        padded = torch.full([2 * n + 3 for n in a.shape], float("nan"), device=device)
        return padded[tuple(slice(1, 2 * n + 1, 2) for n in a.shape)].copy_(a)

    def negated(a):
        return torch._neg_view(-a)

    expected = of_the_reference(arguments, recurrence, True, ones)
    for layout in (strided, negated):
        x, state, params, lengths, reset = arguments
        others = (layout(x), [layout(s) for s in state], [layout(p) for p in params], lengths, reset.T.contiguous().T)
        assert_all_near(both_ways(gpu, others, recurrence, True, [layout(d) for d in ones])[0], expected)


def test_spoilt_saved_tensors_are_an_error(device):
    recurrence = PAPER[1]
    arguments = setting(recurrence, 3, 4, 6, 8, 8, False, False, torch.float32, device)
    a = RecurrentArguments(*arguments, recurrence, False)
    found = gpu.recurrent_forward(a, True)
    spoilt = [found[2][:2], *found[3:]]
    with pytest.raises(RuntimeError, match=r"gru: expected saved tensors .*, got "):
        gpu.recurrent_backward(a, spoilt, found[0], [None])
