"""`audit` in 16 bits: how far the gradient is from that in float32, and whether the start is the cause."""

import copy
import math

import pytest
import torch
from torch import nn

import layernorm as ln
from layernorm.audit._gradients import WRONG, _error_of_16_bits, _type_of_16_bits

BF16 = torch.bfloat16


def drawn(gain=1.0, **options):
    torch.manual_seed(0)
    lstm = ln.LSTM(40, 64, **options)
    with torch.no_grad():
        lstm.gain_hh_l0.mul_(gain)
    return lstm, torch.randn(60, 8, 40)


def loss(output):
    return output[0].float().sin().sum()


def distance(found, exact):
    square = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(found, exact, strict=True))
    return math.sqrt(square / sum(float(b.double().square().sum()) for b in exact))


@pytest.mark.parametrize("by", ["autocast", "weights"])
def test_the_distance_is_that_of_the_two_gradients(by):
    lstm, x = drawn()
    wide, low = lstm, lstm
    if by == "weights":
        low, x = copy.deepcopy(lstm).bfloat16(), x.bfloat16()
        wide = copy.deepcopy(low).float()
    exact = torch.autograd.grad(loss(wide(x.float())), list(wide.parameters()))
    with torch.autocast("cpu", BF16, enabled=by == "autocast"):
        found = torch.autograd.grad(loss(low(x)), list(low.parameters()))
        of_16_bits = [f for f in ln.audit(low, x, loss=loss) if "in bfloat16 the gradient is" in f.what]
        assert _type_of_16_bits(low) == BF16
    error = distance(found, exact)
    # with weights of 16 bits the products round where the processor has bfloat16; elsewhere the states alone do
    assert error > WRONG or by == "weights"
    assert [f.measured for f in of_16_bits] == ([pytest.approx(error, rel=1e-6)] if error > WRONG else [])
    assert all("The start is the cause: with a smaller gain_hh it would be 0.0" in f.fix for f in of_16_bits)
    assert all(p.grad is None for p in low.parameters())
    assert {p.dtype for p in low.parameters()} == {BF16 if by == "weights" else torch.float32}
    assert (low.gain_hh_l0 == 1).all()
    assert _type_of_16_bits(wide) is None


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize("network", [nn.LSTM, nn.GRU, ln.GRU, ln.RNN])
def test_sound_networks_of_16_bits(network, dtype):
    torch.manual_seed(0)
    model = network(40, 64).to(dtype)
    assert ln.audit(model, torch.randn(60, 8, 40, dtype=dtype)) == []
    assert model.weight_hh_l0.dtype == dtype


def test_small_numbers_of_float16_are_scaled_as_in_training():
    """The loss of a large batch has gradients below float16's least number, 6e-8."""
    lstm, x = drawn(0.3)
    lstm, x = lstm.half(), x.half()
    small = lambda output: output[0].float().square().mean() / 1e4  # noqa: E731
    assert _error_of_16_bits(lstm, (x,), small, torch.float16) < 0.01
    assert ln.audit(lstm, x, loss=small) == []


def test_dropout_is_the_same_in_both():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 40), nn.Dropout(0.5), nn.Linear(40, 10))
    with torch.autocast("cpu", BF16):
        assert _error_of_16_bits(model, (torch.randn(64, 40),), None, BF16) < 0.02  # 2^-8 for each of some roundings


def test_a_module_that_needs_its_type_is_not_measured():
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = drawn()[0].bfloat16()

        def forward(self, x):
            return self.lstm(x.bfloat16())

    assert [f for f in ln.audit(Fixed(), drawn()[1]) if "bfloat16" in f.what] == []


def test_rounding_without_a_known_cause():
    """Twenty convolutions with batch norm and no skip connection: no gain of a recurrent norm is to blame."""
    torch.manual_seed(0)
    parts = [part for _ in range(30) for part in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())]
    with torch.autocast("cpu", BF16):
        found = [f for f in ln.audit(nn.Sequential(*parts), torch.randn(8, 8, 10, 10)) if "bfloat16" in f.what]
    assert found[0].threshold < found[0].measured
    assert "Train in float32" in found[0].fix


def test_what_grows_over_time_is_mended_first():
    torch.manual_seed(0)
    lstm = ln.accelerate(nn.LSTM(40, 64))  # oneDNN's LSTM has no bfloat16 on processors with AVX2 alone
    lstm.weight_hh_l0.data.mul_(8)
    with torch.autocast("cpu", BF16):
        growth, rounding = ln.audit(lstm, torch.randn(200, 8, 40))
    assert "because weight_hh is large" in growth.what
    assert "mend that first" in rounding.fix
