"""Initial values: chrono_ draws what is added to the gates that keep and let in, and leaves all else."""

import copy
import math

import pytest
import torch
from torch.nn.utils import prune

import layernorm as ln

T_MAX = 100.0

CASES = [  # a network, the names of the biases that are added to its gates, the constant of its formula
    (lambda: torch.nn.LSTM(3, 64, 2, bidirectional=True), ("bias_ih", "bias_hh"), 0.0),
    (lambda: torch.nn.GRU(3, 64, 2), ("bias_ih", "bias_hh"), 0.0),
    (lambda: torch.nn.LSTMCell(3, 64), ("bias_ih", "bias_hh"), 0.0),
    (lambda: ln.LSTM(3, 64, 2, bidirectional=True), ("bias_ih", "bias_hh"), 0.0),
    (lambda: ln.LSTM(3, 64, norm=None), ("bias_ih", "bias_hh"), 0.0),
    (lambda: ln.LSTM(3, 64, proj_size=8, norm="weight"), ("bias_ih", "bias_hh"), 0.0),
    (lambda: ln.LSTM(3, 64, formula="tf1"), ("bias_ih", "bias_hh"), 1.0),
    (lambda: ln.LSTM(3, 64, formula=ln.Formula(bias_inside=True)), ("norm_bias_ih", "norm_bias_hh"), 0.0),
    (lambda: ln.GRU(3, 64, bidirectional=True), ("bias_ih", "bias_hh"), 0.0),
    (lambda: ln.GRU(3, 64, formula="dreamer"), ("norm_bias",), 1.0),
    (lambda: ln.GRUCell(3, 64, formula="dreamerv3"), ("bias_ih",), 1.0),
]


@pytest.mark.parametrize(("make", "names", "constant"), CASES)
def test_chrono(make, names, constant):
    torch.manual_seed(0)
    module = make()
    before = {name: p.clone() for name, p in module.named_parameters()}
    assert ln.nn.init.chrono_(module, T_MAX) is module
    after = dict(module.named_parameters())
    lstm, first = "LSTM" in type(module).__name__, names[0]
    suffixes = [name.removeprefix(first) for name in after if name.startswith(first)]
    assert len(suffixes) == getattr(module, "num_layers", 1) * (1 + getattr(module, "bidirectional", False))
    for suffix in suffixes:
        gates = sum(after[name + suffix] for name in names).detach().chunk(4 if lstm else 3)
        u = (gates[1] + constant).exp()
        assert 1 <= u.min() < 10, "uniform between 1 and t_max - 1"
        assert 85 < u.max() <= T_MAX - 1 + 1e-3
        assert abs(u.mean() - T_MAX / 2) < 4 * (T_MAX - 2) / math.sqrt(12 * 64), "four deviations of the mean"
        if lstm:
            torch.testing.assert_close(gates[0], -(gates[1] + constant))
        drawn = slice(0 if lstm else 64, 128)
        for name in names:
            before[name + suffix][drawn] = after[name + suffix][drawn]
    assert all(torch.equal(before[name], p) for name, p in after.items()), "all else stays"


def test_a_unit_forgets_in_one_plus_u_steps():
    """Without input and recurrent weights an LSTM's c falls by sigmoid(b_f) at each step."""
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(1, 5, dtype=torch.float64)
    for p in lstm.parameters():
        torch.nn.init.zeros_(p)
    ours = ln.LSTM(1, 5, norm=None, dtype=torch.float64)
    ln.nn.init.chrono_(lstm, T_MAX)
    ours.load_state_dict(lstm.state_dict())
    u = lstm.bias_ih_l0.detach()[5:10].exp()
    h, c = torch.zeros(1, 1, 5, dtype=torch.float64), torch.ones(1, 1, 5, dtype=torch.float64)
    for network in (lstm, ours):
        _, (_, after) = network(torch.zeros(7, 1, 1, dtype=torch.float64), (h, c))
        torch.testing.assert_close(after[0, 0], (1 - 1 / (1 + u)) ** 7)


def test_what_chrono_refuses():
    for t_max in (1.9, math.inf, math.nan, True, "9"):
        with pytest.raises(ValueError, match="t_max must be a finite number of 2 or more, got"):
            ln.nn.init.chrono_(ln.LSTM(2, 2), t_max)
    with pytest.raises(TypeError, match=r"module must be an LSTM, GRU or a cell of one, got layernorm\..*RNN"):
        ln.nn.init.chrono_(ln.RNN(2, 2), 9)
    for module in (ln.LSTM(2, 2, bias=False), torch.nn.GRU(2, 2, bias=False), ln.LSTMCell(2, 2, bias=False)):
        before = copy.deepcopy(module.state_dict())
        with pytest.raises(ValueError, match=r"no bias is added to the gates of .*bias=False"):
            ln.nn.init.chrono_(module, 9)
        assert all(torch.equal(p, before[name]) for name, p in module.named_parameters())


def test_tied_biases_are_drawn():
    lstm = ln.LSTM(3, 64, 2)
    lstm.bias_ih_l1 = lstm.bias_ih_l0
    ln.nn.init.chrono_(lstm, T_MAX)
    forget = lstm.bias_ih_l0.detach()[64:128]
    assert forget.min() > 0
    assert forget.exp().max() > T_MAX / 2
    assert not lstm.bias_hh_l1[:128].any()


@pytest.mark.parametrize("name", ["bias_ih_l0", "bias_hh_l0"])
@pytest.mark.parametrize("make", [ln.LSTM, torch.nn.LSTM])
def test_a_computed_bias_cannot_be_drawn(make, name):
    lstm = prune.l1_unstructured(make(3, 4), name, 0.5)
    with pytest.raises(ValueError, match=rf"^{name} of LSTM is computed, by pruning or a parametrization"):
        ln.nn.init.chrono_(lstm, T_MAX)


def test_a_computed_bias_above_leaves_the_layer_below_as_it_is():
    gru = prune.l1_unstructured(torch.nn.GRU(3, 4, 2), "bias_ih_l1", 1)
    before = gru.bias_ih_l0.detach().clone()
    with pytest.raises(ValueError, match="bias_ih_l1 of GRU is computed"):
        ln.nn.init.chrono_(gru, T_MAX)
    assert torch.equal(gru.bias_ih_l0, before)
