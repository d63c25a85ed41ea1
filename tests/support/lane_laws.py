"""What holds for the lanes of the GPU engine, through modules. `tests/gpu/test_triton.py` runs this file in a process
of its own, with Triton's interpreter and a stand-in for CUDA graphs; before each call every lane is full of NaN."""

import copy
import sys
import threading

import pytest
import torch

import layernorm as ln
from layernorm.engines import reference
from layernorm.engines import triton as engine
from layernorm.engines.triton import _kernels as kernels
from layernorm.engines.triton import _lanes as lanes
from layernorm.equations.arguments import RecurrentArguments, StateChanges
from layernorm.formula import PRESETS, Recurrence
from support import graphs

T, B, INPUTS, H = 3, 2, 4, 6


def assert_close(found, expected):
    """As near as results in float32 of a network whose gradients do not grow."""
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max() <= 1e-5 * (1 + b.abs().max()) if b.numel() else a.shape == b.shape


def lstm(inputs=INPUTS, hidden_size=H, **more):
    return ln.LSTM(inputs, hidden_size, gain_init="steady", **more)


@pytest.fixture(autouse=True)
def stand_in():
    torch.manual_seed(0)
    torch.backends.cudnn.rnn.fp32_precision = "ieee"
    with graphs.stand_in():
        yield


def forward(module, steps=T, rows=B, engine="triton"):
    """A pending call: output, and what its gradients are taken of."""
    generator = torch.Generator().manual_seed(steps + rows)
    x = torch.randn(steps, rows, INPUTS, generator=generator, requires_grad=True)
    if engine == "triton":
        graphs.poison()
    with ln.backends.use(engine):
        y, state = module(x)
    return y, state, [x, *module.parameters()]


def backward(call):
    y, state, inputs = call
    graphs.poison()
    last = state if isinstance(state, tuple) else (state,)
    return [y, *last, *torch.autograd.grad(y.square().sum() + sum(s.sum() for s in last), inputs)]


def expected(module, *sizes):
    return backward(forward(module, *sizes, engine="reference"))


def check(found, module, *sizes):
    assert_close(found, expected(module, *sizes))


def test_one_lane_serves_every_length():
    module = lstm()
    for steps in (5, 0, 1, 22, 1):
        check(backward(forward(module, steps)), module, steps)
    assert len(lanes.lanes) == 2  # forward and back
    assert sorted(size for lane in lanes.lanes._lanes.values() for size in lane.graphs) == [1, 1, 4, 4, 16, 16]


def test_a_thousand_steps_are_62_graphs_of_16_and_2_of_4():
    module, sizes = lstm(), []
    backward(forward(module, 1))

    class Counted:
        def __init__(self, steps, device):
            steps()

        def replay(self):
            sizes.append(self)

    lane = next(iter(lanes.lanes._lanes.values()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "capture", Counted)
        lane.run(1000, lambda: None)
    assert [sizes.count(lane.graphs.get(size)) for size in lanes.SIZES] == [62, 2, 0]


def test_steps_go_one_by_one_where_no_graph_can_be_captured(monkeypatch):
    module = lstm()
    backward(forward(module, 5))

    def fails(steps, device):
        raise RuntimeError("another thread waits for the device")

    monkeypatch.setattr(lanes, "capture", fails)
    with pytest.warns(UserWarning, match="one by one, more slowly: .* another thread waits for the device"):
        check(backward(forward(module, 5)), module, 5)


def test_a_thread_without_trees_of_graphs_captures_nothing(monkeypatch):
    class Trees:
        @staticmethod
        def get_manager(index, create_if_none_exists):
            raise AssertionError

    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", Trees)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert not lanes.is_captured(torch.device("cuda", 0))


def test_nothing_is_captured_in_the_first_call_of_a_kind():
    backward(forward(lstm()))
    assert not any(lane.graphs for lane in lanes.lanes._lanes.values())


@pytest.mark.parametrize(
    "order",
    [pytest.param((0, 1, 2), marks=pytest.mark.long), pytest.param((2, 1, 0), marks=pytest.mark.long), (1, 0, 2)],
)
def test_calls_go_back_in_any_order(order):
    module = lstm()
    backward(forward(module))
    sizes = [(2, B), (3, B), (2, B + 1)]
    pending = [forward(module, *size) for size in sizes]
    for k in order:
        check(backward(pending[k]), module, *sizes[k])


def test_layers_of_one_kind_share_a_lane():
    module = lstm(H, num_layers=2, bidirectional=True)  # all four are of one kind
    x = torch.randn(2, B, H, requires_grad=True)
    for _ in range(2):
        found = []
        for name in ("triton", "reference"):
            with ln.backends.use(name):
                y = module(x)[0]
                found.append(torch.autograd.grad(y.square().sum(), [x, *module.parameters()]))
        assert_close(*found)
    assert len(lanes.lanes) == 2


def test_a_copy_has_weights_of_its_own():
    module = ln.GRU(INPUTS, H)
    backward(forward(module))
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.weight_hh_l0.mul_(2)
    first, second = forward(module), forward(other)
    check(backward(second), other)
    check(backward(first), module)


def test_the_lanes_used_last_are_kept(monkeypatch):
    monkeypatch.setattr(lanes, "MOST_LANES", 3)
    module = lstm()
    for rows in (1, 2, 3, 1):
        check(backward(forward(module, 1, rows)), module, 1, rows)
        assert len(lanes.lanes) <= 3
    monkeypatch.setattr(lanes, "MOST_BYTES", 0)
    for rows in (5, 6):
        check(backward(forward(module, 1, rows)), module, 1, rows)
        assert len(lanes.lanes) == 2  # those of the last layer, forward and back


@pytest.mark.parametrize("number", [*(pytest.param(number, marks=pytest.mark.long) for number in (0, 1, 6)), 3])
@pytest.mark.filterwarnings("ignore:layernorm's engine 'triton' takes the steps")  # if it is in a capture
def test_an_error_in_the_middle_leaves_nothing_behind(monkeypatch, number):
    module = lstm()
    backward(forward(module))
    count = 0

    def fail(lane, *given, **constants):
        nonlocal count
        count += 1
        if count > number:
            raise RuntimeError("no memory")
        graphs.launch(lane, *given, **constants)

    with monkeypatch.context() as patch:
        patch.setattr(lanes.Lane, "launch", fail)
        with pytest.raises(RuntimeError, match="no memory"):
            forward(module)
    check(backward(forward(module)), module)


def test_threads_take_turns():
    modules, found = [lstm() for _ in range(3)], [None] * 3

    def call(module, engine):
        x = torch.ones(T, B, INPUTS, requires_grad=True)
        with ln.backends.use(engine):
            y, _ = module(x)
        return [y, *torch.autograd.grad(y.square().sum(), [x, *module.parameters()])]

    def work(k):
        for _ in range(2):
            found[k] = call(modules[k], "triton")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lanes.lanes) == 2
    for module, results in zip(modules, found, strict=True):
        assert_close(results, call(module, "reference"))


def test_in_inference_mode_first_and_then_not():
    module = lstm()
    with torch.inference_mode(), ln.backends.use("triton"):
        module(torch.randn(T, B, INPUTS))
    check(backward(forward(module)), module)
    with torch.inference_mode(), ln.backends.use("triton"):
        module(torch.randn(T, B, INPUTS))
    check(backward(forward(module)), module)


def test_every_slot_has_its_number():
    assert [getattr(kernels, f"AT_{name.upper()}").value for name in kernels.SLOTS] == list(range(len(kernels.SLOTS)))


@pytest.mark.parametrize("network", [lstm, ln.GRU])
def test_step_by_step(network):
    module, x = network(INPUTS, hidden_size=H), torch.randn(T, B, INPUTS, requires_grad=True)
    found = []
    for name in ("triton", "reference"):
        with ln.backends.use(name):
            step, state, outputs = module.stepper(), None, []
            for x_t in x:
                output, state = step(x_t, state)
                outputs.append(output)
            y = torch.stack(outputs)
            found.append([y, *torch.autograd.grad(y.square().sum(), [x, *module.parameters()])])
    assert_close(*found)


def of_engines(a, grads):
    """The results of a call by the engine and by the equations."""
    n, found = 1 + len(a.state), []
    for of in (engine, reference):
        results = of.recurrent_forward(a, True)
        found.append([*results[:n], *of.recurrent_backward(a, results[n:], grads[0], grads[1:])])
    return found


def gru_with_a_cut(restart=False):
    module, x = ln.GRU(INPUTS, H), torch.randn(T, B, INPUTS)
    reset = torch.zeros(T, B, dtype=torch.bool)
    reset[1] = True
    changes = StateChanges([torch.randn(B, H)] if restart else [])
    recurrence, params = Recurrence("GRU", PRESETS["paper"]["GRU"]), [p.detach() for p in module.parameters()]
    return RecurrentArguments(x, [torch.randn(B, H)], params, recurrence, changes, reset=reset)


def test_gradients_that_lie_across():
    a = gru_with_a_cut(restart=True)
    assert_close(*of_engines(a, [torch.randn(T, B, H), torch.randn(H, B).T]))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's
def test_a_cut_cuts_nan_and_infinity():
    a = gru_with_a_cut()
    reset = a.reset.clone()
    reset[0] = True
    grad = torch.randn(T, B, H)
    (y, *_), _ = of_engines(a._replace(state=[torch.full((B, H), torch.nan)], reset=reset), [grad, None])
    assert y.isfinite().all()
    grad[1:] = torch.inf
    ours, theirs = of_engines(a, [grad, None])
    assert ours[2][0].isfinite().all()
    assert theirs[2][0].isfinite().all()


def test_relu_keeps_nan():
    module, x = ln.RNN(INPUTS, H, nonlinearity="relu"), torch.randn(T, B, INPUTS)
    x[1, 0, 0] = torch.nan
    with ln.backends.use("triton"):
        y, _ = module(x)
    assert y[1:, 0].isnan().all()
    assert y[:, 1].isfinite().all()
