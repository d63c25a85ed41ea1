"""`audit`: the gradient over time, against `geometry`, in every way in which a network may be called; its finding."""

import copy
import math

import pytest
import torch
from torch import nn

import layernorm as ln
from layernorm.audit import Audit, Finding
from layernorm.audit._over_time import CASES, STEPS, curve_of
from layernorm.convert import _torchs_faster as torchs_faster
from layernorm.convert import watch_calls, watch_torch_calls
from layernorm.geometry import dynamics, gradient_by_lag
from support.networks import KINDS, MODULE

T, B, I, H = 12, 3, 5, 6  # noqa: E741


def noise(steps=T, cases=B, inputs=I, dtype=torch.float64):
    return torch.randn(steps, cases, inputs, dtype=dtype, generator=torch.Generator().manual_seed(1))


def drawn(network="LSTM", **options):
    torch.manual_seed(0)
    return MODULE[network](I, H, **options).double()


def curves(module, *args, **keywords):
    """The curve of every layer and direction, by name."""
    calls = {}

    def note(call):
        calls.setdefault(call.name, []).append(call)

    with watch_calls(module, note), watch_torch_calls(module, note):
        module(*args, **keywords)
    return {name: curve_of(of_layer) for name, of_layer in calls.items()}


def curve(module, *args, **keywords):
    (found,) = curves(module, *args, **keywords).values()
    return found


def assert_alike(found, expected):
    torch.testing.assert_close(found.logs, expected.logs, rtol=1e-9, atol=1e-9)  # float64, some 100 operations a step


def sizes_by_lag(module, x):
    """The logarithms of the sizes (T, B), by `geometry`, of the directions of h that an audit takes."""
    step, state = dynamics(module, B)
    P = module.proj_size or H
    h = torch.randn(B, P, generator=torch.Generator().manual_seed(0)).double()
    h = torch.cat([h / h.norm(dim=1, keepdim=True), state.new_zeros(B, state.shape[1] - P)], 1)
    return gradient_by_lag(step, state, x, cotangents=h)[: len(x)]


@pytest.mark.parametrize(("network", "options"), KINDS)
def test_the_curve_is_that_of_geometry(network, options):
    """The same direction of h, carried back by autograd through the module, to the state after the first step."""
    module, x = drawn(network, **options), noise()
    logs = sizes_by_lag(module, x)
    found = curve(module, x)
    torch.testing.assert_close(found.logs, (2 * logs).logsumexp(1) / 2 - math.log(B) / 2, rtol=1e-9, atol=1e-9)
    assert found.steps == T - 1


def test_every_call_of_a_network_is_measured_alike():
    """By cell, by stepper, in pieces of one step, accelerated, and as torch's own, without a norm."""
    module, x = drawn(norm=None), noise()
    expected = curve(module, x)
    torchs = nn.LSTM(I, H).double()
    torchs.load_state_dict(module.state_dict())
    assert_alike(curve(torchs, x), expected)
    cell = nn.LSTMCell(I, H).double()
    cell.load_state_dict({name.removesuffix("_l0"): p for name, p in module.state_dict().items()})
    ours = ln.LSTMCell(I, H, norm=None).double()
    ours.load_state_dict(cell.state_dict())
    for part in (module, torchs, cell, ours):
        assert_alike(curve(StepByStep(part), x), expected)
    assert_alike(curve(StepByStep(module, stepper=True), x), expected)
    assert_alike(curve(ln.accelerate(copy.deepcopy(torchs)), x), expected)


def test_torchs_dropout_is_not_drawn():
    torch.manual_seed(0)
    torchs = nn.LSTM(I, H, num_layers=2, dropout=0.5).double()
    expected = curves(torchs.eval(), noise())["the module, layer 1"]
    assert_alike(curves(torchs.train(), noise())["the module, layer 1"], expected)


class StepByStep(nn.Module):
    """A network or cell that is called once for each step, its state detached before those of a list."""

    def __init__(self, part, stepper=False, detached=()):
        super().__init__()
        self.part, self.stepper, self.detached = part, stepper, detached

    def forward(self, x):
        run, state, outputs = self.part.stepper() if self.stepper else self.part, None, []
        for t, row in enumerate(x):
            if t in self.detached:
                state = tuple(part.detach() for part in state)
            if "Cell" in type(self.part).__name__:
                state = run(row, state)
                outputs.append(state[0])
            else:
                output, state = run(row if self.stepper else row[None], state)
                outputs.append(output)
        return torch.stack(outputs)


@pytest.mark.parametrize("make", [nn.RNNCell, nn.LSTMCell])
def test_an_accelerated_cell_that_calls_torchs_is_measured_as_torchs(make, monkeypatch):
    monkeypatch.setattr(torchs_faster, "_has_slow_products", lambda: False)  # as on a processor of Intel's
    if "native" not in ln.backends.available():
        pytest.skip("nothing is accelerated without it")
    torch.manual_seed(0)
    model, x = StepByStep(make(I, 128)), torch.randn(12, 32, I)
    before = len(ln.audit(model, x).growth)
    assert before == len(ln.audit(ln.accelerate(model), x).growth) == 1


def test_a_state_that_is_detached_ends_it():
    cell = ln.LSTMCell(I, H).double()
    assert curve(StepByStep(cell), noise()).steps == T - 1
    assert curve(StepByStep(cell, detached=(4, 8)), noise()).steps == 3


def test_a_cut_ends_it():
    """Each stretch between two cuts counts by itself: here one of 5 steps and one of 7, of every row."""
    module, x = drawn(), noise()
    reset = torch.zeros(T, B, dtype=torch.bool)
    reset[5] = True
    found = curve(module, x, reset=reset)
    first, second = (sizes_by_lag(module, part) for part in (x[:5], x[5:]))
    assert found.steps == 6
    both = torch.cat([first, second[:5]], 1)  # the curve as far as both go
    expected = (2 * both).logsumexp(1) / 2 - math.log(2 * B) / 2
    torch.testing.assert_close(found.logs[:5], expected, rtol=1e-9, atol=1e-9)
    last = (2 * second).logsumexp(1) / 2
    torch.testing.assert_close(found.logs[5:].diff(), last[5:].diff(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("packed", [False, True])
def test_what_lies_beyond_a_rows_length_does_not_count(packed):
    module, x, lengths = drawn(), noise(), torch.tensor([12, 7, 3])
    if packed:
        found = curve(module, nn.utils.rnn.pack_padded_sequence(x, lengths))
    else:
        x = torch.where(torch.arange(T)[:, None, None] < lengths[:, None], x, math.nan)
        found = curve(module, x, lengths=lengths)
    rows = [sizes_by_lag(module, noise()[:n])[:, row] for row, n in enumerate(lengths.tolist())]
    first = torch.stack([row[:3] for row in rows], 1)
    torch.testing.assert_close(found.logs[:3], (2 * first).logsumexp(1) / 2 - math.log(B) / 2, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.logs[7:].diff(), rows[0][7:].diff(), rtol=1e-9, atol=1e-9)
    assert found.steps == 11


@pytest.mark.parametrize("lengths", [None, torch.tensor([12, 7, 3])])
def test_the_reverse_direction_goes_the_other_way(lengths):
    module = drawn(bidirectional=True, num_layers=2)
    found = curves(module, noise(), lengths=lengths)
    assert list(found) == [f"the module, layer {layer}" for layer in ("0", "0 reverse", "1", "1 reverse")]
    one = drawn()
    one.load_state_dict({name.removesuffix("_reverse"): p for name, p in module.state_dict().items()
                         if name.endswith("_l0_reverse")})  # fmt: skip
    flipped = noise().flip(0)
    if lengths is not None:
        flipped = torch.stack([torch.cat([x[:n].flip(0), x[n:]]) for x, n in zip(noise().unbind(1), lengths,
                                                                                strict=True)], 1)  # fmt: skip
    assert_alike(found["the module, layer 0 reverse"], curve(one, flipped, lengths=lengths))


def test_long_sequences_and_large_batches_are_cut():
    module = drawn()
    whole = curve(module, noise(STEPS + 50, CASES + 5))
    assert_alike(whole, curve(module, noise(STEPS + 50, CASES + 5)[:STEPS, :CASES]))
    assert whole.steps == STEPS - 1


def test_batch_norm_and_int8_have_none():
    assert curve(drawn(norm="batch"), noise()) is None
    quantized = ln.quantize(ln.LSTM(I, H, norm=None), filter_fn=lambda module, name: True)
    with torch.no_grad():
        assert curve(quantized.eval(), noise(dtype=torch.float32)) is None
    assert curve(drawn(), noise(1)) is None


def test_a_clip_of_the_gates_gradients_does_not_change_the_measure_and_ends_the_finding():
    torch.manual_seed(0)
    free, clipped = ln.LSTM(40, 64), ln.LSTM(40, 64, gate_clip=1e-9)
    clipped.load_state_dict(free.state_dict())
    x = torch.randn(200, 4, 40)
    assert ln.audit(free, x).growth == ln.audit(clipped, x).growth
    assert len(ln.audit(free, x)) == 1
    assert not [finding for finding in ln.audit(clipped, x) if "grows" in finding.what]


def test_an_audit_has_the_numbers_and_prints_them_only_when_asked():
    torch.manual_seed(0)
    found = ln.audit(nn.Sequential(ln.LSTM(40, 64, num_layers=2, norm=None)), torch.randn(50, 4, 40))
    assert str(found) == ""
    first, second = found.growth
    assert (first.module, second.module) == ("0, layer 0", "0, layer 1")
    assert 0 < first.factor < 1e-6
    assert first.steps == 49
    assert math.isclose(first.per_step**49, first.factor)
    assert str(first) == f"0, layer 0: {first.factor:.3g} over 49 steps, {first.per_step:.3g} a step"
    assert Audit().growth == []
    assert ln.audit(nn.Linear(3, 3), torch.randn(2, 3)).growth == []


def test_what_is_to_be_set_ends_the_finding():
    """The parameter that a finding names is the one, and what it promises holds for the network with it."""
    for name in ("gain_hh", "gain"):
        torch.manual_seed(0)
        made = ln.LSTM(40, 64) if name == "gain_hh" else ln.RNN(3, 256)
        x = torch.randn(200, 4, made.input_size)
        (finding,) = ln.audit(made, x)
        assert f'gain_init={{"{name}": 0.6}}' in finding.fix
        assert ('gain_init="steady"' in finding.fix) == (name == "gain_hh")
        assert "clip_grad_norm_" in finding.fix
        getattr(made, f"{name}_l0").data.fill_(0.6)
        found = ln.audit(made, x)
        assert found == []
        assert ("At 0.6 it would not grow" if name == "gain_hh" else "At 0.6 it would grow 2.") in finding.what


def test_a_growth_is_what_the_gradients_of_single_steps_show():
    """The gradient of the last output in the input of each step, which autograd gives."""
    torch.manual_seed(0)
    lstm, x = ln.LSTM(40, 64), torch.randn(200, 8, 40, requires_grad=True)
    direction = torch.randn(8, 64)
    (lstm(x)[0][-1] * direction).sum().backward()
    sizes = x.grad.flatten(1).norm(dim=1)
    (finding,) = ln.audit(lstm, x)
    grown = float(sizes[:100].max() / sizes[-20:].max())
    assert 0.1 < grown / finding.measured < 10, (grown, finding.measured)  # another direction, and a step of W_ih


def test_time_is_not_blamed_on_depth_and_depth_is_found_beside_it():
    torch.manual_seed(0)
    lstm, x = ln.LSTM(40, 64, num_layers=2), torch.randn(400, 4, 40)
    lstm(x)[0].square().sum().backward()
    size = {name: float(p.grad.square().mean().sqrt()) for name, p in lstm.named_parameters()}
    assert size["weight_hh_l0"] > 1000 * size["weight_hh_l1"]
    (finding,) = ln.audit(lstm, x)
    assert "grows" in finding.what
    assert finding.module == "the module, layer 0"
    layers = [part for _ in range(12) for part in (nn.Linear(40, 40), nn.Sigmoid())]
    found = ln.audit(nn.Sequential(*layers, ln.LSTM(40, 64)), torch.randn(50, 4, 40))
    assert any("times that of 0.weight" in finding.what for finding in found)


def test_a_gradient_that_time_makes_infinite_is_said_to_grow():
    rnn = nn.RNN(8, 16, nonlinearity="relu", bias=False)
    rnn.weight_hh_l0.data.copy_(3 * torch.eye(16))
    rnn.weight_ih_l0.data.fill_(1e-30)  # the state itself stays finite
    (finding,) = ln.audit(rnn, torch.rand(90, 2, 8))
    assert math.isclose(finding.measured, 3.0**89, rel_tol=1e-3)  # above float32's largest, 3e38
    assert "because weight_hh is large. At 1/4 of its size" in finding.what


@pytest.mark.parametrize("length", range(40, 60))
def test_code_in_a_finding_is_not_split_between_lines(length):
    text = str(Audit([Finding("", "x" * length, 2.0, 1.0, 'Set gain_init={"gain_hh": 0.3}. Then audit it again.')]))
    assert '{"gain_hh": 0.3}' in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_burst_early_in_a_long_sequence_is_not_carried_on():
    """What is said of steps that were not looked at is that they were not."""
    torch.manual_seed(0)
    lstm = ln.LSTM(40, 64, gain_init={"gain_hh": 1.5})
    x = torch.cat([torch.randn(1, 4, 40).expand(350, -1, -1), torch.randn(50, 4, 40)])
    x = torch.cat([x, torch.randn(1, 4, 40).expand(600, -1, -1)])
    found = [finding for finding in ln.audit(lstm, x) if "grows" in finding.what]
    assert len(found) == 1
    assert 10 < found[0].measured < 1e6
    assert "measured on the first 400 of 1000" in found[0].what
