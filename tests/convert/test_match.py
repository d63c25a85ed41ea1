"""`match`: gains are what the norms would divide by in the plain network, however it is run; nothing else changes."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_padded_sequence

import layernorm as ln
from layernorm.formula import PRESETS, Formula
from support import oracle, oracle_match
from support.networks import CELL, MODULE, as_hx, flat

T, B, I, H = 6, 3, 5, 4  # noqa: E741
LENGTHS = [6, 4, 1]


def drawn(make, *sizes, biases=0.3, **keywords):
    """A network in float64 whose biases are not 0."""
    made = make(*sizes, dtype=torch.float64, **keywords)
    with torch.no_grad():
        for name, p in made.named_parameters():
            if "bias" in name:
                p.uniform_(-biases, biases)
    return made


def gains_of(module):
    return {name: p.detach().clone() for name, p in module.named_parameters() if "gain" in name}


FORMULAS = [(network, formula) for formulas in PRESETS.values() for network, formula in formulas.items()]
FORMULAS += [
    ("LSTM", Formula("sum", "per_gate", bias_inside=True, eps=0.1, eps_on="deviation")),
    ("LSTM", Formula("split", cell="carry", gate_bias=False, forget_bias=0.5)),
    ("GRU", Formula("sum", cell=None, bias_inside=True, forget_bias=0.5)),
    ("GRU", Formula("sum", "per_gate", cell=None, eps=0.1)),
    ("GRU", Formula("split", "all", cell=None, bias_inside=True)),
    ("RNN", Formula("split", cell=None, biases="input")),
    ("LSTM", Formula("hidden", cell=None)),
]


@pytest.mark.parametrize("norm", ["layer", "rms", "batch"])
@pytest.mark.parametrize(("network", "formula"), FORMULAS, ids=str)
def test_gains_are_those_of_plain_loops(network, formula, norm):
    """Two layers with two directions, lengths, resets and an initial state: equal but for rounding."""
    more = {"proj_size": 3} if network == "LSTM" else {"nonlinearity": "relu"} if network == "RNN" else {}
    made = drawn(MODULE[network], I, H, 2, bidirectional=True, norm=norm, formula=formula, **more)
    x, reset = torch.randn(T, B, I, dtype=torch.float64), torch.rand(T, B) < 0.2
    hx = [torch.randn(4, B, size, dtype=torch.float64) for size in made._state_sizes]
    matched = ln.match(made, x, as_hx(hx), lengths=LENGTHS, reset=reset)
    p = {name: q.detach().numpy() for name, q in made.named_parameters()}
    plain, above = dataclasses.replace(formula, gates=None, cell=None), x.numpy()
    nonlinearity = more.get("nonlinearity", "tanh")
    for layer in (0, 1):
        outputs = []
        for number, suffix in ((2 * layer, f"_l{layer}"), (2 * layer + 1, f"_l{layer}_reverse")):
            of_layer = {name.removesuffix(suffix): q for name, q in p.items() if name.endswith(suffix)}
            how = {"lengths": LENGTHS, "reset": reset.numpy(), "reverse": number % 2 == 1}
            call = (network, above, [part[number].numpy() for part in hx], of_layer)
            expected = oracle_match.divisors(*call, formula, norm, nonlinearity, **how)
            assert set(matched[number].gains) == set(expected)
            for gain, values in expected.items():
                assert of_layer[gain] == pytest.approx(values, rel=1e-10)
                assert matched[number].gains[gain] == tuple(torch.tensor(of_layer[gain]).unique_consecutive())
            outputs.append(oracle.run(*call, plain, "layer", nonlinearity, **how)[0])
        above = np.concatenate(outputs, 2)


def by_module(network, x, hx, reset, reset_hx):
    return network(x, hx, reset=reset, reset_hx=reset_hx)[0]


def batch_first(network, x, hx, reset, reset_hx):
    network.batch_first = True
    return network(x.transpose(0, 1), hx, reset=reset.T, reset_hx=reset_hx)[0]


def packed(network, x, hx, reset, reset_hx):
    padded = torch.cat([x, torch.full_like(x[:2], 1e3)])  # what padding holds does not count
    sequence = pack_padded_sequence(padded, [T] * B, enforce_sorted=False)
    return network(sequence, hx, reset=reset, reset_hx=reset_hx)[0]


def row_by_row(network, x, hx, reset, reset_hx):
    for row in range(B):
        state, restart = (as_hx([part[:, row] for part in flat(hx)]) for hx in (hx, reset_hx))
        network(x[:, row], state, reset=reset[:, row], reset_hx=restart)


def by_stepper(network, x, hx, reset, reset_hx):
    step, state = network.stepper(), hx
    for t in range(T):
        _, state = step(x[t], state, reset=reset[t], reset_hx=reset_hx)


def by_cells(network, x, hx, reset, reset_hx, stepper=False):
    step = network.cell.stepper() if stepper else network.cell
    state, restart = (as_hx([part[0] for part in flat(hx)]) for hx in (hx, reset_hx))
    for t in range(T):
        state = step(x[t], state, reset=reset[t], reset_hx=restart)


def by_cell_stepper(*call):
    return by_cells(*call, stepper=True)


class Caller(nn.Module):
    """Calls a network in one of these ways."""

    def __init__(self, network, run):
        super().__init__()
        self.network, self.run = network, run

    def forward(self, *call):
        self.run(self.network, *call)


@pytest.mark.parametrize("run", [batch_first, packed, row_by_row, by_stepper, by_cells, by_cell_stepper])
@pytest.mark.parametrize("network", MODULE)
def test_it_makes_no_difference_how_a_network_is_run(network, run):
    """With zoneout and a state to start from after a cut."""
    made = drawn(MODULE[network], I, H, zoneout=0.2).eval()
    x, reset = torch.randn(T, B, I, dtype=torch.float64), torch.rand(T, B) < 0.3
    hx, restart = (as_hx([torch.randn(1, B, H, dtype=torch.float64) for _ in made._state_names]) for _ in range(2))
    other = copy.deepcopy(made)
    if run in (by_cells, by_cell_stepper):
        state = {name.removesuffix("_l0"): p for name, p in made.state_dict().items()}
        other = nn.Module()
        other.cell = CELL[network](I, H, zoneout=0.2, dtype=torch.float64).eval()
        other.cell.load_state_dict(state)
    expected = ln.match(Caller(made, by_module), x, hx, reset, restart)
    found = ln.match(Caller(other, run), x, hx, reset, restart)
    assert found[0].gains == {name: pytest.approx(values, rel=1e-12) for name, values in expected[0].gains.items()}
    without = copy.deepcopy(made)
    without._zoneouts = (0.0,) * len(without._zoneouts)
    assert ln.match(Caller(without, by_module), x, hx, reset, restart)[0].gains != expected[0].gains


@pytest.mark.parametrize("run", [by_module, by_stepper])
def test_dropout_counts_as_it_is_drawn(run):
    """Half of h is 0 where W_hh reads it, and the other half is doubled. The random state is as before."""
    made = drawn(ln.LSTM, I, 64, recurrent_dropout=0.5)
    x, reset = torch.randn(T, B, I, dtype=torch.float64), torch.zeros(T, B)
    zeros = as_hx([torch.zeros(1, B, 64, dtype=torch.float64)] * 2)
    call = Caller(made, run), x, zeros, reset, zeros
    first = ln.match(*call)
    assert ln.match(*call) == first
    torch.manual_seed(1)
    assert ln.match(*call) != first
    made.eval()
    (dropped,), (whole,) = first[0].gains["gain_hh"], ln.match(*call)[0].gains["gain_hh"]
    assert dropped / whole == pytest.approx(2**0.5, rel=0.15)


class Reader(nn.Module):
    """Two networks, a cell, and what a forward pass changes: dropout, statistics, an attribute of a submodule."""

    def __init__(self, of=torch.nn):
        super().__init__()
        self.embed = nn.Sequential(nn.Embedding(10, 8), nn.Dropout(0.3))
        self.encoder, self.decoder = of.LSTM(8, 8, 2, bidirectional=True), of.GRU(16, 8)
        self.norm, self.cell = nn.BatchNorm1d(8), of.RNNCell(8, 8)

    def forward(self, words, steps=2):
        x = self.decoder(torch.relu(self.encoder(self.embed(words))[0]) * 3)[0]
        h = None
        for t in range(steps):
            h = self.cell(self.norm(x[t]), h)
        return h


WORDS = torch.randint(10, (T, B), generator=torch.Generator().manual_seed(0))


def test_what_lies_behind_a_network_sees_the_plain_network():
    model = Reader().eval()
    plain, model = copy.deepcopy(model), ln.convert(model, formula="paper")
    matched = ln.match(model, WORDS, steps=3)
    behind = torch.relu(plain.encoder(plain.embed(WORDS))[0]) * 3
    alone = ln.convert(copy.deepcopy(plain.decoder))
    (decoder,) = ln.match(alone, behind)
    of_encoder = [f"encoder, layer {layer}{direction}" for layer in (0, 1) for direction in ("", " reverse")]
    assert [layer.name for layer in matched] == [*of_encoder, "decoder", "cell"]
    for gain, values in decoder.gains.items():
        assert matched[4].gains[gain] == pytest.approx(values, rel=1e-5)


def everything(model):
    """What a call could change: parameters by identity and value, gradients, buffers, hooks, mode, attributes."""
    tensors = [
        (name, id(t), t.detach().clone().tolist(), t.requires_grad, None if t.grad is None else t.grad.tolist())
        for name, t in [*model.named_parameters(), *model.named_buffers()]
        if "gain" not in name
    ]
    parts = []
    for part in model.modules():
        attributes = {k: v for k, v in vars(part).items() if not k.startswith("_") or k == "_names"}
        parts.append((attributes, list(vars(part)), list(part._forward_hooks), list(part._forward_pre_hooks)))
    return tensors, parts, torch.get_rng_state().tolist()


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_nothing_but_the_gains_changes(norm):
    model = Reader()
    model.cell = ln.convert(model.cell)
    ln.convert(model, norm)
    model.embed[1].eval()
    model.encoder.gain_ih_l0.requires_grad_(False)
    model(WORDS).sum().backward()
    grads = {name: (p.grad, None if p.grad is None else p.grad.clone()) for name, p in model.named_parameters()}
    before, gains = everything(model), gains_of(model)
    ln.match(model, WORDS)
    assert everything(model) == before
    for name, p in model.named_parameters():
        assert p.grad is grads[name][0]
        assert p.grad is None or torch.equal(p.grad, grads[name][1])
        assert "gain" not in name or not torch.equal(p, gains[name])
    assert not model.encoder.gain_ih_l0.requires_grad


class Partly(nn.Module):
    """Runs one network of two, on inputs times a number, then raises an error if it is told to."""

    def __init__(self, **more):
        super().__init__()
        self.first, self.second = ln.GRU(I, H, 2), ln.LSTMCell(I, H, **more)

    def forward(self, x, both=True, fail=False):
        self.first(x)
        state = None
        for step in x if both else ():
            state = self.second(step, state)
        if fail:
            raise KeyError("inside")


X = torch.randn(T, B, I, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda model: ln.match("model", X), TypeError, r"match: module must be a torch.nn.Module, got str"),
        (lambda model: ln.match(model, X, fail=True), KeyError, "inside"),
        (lambda model: ln.match(model, X[..., 1:]), RuntimeError, "Expected 5, got 4"),
        (lambda model: ln.match(model, X, both=False), ValueError, "the call did not run second; no gain"),
        (lambda model: ln.match(model, X[:0]), ValueError, "did not run first, layer 0; no gain"),
        (lambda model: ln.match(model, X[:1]), ValueError, "what gain_hh of first, layer 0 multiplies never had a dev"),
        (lambda model: ln.match(model, X * torch.nan), ValueError, "sizes at gain_ih of first, layer 0, got nan"),
    ],
)
def test_errors_change_nothing(call, error, message):
    model = Partly(formula="cell")
    before, gains = everything(model), gains_of(model)
    with pytest.raises(error, match=message):
        call(model)
    assert everything(model) == before
    assert all(torch.equal(gains_of(model)[name], gain) for name, gain in gains.items())


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(I, H), "match: Linear has no recurrent network of layernorm's with gains"),
        (ln.LSTM(I, H, norm=None), "match: LSTM has .* without a norm and under weight norm there are none"),
        (ln.LSTM(I, H, norm="weight"), "match: LSTM has .* without a norm and under weight norm there are none"),
        (ln.LSTM(I, 1), "what gain_c of the module multiplies never had a deviation, .* or it has one unit"),
    ],
)
def test_what_has_no_gain_to_match_is_said(module, message):
    with pytest.raises(ValueError, match=message):
        ln.match(module, X)


@pytest.mark.parametrize("norm", [None, "weight"])
def test_networks_without_gains_run_as_they_are(norm):
    model = Partly(norm=norm)
    assert [layer.name for layer in ln.match(model, X, both=False)] == ["first, layer 0", "first, layer 1"]


def test_the_text_is_a_line_for_each_layer():
    matched = ln.match(ln.convert(Reader()), WORDS)
    assert len(str(matched).splitlines()) == len(matched) == 6
    assert repr(matched) == str(matched)
    assert str(matched[5]) == f"cell: gain {matched[5].gains['gain'][0]:.3g}"
    r_z, n = (f"{value:.3g}" for value in sorted(matched[4].gains["gain_ih"]))
    assert f"decoder: gain_ih {r_z} to {n}, gain_hh" in str(matched)
    deep = nn.Sequential(ln.LSTM(I, H, 2, formula="tf1"))
    for _ in range(30):
        deep = nn.Sequential(deep)
    lines = str(ln.match(deep, X)).splitlines()
    assert [len(line) for line in lines] == [80, 80]
    assert all(line.startswith("...") and ".0.0, layer" in line for line in lines)


def sizes_of_gradients(network, x, readout):
    """The root mean squares of the gradients of W_ih and W_hh, and the output."""
    output = network(x)[0]
    grads = torch.autograd.grad((output * readout).sum(), [network.weight_ih_l0, network.weight_hh_l0])
    return torch.stack([g.square().mean().sqrt() for g in grads]), output.detach()


STARTS = [("RNN", "paper"), ("LSTM", "paper"), ("GRU", "paper"), ("LSTM", "cell"), ("GRU", "haste"), ("LSTM", "keras")]


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize(("network", "formula"), STARTS)
def test_a_matched_network_starts_as_torchs_does(network, formula, norm):
    """The gradient of a weight before a norm has the factor gain / deviation: 1 / 0.05 at W_hh h where the gain is 1.

    It acts at every step on the way back, so that in the paper's LSTM W_hh's is more than 100 times torch's.
    """
    plain = getattr(nn, network)(28, 64)
    x, readout = torch.randn(30, 16, 28), torch.randn(30, 16, 64)
    expected, output = sizes_of_gradients(plain, x, readout)
    unmatched, _ = sizes_of_gradients(ln.convert(copy.deepcopy(plain), norm, formula=formula), x, readout)
    assert unmatched[1] > 3 * expected[1]
    matched, ours = sizes_of_gradients(ln.convert(copy.deepcopy(plain), norm, formula=formula, match=(x,)), x, readout)
    assert ((matched / expected).log().abs() < torch.tensor(1.5).log()).all()
    assert torch.corrcoef(torch.stack([ours.flatten(), output.flatten()]))[0, 1] > 0.95
    assert float(ours.std()) == pytest.approx(float(output.std()), rel=0.05)


def test_a_computed_gain_is_refused():
    lstm = prune.l1_unstructured(ln.LSTM(I, H), "gain_ih_l0", 0.5)
    before = copy.deepcopy(lstm.state_dict())
    with pytest.raises(ValueError, match="gain_ih_l0 of LSTM is computed, by pruning or a parametrization"):
        ln.match(lstm, X)
    torch.testing.assert_close(lstm.state_dict(), before, rtol=0, atol=0)
