"""A planned call computes only with the tensors that it was planned for."""

import concurrent.futures

import pytest
import torch

pytest.importorskip("layernorm.engines.native", exc_type=ImportError)

import layernorm as ln
from layernorm.engines.native import _library, _norms, _recurrent, recurrent_backward, recurrent_forward
from layernorm.engines.native._layout import Norm
from layernorm.engines.native._plan import CALL, ROWS, Plan, TensorSpec
from layernorm.engines.native._recurrent_plan import forward_plan
from layernorm.equations.arguments import RecurrentArguments

T, B, I, H = 3, 2, 4, 5  # noqa: E741
N = 7


def planned(T=T, B=B, I=I, H=H):  # noqa: E741
    """A plan, and tensors that fit it."""
    cell = ln.RNNCell(I, H)
    params = {name: p.detach() for name, p in cell.named_parameters()}
    plan = forward_plan(False, cell.recurrence, False, 1, len(params), None, False)
    in_order = [params[name] for name in ("weight_ih", "weight_hh", "gain", "bias_ih", "bias_hh")]
    return plan, [torch.randn(T, B, I), torch.randn(B, H), *in_order]


@pytest.mark.parametrize("sizes", [(T, B, I, H), (1, 7, 1, 3), (0, B, I, H), (T, 0, I, H), (T, B, 0, 1)])
def test_tensors_that_fit(sizes):
    """A plan is for tensors of all sizes that fit each other."""
    plan, tensors = planned(*sizes)
    output, h = plan.run(tensors)
    assert output.shape == (*sizes[:2], sizes[3])
    assert plan is planned()[0]
    if sizes[0]:
        assert torch.equal(output[-1], h)


@pytest.mark.parametrize("which", range(7))
@pytest.mark.parametrize("how", ["size", "dimension", "type", "strides"])
def test_a_tensor_of_another_kind_is_refused(which, how):
    plan, tensors = planned()
    given = tensors[which]
    wider = torch.cat([given, given], -1)
    tensors[which] = {
        "size": wider,
        "dimension": given[None],
        "type": given.double(),
        "strides": wider[..., ::2],
    }[how]
    assert plan.run(tensors) is None


def test_more_and_fewer_tensors_are_refused():
    plan, tensors = planned()
    for wrong in (tensors[:-1], [*tensors, tensors[0]], tensors * 20):
        with pytest.raises(RuntimeError, match="argument"):
            plan.run(wrong)


def arguments(change, dtype):
    torch.manual_seed(0)
    cell = ln.LSTMCell(I, H, formula="tf1")
    tensors = [torch.randn(T, B, I), *(torch.randn(B, H) for _ in range(2)), *cell.parameters()]
    x, h, c, *params = [change(t.detach().to(dtype)) for t in tensors]
    return RecurrentArguments(x, [h, c], params, cell.recurrence)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.repeat_interleave(2, -1)[..., ::2],
        lambda t: t.transpose(0, 1).contiguous().transpose(0, 1) if t.dim() > 1 else t,
        lambda t: torch._neg_view(-t),
    ],
    ids=["strides", "transposed", "negative"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_tensors_that_lie_in_another_way_give_the_same(change, dtype):
    found = []
    for a in (arguments(lambda t: t, dtype), arguments(change, dtype)):
        output, h, c, *saved = recurrent_forward(a, True)
        grads = [torch.ones_like(output), change(torch.ones_like(h)), None]
        found.append([output, h, c, *recurrent_backward(a, saved, grads[0], grads[1:])])
    assert all(t.dtype == dtype for t in found[0])
    assert all(map(torch.equal, *found))


@pytest.mark.skipif(not hasattr(_library.LIBRARY, "layernorm_poison"), reason="the library was not built for tests")
def test_what_no_kernel_writes_is_nan():
    """In all tests of the CPU engine: conftest.py asks for it."""
    x, y, more = TensorSpec("x", (N,), CALL, ROWS, "x_m"), TensorSpec("y", (N,), CALL, ROWS), TensorSpec("", (N,), CALL)
    y, more = Plan("norm_forward", Norm(N=N, eps=1e-5), [x], [y, more]).run([torch.randn(3, N)])
    assert y.isfinite().all()
    assert more.isnan().all()


@pytest.mark.parametrize("save", [True, False])
def test_a_result_that_no_memory_has_room_for_is_an_error(save):
    x = torch.zeros(I).expand(1 << 40, 1, I)  # the same row at every step: the input takes no memory itself
    gru = ln.GRU(I, H).requires_grad_(save)
    with pytest.raises(MemoryError, match=r"not enough memory for a call with input \[1099511627776, 1, 4\]"):
        gru(x)


@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_a_recurrent_call_is_checked_in_c_alone(network, monkeypatch):
    module, x = getattr(ln, network)(I, H), torch.randn(T, B, I)
    with torch.no_grad():
        expected = module(x, lengths=[T] * B)[0]  # which is checked, and not planned
    monkeypatch.setattr(_recurrent, "check_recurrent", None)
    with torch.no_grad():
        torch.testing.assert_close(module(x)[0], expected, rtol=0, atol=0)


@pytest.mark.parametrize("wrong", [torch.zeros(1), torch.zeros(H).int(), torch.zeros(H, 1), torch.zeros(H).to("meta")])
@pytest.mark.parametrize("name", ["bias_ih", "bias_hh"])
def test_biases_whose_sum_would_fit_are_refused(name, wrong):
    """They make one vector, which is added up before the call."""
    params, x = {name: p.detach() for name, p in ln.RNNCell(I, H).named_parameters()}, torch.randn(T, B, I)
    ln.functional.rnn(x, None, params)
    with pytest.raises(RuntimeError, match=rf"expected {name} (of (shape|type)|on cpu)"):
        ln.functional.rnn(x, None, params | {name: wrong})


# --- norms ---


def norm_tensors(backward):
    """A norm's plan, and tensors that fit it: two rows of 4 numbers in three dimensions, eight numbers apart."""
    x, more, other = (torch.randn(2, 1, 8)[..., :4] for _ in range(3))
    gain, bias = torch.randn(4).double(), torch.randn(4).double()
    if backward:
        plan = _norms.backward_plan((4,), 1e-5, "layer", True, True, True)
        return plan, [x, torch.rand(2, 2).double(), more, gain, bias, other]
    return _norms.forward_plan(True, (4,), 1e-5, "layer", True, True, True), [x, gain, bias, more]


@pytest.mark.parametrize("backward", [False, True])
def test_norms_of_tensors_that_fit(backward):
    plan, tensors = norm_tensors(backward)
    like = [(2, 1, 4), (4,), (4,)] if backward else [(2, 1, 4), (2, 1, 4), (2, 2)]
    found = plan.run(tensors)
    assert [tuple(t.shape) for t in found] == like
    assert all(t.is_contiguous() for t in found)


@pytest.mark.parametrize("which", range(6))
@pytest.mark.parametrize("how", ["size", "dimension", "type", "strides", "device", "storage"])
@pytest.mark.parametrize("backward", [False, True])
def test_a_norm_refuses_a_tensor_of_another_kind(backward, how, which):
    plan, tensors = norm_tensors(backward)
    which %= len(tensors)
    given = tensors[which]
    emptied = given.clone()
    emptied.untyped_storage().resize_(0)
    tensors[which] = {
        "size": torch.cat([given, given], -1),
        "dimension": given[None],
        "type": given.bfloat16(),
        "strides": torch.stack([given, given], -1)[..., 0],
        "device": given.to("meta"),
        "storage": emptied,
    }[how]
    assert plan.run(tensors) is None


X = torch.randn(2, 3, 4)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(4),
        torch.randn(6, 4)[::2],
        X,
        X.transpose(0, 1),
        torch.randn(4, 1, 2, 8).transpose(0, 1)[..., :4],
        torch.randn(4, 3, 2, 4).transpose(0, 2)[:, :1],
        X[:, :0],
        torch.randn(4).expand(2, 3, 4),
    ],
    ids=lambda x: f"{list(x.shape)} {x.stride()}",
)
def test_a_plan_takes_all_rows_at_one_distance(x):
    """As far as torch views them as rows."""
    found = _norms.forward_plan(False, (4,), 1e-5, "layer", False, False, False).run([x])
    try:
        x.view(x.numel() // 4, 4)
    except RuntimeError:
        assert found is None
    else:
        torch.testing.assert_close(found[0], torch.nn.functional.layer_norm(x, (4,)))


@pytest.mark.parametrize(
    ("normalized_shape", "tensors"),
    [
        ((3,), [X, torch.zeros(3), torch.zeros(3)]),
        ((5, 2, 3, 4), [X, torch.zeros(5, 2, 3, 4), torch.zeros(5, 2, 3, 4)]),
        ((4,), [X.to(torch.complex64), torch.zeros(4), torch.zeros(4)]),
        ((4,), [X, torch.zeros(4).long(), torch.zeros(4).long()]),
        ((4,), [X, torch.zeros(4), torch.zeros(4).double()]),
        ((4,), [torch.randn(2, 4, 3).mT, torch.zeros(4), torch.zeros(4)]),  # a row's elements are apart
        ((4,), [torch.randn(26)[:24].as_strided((2, 3, 4), (13, 4, 1)), torch.zeros(4), torch.zeros(4)]),
    ],
)
def test_what_does_not_fit_a_plan(normalized_shape, tensors):
    plan = _norms.forward_plan(False, normalized_shape, 1e-5, "layer", True, True, False)
    assert plan.run(tensors) is None


@pytest.mark.parametrize("normalized_shape", [(), (-1,), (3, -8)])
def test_what_there_is_no_plan_for(normalized_shape):
    """In a plan a negative number in the place of a size has a meaning of its own."""
    assert _norms.forward_plan(False, normalized_shape, 1e-5, "layer", False, False, False) is None
    assert _norms.backward_plan(normalized_shape, 1e-5, "layer", False, False, False) is None


@pytest.mark.parametrize("change", [lambda t: t, lambda t: torch._neg_view(-t)], ids=["plain", "negative"])
def test_a_plan_that_a_call_does_not_fit_gives_nothing_of_its_own(change):
    """The dispatcher copies numbers that are stored negated before the op looks at them."""
    x, weight = torch.randn(2, 3, 4), torch.randn(8)
    strided = torch.stack([weight[:4], weight[:4]], -1)[..., 0]  # the plan wants it in order
    expected = torch.nn.functional.layer_norm(x, (4,), weight[:4])
    torch.testing.assert_close(ln.functional.layer_norm(change(x), (4,), strided), expected)


@pytest.mark.parametrize("normalized", [1, 70])
def test_a_norm_of_many_dimensions(normalized):
    """More than 64, in the rows or before them."""
    x = torch.randn(2, *[1] * 70, 3, requires_grad=True)
    shape = x.shape[-normalized:]
    weight, bias = (torch.randn(shape, requires_grad=True) for _ in range(2))
    dy, found = torch.randn(x.shape), []
    for layer_norm in (ln.functional.layer_norm, torch.nn.functional.layer_norm):
        y = layer_norm(x, shape, weight, bias)
        found.append([t.flatten() for t in (y, *torch.autograd.grad(y, [x, weight, bias], dy))])
    torch.testing.assert_close(*found)


def test_a_planned_call_is_checked_in_c_alone(monkeypatch):
    module, x = ln.LayerNorm(4), torch.randn(2, 4, requires_grad=True)
    for name in ("check_norm", "check_norm_gradients"):
        monkeypatch.setattr(_norms, name, None)
    y, total = module(x, x)
    torch.autograd.grad([y, total], [x, *module.parameters()], [torch.randn(2, 4), torch.randn(2, 4)])
    module(x).backward(torch.randn(2, 4))
    ln.RMSNorm(4)(x).backward(torch.randn(2, 4))


def test_an_op_is_defined_once():
    """Also where threads ask for it at the same time."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: _library.call_op(1, 1), range(16)))
    assert len(set(map(id, found))) == 1


def test_no_memory_for_the_result_of_a_norm():
    x = torch.zeros(4).expand(1 << 50, 4)
    with pytest.raises(MemoryError, match=r"not enough memory for a call with input \[1125899906842624, 4\]"):
        ln.functional.layer_norm(x, (4,))


def test_no_memory_for_what_a_kernel_keeps_between_steps():
    """Also where the number of its bytes would overflow; input and output are empty."""
    with pytest.raises(MemoryError, match=r"not enough memory for a call with input \[2305843009213693952, 0, 4\]"):
        ln.GRU(4, 3)(torch.zeros(1 << 61, 0, 4))
    x = torch.zeros(0, 1 << 60, requires_grad=True)
    with pytest.raises(MemoryError, match="not enough memory"):
        ln.functional.layer_norm(x, (1 << 60,)).sum().backward()


def test_a_length_that_no_integer_holds_is_refused_by_its_shape():
    with pytest.raises(
        RuntimeError, match=r"given normalized_shape=\[1180591620717411303424\], expected input of shape"
    ):
        ln.functional.layer_norm(torch.ones(3, 4), (2**70,))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_planned_gradients_are_those_of_checked_calls(network, shared):
    """With lengths a call is checked, and not planned. ``shared``: a formula whose biases stand in two vectors."""
    formula = ln.Formula(bias_inside=True, biases="input", bias_again=True) if shared and network == "LSTM" else "paper"
    module, x = getattr(ln, network)(I, H, formula=formula), torch.randn(T, B, I, requires_grad=True)
    d, found = torch.randn(T, B, H), []
    for lengths in (None, [T] * B):
        output, hx = module(x, lengths=lengths)
        c = hx[1] if network == "LSTM" else hx
        found.append(torch.autograd.grad([output, c], [x, *module.parameters()], [d, d[:1]]))
    for planned_, checked in zip(*found, strict=True):
        torch.testing.assert_close(planned_, checked, rtol=0, atol=0)
