"""Experiment 6.7: a convolutional network on CIFAR-10. Layer norm against the baseline and batch norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...config import check_most
from ...data.cifar10 import CIFAR10
from ...data.mnist import Cases, Images
from ...protocol import Experiment, Preset
from ...report.judge import PILOT_SEEDS
from ...train.batches import Shuffled
from ...train.distributed import share_batch_norms
from ...train.task import Accelerator, Loss, Task, Tested
from . import border, claims, report
from .config import Config
from .network import build_convnet

CHUNK = 500
"""Images that are evaluated together."""

BORDER_IMAGES = 2000
"""The number of test images, from the first on, on which units near the border are measured."""


def check_convnets(config: Config, data: Images) -> None:
    """Checks that there are enough training images."""
    check_most(config, "train_cases", len(data.train), "training images")
    check_most(config, "batch_size", config.train_cases or len(data.train), "training images")


def convnets_task(config: Config, data: Images, accelerator: Accelerator) -> Task:
    """Makes one run: a network, Adam, and the loss of a batch."""
    device = accelerator.device
    train, valid, test = (cases.to(device) for cases in (data.train, data.valid, data.test))
    if config.train_cases:
        train = train[: config.train_cases]
    order = Shuffled.of(len(train), config, accelerator)
    model = build_convnet(config)
    if accelerator.num_processes > 1:
        share_batch_norms(model)
    looked_at = {name: cases[: config.evaluate_cases] for name, cases in
                 (("train", train), ("valid", valid), ("test", test))}  # fmt: skip

    def loss(model: nn.Module, update: int) -> Loss:
        rows = order.share(update).to(device)
        images = scaled(train.images.index_select(0, rows))
        return F.cross_entropy(model(images), train.labels.index_select(0, rows), reduction="sum"), len(rows)

    def evaluate(model: nn.Module) -> dict[str, float]:
        metrics = {}
        for name, cases in looked_at.items():
            metrics[f"{name}_nll"], correct = nll_and_answers(model, cases)
            metrics[f"{name}_error"] = 1 - float(correct.double().mean())
        return metrics

    def final(model: nn.Module) -> Tested:
        assert isinstance(model, nn.Sequential)
        nll, correct = nll_and_answers(model, test)
        tensors = {"correct": correct.to(torch.uint8)}
        images = scaled(test.images[:BORDER_IMAGES])
        start = build_convnet(config).to(device).eval()
        for module in start.modules():
            if isinstance(module, nn.BatchNorm2d):  # its running statistics are still those of no data
                module.train()
        for when, network in (("start", start), ("end", model)):
            for number, layer in enumerate(border.measure_units(network, images), 1):
                for name in ("profile", "contrast", "explained"):
                    tensors[f"{when}.{number}.{name}"] = getattr(layer, name)()
        return {"all_test_nll": nll, "all_test_error": 1 - float(correct.double().mean())}, tensors

    shown = {"train_nll": "train NLL {:.2f}", "valid_error": "valid. error {:.1%}"}
    return Task.of(config, order, model, loss, evaluate, shown=shown, test=final)


def scaled(images: Tensor) -> Tensor:
    """Pixels from 0..255 scaled to -1..1, in float32 and channels last, which makes convolutions faster on a CPU."""
    return images.to(torch.float32, memory_format=torch.channels_last).div_(127.5).sub_(1)


def nll_and_answers(model: nn.Module, cases: Cases) -> tuple[float, Tensor]:
    """Computes the mean negative log-likelihood in nats, and whether each answer is right, bool `[M]`."""
    nll, right = 0.0, []
    for start in range(0, len(cases), CHUNK):
        part = cases[start : start + CHUNK]
        # float64: a float32 log-softmax has no correct digits for the small losses of a network that fits its images
        scores = F.log_softmax(model(scaled(part.images)).double(), dim=1)
        nll += float(F.nll_loss(scores, part.labels, reduction="sum"))
        right.append(scores.argmax(1) == part.labels)
    return nll / len(cases), torch.cat(right)


_FOUR = ("none", "layer", "batch", "weight")
_RATES = (1e-3, 3e-3, 1e-2, 3e-2)

EXPERIMENT = Experiment(
    name="convnets",
    examples=(
        "layernorm run convnets --data ~/cifar-10-batches-bin",
        "layernorm run convnets --preset smoke --norm layer layer-channels group",
        "layernorm run convnets --preset paper --norm none batch --learning-rate 0.003",
    ),
    presets={
        "laptop": Preset(
            "8 epochs of 10,000 images, 16 and 32 channels; two seeds and five learning rates",
            claims.LAPTOP,
            {
                "norm": ("none", "layer", "layer-shared", "batch"),
                "learning_rate": claims.SHORT.rates,
                "seed": PILOT_SEEDS,
            },
        ),
        "smoke": Preset(
            "2 epochs of 20 images, 4 and 8 channels",
            Config(epochs=2, width=4, train_cases=20, batch_size=10, held_out=5, evaluate_cases=10),
            {"norm": _FOUR, "learning_rate": (3e-3,), "seed": (0,)},
        ),
        "paper": Preset(
            "200 epochs of ConvPool-CNN-C, 45,000 images; all norms, three seeds and four learning rates",
            Config(),
            {"norm": (*_FOUR, "layer-shared", "layer-channels", "group"), "learning_rate": _RATES, "seed": (0, 1, 2)},
        ),
    },
    load=lambda config, data: CIFAR10.load(data).holding_out(config.held_out),
    check=check_convnets,
    task=convnets_task,
    report=report.OUTLINE.report,
    claims=claims.CLAIMS,
)
