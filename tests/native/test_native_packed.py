"""Packed calls in the CPU engine: every formula, what happens between steps, types, threads and shapes."""

import pytest
import torch

from layernorm.engines import reference
from layernorm.formula import PLAIN, Recurrence, resolve
from support import packing
from support.formula_space import every_formula
from support.instruction_sets import share_of
from support.threads import threads

native = pytest.importorskip("layernorm.engines.native", exc_type=ImportError)
in_every_set = pytest.mark.usefixtures("instruction_set")

# T, B, I, H, P. The backward has blocks of 384 lines; the forward has groups of 24 rows, and blocks of steps by memory.
SHAPES = [(11, 3, 4, 6, 3), (5, 7, 3, 17, 5), (3, 1, 2, 1, 1), (7, 30, 40, 33, 16), (60, 13, 5, 16, 7)]
SHAPES += [(1, 2, 70, 33, 16), (2, 3, 5, 13, 5), (40, 50, 3, 5, 2), (9, 4, 0, 3, 2)]


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 5))])
@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
def test_every_formula(network, part, instruction_set):
    found = list(enumerate(every_formula(network, SHAPES)))[part::5]  # SHAPES are 9
    for k, (recurrence, (*sizes, reverse, _, reset)) in share_of(found, instruction_set):
        packing.compare(native, *packing.both_calls(recurrence, *sizes, reverse, reset, k % 16, seed=k))


@in_every_set
@pytest.mark.parametrize("reverse", [pytest.param(False, marks=pytest.mark.long), True])
def test_threads_share_out_the_lines(reverse):
    """One long row and many short ones, lengths that all differ, and equal ones; bits do not depend on the threads."""
    recurrence = Recurrence("LSTM", resolve("paper", "LSTM"))
    for T, B, seed in ((300, 5, 0), (40, 70, 3), (2, 400, 5), (3, 1, 0)):
        padded, packed, lengths = packing.both_calls(recurrence, T, B, 6, 9, 9, reverse, True, 3, seed)
        with threads(1):
            packing.compare(native, padded, packed, lengths)
            grads = [r.cos() for r in native.recurrent_forward(packed, False)]
            one = packing.forward_and_backward(native, packed, grads)
        for number in (2, 3):
            with threads(number):
                assert all(map(torch.equal, one, packing.forward_and_backward(native, packed, grads)))


@in_every_set
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("network", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("reverse", [False, True])
def test_other_types_as_the_padded_call(network, dtype, reverse):
    """The same numbers go through the same kernels. In float32 sums may be in another order, as products have other
    rows beside them; a 16-bit result may then be the next number."""
    recurrence = Recurrence(network, PLAIN)
    padded, packed, lengths = packing.both_calls(recurrence, 30, 9, 20, 24, 24, reverse, True, 7)
    padded, packed = packing.in_type(padded, dtype), packing.in_type(packed, dtype)
    g = torch.Generator().manual_seed(1)
    grads = [torch.randn(r.shape, generator=g).to(dtype) for r in native.recurrent_forward(padded, False)]
    expected = packing.forward_and_backward(native, padded, grads)
    got = packing.forward_and_backward(native, packed, [packing.take_lines(grads[0], lengths), *grads[1:]])
    unit = torch.finfo(dtype).eps
    for place, (a, b) in enumerate(zip(got, expected, strict=True)):
        b = packing.take_lines(b, lengths) if place in (0, 1 + len(padded.state)) else b
        assert a.dtype == b.dtype == dtype
        assert float((a - b).double().abs().max()) <= 32 * unit * (1 + float(b.double().abs().max())), place


@in_every_set
def test_what_no_row_has_is_not_read():
    """A row's results do not depend on its neighbours, nor on how much longer these are."""
    recurrence = Recurrence("GRU", resolve("paper", "GRU"))
    _, packed, _ = packing.both_calls(recurrence, 20, 6, 4, 8, 8, False, False)
    alone = packed._replace(
        input=torch.stack([packed.input[sum(packed.batch_sizes[:t].tolist())] for t in range(20)]),
        state=[s[:1] for s in packed.state],
        batch_sizes=torch.ones(20, dtype=torch.int64),
    )
    whole, one = native.recurrent_forward(packed, False), native.recurrent_forward(alone, False)
    torch.testing.assert_close(whole[1][:1], one[1], rtol=1e-13, atol=1e-13)  # products with other rows beside them
    poisoned = packed._replace(state=[torch.cat([s[:3], torch.full_like(s[3:], torch.nan)]) for s in packed.state])
    output, _ = native.recurrent_forward(poisoned, False)
    rows = torch.cat([torch.arange(n) for n in packed.batch_sizes.tolist()])
    assert output[rows < 3].isfinite().all()
    assert output[rows >= 3].isnan().all()


@pytest.mark.parametrize("engine", [native, reference], ids=["native", "reference"])
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([2, 2, 1, 1], r"batch_sizes that start at 3, .* add up to 7.*got \[2, 2, 1, 1\]"),
        ([3, 1, 2, 1], r"never rise.*got \[3, 1, 2, 1\]"),
        ([3, 3, 1, 0], r"never rise.*got \[3, 3, 1, 0\]"),
        ([3, 2, 1], r"add up to 7.*got \[3, 2, 1\]"),
        ([3, 3, 2, -1], r"got \[3, 3, 2, -1\]"),
        ([], r"add up to 7.*got \[\]"),
    ],
)
def test_wrong_batch_sizes(engine, sizes, message):
    recurrence = Recurrence("RNN", PLAIN)
    _, packed, _ = packing.both_calls(recurrence, 4, 3, 2, 5, 5, False, False)
    packed = packed._replace(input=packed.input[:1].expand(7, 2), batch_sizes=torch.tensor(sizes, dtype=torch.int64))
    with pytest.raises(RuntimeError, match=message):
        engine.recurrent_forward(packed, False)


def test_other_types_of_batch_sizes():
    recurrence = Recurrence("RNN", PLAIN)
    padded, packed, lengths = packing.both_calls(recurrence, 4, 3, 2, 5, 5, False, False)
    for wrong in (packed.batch_sizes.int(), packed.batch_sizes[None]):
        with pytest.raises(RuntimeError, match=r"expected batch_sizes \(T,\) of type torch.int64"):
            native.recurrent_forward(packed._replace(batch_sizes=wrong), False)
    with pytest.raises(RuntimeError, match=r"and no lengths; got torch.int64 .* and lengths"):
        native.recurrent_forward(packed._replace(lengths=torch.tensor(lengths)), False)
    strided = torch.stack([packed.batch_sizes, packed.batch_sizes], 1)[:, 0]
    packing.compare(native, padded, packed._replace(batch_sizes=strided), lengths)
