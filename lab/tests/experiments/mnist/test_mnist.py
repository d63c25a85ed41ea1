"""The network and the task of 6.6 are the paper's."""

import dataclasses
import math

import pytest
import torch
from torch import nn

import layernorm as ln
from layernorm_lab.data.digits import load_digits
from layernorm_lab.data.mnist import Cases
from layernorm_lab.experiments.mnist import digits, experiment
from layernorm_lab.experiments.mnist.config import Config
from layernorm_lab.experiments.mnist.network import build_mlp
from layernorm_lab.train import distributed
from layernorm_lab.train.progress import glance


def kinds(model):
    return [type(layer).__name__ for layer in model]


def test_the_protocol_of_the_paper():
    config = experiment.EXPERIMENT.presets["paper"].config
    assert (config.hidden, config.epochs, config.held_out, config.learning_rate) == (1000, 60, 5000, 1e-3)
    model = build_mlp(config, inputs=784)
    shapes = [tuple(layer.weight.shape) for layer in model if isinstance(layer, nn.Linear)]
    assert shapes == [(1000, 784), (1000, 1000), (10, 1000)]


def test_batch_norm_alone_normalises_the_logits():
    hidden = ["Linear", "{}", "ReLU"] * 2
    for norm, name, last in (
        ("layer", "LayerNorm", []),
        ("batch", "BatchNorm", ["BatchNorm"]),
        ("batch-hidden", "BatchNorm", []),
    ):
        model = build_mlp(Config(norm=norm, hidden=8), inputs=5)
        assert kinds(model) == [kind.format(name) for kind in hidden] + ["Linear", *last]
    assert kinds(build_mlp(Config(norm="none", hidden=8), inputs=5)) == [k for k in hidden if k != "{}"] + ["Linear"]


@pytest.mark.parametrize("norm", ["batch", "batch-hidden"])
@pytest.mark.parametrize(("size", "unbiased"), [(4, True), (5, False), (128, False)])
def test_batch_norm_is_unbiased_at_small_batches(norm, size, unbiased):
    model = build_mlp(Config(norm=norm, batch_size=size, hidden=8), inputs=5)
    assert {layer.unbiased for layer in model if isinstance(layer, ln.BatchNorm)} == {unbiased}


def test_one_seed_gives_every_norm_the_same_weights_and_leaves_the_generator_alone():
    state = torch.get_rng_state()
    weights = {}
    for norm in ("none", "layer", "batch", "batch-hidden"):
        model = build_mlp(Config(norm=norm, seed=3, hidden=8), inputs=5)
        weights[norm] = torch.cat([p.flatten() for m in model if isinstance(m, nn.Linear) for p in m.parameters()])
    for norm in ("layer", "batch", "batch-hidden"):
        assert torch.equal(weights["none"], weights[norm])
    other = build_mlp(Config(norm="none", seed=4, hidden=8), inputs=5)
    assert not torch.equal(other[0].weight.flatten(), weights["none"][:40])
    assert torch.equal(torch.get_rng_state(), state)


def test_the_loss_is_the_mean_over_the_batch_and_evaluation_over_all_cases():
    config = digits.Config(norm="none", batch_size=1200, hidden=16, decay=0.25)
    data = load_digits().holding_out(197)
    task = experiment.mnist_task(config, data, distributed.accelerator("cpu", "float32"))
    assert task.decay == 0.25
    with torch.no_grad():
        scores = torch.log_softmax(task.model(data.train.images.float() / 16).double(), 1)
    nll = float(nn.functional.nll_loss(scores, data.train.labels))
    error = float((scores.argmax(1) != data.train.labels).double().mean())
    with torch.no_grad():
        metrics = task.evaluate(task.model)
        loss = float(task.mean_loss(task.model, 0))  # one batch holds every case
    assert math.isclose(metrics["train_nll"], nll, rel_tol=1e-6)
    assert math.isclose(metrics["train_error"], error, rel_tol=1e-12)
    assert math.isclose(loss, nll, rel_tol=1e-5)
    assert set(metrics) == {f"{split}_{what}" for split in ("train", "valid", "test") for what in ("nll", "error")}


def test_the_progress_line():
    task = experiment.mnist_task(
        digits.Config(hidden=16), load_digits().holding_out(197), distributed.accelerator("cpu", "float32")
    )
    metrics = {"train_nll": 1.234e-4, "test_error": 0.03, "valid_nll": 0.0567}
    assert glance(task.shown, metrics) == "train NLL 0.00012, test error 3.00%, valid NLL 0.057, "
    assert glance(task.shown, metrics, short=True) == "valid NLL 0.057, "


def test_small_losses_keep_their_digits():
    """-log softmax of a logit that leads by 20 is 9 e^-20 = 1.86e-8; float32 would round it to zero."""

    class Certain(nn.Module):
        def forward(self, images):
            return 20 * nn.functional.one_hot(torch.zeros(len(images), dtype=torch.int64), 10).float()

    cases = Cases(torch.zeros(3, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))
    nll, error = experiment.nll_and_error(Certain(), cases, white=255.0)
    assert math.isclose(nll, math.log1p(9 * math.exp(-20)), rel_tol=1e-6)
    assert error == 0


def test_chunks_do_not_change_the_measure():
    data, model = load_digits().holding_out(197), build_mlp(Config(norm="layer", hidden=8), inputs=64)
    with torch.no_grad():
        whole = experiment.nll_and_error(model, data.test, 16.0)
        parts = experiment.nll_and_error(model, data.test, 16.0, chunk=33)
    assert parts[0] == pytest.approx(whole[0], rel=1e-6)
    assert parts[1] == whole[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "--epochs must be at least 1, got 0"),
        ({"hidden": 1}, "--hidden must be at least 2, got 1"),
        ({"batch_size": -4}, "--batch-size must be at least 1, got -4"),
        ({"seed": -1}, "--seeds must be at least 0, got -1"),
        ({"learning_rate": math.nan}, "--learning-rate must be a finite number, greater than 0, got nan"),
        ({"learning_rate": math.inf}, "--learning-rate"),
        ({"unbiased_up_to": -3}, "--unbiased-up-to must be at least 0, got -3"),
        ({"norm": "batch", "batch_size": 1}, "--batch-size must be at least 2 for batch norm"),
        ({"norm": "batch-hidden", "batch_size": 1}, "--batch-size must be at least 2 for batch norm"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Config(**options)


def test_a_last_batch_of_one_case_is_refused_for_batch_norm_only():
    data = load_digits().holding_out(197)
    for norm in ("batch", "batch-hidden"):
        with pytest.raises(ValueError, match="--batch-size 11 leaves a batch of one of the 1200 training cases"):
            experiment.check_mnist(digits.Config(norm=norm, batch_size=11), data)
    experiment.check_mnist(digits.Config(norm="layer", batch_size=11), data)


@pytest.mark.parametrize("norm", ["batch", "batch-hidden"])
@pytest.mark.parametrize("batch_size", [4, 128])
def test_batch_norm_is_evaluated_with_exact_statistics_too(norm, batch_size):
    """As in training mode with the whole training set as one batch; and the running averages stay as they are."""
    data = load_digits().holding_out(197)
    config = digits.Config(norm=norm, batch_size=batch_size, hidden=16)
    task = experiment.mnist_task(config, data, distributed.accelerator("cpu", "float32"))
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    with torch.no_grad():
        metrics = task.evaluate(task.model.eval())
        whole = build_mlp(dataclasses.replace(config, unbiased_up_to=10**6), inputs=64).train()
        scores = torch.log_softmax(whole(data.train.images.float() / 16).double(), 1)
    nll = float(nn.functional.nll_loss(scores, data.train.labels))
    plain = {f"{split}_{what}" for split in ("train", "valid", "test") for what in ("nll", "error")}
    assert metrics.keys() == plain | {f"exact_{name}" for name in plain}
    assert metrics["exact_train_nll"] == pytest.approx(nll, rel=1e-5)
    assert metrics["exact_test_error"] != metrics["test_error"]
    assert all(torch.equal(before[name], value) for name, value in task.model.state_dict().items())
