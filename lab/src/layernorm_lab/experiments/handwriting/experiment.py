"""Experiment 6.5: handwriting synthesis on IAM-OnDB, Figure 5. Layer norm in three LSTMs against none."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...config import check_most
from ...data.iam import Handwriting, Sequences, load_iam
from ...protocol import Experiment, Preset
from ...report.judge import PILOT_SEEDS
from ...train.batches import Shuffled
from ...train.task import Accelerator, Loss, Task
from . import claims, report, samples
from .config import Config
from .mixture import log_density
from .network import build_synthesis


def check_handwriting(config: Config, data: Handwriting) -> None:
    """Checks that there are enough lines for a batch, and for the evaluation."""
    for name, kind in (("batch_size", "train"), ("valid_lines", "valid")):
        check_most(config, name, data.facts[kind], "lines")


def handwriting_task(config: Config, data: Handwriting, accelerator: Accelerator) -> Task:
    """Makes one run: the network, Adam, and the loss of a batch."""
    device = accelerator.device
    train = data.sequences(valid=False, points=config.points)
    valid = data.sequences(valid=True, points=config.points)
    if config.valid_lines:
        valid = valid[torch.arange(config.valid_lines) * len(valid) // config.valid_lines]
    order = Shuffled.of(len(train), config, accelerator)
    model = build_synthesis(config, accelerator.num_processes)

    def loss(model: nn.Module, update: int) -> Loss:
        rows = order.share(update)
        # every process must have gradients, also one that gets no line of a small batch
        lines = train[rows] if len(rows) else train[:1]
        return nats(model, lines.to(device)).sum() * (len(rows) > 0), len(rows)

    def evaluate(model: nn.Module) -> dict[str, float]:
        parts = [nats(model, valid[start : start + 64].to(device)) for start in range(0, len(valid), 64)]
        total = float(torch.cat(parts).double().sum())
        return {"valid_nll": 500 * total / int(valid.lengths.sum()), "valid_nll_line": total / len(valid)}

    return Task.of(config, order, model, loss, evaluate, shown={"valid_nll": "valid NLL {:.1f}"})


def nats(model: nn.Module, lines: Sequences) -> Tensor:
    """Computes the negative log-likelihood of each line `(B,)`, in nats. The padding does not count."""
    T, U = int(lines.lengths.max()), int(lines.characters.max())
    points = lines.points[:, : T + 1].transpose(0, 1).contiguous()
    y = model(points[:-1], lines.text[:, :U], lines.characters)
    inside = torch.arange(T, device=points.device)[:, None] < lines.lengths
    # where, not a product: the network's output after a line's end may be infinite
    return -torch.where(inside, log_density(y.float(), points[1:]), 0.0).sum(0)


_NORMS = ("none", "layer")

EXPERIMENT = Experiment(
    name="handwriting",
    examples=(
        "layernorm data prepare iam-ondb --source ~/iam-ondb",
        "layernorm run handwriting --preset laptop",
        "layernorm run handwriting --norm layer weight --seeds 0 --updates 300",
    ),
    presets={
        "laptop": Preset(
            "600 updates on lines of 200 points, 64 lines to evaluate on; two seeds and five learning rates",
            claims.LAPTOP,
            {"norm": _NORMS, "learning_rate": claims.TRIAL.rates, "seed": PILOT_SEEDS},
        ),
        "smoke": Preset(
            "4 updates on lines of 40 points, 16 units",
            Config(updates=4, points=40, units=16, evaluate_every=2, valid_lines=4, batch_size=4),
            {"norm": _NORMS, "seed": (0,)},
        ),
        "paper": Preset(
            "the paper's protocol: lines of 500 points; 20,000 updates, three seeds",
            Config(),
            {"norm": _NORMS, "seed": (0, 1, 2)},
        ),
    },
    load=lambda config, data: load_iam(data, cleaned=config.lines == "cleaned"),
    check=check_handwriting,
    task=handwriting_task,
    report=report.OUTLINE.report,
    claims=claims.CLAIMS,
    # Two threads wait for each other between the small operations of 500 steps.
    threads=1,
    sampler=samples.SAMPLER,
)
