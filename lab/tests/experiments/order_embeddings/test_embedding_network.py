"""The network against plain equations, its initial weights, folds, and the captions of a batch."""

import math
import operator

import pytest
import torch
from torch.nn import functional as F

from lab_support.captioned_files import write_captioned
from layernorm_lab.data import order_embeddings
from layernorm_lab.experiments.order_embeddings import experiment
from layernorm_lab.experiments.order_embeddings.config import Config
from layernorm_lab.experiments.order_embeddings.network import build_embedding
from layernorm_lab.experiments.order_embeddings.objective import penalties, ranks
from layernorm_lab.train import distributed


@pytest.fixture
def data(tmp_path):
    return order_embeddings.ORDER_EMBEDDINGS.load(write_captioned(tmp_path / "data"))


def config(**changes):
    return Config(**{"words": 5, "hidden": 8, "batch_size": 4, **changes})


def normed(rows, gain, bias):
    """Layer norm over a row's units, eq. 4."""
    centred = rows - rows.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain + bias


@pytest.mark.parametrize("norm", ["none", "layer"])
@pytest.mark.parametrize("similarity", ["order", "cosine"])
def test_points_are_those_of_the_equations(norm, similarity):
    model = build_embedding(config(norm=norm, similarity=similarity), vocabulary=9, features=3).double()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and gains too
            parameter.add_(0.1 * torch.randn_like(parameter))
    weights = dict(model.named_parameters())
    w, u, b, c = (weights[f"gru.{name}_l0"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    sentence = [4, 7, 2, 0]
    h = torch.zeros(8, dtype=torch.float64)
    for word in sentence:
        x = weights["words.weight"][word]
        if norm == "layer":  # eqs. 26-28: r and z share a normalisation, n has its own
            gains = [weights[f"gru.{name}_l0"] for name in ("gain_ih", "gain_hh")]
            ours, theirs = (
                torch.cat([normed(s[:16], g[:16], a[:16]), normed(s[16:], g[16:], a[16:])])
                for s, g, a in ((w @ x, gains[0], b), (u @ h, gains[1], c))
            )
        else:
            ours, theirs = w @ x + b, u @ h + c
        r, z = torch.sigmoid(ours[:8] + theirs[:8]), torch.sigmoid(ours[8:16] + theirs[8:16])
        n = torch.tanh(ours[16:] + r * theirs[16:])
        h = (1 - z) * n + z * h
    features = torch.randn(2, 3, dtype=torch.float64)
    v = features @ weights["image.weight"].T + weights["image.bias"]
    s, v = h / h.norm(), v / v.norm(dim=1, keepdim=True)
    expected = (s.abs(), v.abs()) if similarity == "order" else (s, v)
    ids = torch.tensor([[4, 1], [7, 0], [2, 0], [0, 0]])  # a shorter sentence beside it
    found = model(ids, torch.tensor([4, 2]), features)
    # a few dozen roundings in float64
    torch.testing.assert_close(found[0][0], expected[0], rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-11, atol=1e-13)
    # the shorter one alone gives the same: what pads it is not read
    torch.testing.assert_close(found[0][1:], model(ids[:2, 1:], torch.tensor([2]), features)[0], rtol=1e-11, atol=1e-13)


def test_initial_weights_are_the_protocols_and_the_same_for_every_norm():
    models = {
        norm: build_embedding(config(norm=norm, hidden=16), 9, 3)
        for norm in ("none", "layer", "rms", "weight", "batch")
    }
    plain = dict(models["none"].named_parameters())
    for name in ("words.weight", "gru.weight_ih_l0"):
        values = plain[name].detach()
        assert values.abs().max() <= 0.1
        assert values.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.3)  # of a few dozen to hundred draws
    for block in plain["gru.weight_hh_l0"].detach().chunk(3):
        torch.testing.assert_close(block @ block.T, torch.eye(16), rtol=0, atol=1e-5)  # float32's QR of size 16
    assert plain["image.weight"].abs().max() <= math.sqrt(6 / (3 + 16))
    assert not any(plain[name].any() for name in ("gru.bias_ih_l0", "gru.bias_hh_l0", "image.bias"))
    for model in models.values():
        for name, value in plain.items():
            own = operator.attrgetter(name)(model)
            # under weight norm the weight is a product, of a row's length and its direction: three roundings
            torch.testing.assert_close(own, value, rtol=5e-7, atol=0)
    other = build_embedding(config(norm="none", hidden=16, seed=1), 9, 3)
    assert not torch.equal(other.words.weight, plain["words.weight"])


def test_an_epoch_has_each_image_once_with_one_of_its_captions():
    captions = experiment._Captions(50, seed=3)
    rows = torch.arange(50)
    first, second = captions.of(rows, 0), captions.of(rows, 1)
    assert torch.equal(first // 5, rows)
    assert set((first % 5).tolist()) == {0, 1, 2, 3, 4}
    assert not torch.equal(first, second)
    assert torch.equal(experiment._Captions(50, seed=3).of(rows[7:9], 1), second[7:9])


def test_folds_are_contiguous_and_averaged(data):
    model = build_embedding(config(), len(data.vocabulary), 6).eval()
    with torch.no_grad():
        metrics, tensors = experiment.folds(model, data.test, 4, "order")  # of 10 images: 2 folds, 2 images left out
        ids, lengths = data.test.sentences.batch(torch.arange(50))
        sentences, images = model(ids, lengths, data.test.features)
        parts = [
            ranks(penalties(sentences[5 * start : 5 * start + 20], images[start : start + 4], "order"), 5)
            for start in (0, 4)
        ]
        all_of_them, _ = experiment.folds(model, data.test, 1000, "order")
    assert metrics["test_folds"] == 2
    assert all_of_them["test_folds"] == 1
    assert tensors["caption_rank"].tolist() == [*parts[0][0].tolist(), *parts[1][0].tolist()]
    assert tensors["image_rank"].tolist() == [*parts[0][1].tolist(), *parts[1][1].tolist()]
    recall = [100 * (part[1] < 1).double().mean().item() for part in parts]
    assert metrics["test_image_r1"] == pytest.approx(sum(recall) / 2)


def test_each_parameters_gradient_is_cut_by_itself(data):
    task = experiment.order_embeddings_task(config(clip=0.01), data, distributed.accelerator("cpu", "float32"))
    task.mean_loss(task.model, 0).backward()
    before = {name: item.grad.clone() for name, item in task.model.named_parameters()}
    task.before_step(task.model)
    cut = 0
    for name, item in task.model.named_parameters():
        norm = before[name].norm().item()
        cut += norm > 0.01
        expected = before[name] * min(1.0, 0.01 / norm)
        # torch adds 1e-6 to the norm
        torch.testing.assert_close(item.grad, expected, rtol=2e-4, atol=1e-9)
    assert cut > 1


def test_the_loss_is_summed_over_the_batchs_pairs(data):
    task = experiment.order_embeddings_task(config(), data, distributed.accelerator("cpu", "float32"))
    assert task.updates_per_epoch == 15  # 60 images, 4 a batch
    model, chosen = task.model, experiment._Captions(60, seed=0)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(experiment.derive_seed(0, experiment.ORDER, 1)))
    rows = order[4:8]  # update 16 is the second of the second epoch
    ids, lengths = data.train.sentences.batch(chosen.of(rows, 1))
    sentences, images = model(ids, lengths, data.train.features[rows])
    total = 0.0
    for i in range(4):
        for j in range(4):
            if i != j:
                wrong = F.relu(sentences[i] - images[j]).square().sum()
                total += F.relu(0.05 - wrong + F.relu(sentences[i] - images[i]).square().sum())
                total += F.relu(0.05 - wrong + F.relu(sentences[j] - images[j]).square().sum())
    assert task.mean_loss(model, 16).item() == pytest.approx(total.item(), rel=1e-4)  # float32, 24 terms of about 0.05
