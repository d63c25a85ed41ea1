"""`gain_init`: numbers, names and mappings; ``"match"`` gives the gains that `match` measures on normal inputs."""

import copy
from collections import defaultdict

import numpy as np
import pytest
import torch
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import register_parametrization

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


def starts_of(module):
    """The gains by name, each the one number that it starts at."""
    return {name: p.unique().item() for name, p in module.named_parameters() if "gain" in name}


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize(
    ("network", "more"),
    [("LSTM", {"num_layers": 2, "bidirectional": True}), ("LSTM", {"proj_size": 2, "formula": "keras"}), ("GRU", {}),
     ("GRU", {"formula": "haste"}), ("RNN", {"formula": ln.Formula("hidden")})],
    ids=str,
)  # fmt: skip
def test_steady_is_a_smaller_recurrent_gain_and_nothing_else(network, norm, more):
    torch.manual_seed(5)
    ones = MODULE[network](3, 4, norm=norm, gain_init=1.0, **more)
    torch.manual_seed(5)
    steady = MODULE[network](3, 4, norm=norm, gain_init="steady", **more)
    gain = 0.5 if more.get("formula") == "keras" else 0.6  # where the normalised cell is carried on
    for name, p in steady.named_parameters():
        expected = ones.get_parameter(name) * (gain if name.startswith("gain_hh") else 1.0)
        assert torch.equal(p, expected), name
    assert "gain_init='steady'" in repr(steady)


@pytest.mark.parametrize("make", [ln.LSTM, ln.LSTMCell])
def test_a_mapping_sets_the_gains_that_it_names(make):
    cell = make(3, 4, gain_init={"gain_hh": 0.25, "gain_c": "match"})
    starts = {name.removesuffix("_l0"): value for name, value in starts_of(cell).items()}
    matched = ln.LSTMCell(3, 4, gain_init="match").gain_c[0].item()
    assert starts == {"gain_ih": 1.0, "gain_hh": 0.25, "gain_c": matched}
    cell.reset_parameters()
    assert starts_of(cell)[next(name for name in starts_of(cell) if "hh" in name)] == 0.25
    of_batch_norm = starts_of(ln.GRU(3, 4, norm="batch", gain_init={"gain_hh": 0.5}))
    assert of_batch_norm == {"gain_ih_l0": pytest.approx(0.1), "gain_hh_l0": 0.5}


def test_a_mapping_is_kept_as_it_was_given():
    given = {"gain_hh": 0.25}
    lstm = ln.LSTM(3, 4, gain_init=given)
    given["gain_hh"] = 7.0
    lstm.reset_parameters()
    assert starts_of(lstm)["gain_hh_l0"] == 0.25
    assert "gain_init={'gain_hh': 0.25}" in repr(lstm)


@pytest.mark.parametrize(
    ("options", "gain_init", "message"),
    [
        ({}, {"gain_hx": 0.3}, r"expected gains of \['gain_ih', 'gain_hh', 'gain_c'\], got 'gain_hx'"),
        ({"formula": "sum"}, {"gain_hh": 0.3}, r"gains of \['gain'\], got 'gain_hh', as this formula has one"),
        ({"formula": "sum"}, "steady", r"gain_hh; the gains here are \['gain'\], as this formula"),
        ({"formula": "cell"}, "steady", r"gain_hh; the gains here are \['gain_c'\]"),
        ({"norm": "weight"}, "steady", r"the gains here are \[\], as norm='weight' has no gains by that name"),
        ({"norm": None}, {"gain_hh": 0.3}, r"expected gains of \[\], got 'gain_hh', as norm=None"),
        ({"norm": "batch"}, "steady", "is for layer and RMS norm; under batch norm all gains start at 0.1"),
    ],
)  # fmt: skip
def test_gains_that_a_formula_does_not_have_are_refused(options, gain_init, message):
    with pytest.raises(ValueError, match=message):
        ln.LSTM(3, 4, gain_init=gain_init, **options)


def test_the_papers_rnn_has_no_recurrent_gain_of_its_own():
    with pytest.raises(ValueError, match="as this formula has one norm of W_ih x"):
        ln.RNN(3, 4, gain_init="steady")


def test_match_sets_the_gains_that_it_is_asked_for():
    lstm, x = ln.LSTM(3, 8), torch.randn(20, 4, 3)
    measured = ln.match(copy.deepcopy(lstm), x)[0].gains
    matched = ln.match(lstm, x, gain_init={"gain_ih": "match", "gain_hh": 0.5})
    assert matched[0].gains == {"gain_ih": measured["gain_ih"], "gain_hh": (0.5,)}
    assert starts_of(lstm) == {"gain_ih_l0": pytest.approx(measured["gain_ih"][0]), "gain_hh_l0": 0.5, "gain_c_l0": 1.0}
    with pytest.raises(ValueError, match=r"expected gains of .*, got 'gain'"):
        ln.match(lstm, x, gain_init={"gain": 0.5})
    with pytest.raises(ValueError, match="gain_init should be"):
        ln.match(lstm, x, gain_init="matched")


def test_convert_measures_the_gains_that_are_to_match():
    theirs, x = torch.nn.LSTM(3, 8), torch.randn(20, 4, 3)
    measured = ln.match(ln.convert(copy.deepcopy(theirs)), x)[0].gains
    ours = ln.convert(copy.deepcopy(theirs), gain_init={"gain_ih": "match", "gain_hh": 0.5}, match=(x,))
    assert starts_of(ours) == {"gain_ih_l0": pytest.approx(measured["gain_ih"][0]), "gain_hh_l0": 0.5, "gain_c_l0": 1.0}
    for unmeasured in (0.5, "steady", {"gain_hh": 0.5}, {}):
        with pytest.raises(ValueError, match=r"convert: match measures the gains that gain_init=.* sets; expected"):
            ln.convert(copy.deepcopy(theirs), gain_init=unmeasured, match=(x,))


def test_the_attribute_counts_at_a_reset():
    lstm = ln.LSTM(3, 4, gain_init=0.5)
    lstm.gain_init = {"gain_hh": 0.25}
    lstm.reset_parameters()
    assert starts_of(lstm) == {"gain_ih_l0": 1.0, "gain_hh_l0": 0.25, "gain_c_l0": 1.0}


@pytest.mark.parametrize("norm", [None, "layer", "weight"])
def test_a_reset_draws_what_a_parametrization_computes_from(norm):
    lstm = ln.LSTM(3, 4, norm=norm)
    names = ["bias_ih_l0"] if norm == "weight" else ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0"]
    for name in names:
        register_parametrization(lstm, name, torch.nn.Identity())
    before = {name: getattr(lstm, name).detach().clone() for name in names}
    lstm.reset_parameters()
    for name in names:
        now = getattr(lstm, name)
        assert not (now == before[name]).any(), name
        assert 0 < now.abs().max() <= 0.5, name


@pytest.mark.parametrize(
    ("norm", "change", "name"),
    [
        ("layer", lambda lstm: prune.l1_unstructured(lstm, "gain_hh_l0", 1), "gain_hh_l0"),
        (None, lambda lstm: weight_norm(lstm, "weight_hh_l0"), "weight_hh_l0"),
        ("weight", lambda lstm: register_parametrization(lstm, "weight_hh_l0", torch.nn.Dropout()), "weight_hh_l0"),
    ],
)
def test_what_cannot_be_set_stops_a_reset_before_it_draws(norm, change, name):
    lstm = ln.LSTM(3, 4, norm=norm)
    change(lstm)
    before = copy.deepcopy(lstm.state_dict())
    with pytest.raises(ValueError, match=f"{name} of .*LSTM is computed"):
        lstm.reset_parameters()
    assert all(torch.equal(value, before[key]) for key, value in lstm.state_dict().items())


@pytest.mark.parametrize("given", [np.ones(3), np.array(["match"]), torch.tensor(0.3), 10**400, [0.3]], ids=str)
def test_what_is_no_number_is_refused_by_name(given):
    for gain_init in (given, {"gain_hh": given}):
        with pytest.raises(ValueError, match="gain_init should be a finite number"):
            ln.LSTM(3, 4, gain_init=gain_init)


def test_convert_names_the_network_that_refuses_a_start():
    model = torch.nn.ModuleDict({"encoder": torch.nn.LSTM(3, 4), "decoder": torch.nn.RNN(4, 4)})
    with pytest.raises(ValueError, match=r"convert: decoder \(RNN\): gain_init='steady' sets the gain of W_hh h"):
        ln.convert(model, gain_init="steady")
    assert type(model["encoder"]) is torch.nn.LSTM, "nothing has been changed"
