"""`audit`: each fault that is planted is found and said, nothing is found in what starts well, nothing is changed."""

import math
import re
from functools import partial

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import layernorm as ln
from layernorm.formula import PRESETS
from support.networks import MODULE, NETWORKS

DIGITS = torch.tensor(load_digits().images[:32] / 16, dtype=torch.float32)
ROWS = DIGITS.transpose(0, 1).contiguous()  # (8, 32, 8): a step a row


def only(found, kind):
    """The one finding, which names the fault."""
    assert len(found) == 1, str(found)
    assert kind in found[0].what
    assert found[0].measured != found[0].threshold
    assert found[0].fix
    return found[0]


class Classifier(nn.Module):
    """A recurrent network over the rows, and its last output read out."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.out = nn.Linear(network.hidden_size * (2 if network.bidirectional else 1), 10)

    def forward(self, rows):
        return self.out(self.network(rows)[0][-1])


CLEAN = [(network, norm, "paper") for network in NETWORKS for norm in ("layer", "rms", "batch", "weight", None)]
CLEAN += [(network, "layer", name) for name, of in PRESETS.items() for network in of if name != "paper"]


@pytest.mark.parametrize(("network", "norm", "formula"), CLEAN)
@pytest.mark.parametrize("layers", [1, 2])
def test_nothing_is_found_in_networks_as_torch_draws_them(network, norm, formula, layers):
    torch.manual_seed(0)
    made = MODULE[network](8, 64, num_layers=layers, norm=norm, formula=formula, bidirectional=layers == 2)
    found = ln.audit(Classifier(made), ROWS)
    assert found == []
    assert (str(found), repr(found), bool(found)) == ("", "", False)


@pytest.mark.parametrize("norm", [ln.LayerNorm, ln.RMSNorm, ln.BatchNorm, nn.LayerNorm, nn.BatchNorm1d, nn.Identity])
@pytest.mark.parametrize("inputs", [DIGITS.flatten(1), 16 * DIGITS.flatten(1)], ids=["to 1", "to 16"])
def test_nothing_is_found_in_a_perceptron(norm, inputs):
    torch.manual_seed(0)
    hidden = [nn.Linear(64, 100), norm(100), nn.ReLU(), nn.Linear(100, 100), norm(100), nn.ReLU()]
    assert ln.audit(nn.Sequential(*hidden, nn.Linear(100, 10)), inputs) == []


@pytest.mark.parametrize("norm", [nn.GroupNorm(4, 16), nn.BatchNorm2d(16), nn.InstanceNorm2d(16), nn.LayerNorm(6)])
def test_nothing_is_found_in_a_convolutional_network(norm):
    torch.manual_seed(0)
    assert ln.audit(nn.Sequential(nn.Conv2d(1, 16, 3), norm, nn.ReLU(), nn.Conv2d(16, 8, 3)), DIGITS[:, None]) == []


def test_a_cell_that_starts_at_zero_is_found():
    """Experiment 6.5's first point: x, h and c are 0, and so is c after the step, whose norm then has no spread."""
    torch.manual_seed(0)
    lstm = without_biases(ln.LSTM(8, 64))
    rows = torch.cat([torch.zeros(1, 32, 8), ROWS])
    finding = only(ln.audit(lstm, rows), "the deviation of c at 1 of 9 steps, the first 0, is 0.0e+00")
    assert finding.threshold == pytest.approx(math.sqrt(1e-5))
    assert "multiplied by up to 316" in finding.what
    assert "biases other than 0" in finding.fix
    with torch.no_grad():
        lstm.bias_ih_l0.uniform_(-0.05, 0.05)  # the fix
    assert ln.audit(lstm, rows) == []
    assert ln.audit(ln.LSTM(8, 64), rows) == []


@torch.no_grad()
def without_biases(module):
    for name, parameter in module.named_parameters():
        if name.startswith("bias"):
            parameter.zero_()
    return module


@pytest.mark.parametrize("norm", ["layer", "rms", "batch"])
def test_weights_too_small_for_eps_are_found(norm):
    torch.manual_seed(0)
    gru = ln.GRU(8, 64, norm=norm)
    with torch.no_grad():
        gru.weight_ih_l0.mul_(1e-3)
    report = ln.audit(gru, ROWS)
    for gates in [""] if norm == "batch" else [" of r and z", " of n"]:
        finding = next(f for f in report if f"the deviation of W_ih x{gates} at 8 of 8 steps" in f.what)
        assert 0 < finding.measured <= finding.threshold


@pytest.mark.parametrize(
    "norm",
    [
        ln.LayerNorm(20),
        ln.RMSNorm(20),
        ln.BatchNorm(20),
        nn.LayerNorm(20),
        nn.RMSNorm(20, eps=1e-5),
        nn.BatchNorm1d(20),
    ],
)
def test_a_feed_forward_norm_of_what_is_too_small_is_found(norm):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 20), norm)
    with torch.no_grad():
        model[0].weight.mul_(1e-3)
        model[0].bias.zero_()
    finding = only(ln.audit(model, DIGITS.flatten(1)), "the deviation of its input")
    assert finding.module == "1"
    assert str(finding).startswith("1: the deviation of its input is")


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, partial(nn.InstanceNorm1d, track_running_stats=True)])
def test_population_statistics_are_those_of_evaluation(norm):
    model = nn.Sequential(nn.Conv1d(8, 20, 1), norm(20)).eval()
    x = DIGITS[:1, :, :1].expand(4, -1, 6)  # channels without a deviation, which evaluation does not see
    assert ln.audit(model, x) == []
    model[1].running_var.fill_(1e-9)
    only(ln.audit(model, x), "the deviation of its input")


class ChannelsFirst(nn.LayerNorm):
    """The LayerNorm2d of torchvision's ConvNeXt: the last dimension is not what it normalises."""

    def forward(self, x):
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class Conditional(nn.LayerNorm):
    """What it is given beside its input is no residual."""

    def forward(self, x, condition):
        return super().forward(x) * condition.mean()


def test_norms_with_a_forward_of_their_own():
    assert ln.audit(ChannelsFirst(8), torch.randn(8, 8, 1, 1)) == []
    assert ln.audit(Conditional(8), torch.randn(5, 8), torch.randn(3)) == []
    only(ln.audit(Conditional(8), torch.ones(5, 8), torch.randn(3)), "the deviation of its input")


@pytest.mark.parametrize("network", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize(("side", "drowned"), [("weight_ih_l0", "W_hh h"), ("weight_hh_l0", "W_ih x")])
def test_a_term_that_drowns_the_other_is_found(network, side, drowned):
    torch.manual_seed(0)
    formula = {"RNN": "paper", "LSTM": "sonnet", "GRU": "dreamer"}[network]
    made = MODULE[network](8, 64, formula=formula)
    with torch.no_grad():
        getattr(made, side).mul_(100)
    finding = next(f for f in ln.audit(made, ROWS) if "drowns" in f.what)
    assert f"drowns {drowned} under the norm that they share" in finding.what
    assert finding.measured > finding.threshold == 10
    assert 'gates="split"' in finding.fix


def test_norms_apart_are_not_said_to_drown():
    torch.manual_seed(0)
    made = ln.LSTM(8, 64)
    with torch.no_grad():
        made.weight_ih_l0.mul_(100)
    assert not [f for f in ln.audit(made, ROWS) if "drowns" in f.what]


def test_an_input_and_a_unit_that_drown_the_others_are_found():
    torch.manual_seed(0)
    rows = ROWS.clone()
    rows[..., 3] = 1000.0
    assert "input 3 has 100.0% of the square of W_ih x" in str(ln.audit(ln.LSTM(8, 64), rows)).replace("\n  ", " ")
    cases = DIGITS.flatten(1).clone()
    cases[:, 7] = 1000.0
    finding = only(ln.audit(nn.Sequential(ln.LayerNorm(64)), cases), "unit 7 of its input has")
    assert finding.measured > finding.threshold == 0.9


@pytest.mark.parametrize("network", [ln.LSTM, ln.GRU])
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("inputs", [1, 6])
def test_inputs_whose_size_is_lost_are_found(network, norm, inputs):
    torch.manual_seed(0)
    model, x = network(inputs, 16, norm=norm), 100 * torch.rand(20, 4, 1).exp().square() * (torch.rand(inputs) + 0.5)
    finding = only(ln.audit(model, x), "an input's sign" if inputs == 1 else "an input's direction")
    assert 'formula="sum"' in finding.fix
    assert ('forget bias of 1, "sonnet"' in finding.fix) == (network is ln.LSTM)
    sizes = x.norm(dim=2).flatten().sort().values  # all have one direction, so that W_ih x is as long as x
    assert finding.measured == pytest.approx(float(sizes[72] / sizes[8]), rel=1e-3)
    assert finding.threshold == 2
    with torch.no_grad():  # so it is, up to the share of eps = 1e-5 in a variance of 20 or more, over 20 steps
        torch.testing.assert_close(model(x)[0], model(2 * x)[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "model",
    [ln.LSTM(2, 16, formula="sonnet"), ln.LSTM(2, 16, formula="cell"), ln.RNN(2, 16), ln.LSTM(2, 16, norm="batch"),
     ln.LSTM(2, 16, norm=None)],
)  # fmt: skip
def test_an_input_that_keeps_its_size_is_not_said_to_lose_it(model):
    torch.manual_seed(0)
    x = torch.rand(20, 4, 1).exp().square() * torch.randn(2)
    assert all("removes its size" not in finding.what for finding in ln.audit(model, x))


def test_the_sign_is_said_of_the_layer_that_has_one_input():
    torch.manual_seed(0)
    model = nn.Sequential(ln.LSTM(1, 16, num_layers=2))
    with torch.no_grad():  # one output of the first layer differs in size, too
        model[0].weight_ih_l1.zero_()
        model[0].weight_ih_l1[:, 0] = torch.linspace(-9, 9, 64)
    found = [f for f in ln.audit(model, torch.rand(20, 4, 1).exp().square()) if "removes its size" in f.what]
    assert [("sign" in f.what, f.module) for f in found] == [(True, "0, layer 0"), (False, "0, layer 1")]


def test_inputs_of_one_size_are_not_said_to_lose_it():
    torch.manual_seed(0)
    assert not [f for f in ln.audit(ln.LSTM(40, 16), torch.randn(20, 4, 40)) if "removes its size" in f.what]


def test_gradients_orders_apart_are_found():
    torch.manual_seed(0)
    model = nn.Sequential(*(part for _ in range(8) for part in (nn.Linear(64, 64), nn.Sigmoid())))
    finding = only([f for f in ln.audit(model, DIGITS.flatten(1)) if "weight" in f.what], "times that of 0.weight")
    assert finding.module == "14"
    assert finding.measured > finding.threshold == 1000


def test_the_loss_given_is_the_one():
    torch.manual_seed(0)
    model, labels = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 10)), torch.zeros(32, dtype=torch.long)
    seen = []

    def loss(output):
        seen.append(output.shape)
        return nn.functional.cross_entropy(output, labels)

    assert ln.audit(model, DIGITS.flatten(1), loss=loss) == []
    assert seen == [(32, 10)]


class Feedback(nn.Module):
    """Steppers, as in DRAW and in handwriting's lowest LSTM: they refuse torch's hooks."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, rows):
        step, state, outputs = self.network.stepper(), None, []
        for row in rows:
            found = step(row, state)
            output, state = (found[0], found) if isinstance(self.network, ln.LSTMCell) else found
            outputs.append(output)
        return torch.stack(outputs)


@pytest.mark.parametrize("network", [ln.LSTMCell(8, 64), ln.LSTM(8, 64, num_layers=2)], ids=["cell", "layers"])
def test_steps_one_by_one_are_seen_too(network):
    torch.manual_seed(0)
    assert ln.audit(Feedback(network), ROWS) == []
    rows = torch.cat([torch.zeros(1, 32, 8), ROWS])
    finding = ln.audit(Feedback(without_biases(network)), rows)[0]
    assert "the deviation of c at 1 of 9 steps" in finding.what
    assert finding.module.startswith("network")


class Remembers(nn.Module):
    """A module that keeps its state from call to call, as recurrent policies do."""

    def __init__(self):
        super().__init__()
        self.rnn, self.state, self.calls = ln.LSTM(8, 16), None, 0

    def forward(self, rows):
        output, self.state = self.rnn(rows, self.state)
        self.seen, self.calls = {"output": output}, self.calls + 1
        return output


def test_a_state_that_a_module_keeps_is_put_back():
    model = Remembers()
    optimizer = torch.optim.Adam(model.parameters())
    ln.audit(model, ROWS, loss=lambda output: output.square().mean(), optimizer=optimizer)
    ln.match(model, ROWS)
    assert model.state is None
    assert not hasattr(model, "seen")
    model(ROWS).sum().backward()
    model.state = kept = tuple(part.detach() for part in model.state)
    ln.audit(model, ROWS)
    assert model.state is kept
    model(ROWS).sum().backward()


class Buffered(nn.Module):
    """A network that keeps its state in buffers, which are None before, and has others that cannot be written."""

    def __init__(self):
        super().__init__()
        self.rnn, self.scripted = ln.LSTM(8, 16), torch.jit.script(nn.BatchNorm1d(16))
        self.register_buffer("h", None)
        self.register_buffer("c", None)
        self.register_buffer("mask", torch.ones(1).expand(8), persistent=False)
        with torch.inference_mode():
            self.register_buffer("mean", torch.zeros(8), persistent=False)

    def forward(self, rows):
        state = None if self.h is None else (self.h, self.c)
        output, (h, c) = self.rnn(rows * self.mask - self.mean, state)
        self.h, self.c = h.detach(), c.detach()
        self.kept = None
        self.register_buffer("late", torch.zeros(3))
        with torch.inference_mode():
            self.mean.add_(1)
        return self.scripted(output.flatten(0, 1))


@pytest.mark.parametrize("look", [ln.match, ln.audit])
def test_buffers_are_put_back(look):
    model, kept = Buffered(), torch.ones(2)
    model.kept, mask, mean, keys = kept, model.mask, model.mean, list(model.state_dict())
    look(model, ROWS)
    assert (model.h, model.c, list(model.state_dict())) == (None, None, keys)
    assert model.kept is kept
    assert model.mask is mask
    assert model.mean is mean
    assert not model.mean.any()
    assert not model.scripted.running_mean.any()


@pytest.mark.parametrize("given", ["lengths", "packed", "cells called"])
def test_padding_and_packing_are_not_looked_at(given):
    torch.manual_seed(0)
    lengths = torch.arange(1, 33).clamp(max=8)
    if given == "cells called":
        cell = ln.LSTMCell(8, 64)

        class Loop(nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = cell

            def forward(self, rows):
                hx = None
                for row in rows:
                    hx = self.cell(row, hx)
                return hx

        assert ln.audit(Loop(), ROWS) == []
        return
    lstm = ln.LSTM(8, 64)
    rows = ROWS * (torch.arange(8)[:, None, None] < lengths[None, :, None])
    if given == "packed":
        packed = nn.utils.rnn.pack_padded_sequence(rows, lengths, enforce_sorted=False)
        assert ln.audit(lstm, packed) == []
        return

    class Padded(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = lstm

        def forward(self, rows):
            return self.lstm(rows, lengths=lengths)[0]

    assert ln.audit(Padded(), rows) == []


def test_nothing_is_changed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), ln.LayerNorm(16), nn.Dropout(0.5), nn.BatchNorm1d(16))
    model = nn.ModuleDict({"rows": model, "lstm": ln.LSTM(16, 16, norm="batch"), "cell": ln.GRUCell(16, 16)})
    whole = Whole(model)
    whole.train()
    model["rows"][2].eval()
    whole(ROWS).sum().backward()
    before = {name: t.clone() for name, t in whole.state_dict().items()}
    grads = {name: (p.grad, p.grad.clone()) for name, p in whole.named_parameters()}
    hooks = {name: (dict(part._forward_hooks), dict(part._forward_pre_hooks), set(vars(part))) for name, part in
             whole.named_modules()}  # fmt: skip
    buffers = dict(whole.named_buffers())
    state = torch.get_rng_state()
    with torch.no_grad():
        ln.audit(whole, ROWS)
    assert torch.equal(torch.get_rng_state(), state)
    assert {name: part.training for name, part in whole.named_modules() if name == "model.rows.2"} == {
        "model.rows.2": False
    }
    assert whole.training
    for name, t in whole.state_dict().items():
        assert torch.equal(t, before[name]), name
    for name, b in whole.named_buffers():
        assert b is buffers[name]
    for name, p in whole.named_parameters():
        assert p.grad is grads[name][0]
        assert torch.equal(p.grad, grads[name][1])
    after = {name: (dict(part._forward_hooks), dict(part._forward_pre_hooks), set(vars(part))) for name, part in
             whole.named_modules()}  # fmt: skip
    assert after == hooks


class Whole(nn.Module):
    """Buffers, dropout, a sequence and a cell."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, rows):
        x = self.model["rows"](rows.flatten(0, 1)).unflatten(0, rows.shape[:2])
        x, _ = self.model["lstm"](x)
        return self.model["cell"](x[-1])


@pytest.mark.parametrize(
    ("norm", "shape"),
    [(nn.LayerNorm(5), (5,)), (nn.RMSNorm(5), (5,)), (nn.InstanceNorm1d(4), (4, 5)), (nn.InstanceNorm2d(3), (3, 8, 9))],
)
def test_a_single_case_is_a_batch_of_one(norm, shape):
    x = torch.randn(shape)
    if x.dim() == 3:
        x = x[..., :1].expand(shape)  # rows of an image without a deviation: they are not what is normalised
    assert ln.audit(norm, x) == ln.audit(norm, x[None])


def test_everything_is_put_back_after_an_error():
    lstm = ln.LSTM(8, 16)
    model = nn.Sequential(nn.LayerNorm(8), lstm)
    with pytest.raises(RuntimeError, match="normalized_shape"):
        ln.audit(model, torch.zeros(3, 4, 9))
    assert not model[0]._forward_pre_hooks
    assert "_run_layer" not in vars(lstm)
    with pytest.raises(TypeError, match=r"audit: module must be a torch.nn.Module, got str"):
        ln.audit("lstm", ROWS)


BEYOND = [
    (lambda x: x * 1e38, r"batch\[0\] reaches .*e\+38, and the squares of numbers above 1\.8e\+19 are infinite"),
    (lambda x: x.index_fill(0, torch.tensor([2]), math.inf), r"256 of the 2048 numbers of batch\[0\] .* \[2, 0, 0\]"),
    (lambda x: x.index_fill(0, torch.tensor([2]), math.nan), r"256 of the 2048 numbers of batch\[0\] .* \[2, 0, 0\]"),
]


@pytest.mark.parametrize(("change", "text"), BEYOND, ids=["1e38", "infinite", "NaN"])
@pytest.mark.parametrize("norm", ["layer", "rms", "batch"])
@pytest.mark.parametrize("network", NETWORKS)
def test_inputs_that_are_not_finite_or_whose_squares_are_not_are_named(network, norm, change, text):
    model = Classifier(MODULE[network](8, 16, norm=norm))
    loss, optimizer = torch.square, torch.optim.SGD(model.parameters(), 0.1)
    found = ln.audit(model, change(ROWS))
    assert all(re.match(text, finding.what) for finding in found)  # the norms may cope with 1e38
    found = ln.audit(model, change(ROWS), loss=lambda output: loss(output).mean(), optimizer=optimizer)
    assert re.match(text, only(found, "batch[0]").what)


def test_infinite_inputs_that_change_nothing_are_no_fault():
    class Masked(Classifier):
        def forward(self, rows, mask):
            return super().forward(rows) + mask.exp().sum()

    model = Masked(ln.LSTM(8, 64))
    assert ln.audit(model, ROWS, torch.full((3,), -math.inf), loss=lambda output: output.square().mean()) == []


def test_where_numbers_that_are_not_finite_begin_is_said():
    model = Classifier(ln.LSTM(8, 16, norm="batch"))

    def found(text, owner="", loss=None):
        finding = only(ln.audit(model, ROWS, loss=loss), text)
        assert finding.module == owner

    found("the loss is inf of a finite output", loss=lambda output: output.exp().sum() / 0)
    found("the loss is nan of a finite output", loss=lambda output: (output * 0).sum().log() * 0)
    found(
        "the gradient of network.weight_ih_l0 is not finite, one of 10", loss=lambda output: (output * 0).sum().sqrt()
    )
    with torch.no_grad():
        large = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        for p in large.parameters():
            p.fill_(1e30)
        sources = "inputs up to 1.0e+00 (batch[0]) and parameters up to 1.0e+30"
        text = f"256 numbers of the output are not finite, from {sources}"
        only(ln.audit(large, ROWS[0]), text)
        model.network.bias_hh_l0[3] = math.nan
    found("1 of the 64 numbers of bias_hh_l0 are not finite", "network")
    with torch.no_grad():
        model.network.bias_hh_l0[3] = 0.0
    model.eval().network.running_var_ih_l0.fill_(math.nan)
    found("numbers of running_var_ih_l0 are not finite", "network")


def test_an_input_that_is_not_normalised_may_be_large():
    """In a formula that normalises W_hh h alone no input drowns others, and its size is not lost."""
    x = torch.randn(20, 8, 3) * torch.tensor([100.0, 1.0, 1.0])
    found = ln.audit(ln.LSTM(3, 16, formula=ln.Formula("split", cell=None), gain_init="steady"), x)
    assert any("which is normalised" in finding.what for finding in found)
    assert ln.audit(ln.LSTM(3, 16, formula=ln.Formula("hidden", cell=None), gain_init="steady"), x) == []
