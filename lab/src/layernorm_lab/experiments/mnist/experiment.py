"""Experiment 6.6: permutation-invariant MNIST, Figure 6. Layer norm against batch norm at batch sizes 128 and 4."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F

from layernorm.nn import BatchNorm

from ...config import check_most
from ...data.mnist import MNIST, Cases, Images
from ...protocol import Experiment, Preset
from ...report.judge import PILOT_SEEDS
from ...train.batches import Shuffled
from ...train.distributed import share_batch_norms
from ...train.task import Accelerator, Loss, Task
from . import claims, report
from .config import BATCH_NORMS, Config
from .network import build_mlp


def check_mnist(config: Config, data: Images) -> None:
    """Checks that there are enough training cases, and that batch norm gets no batch of one."""
    check_most(config, "train_cases", len(data.train), "training cases")
    cases = config.train_cases or len(data.train)
    check_most(config, "batch_size", cases, "training cases")
    if config.norm in BATCH_NORMS and cases % config.batch_size == 1:
        raise ValueError(
            f"--batch-size {config.batch_size} leaves a batch of one of the {cases} training cases; "
            "batch norm needs two in every batch"
        )


def mnist_task(config: Config, data: Images, accelerator: Accelerator) -> Task:
    """Makes one run: a network, Adam, and the loss of a batch."""
    device = accelerator.device
    train, valid, test = (cases.to(device) for cases in (data.train, data.valid, data.test))
    if config.train_cases:
        train = train[: config.train_cases]
    order = Shuffled.of(len(train), config, accelerator)
    model = build_mlp(config, inputs=train.images.shape[1])
    if accelerator.num_processes > 1:
        share_batch_norms(model)
    white = float(data.white)

    def loss(model: nn.Module, update: int) -> Loss:
        rows = order.share(update).to(device)
        images = train.images.index_select(0, rows).float().div_(white)
        return F.cross_entropy(model(images), train.labels.index_select(0, rows), reduction="sum"), len(rows)

    def evaluate(model: nn.Module) -> dict[str, float]:
        metrics = {}
        for name, cases in (("train", train), ("valid", valid), ("test", test)):
            metrics[f"{name}_nll"], metrics[f"{name}_error"] = nll_and_error(model, cases, white)
        if config.norm in BATCH_NORMS:
            assert isinstance(model, nn.Sequential)
            exact = with_exact_statistics(model, train, white)
            for name, cases in (("train", train), ("valid", valid), ("test", test)):
                metrics[f"exact_{name}_nll"], metrics[f"exact_{name}_error"] = nll_and_error(exact, cases, white)
        return metrics

    shown = {"train_nll": "train NLL {:.2g}", "test_error": "test error {:.2%}", "valid_nll": "valid NLL {:.2g}"}
    return Task.of(config, order, model, loss, evaluate, shown=shown)


@torch.no_grad()
def with_exact_statistics(model: nn.Sequential, train: Cases, white: float) -> nn.Sequential:
    """Makes a copy whose batch norms have the mean and variance over all training cases, layer by layer.

    The running averages after training are over about the last ten batches. With four cases in each they are noise.
    """
    exact = copy.deepcopy(model)
    x = train.images.float().div_(white)
    for layer in exact:
        if isinstance(layer, BatchNorm):
            variance, mean = torch.var_mean(x, 0)
            layer.running_mean, layer.running_var = mean, variance
        x = layer(x)
    return exact


def nll_and_error(model: nn.Module, cases: Cases, white: float, chunk: int = 5000) -> tuple[float, float]:
    """Computes the mean negative log-likelihood in nats and the share of wrong answers over some cases."""
    nll, wrong = 0.0, 0
    for start in range(0, len(cases), chunk):
        part = cases[start : start + chunk]
        # float64: the training NLL in the figure goes down to 1e-7, where a float32 log-softmax has no correct digits
        scores = F.log_softmax(model(part.images.float().div_(white)).double(), dim=1)
        nll += float(F.nll_loss(scores, part.labels, reduction="sum"))
        wrong += int((scores.argmax(1) != part.labels).sum())
    return nll / len(cases), wrong / len(cases)


_NORMS, _SIZES = ("none", "layer", "batch"), (128, 4)
BATCHED = (*_NORMS, "batch-hidden")

EXPERIMENT = Experiment(
    name="mnist",
    examples=(
        "layernorm run mnist --preset laptop",
        "layernorm run mnist --preset paper --batch-size 128 --out runs/mnist-paper",
        "layernorm run mnist --norm layer --batch-size 4 --epochs 3 --data ~/mnist",
    ),
    presets={
        "laptop": Preset(
            "5 epochs, batch norm on all layers or on the hidden ones; two seeds and nine learning rates",
            claims.LAPTOP,
            {"norm": BATCHED, "batch_size": (128,), "learning_rate": claims.LARGE.rates, "seed": PILOT_SEEDS},
        ),
        "smoke": Preset(
            "2 epochs on 2,000 cases, 100 hidden units",
            Config(epochs=2, train_cases=2000, hidden=100),
            {"norm": _NORMS, "batch_size": _SIZES, "seed": (0,)},
        ),
        "paper": Preset(
            "the paper's protocol: 60 epochs; three seeds",
            Config(),
            {"norm": _NORMS, "batch_size": _SIZES, "seed": (0, 1, 2)},
        ),
    },
    load=lambda config, data: MNIST.load(data).holding_out(config.held_out),
    check=check_mnist,
    task=mnist_task,
    report=report.OUTLINE.report,
    claims=claims.CLAIMS,
)
