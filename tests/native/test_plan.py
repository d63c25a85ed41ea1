"""A planned call computes only with the tensors that it was planned for."""

import pytest
import torch

pytest.importorskip("layernorm.native", exc_type=ImportError)

import layernorm as ln
from layernorm.engine import RecurrentArguments
from layernorm.native import recurrent_backward, recurrent_forward
from layernorm.native._plan import forward_plan

T, B, I, H = 3, 2, 4, 5  # noqa: E741


def planned():
    """A plan, and tensors that fit it."""
    cell = ln.RNNCell(I, H)
    params = {name: p.detach() for name, p in cell.named_parameters()}
    x = torch.randn(T, B, I)
    strides = x.stride()
    plan = forward_plan(cell.recurrence, (T, B, I, H, H), strides, torch.float32, False, False, False, 1, False)
    in_order = [params[name] for name in ("weight_ih", "weight_hh", "gain", "bias_ih", "bias_hh")]
    return plan, [x, torch.randn(B, H), *in_order]


def test_tensors_that_fit():
    plan, tensors = planned()
    output, h = plan.run(tensors)
    assert output.shape == (T, B, H)
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
    assert plan.run(tensors[:-1]) is None
    assert plan.run([*tensors, tensors[0]]) is None
    assert plan.run(tensors * 20) is None


def arguments(change, dtype):
    torch.manual_seed(0)
    cell = ln.LSTMCell(I, H, formula="tf1")
    tensors = [torch.randn(T, B, I), *(torch.randn(B, H) for _ in range(2)), *cell.parameters()]
    x, h, c, *params = [change(t.detach().to(dtype)) for t in tensors]
    return RecurrentArguments(x, [h, c], params, None, None, cell.recurrence, False)


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


@pytest.mark.parametrize("save", [True, False])
def test_a_result_that_no_memory_has_room_for_is_an_error(save):
    x = torch.zeros(I).expand(1 << 40, 1, I)  # the same row at every step: the input takes no memory itself
    gru = ln.GRU(I, H).requires_grad_(save)
    with pytest.raises(MemoryError, match=r"not enough memory for a call with input \[1099511627776, 1, 4\]"):
        gru(x)
