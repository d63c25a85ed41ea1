"""Float32 networks whose products torch's switches allow to be made in bfloat16."""

from dataclasses import replace

import pytest
import torch
from test_bfloat16 import NETWORKS, SHAPES, TIMES, moved
from test_native_recurrent import both_ways

import layernorm as ln
from layernorm.formula import PRESETS, Recurrence
from support.formula_space import arguments_of, drawn, every_formula
from support.instruction_sets import EVERY_SET, WITH_BFLOAT16
from support.threads import threads

native = pytest.importorskip("layernorm.engines.native", exc_type=ImportError)

ROUNDING = [name for name in EVERY_SET if name in WITH_BFLOAT16]
every_set = pytest.mark.parametrize("instruction_set", EVERY_SET, indirect=True)
rounding_sets = pytest.mark.parametrize("instruction_set", ROUNDING, indirect=True)


def allow(rnn="none", matmul="ieee"):
    torch.backends.mkldnn.rnn.fp32_precision = rnn
    torch.backends.mkldnn.matmul.fp32_precision = matmul


@pytest.fixture(autouse=True)
def switches():
    yield
    allow()


def a_network(network="LSTM", B=40):
    module, x, d = getattr(ln, network)(51, 65), torch.randn(3, B, 51), torch.randn(3, B, 65)
    return module, x.requires_grad_(), d


def trained(module, x, d, between=lambda: None):
    output = module(x)[0]
    between()
    return [output, *torch.autograd.grad((output * d).sum(), [x, *module.parameters()])]


def same(a, b):
    return all(map(torch.equal, a, b))


@every_set
def test_which_switch_decides(instruction_set):
    """That of recurrent networks; where it says nothing, that of products. Sets without bfloat16 keep float32."""
    given, found = a_network(), {}
    found["default"] = trained(*given)
    for rnn, matmul in [("none", "bf16"), ("bf16", "ieee"), ("ieee", "bf16"), ("tf32", "bf16"), ("none", "tf32")]:
        allow(rnn, matmul)
        found[rnn, matmul] = trained(*given)
    allow()
    torch.set_float32_matmul_precision("medium")
    found["medium"] = trained(*given)
    torch.set_float32_matmul_precision("highest")
    rounded = {key for key, tensors in found.items() if not same(tensors, found["default"])}
    assert rounded == ({("none", "bf16"), ("bf16", "ieee"), "medium"} if instruction_set in ROUNDING else set())
    assert same(found["medium"], found["bf16", "ieee"])


@rounding_sets
@pytest.mark.parametrize("B", [33, 49])
def test_products_are_of_rounded_numbers_and_sums_are_float32(instruction_set, B):
    """One step, against float64: x, h, the weights and dz are rounded; a sum of n products is off by n roundings."""
    I, H = 2 * B + 17, 3 * B - 10  # noqa: E741
    module = ln.RNN(I, H, norm=None, bias=False, nonlinearity="relu")
    x, h, d = (torch.randn(1, B, n) for n in (I, H, H))
    given = [t.requires_grad_() for t in (x, h)] + list(module.parameters())
    allow("bf16")
    y = module(x, h)[0]
    got = [y, *torch.autograd.grad((y * d).sum(), given)]
    x, h, d, w, u = (t.detach().bfloat16().double().view(-1, t.shape[-1]) for t in (x, h, d, *given[2:]))
    z = x @ w.T + h @ u.T
    dz = d * (z > 0)
    sums = [((x, w.T), (h, u.T)), ((dz, w),), ((dz, u),), ((dz.T, x),), ((dz.T, h),)]
    for a, products in zip(got, sums, strict=True):
        exact = sum(b @ c for b, c in products) * (z > 0 if a is y else 1)
        terms = sum(b.abs() @ c.abs() for b, c in products)
        n = sum(b.shape[1] for b, _ in products)
        assert ((a.double() - exact).abs() <= 1.01 * (n + 1) * 2.0**-24 * terms).all()


@rounding_sets
@pytest.mark.parametrize("network", NETWORKS)
def test_formulas_of_every_kind(instruction_set, network):
    """Off by no more than a network in bfloat16 may be (`test_bfloat16.py`), without a rounding of the results."""
    for recurrence, (*sizes, reverse, lengths, reset) in list(every_formula(network, SHAPES))[::7]:
        x, state, params, *masks = drawn(recurrence, *sizes, lengths, reset)
        x, state, params = x.float(), [s.float() for s in state], [p.float() for p in params]
        arguments = x, state, params, *masks
        got, inference = both_ways(native, arguments, replace(recurrence, bfloat16_products=True), reverse)
        assert same(got, inference)
        exact, _ = both_ways(native, arguments, recurrence, reverse)
        grads, changes = [torch.ones_like(t) for t in exact[: 1 + len(state)]], []
        for _ in range(3):
            near = *moved([x]), moved(state), moved(params), *masks
            other, _ = both_ways(native, near, recurrence, reverse, moved(grads))
            changes.append([(a - b).norm() for a, b in zip(other, exact, strict=True)])
        for a, b, *change in zip(got, exact, *changes, strict=True):
            assert a.dtype == torch.float32
            assert (a - b).norm() <= TIMES * max(change) + 1e-5 * b.norm(), (recurrence, sizes)


@rounding_sets
def test_the_backward_is_that_of_its_forward(instruction_set):
    given = a_network()
    wide = trained(*given)
    assert same(trained(*given, between=lambda: allow("bf16")), wide)
    rounded = trained(*given)
    assert not same(rounded, wide)
    assert same(trained(*given, between=allow), rounded)


@rounding_sets
@pytest.mark.parametrize(("T", "B"), [(1, 9), (1, 32), (2, 12), (12, 2), (1, 33)])
def test_a_few_rows_are_rounded_both_ways_or_neither(instruction_set, T, B):
    recurrence = Recurrence("LSTM", PRESETS["paper"]["LSTM"])
    x, state, params, *masks = drawn(recurrence, T, B, 51, 65, 65, False, False)
    arguments = arguments_of((x.float(), *([t.float() for t in a] for a in (state, params)), *masks), recurrence)
    rounding = arguments._replace(recurrence=replace(recurrence, bfloat16_products=True))
    results = [native.recurrent_forward(a, True) for a in (arguments, rounding)]
    d, saved = torch.ones(T, B, 65), results[0][3:]
    grads = [native.recurrent_backward(a, saved, d, [None, None]) for a in (arguments, rounding)]
    assert same(*(found[:3] for found in results)) == same(*grads)


@rounding_sets
def test_the_dispatcher_goes_the_same_way(instruction_set):
    given = a_network()
    allow("bf16")
    expected = trained(*given)
    with torch.overrides.BaseTorchFunctionMode():
        assert same(trained(*given), expected)


@rounding_sets
def test_bits_do_not_depend_on_threads(instruction_set):
    allow("bf16")
    given, found = a_network("GRU", 67), []
    for number in (1, 3):
        with threads(number):
            found.append(trained(*given))
    assert same(*found)


@rounding_sets
def test_calls_of_few_rows_are_not_rounded(instruction_set):
    module, x, d = a_network(B=2)
    expected = trained(module, x, d)
    allow("bf16")
    assert same(trained(module, x, d), expected)
