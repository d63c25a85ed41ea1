"""`gain_init="match"`: the gains that `match` measures on normal inputs, known before there are any."""

from collections import defaultdict

import numpy as np
import pytest
import torch

import layernorm as ln
from support.networks import CELL, MODULE

ERROR_BELOW, ERROR_ABOVE = 0.05, 0.15
"""The largest relative error of a gain in the lowest layer and above it, in the mean over draws of 64 units or more."""


@pytest.mark.parametrize(
    ("network", "I", "more"),
    [
        ("LSTM", 28, {"num_layers": 3, "bidirectional": True}),
        ("LSTM", 200, {"num_layers": 2, "proj_size": 64}),
        ("LSTM", 28, {"formula": "kiros"}),
        ("LSTM", 28, {"forget_bias": 1.0}),
        ("LSTM", 28, {"formula": "tf1", "num_layers": 2, "norm": "rms"}),
        ("LSTM", 28, {"formula": "keras", "bias": False}),
        ("GRU", 28, {"num_layers": 3}),
        ("GRU", 200, {"num_layers": 2, "formula": "kiros", "norm": "rms"}),
        ("GRU", 28, {"formula": "dreamer"}),
        ("GRU", 28, {"formula": "haste", "forget_bias": 1.0}),
        ("RNN", 1, {}),
        ("RNN", 28, {"num_layers": 3}),
        ("RNN", 28, {"num_layers": 2, "nonlinearity": "relu"}),
    ],
    ids=str,
)
def test_gains_are_those_that_match_measures(network, I, more):  # noqa: E741
    ratios = defaultdict(list)
    for _ in range(2):
        made = MODULE[network](I, 128, gain_init="match", **more)
        gains = {name: p.clone() for name, p in made.named_parameters() if "gain" in name}
        ln.match(made, torch.randn(60, 16, I))
        for name, gain in gains.items():
            spans = (gain / made.get_parameter(name)).unique_consecutive().tolist()
            ratios[name.removesuffix("_reverse")] += spans
    for name, of_draws in ratios.items():
        limit = ERROR_BELOW if name.endswith("_l0") else ERROR_ABOVE
        assert abs(np.mean(of_draws) - 1) < limit, (name, of_draws)


@pytest.mark.parametrize("network", MODULE)
def test_under_batch_norm_it_is_the_deviation_over_the_cases(network):
    made = MODULE[network](28, 128, gain_init="match", norm="batch")
    gains = {name: p.clone() for name, p in made.named_parameters() if "gain" in name}
    ln.match(made, torch.randn(40, 128, 28))
    for name, gain in gains.items():
        assert (gain.mean() / made.get_parameter(name).mean()).item() == pytest.approx(1, abs=ERROR_BELOW), name


def test_relu_without_biases_has_a_closed_form():
    """E a^2 = (I E x^2 + H E h^2) / 3H and E h^2 = E a^2 / 2 make E h^2 = 0.2 I / H, in the next layer 0.2 of that."""
    rnn = ln.RNN(30, 64, 2, nonlinearity="relu", bias=False, norm="rms", eps=0.0, gain_init="match")
    below = 0.2 * 30 / 64
    torch.testing.assert_close(rnn.gain_l1, torch.full((64,), (2 * 0.2 * below) ** 0.5))
    assert rnn.gain_l0[0].item() == pytest.approx((2 * below) ** 0.5, rel=0.01), "|x| varies a little from step to step"


@pytest.mark.parametrize("network", MODULE)
def test_the_network_has_torchs_weights_and_biases(network):
    torch.manual_seed(5)
    theirs = getattr(torch.nn, network)(3, 4, 2, bidirectional=True)
    torch.manual_seed(5)
    ours = MODULE[network](3, 4, 2, bidirectional=True, gain_init="match")
    for name, p in ours.named_parameters():
        if "gain" not in name:
            assert torch.equal(p, getattr(theirs, name, torch.zeros(4))), name
    assert "gain_init='match'" in repr(ours)


def test_biases_of_the_norms_start_at_0():
    lstm = ln.LSTM(3, 4, formula="kiros", forget_bias=1.0, gain_init="match")
    assert torch.equal(lstm.bias_ih_l0 == 0, lstm.norm_bias_ih_l0 == 1.0)  # it is added once more outside
    assert not lstm.bias_c_l0.any()
    assert torch.equal(lstm.norm_bias_ih_l0, torch.tensor([0.0] * 4 + [1.0] * 4 + [0.0] * 8))
    assert not lstm.norm_bias_hh_l0.any()


def test_reset_parameters_does_it_again():
    gru = ln.GRU(3, 4, gain_init="match", dtype=torch.float16)
    before = {name: p.detach().clone() for name, p in gru.named_parameters()}
    with torch.no_grad():
        gru.gain_ih_l0.fill_(7)
    gru.reset_parameters()
    for name, p in gru.named_parameters():
        assert torch.equal(p, before[name]) == ("gain" in name), name


@pytest.mark.parametrize("network", MODULE)
def test_a_cell_starts_as_a_network(network):
    gains = {name: p for name, p in MODULE[network](3, 4, gain_init="match").named_parameters() if "gain" in name}
    cell = CELL[network](3, 4, gain_init="match")
    assert gains
    for name, gain in gains.items():
        assert torch.equal(cell.get_parameter(name.removesuffix("_l0")), gain)


@pytest.mark.parametrize("norm", ["weight", None])
def test_without_gains_it_is_what_none_is(norm):
    networks = []
    for gain_init in ("match", None):
        torch.manual_seed(5)
        networks.append(ln.LSTM(3, 4, norm=norm, gain_init=gain_init))
    torch.testing.assert_close(networks[0].state_dict(), networks[1].state_dict(), rtol=0, atol=0)


def test_convert_takes_it_too():
    theirs = torch.nn.LSTM(3, 4)
    biases = theirs.bias_ih_l0.clone()
    ours = ln.convert(theirs, gain_init="match")
    assert torch.equal(ours.gain_c_l0, ln.LSTM(3, 4, gain_init="match").gain_c_l0)
    assert torch.equal(ours.bias_ih_l0, biases)


def test_one_unit_has_no_deviation_but_eps():
    assert ln.LSTM(3, 1, gain_init="match").gain_c_l0.item() == pytest.approx(1e-5**0.5)


def test_a_state_that_never_settles_is_refused():
    with pytest.raises(ValueError, match=r"with forget_bias=100\.0 a plain network's state never settles"):
        ln.LSTM(3, 4, forget_bias=100.0, gain_init="match")
