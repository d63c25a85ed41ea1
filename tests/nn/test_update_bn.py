"""`update_bn`: the population statistics of a model anew, against those of plain NumPy equations and of torch's own."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.optim.swa_utils import AveragedModel
from torch.optim.swa_utils import update_bn as torchs_update_bn

import layernorm as ln
from support import comparing, oracle_batch
from support.networks import MODULE, NETWORKS

# Relative to the largest magnitude: float64's 1.1e-16, enlarged by the deviations of few rows (tests/nn/test_batch.py).
VALUE = 1e-10
I, H = 2, 3  # noqa: E741
SETTINGS = {"momentum": 0.3, "max_steps": 5}


class Model(nn.Module):
    """A recurrent network with batch norm, one without, and torch's batch norm of the last output."""

    def __init__(self, network):
        super().__init__()
        norm = ln.BatchNormOverTime(**SETTINGS)
        self.below = MODULE[network](I, H, 2, norm=norm, bidirectional=True, dtype=torch.float64)
        self.above = ln.RNN(2 * H, H, dtype=torch.float64)
        self.norm = nn.BatchNorm1d(H, dtype=torch.float64)

    def forward(self, x, lengths=None):
        below, _ = self.below(x, lengths=None if isinstance(x, nn.utils.rnn.PackedSequence) else lengths)
        return self.norm(self.above(below)[1][-1])


def batches():
    """Batches of several sizes, numbers of steps and lengths: (x, lengths)."""
    torch.manual_seed(1)
    sizes = [(4, 5, None), (3, 2, None), (6, 4, [6, 2, 5, 1]), (2, 7, [2, 0, 1, 2, 1, 2, 2])]
    return [(3 * torch.randn(T, B, I, dtype=torch.float64) + 1, lengths) for T, B, lengths in sizes]


def expected(model, given):
    """The recurrent population after the batches, each with the same weight: [(name, array)]."""
    below = model.below
    values = {name: value.detach().numpy() for name, value in below.state_dict().items()}
    network = next(name for name in NETWORKS if isinstance(below, MODULE[name]))
    endings = [[f"_l{layer}{direction}" for direction in ("", "_reverse")] for layer in range(2)]

    def of(ending):
        return {name.removesuffix(ending): value for name, value in values.items() if name.endswith(ending)}

    parameters = [[of(ending) for ending in directions] for directions in endings]
    populations = [
        [{k: 0 * v for k, v in p.items() if k.startswith(("running", "num_batches"))} for p in directions]
        for directions in parameters
    ]
    for x, lengths in given:
        state = [np.zeros((4, x.shape[1], H))] * (1 + (network == "LSTM"))
        formula = below.recurrence.formula
        _, _, learnt = oracle_batch.stack(network, x.numpy(), state, parameters, formula, lengths=lengths)
        populations = [
            [oracle_batch.learn(population, found, None) for population, found in zip(*of_layer, strict=True)]
            for of_layer in zip(populations, learnt, strict=True)
        ]
    for layer, directions in enumerate(endings):
        for d, ending in enumerate(directions):
            yield from ((f"{name}{ending}", value) for name, value in populations[layer][d].items())


def trained(network):
    """A model whose population is that of other batches and other weights."""
    torch.manual_seed(0)
    model = Model(network)
    for _ in range(3):
        model(torch.randn(4, 3, I, dtype=torch.float64))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    return model


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("wrap", [lambda model: model, AveragedModel], ids=["model", "average"])
def test_the_population_is_that_of_the_loader(network, wrap):
    model = wrap(trained(network)).eval()
    inner = model.module if isinstance(model, AveragedModel) else model
    inner.above.train()  # every part is afterwards in its mode
    modes = [part.training for part in model.modules()]
    kept = {name: p.clone() for name, p in model.named_parameters()}
    torchs = copy.deepcopy(model)
    given = batches()
    ln.update_bn(given, model, run=lambda batch: model(*batch))
    for name, value in expected(inner, given):
        comparing.close([inner.below.get_buffer(name)], [value], VALUE, floor=1e-3)
    torchs_update_bn([x for x, lengths in given if lengths is None], torchs)
    ln.update_bn([x for x, lengths in given if lengths is None], model)
    theirs = torchs.module if isinstance(torchs, AveragedModel) else torchs
    for own, other in zip(inner.norm.buffers(), theirs.norm.buffers(), strict=True):
        assert torch.equal(own, other)
    assert [part.training for part in model.modules()] == modes
    assert all(torch.equal(p, kept[name]) and p.grad is None for name, p in model.named_parameters())
    assert inner.below.over_time == ln.BatchNormOverTime(**SETTINGS)
    assert inner.norm.momentum == 0.1


@pytest.mark.parametrize("form", ["tensor", "list", "tuple", "packed", "packed in a tuple"])
def test_what_a_loader_may_give(form):
    model = ln.GRU(I, H, norm="batch", dtype=torch.float64)
    other = copy.deepcopy(model)
    given = [x for x, _ in batches()]

    def made(x):
        if form.startswith("packed"):
            packed = pack_padded_sequence(x, [len(x)] * x.shape[1])
            return (packed, "target") if "tuple" in form else packed
        return {"tensor": x, "list": [x, "target"], "tuple": (x,)}[form]

    ln.update_bn([made(x) for x in given], model, "cpu")
    ln.update_bn(given, other)
    for own, plain in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(own, plain, rtol=VALUE, atol=VALUE)
    assert model.num_batches_tracked_l0[:7].tolist() == [4, 4, 3, 2, 1, 1, 0]


def test_an_average_with_a_population_of_its_own_is_better_than_with_that_of_the_last_weights():
    """Weights that halve the inputs of the norms: the old deviations divide by twice what is there."""
    torch.manual_seed(0)
    model, x = ln.RNN(I, 16, norm="batch"), torch.randn(6, 64, I)
    for _ in range(40):
        model(x)
    average = AveragedModel(model)
    with torch.no_grad():
        for name, p in average.module.named_parameters():
            if name.startswith("weight"):
                p.mul_(0.5)
        target = average.train()(x)[0]
        before = average.eval()(x)[0] - target
        ln.update_bn([x], average)
        after = average(x)[0] - target
    assert after.norm() < 0.05 * before.norm()  # sqrt(64 / 63) - 1 is 0.008, and the gains of 0.1 keep it small


def test_a_model_without_batch_norm_is_not_run():
    def fails(_):
        raise AssertionError

    ln.update_bn([torch.zeros(1)], ln.LSTM(2, 3), run=fails)


def test_what_is_refused():
    model = trained("GRU")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="the loader gave no batch"):
        ln.update_bn([], model)
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got function"):
        ln.update_bn([], lambda x: x)
    with pytest.raises(ValueError, match="with run=, device has no effect"):
        ln.update_bn([], model, "cpu", run=model)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))


def test_after_an_error_momentum_and_mode_are_as_before():
    model = trained("GRU").eval()
    with pytest.raises(RuntimeError, match="input"):
        ln.update_bn([torch.randn(4, 3, I, dtype=torch.float64), torch.zeros(4, 3, I + 1, dtype=torch.float64)], model)
    assert (model.below.over_time, model.norm.momentum) == (ln.BatchNormOverTime(**SETTINGS), 0.1)
    assert not any(part.training for part in model.modules())


def test_after_an_error_the_statistics_are_as_before():
    model = trained("GRU")
    before = copy.deepcopy(model.state_dict())
    good, bad = torch.randn(4, 3, I, dtype=torch.float64), torch.zeros(4, 3, I + 1, dtype=torch.float64)
    for batches in ([bad], [good, bad]):
        with pytest.raises(RuntimeError, match="input"):
            ln.update_bn(batches, model)
        assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
