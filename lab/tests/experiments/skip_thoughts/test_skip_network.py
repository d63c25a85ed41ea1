"""The network and its loss against slow float64 loops, and what padding must not change."""

import math

import pytest
import torch
from torch.nn.utils import parametrize

from layernorm_lab.data.text import Sentences
from layernorm_lab.experiments.skip_thoughts.config import Config
from layernorm_lab.experiments.skip_thoughts.experiment import triple
from layernorm_lab.experiments.skip_thoughts.network import build_skip_thoughts
from layernorm_lab.experiments.skip_thoughts.objective import ROWS, negative_log_likelihood

CPU = torch.device("cpu")
NORMS = ("none", "layer", "rms", "weight")


@pytest.mark.parametrize("count", [0, 1, ROWS - 1, ROWS + 1])
def test_the_loss_and_its_gradients_are_those_of_the_definition(count):
    torch.manual_seed(0)
    states, weight, bias = (torch.randn(*shape) for shape in ((count, 7), (11, 7), (11,)))
    targets = torch.randint(11, (count,))
    inputs = [item.requires_grad_() for item in (states, weight, bias)]
    loss = negative_log_likelihood(*inputs, targets)
    (3 * loss).backward()
    wide = [item.detach().double().requires_grad_() for item in inputs]
    expected = torch.zeros((), dtype=torch.float64)
    for row, target in zip(wide[0], targets.tolist(), strict=True):
        scores = wide[1] @ row + wide[2]
        expected = expected - scores[target] + scores.exp().sum().log()
    if count:
        (3 * expected).backward()
    # sums of 256 float32 terms of size 1
    torch.testing.assert_close(loss.detach().double(), expected.detach(), rtol=1e-6, atol=1e-5)
    for item, exact in zip(inputs, wide, strict=True):
        wanted = torch.zeros_like(exact) if exact.grad is None else exact.grad
        torch.testing.assert_close(item.grad.double(), wanted, rtol=1e-5, atol=1e-4)
    with torch.no_grad():  # another way, without gradients
        torch.testing.assert_close(negative_log_likelihood(*inputs, targets), loss.detach())


def small(norm="layer", seed=0):
    return build_skip_thoughts(Config(norm=norm, vocabulary=12, words=5, hidden=6, seed=seed), 12)


SENTENCES = Sentences.of(
    [[2, 3, 0], [4, 5, 6, 0], [7, 0], [3, 3, 2, 9, 0], [8, 2, 11, 0], [5, 0], [2, 10, 4, 0], [6, 6, 6, 6, 6, 0]]
)
MIDDLE = torch.tensor([1, 4, 6])
"""Three sentences of one length whose neighbours have 2 to 6 ids."""


def gru(weights, x, h):
    """A step of a GRU without norm on lists, float64."""
    wi, wh, bi, bh = weights
    size = len(h)

    def summed(matrix, vector, bias, row):
        return sum(matrix[row][k] * vector[k] for k in range(len(vector))) + bias[row]

    def sigmoid(value):
        return 1 / (1 + math.exp(-value))

    new = []
    for unit in range(size):
        r, z = (
            sigmoid(summed(wi, x, bi, gate * size + unit) + summed(wh, h, bh, gate * size + unit)) for gate in (0, 1)
        )
        row = 2 * size + unit
        n = math.tanh(summed(wi, x, bi, row) + r * summed(wh, h, bh, row))
        new.append((1 - z) * n + z * h[unit])
    return new


def plain_loss(model, middle):
    """The loss of one triple after another, by lists."""
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    weights = {
        name: [getattr(getattr(model, name), part).tolist() for part in names]
        for name in ("encoder", "next", "previous")
    }
    table, out, bias = model.words.weight.tolist(), model.output.weight.tolist(), model.output.bias.tolist()
    row_of = lambda number: SENTENCES.ids[SENTENCES.ends[number] : SENTENCES.ends[number + 1]].tolist()  # noqa: E731
    total = 0.0
    for number in middle.tolist():
        state = [0.0] * 6
        for word in row_of(number):
            state = gru(weights["encoder"], table[word], state)
        for decoder, neighbour in (("next", number + 1), ("previous", number - 1)):
            h, x = state, [0.0] * 5
            for word in row_of(neighbour):  # the end is predicted, too
                h = gru(weights[decoder], x, h)
                scores = [sum(a * b for a, b in zip(row, h, strict=True)) + c for row, c in zip(out, bias, strict=True)]
                total += math.log(sum(map(math.exp, scores))) - scores[word]
                x = table[word]
    return total


def test_the_two_sided_loss_is_that_of_plain_loops():
    model = small("none")
    with torch.no_grad():  # biases, else nothing tells them apart
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter.uniform_(-0.5, 0.5, generator=torch.Generator().manual_seed(len(name)))
        model.next.weight_hh_l0.mul_(1.5)
    loss = model(*triple(SENTENCES, MIDDLE, CPU))
    # about 20 words of 2 nats each, in float32
    assert float(loss.detach()) == pytest.approx(plain_loss(model, MIDDLE), rel=1e-5)


@pytest.mark.parametrize("norm", NORMS)
def test_the_gradients_are_those_of_differences_in_float64(norm):
    torch.manual_seed(0)
    model = small(norm).double()
    batch = triple(SENTENCES, MIDDLE, CPU)
    model(*batch).backward()
    for name, parameter in model.named_parameters():
        direction = torch.randn_like(parameter)
        with torch.no_grad():
            values = []
            for step in (1e-5, -2e-5):
                parameter += step * direction
                values.append(float(model(*batch)))
            parameter += 1e-5 * direction
        # central differences: their error goes with the square of the step
        found, exact = (values[0] - values[1]) / 2e-5, float((parameter.grad * direction).sum())
        assert found == pytest.approx(exact, rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize("norm", NORMS)
def test_a_padded_batch_is_its_rows_alone(norm):
    model = small(norm)
    both = model(*triple(SENTENCES, MIDDLE, CPU))
    alone = [model(*triple(SENTENCES, MIDDLE[k : k + 1], CPU)) for k in range(3)]
    # other shapes, other order of summation in float32
    assert float(both.detach()) == pytest.approx(sum(float(item.detach()) for item in alone), rel=1e-5)
    both.backward()
    whole = {name: item.grad.clone() for name, item in model.named_parameters()}
    model.zero_grad()
    sum(alone).backward()
    for name, item in model.named_parameters():
        torch.testing.assert_close(item.grad, whole[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("norm", NORMS)
def test_a_batch_without_rows_has_loss_and_gradients_of_0(norm):
    model = small(norm)
    loss = model(*triple(SENTENCES, MIDDLE[:0], CPU))
    loss.backward()
    assert float(loss.detach()) == 0
    assert all(item.grad is not None and not item.grad.any() for item in model.parameters())


def test_one_seed_gives_every_norm_the_same_weights():
    models = {norm: small(norm) for norm in NORMS}
    for model in models.values():
        for name in ("encoder", "next", "previous"):
            for part in ("weight_ih_l0", "weight_hh_l0"):
                weight, base = (getattr(getattr(item, name), part) for item in (model, models["none"]))
                # weight norm computes it from a direction and a gain
                torch.testing.assert_close(weight, base, rtol=1e-5, atol=1e-6)
        assert torch.equal(model.words.weight, models["none"].words.weight)
    assert parametrize.is_parametrized(models["weight"].encoder)
    model = models["layer"]
    for block in model.encoder.weight_hh_l0.detach().chunk(3):
        torch.testing.assert_close(block @ block.T, torch.eye(6), rtol=0, atol=1e-5)
    assert not torch.equal(model.next.weight_hh_l0, model.previous.weight_hh_l0)
    for value in (model.words.weight, model.output.weight, model.encoder.weight_ih_l0):
        assert 0.08 < float(value.detach().abs().max()) <= 0.1
    assert not any(bool(item.any()) for name, item in model.named_parameters() if "bias" in name)
    assert not torch.equal(small(seed=1).words.weight, model.words.weight)
