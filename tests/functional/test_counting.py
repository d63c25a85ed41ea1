"""What other tools of torch's make of the ops: `FlopCounterMode` counts them, per-sample gradients say what to do."""

import pytest
import torch
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads
from torch.utils.flop_counter import FlopCounterMode

import layernorm as ln
from support.networks import as_hx, flat
from support.processes import python

T, B, I, H = 5, 2, 3, 4  # noqa: E741
KINDS = [
    *[(kind, {}) for kind in ("GRU", "RNN", "GRUCell", "RNNCell", "LSTMCell")],
    ("GRU", {"num_layers": 2, "bidirectional": True}),
    ("LSTM", {"proj_size": 2}),
]


def counted(module, x, state):
    """The counts of a forward, and of it with its backward."""
    with FlopCounterMode(display=False) as forward:
        results = flat(module(x, state)) if "Cell" in type(module).__name__ else [module(x, state)[0]]
    with FlopCounterMode(display=False) as backward:
        sum(r.sum() for r in results).backward()
    return forward.get_total_flops(), backward.get_total_flops()


def inputs(kind, options):
    cell = "Cell" in kind
    rows = () if cell else (options.get("num_layers", 1) * (1 + options.get("bidirectional", False)),)
    sizes = [options.get("proj_size", H), H] if "LSTM" in kind else [H]
    state = [torch.randn(*rows, B, size, requires_grad=True) for size in sizes]
    return torch.randn(*(() if cell else (T,)), B, I, requires_grad=True), as_hx(state)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_the_counts_are_torchs(kind, options):
    """Where input and state need gradients, too, as our backward computes all of them."""
    theirs, (x, state) = getattr(torch.nn, kind)(I, H, **options), inputs(kind, options)
    expected = counted(theirs, x, state)
    assert expected[0] > 0
    assert counted(getattr(ln, kind)(I, H, **options), x, state) == expected
    assert counted(ln.accelerate(theirs), x, state) == expected


def test_an_lstm_is_counted_where_torchs_by_onednn_is_not():
    """By hand: a multiplication and an addition for each number of the weights, step and row."""
    x, state = inputs("LSTM", {})
    assert counted(ln.LSTM(I, H), x, state)[0] == 2 * T * B * 4 * H * (I + H)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        ln.LSTM(I, H)(x)
    assert counter.get_total_flops() == 2 * T * B * 4 * H * (I + H)
    with FlopCounterMode(display=False) as counter:
        step, hx = ln.LSTM(I, H).stepper(), None
        for row in x.unbind():
            _, hx = step(row, hx)
    assert counter.get_total_flops() == 2 * T * B * 4 * H * (I + H)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_is_counted_as_layer_norm_is(training):
    x, state = inputs("GRU", {})
    found = [counted(ln.GRU(I, H, norm=norm).train(training), x, state) for norm in ("batch", "layer")]
    assert found[0] == found[1]


def test_a_packed_batch_has_its_own_steps_alone():
    x, _ = inputs("GRU", {})
    packed, theirs = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 2])), torch.nn.GRU(I, H)
    found = []
    for module in (ln.GRU(I, H), ln.accelerate(torch.nn.GRU(I, H)), theirs):
        with FlopCounterMode(display=False) as counter:
            module(packed)
        found.append(counter.get_total_flops())
    assert found == [2 * 7 * 3 * H * (I + H)] * 3


def test_nothing_is_imported_for_it():
    """torch's counter imports triton where it is installed."""
    name = "torch.utils.flop_counter"
    python(f"import sys; sys.modules.pop({name!r}, None); import layernorm; sys.exit({name!r} in sys.modules)")


@pytest.mark.parametrize("kind", [ln.LSTM, ln.GRUCell, ln.LayerNorm, ln.RMSNorm])
def test_expanded_weights_are_refused_and_func_is_the_way(kind):
    module = kind(I, H) if kind in (ln.LSTM, ln.GRUCell) else kind(I)
    x = torch.randn(B, T, I) if kind is ln.LSTM else torch.randn(B, I)
    said = "cannot handle function (layer|rms)_norm"  # torch's
    if kind in (ln.LSTM, ln.GRUCell):
        said = r"per-sample gradients by ExpandedWeights .* torch\.func\.vmap"
    with pytest.raises(RuntimeError, match=said):
        call_for_per_sample_grads(module)(x)
    with pytest.raises(RuntimeError, match=r"ExpandedWeights"):
        call_for_per_sample_grads(ln.LSTM(I, H, norm="batch"))(x)

    def loss(parameters, x):
        result = torch.func.functional_call(module, parameters, (x,))
        return (result[0] if isinstance(result, tuple) else result).square().sum()

    parameters = {name: p.detach() for name, p in module.named_parameters()}
    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for k, row in enumerate(x):
        expected = torch.autograd.grad(loss(dict(module.named_parameters()), row), list(module.parameters()))
        for a, b in zip(found.values(), expected, strict=True):
            torch.testing.assert_close(a[k], b, rtol=1e-4, atol=1e-5)
