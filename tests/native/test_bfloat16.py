"""Recurrent networks in bfloat16. Their products are made of pairs of numbers where the processor has an instruction
for these. Where it has not, two float32 products stand for it: the set `pairs`."""

import pytest
import torch
from test_native_recurrent import both_ways

import layernorm as ln
from layernorm.formula import PRESETS, Recurrence
from support.formula_space import arguments_of, drawn, every_formula
from support.instruction_sets import EVERY_SET
from support.threads import threads

native = pytest.importorskip("layernorm.engines.native", exc_type=ImportError)
from layernorm.engines.native import _recurrent  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("instruction_set"),
    pytest.mark.parametrize("instruction_set", EVERY_SET, indirect=True),
]
NETWORKS = ["LSTM", "GRU", "RNN"]
UNIT = 2.0**-8  # a rounding to bfloat16


def narrow(arguments):
    """What `drawn` returns, in bfloat16."""
    x, state, params, *masks = arguments
    return x.bfloat16(), [s.bfloat16() for s in state], [p.bfloat16() for p in params], *masks


def trained(module, x, d):
    """Results and gradients of a sum of the output's elements times ``d``, all in float64."""
    x = x.clone().requires_grad_()
    output, state = module(x)
    grads = torch.autograd.grad((output * d).sum(), [x, *module.parameters()])
    return [t.detach().double() for t in (output, *(state if isinstance(state, tuple) else [state]), *grads)]


@pytest.mark.parametrize("network", NETWORKS)
def test_errors_are_within_those_of_torch(network):
    """Against float64, without layer norm, which torch's networks do not have: the root mean square of each tensor."""
    T, B, I, H = 25, 19, 51, 65  # noqa: E741
    theirs = getattr(torch.nn, network)(I, H, dtype=torch.bfloat16)
    ours = getattr(ln, network)(I, H, norm=None, dtype=torch.bfloat16)
    ours.load_state_dict(theirs.state_dict())
    x, d = torch.randn(T, B, I).bfloat16(), torch.randn(T, B, H).bfloat16()
    rounded, got = trained(theirs, x, d), trained(ours, x, d)
    exact = trained(theirs.double(), x.double(), d.double())
    for e, t, o in zip(exact, rounded, got, strict=True):
        assert (o - e).square().mean() <= (t - e).square().mean()


@pytest.mark.parametrize("B", [9, 15, 16, 17, 32, 33, 49])
def test_one_step_has_the_errors_of_its_sums_and_a_rounding(B):
    """Each number is a sum of n products of numbers in bfloat16, in float32, and is rounded once. Rows, columns and
    sums of sizes that fill no tile."""
    I, H = 2 * B + 17, 3 * B - 10  # noqa: E741
    module = ln.RNN(I, H, norm=None, bias=False, nonlinearity="relu", dtype=torch.bfloat16)
    x, h, d = (torch.randn(1, B, n).bfloat16() for n in (I, H, H))
    given = [t.requires_grad_() for t in (x, h)] + list(module.parameters())
    y = module(x, h)[0]
    got = [y, *torch.autograd.grad((y * d).sum(), given)]
    x, h, d, w, u = (t.detach().double().view(-1, t.shape[-1]) for t in (x, h, d, *given[2:]))
    z = x @ w.T + h @ u.T
    dz = d * (z > 0)
    sums = [((x, w.T), (h, u.T)), ((dz, w),), ((dz, u),), ((dz.T, x),), ((dz.T, h),)]
    for a, products in zip(got, sums, strict=True):
        exact = sum(b @ c for b, c in products) * (z > 0 if a is y else 1)
        terms = sum(b.abs() @ c.abs() for b, c in products)
        n = sum(b.shape[1] for b, _ in products)
        assert ((a.double() - exact).abs() <= UNIT * exact.abs() + 1.01 * n * 2.0**-24 * terms).all()


# No single input or state: its scale is normalised away, its gradient is 0, and what is found is rounding alone.
SHAPES = [(5, 3, 4, 6, 3), (4, 7, 3, 17, 5), (3, 1, 2, 2, 2), (6, 5, 40, 33, 16), (5, 131, 35, 48, 48), (0, 2, 3, 4, 2)]
SHAPES += [(3, 0, 2, 5, 2), (9, 1, 3, 31, 9), (12, 4, 0, 3, 2), (2, 3, 37, 43, 20)]
# What the products round changes a result by about as much as moving all that is given by half a unit in the last
# place does; an LSTM rounds some ten numbers a unit and step: sqrt(10) such changes, and half again.
TIMES = 5.0


def moved(tensors):
    return [t * (1 + UNIT * (torch.rand(t.shape) - 0.5)) for t in tensors]


@pytest.mark.parametrize("network", NETWORKS)
def test_formulas_of_every_kind(network):
    """Odd sizes, of which a pair is half empty, masks, blocks of steps. A wrong partner is off by the whole value."""
    for recurrence, (*sizes, reverse, lengths, reset) in list(every_formula(network, SHAPES))[::5]:
        arguments = narrow(drawn(recurrence, *sizes, lengths, reset))
        x, state, params, *masks = arguments
        wide = x.float(), [s.float() for s in state], [p.float() for p in params], *masks
        got, inference = both_ways(native, arguments, recurrence, reverse)
        assert all(map(torch.equal, got, inference))
        exact, _ = both_ways(native, wide, recurrence, reverse)
        grads, changes = [torch.ones_like(t) for t in exact[: 1 + len(state)]], []
        for _ in range(3):
            near = *moved(wide[:1]), moved(wide[1]), moved(wide[2]), *masks
            other, _ = both_ways(native, near, recurrence, reverse, moved(grads))
            changes.append([(a - b).norm() for a, b in zip(other, exact, strict=True)])
        for a, b, *change in zip(got, exact, *changes, strict=True):
            assert a.dtype == torch.bfloat16
            assert a.shape == b.shape
            assert (a.float() - b).norm() <= TIMES * max(change) + UNIT * b.norm(), (recurrence, sizes)


@pytest.mark.parametrize("network", NETWORKS)
def test_bits_do_not_depend_on_threads_or_on_other_rows(network):
    recurrence = Recurrence(network, PRESETS["paper"][network])
    arguments = narrow(drawn(recurrence, 12, 67, 33, 41, 41, True, True))
    few = narrow(drawn(recurrence, 10, 1, 33, 900, 900, True, True))  # columns are shared out
    found = []
    for number in (1, 3):
        with threads(number):
            found.append([t for a in (arguments, few) for t in both_ways(native, a, recurrence, False)[0]])
    assert all(map(torch.equal, *found))
    a = arguments_of(arguments, recurrence)
    poisoned = a.input.clone()
    poisoned[:, 1::2] = float("nan")
    found = [native.recurrent_forward(a._replace(input=given), False) for given in (a.input, poisoned)]
    assert torch.equal(found[0][0][:, ::2], found[1][0][:, ::2])


def test_padding_may_hold_anything():
    """Also where it is the neighbour of a number in a pair."""
    module, x, lengths = ln.LSTM(5, 7, proj_size=3).bfloat16(), torch.randn(7, 3, 5), torch.tensor([6, 3, 0])
    found = []
    for fill in (0.0, float("nan")):
        y = torch.where((torch.arange(7)[:, None] < lengths)[..., None], x, fill).bfloat16().requires_grad_()
        with ln.backends.use("native"):
            output, _ = module(y, lengths=lengths)
        found.append([output, *torch.autograd.grad(output.sum(), [y, *module.parameters()])])
    assert found[0][0].isfinite().all()
    assert all(map(torch.equal, *found))


def test_strided_input():
    module, x = ln.GRU(5, 9, batch_first=True).bfloat16(), torch.randn(4, 5, 13).bfloat16()
    for view in (x[..., :5], x[..., :10:2], x[:, :, 1:6], x[:1, :, :5].expand(4, 5, 5)):
        assert torch.equal(module(view)[0], module(view.contiguous())[0])


def test_steps_one_by_one():
    """The sequence's weights' gradients, but for h, which is rounded where a result leaves a step."""
    T, B, I, H = 6, 3, 5, 33  # noqa: E741
    module, x = ln.LSTM(I, H, proj_size=7).bfloat16(), torch.randn(T, B, I).bfloat16()
    params = list(module.parameters())
    expected = torch.autograd.grad(module(x)[0].sum(), params)
    stepper, state, total = module.stepper(), None, 0.0
    for t in range(T):
        output, state = stepper(x[t], state)
        total = total + output.sum()
    for a, b in zip(torch.autograd.grad(total, params), expected, strict=True):
        assert (a - b).norm() <= 8 * UNIT * b.norm()  # h, and a gradient of it, rounded at each step


def test_autocast_takes_them(monkeypatch):
    """A float32 network under autocast hands over bfloat16, in both directions."""
    types, run_plan = [], _recurrent._run_plan
    monkeypatch.setattr(_recurrent, "_run_plan", lambda *args: types.append(args[2].input.dtype) or run_plan(*args))
    with ln.backends.use("native"), torch.autocast("cpu", torch.bfloat16):
        output, _ = ln.LSTM(5, 7)(torch.randn(4, 3, 5))
    output.float().sum().backward()
    assert types == [torch.bfloat16] * 2
