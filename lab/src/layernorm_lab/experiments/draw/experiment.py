"""Experiment 6.4: DRAW on binarised MNIST, Figure 4. Layer norm on the cell of both LSTMs against none."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...config import check_most
from ...data.binarized_mnist import BINARIZED_MNIST, Binarized
from ...protocol import Experiment, Preset
from ...report.judge import PILOT_SEEDS
from ...train.batches import EVALUATION, Shuffled, derive_seed
from ...train.task import Accelerator, Loss, Task, clip_to
from . import claims, report, samples
from .config import Config
from .network import build_draw

CHUNK = 500
"""The number of cases that are evaluated together. The evaluation's noise is drawn chunk by chunk."""


def check_draw(config: Config, data: Binarized) -> None:
    """Checks that there are enough training images for a batch."""
    check_most(config, "batch_size", len(data.train), "training cases")


def draw_task(config: Config, data: Binarized, accelerator: Accelerator) -> Task:
    """Makes one run: the network, Adam, and the bound as the loss."""
    device = accelerator.device
    train, valid, test = (part.to(device) for part in (data.train, data.valid, data.test))
    order = Shuffled.of(len(train), config, accelerator)
    model = build_draw(config)

    def loss(model: nn.Module, update: int) -> Loss:
        images = train.index_select(0, order.share(update).to(device)).float()
        noise = torch.randn(config.glimpses, len(images), config.latent, device=device)
        parts = model(images, noise)
        return parts.kl.sum() + parts.reconstruction.sum(), len(images)

    def evaluate(model: nn.Module) -> dict[str, float]:
        tested = {f"test_{name}": value for name, value in measure_bound(model, test, config).items()}
        return {"valid_bound": measure_bound(model, valid, config)["bound"], **tested}

    shown = {"test_bound": "test bound {:.1f}"}
    return Task.of(config, order, model, loss, evaluate, shown=shown, before_step=clip_to(config.clip))


def measure_bound(model: nn.Module, cases: Tensor, config: Config) -> dict[str, float]:
    """Computes the bound and its parts in nats, means over all cases `[M, 784]`.

    The noise depends only on the configuration's seed, so that it is the same in every evaluation and for every norm.
    """
    generator = torch.Generator().manual_seed(derive_seed(config.seed, EVALUATION))
    kl = reconstruction = 0.0
    for part in cases.split(CHUNK):
        noise = torch.randn(config.glimpses, len(part), config.latent, generator=generator).to(part.device)
        parts = model(part.float(), noise)
        kl += float(parts.kl.double().sum())
        reconstruction += float(parts.reconstruction.double().sum())
    count = len(cases)
    return {"bound": (kl + reconstruction) / count, "kl": kl / count, "reconstruction": reconstruction / count}


_NORMS = ("none", "layer")

EXPERIMENT = Experiment(
    name="draw",
    examples=(
        "layernorm run draw --preset laptop",
        "layernorm run draw --preset paper --epochs 100 --out runs/draw-figure4",
        "layernorm run draw --norm layer rms --glimpses 8 --epochs 1 --data ~/amat",
    ),
    presets={
        "laptop": Preset(
            "2 epochs of 8 glimpses, read through a 5 x 5 grid; two seeds and five learning rates",
            claims.laptop(),
            {"norm": _NORMS, "learning_rate": claims.TRIALS[0.0].rates, "seed": PILOT_SEEDS},
        ),
        "smoke": Preset(
            "1 epoch of 2 glimpses, 16 hidden units",
            Config(epochs=1, glimpses=2, hidden=16, latent=8, evaluate_every=196),
            {"norm": _NORMS, "seed": (0,)},
        ),
        "paper": Preset(
            "the paper's protocol: 64 glimpses, 200 epochs; three seeds", Config(), {"norm": _NORMS, "seed": (0, 1, 2)}
        ),
    },
    load=lambda config, data: BINARIZED_MNIST.load(data),
    check=check_draw,
    task=draw_task,
    report=report.OUTLINE.report,
    claims=claims.CLAIMS,
    sampler=samples.SAMPLER,
)
