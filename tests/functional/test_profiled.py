"""What torch's profiler shows of the ops."""

import pytest
import torch

import layernorm as ln
from layernorm.functional import _bind, _steps


def profiled(**options):
    """A profiler of the processor; torch 2.12 warns of one without `acc_events`."""
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True, **options)


def shown(call, **options):
    """The profiler's rows of our ops: (name, shapes of the inputs)."""
    with profiled(**options) as profiler:
        call()
    return [(e.name, e.input_shapes) for e in profiler.events() if e.name.startswith("layernorm::")]


def a_sequence():
    lstm, x = ln.LSTM(3, 4), torch.ones(5, 2, 3)
    return lambda: lstm(x)


def a_sequence_under_batch_norm():
    lstm, x = ln.LSTM(3, 4, norm="batch"), torch.randn(5, 2, 3)
    return lambda: lstm(x)


def a_step():
    step, x = ln.LSTM(3, 4).stepper(), torch.ones(2, 3)
    return lambda: step(x)


CALLS = {
    "layernorm::normalize": lambda: lambda: ln.functional.layer_norm(torch.ones(2, 3), [3]),
    "layernorm::recurrent": a_sequence,
    "layernorm::step": a_step,
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_profiler_shows_an_event_for_each_op(name, grad):
    call = CALLS[name]()
    with torch.set_grad_enabled(grad):
        assert [row for row, _ in shown(call)] == [name]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("engine", [name for name in ln.backends.available() if name != "compiled"])
def test_batch_norm_is_the_same_op(engine, grad):
    call = a_sequence_under_batch_norm()
    with ln.backends.use(engine), torch.set_grad_enabled(grad):
        assert [row for row, _ in shown(call)] == ["layernorm::recurrent"]


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_profiler_shows_the_backward_too(norm):
    output, _ = ln.LSTM(3, 4, norm=norm)(torch.randn(5, 2, 3))
    assert [row for row, _ in shown(lambda: output.sum().backward())] == ["layernorm::recurrent_backward"]


def test_an_event_has_the_shapes_of_the_inputs():
    with torch.no_grad():
        ((_, shapes),) = shown(CALLS["layernorm::recurrent"](), record_shapes=True)
    assert shapes[:5] == [[5, 2, 3], [2, 4], [2, 4], [16, 3], [16, 4]]  # input, h, c, weight_ih, weight_hh


@pytest.mark.parametrize("name", CALLS)
def test_no_event_is_entered_where_no_profiler_runs(name, monkeypatch):
    call = CALLS[name]()
    for module in (_bind, _steps):
        monkeypatch.setattr(module, "profiler_event", None)
    call()


def test_events_give_the_same_numbers():
    lstm, x = ln.LSTM(3, 4), torch.randn(5, 2, 3)
    alone = lstm(x)[0]
    with profiled():
        torch.testing.assert_close(lstm(x)[0], alone, rtol=0, atol=0)
