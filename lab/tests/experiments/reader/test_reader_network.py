"""The attentive reader against slow loops in float64, with gradients; padding; initial weights; loss and clipping."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from layernorm_lab.experiments.reader import network
from layernorm_lab.experiments.reader.config import Config
from layernorm_lab.experiments.reader.network import answer_loss, build_reader, clip, masked_softmax

VOCABULARY = 11


def config(**changes):
    return Config(**{"words": 5, "hidden": 4, "dropout": 0.0, **changes})


def network_of(norm="none", **changes):
    model = build_reader(config(norm=norm, **changes), VOCABULARY, (9, 6)).double()
    with torch.no_grad():
        for parameter in model.parameters():  # also what begins at 0, and larger than it begins
            parameter.add_(0.5 * torch.randn_like(parameter))
    return model


PASSAGE, QUESTION = [3, 5, 2, 7, 4], [6, 2, 9]
PADDED = (torch.tensor([[3, 8], [5, 4], [2, 0], [7, 0], [4, 0]]), torch.tensor([5, 2]))
ASKED = (torch.tensor([[6, 3], [2, 0], [9, 0]]), torch.tensor([3, 1]))


def norm_of(row, gain, bias):
    """Eq. 4."""
    centred = row - row.mean()
    return centred / (centred.square().mean() + 1e-5).sqrt() * gain + bias


def slow_lstm(lstm, inputs, h, layer):
    """All states of an LSTM, one step after the other; eqs. 20-22."""
    p = {name.removesuffix("_l0"): value for name, value in lstm.named_parameters()}
    c, found = torch.zeros_like(h), []
    for x in inputs:
        ours, theirs = p["weight_ih"] @ x, p["weight_hh"] @ h
        if layer:
            ours, theirs = (
                norm_of(ours, p["gain_ih"], p["bias_ih"]), norm_of(theirs, p["gain_hh"], p["bias_hh"])
            )  # fmt: skip
        else:
            ours, theirs = ours + p["bias_ih"], theirs + p["bias_hh"]
        i, f, g, o = (ours + theirs).chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(norm_of(c, p["gain_c"], p["bias_c"]) if layer else c)
        found.append(h)
    return found


def slow_reader(model, passage, question, layer):
    """Logits and attention of one question, by the equations of the protocol."""
    words = model.words.weight
    states = slow_lstm(model.passage_lstm, [words[id] for id in passage], model.starts[0], layer)
    q = slow_lstm(model.question_lstm, [words[id] for id in question], model.starts[1], layer)[-1]
    maps = {name: item.weight for name, item in model.maps.items()}
    scores = []
    for h in states:
        s = (model.similarity.weight @ h) @ (model.similarity.weight @ q)
        m = torch.tanh(maps["passage"] @ h + model.attention_bias + maps["question"] @ q + s)
        scores.append(torch.exp(model.attention @ m))
    a = [score / sum(scores) for score in scores]
    context = sum(weight * h for weight, h in zip(a, states, strict=True))
    mean = sum(states) / len(states)
    g = torch.tanh(maps["context"] @ context + maps["asked"] @ q + model.output_bias + maps["mean"] @ mean)
    return model.answer.weight @ g + model.answer.bias, torch.stack(a)


@pytest.mark.parametrize("norm", ["none", "layer"])
def test_answers_and_gradients_are_those_of_slow_loops_in_a_padded_batch(norm):
    model = network_of(norm)
    logits, attention = model(*PADDED, *ASKED)
    loss = answer_loss(logits, torch.tensor([2, 7])).sum()
    slow = [slow_reader(model, p, q, norm == "layer") for p, q in ((PASSAGE, QUESTION), ([8, 4], [3]))]
    truth = sum(
        -torch.log(torch.exp(found[answer]) / torch.exp(found).sum() + 1e-8)
        for (found, _), answer in zip(slow, (2, 7), strict=True)
    )
    # some hundred roundings in float64, of numbers about 1
    torch.testing.assert_close(logits, torch.stack([found for found, _ in slow]), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(attention[:, 0], slow[0][1], rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(attention[:2, 1], slow[1][1], rtol=1e-11, atol=1e-13)
    assert not attention[2:, 1].any()
    torch.testing.assert_close(loss, truth, rtol=1e-11, atol=1e-12)
    names, parameters = zip(*model.named_parameters(), strict=True)
    for name, fast, expected in zip(
        names, torch.autograd.grad(loss, parameters), torch.autograd.grad(truth, parameters), strict=True
    ):
        torch.testing.assert_close(fast, expected, rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("norm", ["none", "layer"])
def test_a_padded_batch_equals_its_rows_alone(norm):
    model = build_reader(config(norm=norm), VOCABULARY, (9, 6))
    logits, attention = model(*PADDED, *ASKED)
    alone, own = model(torch.tensor([[8], [4]]), torch.tensor([2]), torch.tensor([[3]]), torch.tensor([1]))
    # float32: a product of another shape rounds in another order
    torch.testing.assert_close(logits[1:], alone, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(attention[:2, 1:], own, rtol=1e-5, atol=1e-6)


def test_masked_softmax_and_its_gradient():
    scores = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([4, 1, 2])
    found = masked_softmax(scores, lengths)
    expected = torch.zeros(4, 3, dtype=torch.float64)
    for column, length in enumerate(lengths.tolist()):
        total = sum(torch.exp(scores[step, column]) for step in range(length))
        for step in range(length):
            expected[step, column] = torch.exp(scores[step, column]) / total
    weights = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)  # a few roundings
    fast, slow = (torch.autograd.grad((item * weights).sum(), scores)[0] for item in (found, expected))
    torch.testing.assert_close(fast, slow, rtol=1e-11, atol=1e-14)
    extreme = masked_softmax(torch.tensor([[1e4], [-1e4], [3e38]]), torch.tensor([2]))
    assert extreme.flatten().tolist() == [1, 0, 0]


def test_the_loss_is_bounded_by_its_1e_8_with_a_gradient():
    logits = torch.tensor([[0.0, 60.0], [60.0, 0.0]], dtype=torch.float64, requires_grad=True)
    loss = answer_loss(logits, torch.tensor([0, 0]))
    p = math.exp(-60) / (1 + math.exp(-60))
    # -log(1e-8 + p), and -log(1 + 1e-8)
    assert loss.tolist() == pytest.approx([-math.log(p + 1e-8), -1e-8], rel=1e-6)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert gradient[0].tolist() == pytest.approx([-p / (p + 1e-8), p / (p + 1e-8)], rel=1e-6)


@pytest.mark.parametrize(
    ("rule", "norm", "factor"),
    [
        ("source", 99.0, 1),
        ("source", 400.0, 10 / 20),
        ("norm10", 9.9, 1),
        ("norm10", 99.0, 10 / 99),
        ("source", 0.0, 1),
    ],
)
def test_the_clipping_rule_is_its_formula(rule, norm, factor):
    model = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(2, 1), "unused": nn.Linear(1, 1)})
    used = [*model["a"].parameters(), *model["b"].parameters()]
    for parameter in used:
        parameter.grad = torch.randn_like(parameter)
    total = math.sqrt(sum(float(parameter.grad.double().square().sum()) for parameter in used))
    for parameter in used:
        parameter.grad *= norm / total
    before = [parameter.grad.clone() for parameter in used]
    clip(model, rule)
    for parameter, gradient in zip(used, before, strict=True):
        torch.testing.assert_close(parameter.grad, factor * gradient, rtol=1e-5, atol=0)  # float32 norms


def test_initial_weights_are_the_protocols_and_the_same_for_every_norm():
    models = {
        norm: build_reader(config(norm=norm, words=6, hidden=6, gain_init=gain), 30, (4, 4))
        for norm, gain in (("none", 1.0), ("layer", 0.3), ("batch", 1.0), ("batch-everywhere", 1.0))
    }
    plain = dict(models["none"].named_parameters())
    for name in ("passage_lstm.weight_ih_l0", "question_lstm.weight_hh_l0"):
        blocks = plain[name].detach().chunk(4)
        for block in blocks:  # float32's QR of size 6
            torch.testing.assert_close(block @ block.T, 0.05**2 * torch.eye(6), rtol=0, atol=1e-8)
        assert not torch.equal(blocks[0], blocks[1]), "each gate is drawn by itself"
    assert plain["words.weight"].abs().max() <= math.sqrt(6 / 37)
    assert plain["words.weight"].abs().max() > 0.9 * math.sqrt(6 / 37)  # of 180 draws
    assert plain["attention"].abs().max() <= 1 / math.sqrt(6)
    assert not any(value.any() for name, value in plain.items() if "bias" in name or name == "starts")
    for norm, model in models.items():
        own = dict(model.named_parameters())
        for name, value in plain.items():
            assert torch.equal(own[name], value), (norm, name)
        gain = {"layer": 0.3, "batch": 0.1, "batch-everywhere": 0.1}.get(norm)
        gains = [
            value for name, value in own.items() if "gain" in name or (name.startswith("norms") and "weight" in name)
        ]
        assert all((value == gain).all() for value in gains)
        assert len(gains) == {"none": 0, "layer": 6, "batch": 6, "batch-everywhere": 11}[norm]
    rectangular = build_reader(config(words=5, hidden=6), 30, (4, 4)).passage_lstm.weight_ih_l0.detach()
    bound = math.sqrt(6 / 12)
    assert bound * 0.9 < rectangular.abs().max() <= bound


def test_torchs_initial_weights_forget_biases_and_the_prior():
    shares = torch.linspace(1, 2, 300) / 450
    models = {
        norm: build_reader(config(norm=norm, words=6, hidden=6, initial="torch", forget_bias=1.5), 300, (4, 4), shares)
        for norm in ("none", "layer", "batch", "batch-everywhere")
    }
    plain = dict(models["none"].named_parameters())
    words = plain["words.weight"].detach()
    assert float(words.std()) == pytest.approx(1, abs=0.08)  # of 1800 draws: 5 standard errors
    bound = 1 / math.sqrt(6)
    for name, value in plain.items():
        if value.dim() == 2 and name != "words.weight":
            assert 0.6 * bound < value.abs().max() <= bound, name  # the fewest are the states: 12 draws
        elif name.endswith("lstm.bias_ih_l0"):
            assert value.tolist() == [0] * 6 + [1.5] * 6 + [0] * 12
        elif "bias" in name and name != "answer.bias":
            assert not value.any()
    torch.testing.assert_close(plain["answer.bias"], shares.log())
    for model in models.values():
        own = dict(model.named_parameters())
        assert all(torch.equal(own[name], value) for name, value in plain.items())


def test_recurrent_batch_norm_counts_rows_that_have_ended():
    """As in the original code: else the statistics of the last steps are of the one row that is left."""
    model = network_of("batch").train()
    words = model.words.weight[PADDED[0]]
    inside = torch.arange(5).unsqueeze(1) < PADDED[1]
    lstm = {name.removesuffix("_l0"): value for name, value in model.passage_lstm.named_parameters()}
    h = model.starts[0].expand(2, -1)
    c, states = torch.zeros_like(h), []

    def norm(rows, gain, bias):
        centred = rows - rows.mean(0)
        return centred / (centred.square().mean(0) + 1e-5).sqrt() * gain + bias

    for t in range(5):
        x = torch.where(inside[t].unsqueeze(1), words[t], 0.0)
        sums = norm(x @ lstm["weight_ih"].T, lstm["gain_ih"], lstm["bias_ih"])
        sums = sums + norm(h @ lstm["weight_hh"].T, lstm["gain_hh"], lstm["bias_hh"])
        i, f, g, o = sums.chunk(4, 1)
        after = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        out = torch.sigmoid(o) * torch.tanh(norm(after, lstm["gain_c"], lstm["bias_c"]))
        c, h = (torch.where(inside[t].unsqueeze(1), new, old) for new, old in ((after, c), (out, h)))
        states.append(torch.where(inside[t].unsqueeze(1), h, 0.0))
    found, _ = model._states(model.passage_lstm, 0, *PADDED)
    torch.testing.assert_close(found, torch.stack(states), rtol=1e-10, atol=1e-12)  # float64


def test_batch_norm_everywhere_normalises_the_five_maps_over_the_batch_without_its_padding():
    model = network_of("batch-everywhere").train()
    rows = {}
    for name, item in model.norms.items():
        item.register_forward_hook(lambda module, inputs, output, name=name: rows.update({name: (inputs[0], output)}))
    model(*PADDED, *ASKED)
    assert set(rows) == set(network.PROJECTIONS)
    assert len(rows["passage"][0]) == 7  # of 10 places
    for name, (before, after) in rows.items():
        p = dict(model.norms[name].named_parameters())
        centred = before - before.mean(0)
        expected = centred / (centred.square().mean(0) + 1e-5).sqrt() * p["weight"] + p["bias"]
        torch.testing.assert_close(after, expected, rtol=1e-10, atol=1e-12)  # float64


def test_a_gain_means_something_to_layer_norm_alone():
    assert config(norm="layer", gain_init=0.3).gain_init == 0.3
    assert config(norm="none", gain_init=0.3) == config(norm="none", gain_init=2.0)
    assert config(norm="batch", gain_init=0.3).gain_init == 0.1
    assert dataclasses.replace(config(norm="none"), norm="layer").gain_init == 1.0
    with pytest.raises(ValueError, match=r"--gain-init must be a finite number, greater than 0, got 0"):
        config(gain_init=0.0)
    with pytest.raises(ValueError, match=r"--dropout must be less than 1, got 1"):
        config(dropout=1.0)


def test_the_steady_start_has_smaller_recurrent_gains():
    assert config(norm="layer", gain_init="steady").gain_init == "steady"
    assert config(norm="batch", gain_init="steady").gain_init == 0.1
    model = build_reader(config(norm="layer", gain_init="steady"), VOCABULARY, (9, 6))
    gains = {name: p.unique().tolist() for name, p in model.named_parameters() if "gain" in name}
    assert len(gains) == 6, "of two LSTMs"
    for name, values in gains.items():
        assert values == pytest.approx([0.6 if "gain_hh" in name else 1.0]), name
