"""Experiment 6.5: handwriting synthesis on IAM-OnDB, Figure 5. Layer norm in three LSTMs against none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from . import handwriting_data, handwriting_report, handwriting_sampling
from .experiment import Experiment, Preset, Sampler, Task, check_ranges, option
from .handwriting_data import Handwriting, Sequences
from .handwriting_network import Synthesis
from .mixture import log_density
from .sampling import INIT, Shuffled, derive_seed

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class Config:
    """Options of the experiment; the defaults are the paper's protocol."""

    norm: Literal["none", "layer", "rms", "weight"] = option(
        "layer",
        "what is normalised in the LSTMs: nothing, summed inputs and cells (layer, rms), weights",
        several="norm",
    )
    seed: int = option(0, "of the initial weights and of the order of the training lines", several="seeds", least=0)
    updates: int = option(20000, "of the weights", least=1)
    batch_size: int = option(8, "training lines in a batch, over all processes together", least=1)
    points: int = option(500, "lines are cut to so many points", least=1)
    units: int = option(400, "in each of the three LSTMs", least=1)
    mixtures: int = option(20, "Gaussians in the density of the next point", least=1)
    learning_rate: float = option(1e-3, "Adam's step size", above=0)
    evaluate_every: int = option(200, "updates between evaluations", least=1)
    valid_lines: int = option(0, "evaluate on so many lines, spread over all 1438 (0: all)", least=0)

    def __post_init__(self) -> None:
        check_ranges(self)


def build(config: Config) -> Synthesis:
    """The network. One seed gives the same weights whatever the norm (but under weight norm, their directions)."""
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(config.seed, INIT))
        norm = None if config.norm == "none" else config.norm
        return Synthesis(norm, config.units, config.mixtures)


def check(config: Config, data: Handwriting) -> None:
    """Compares a configuration with the number of lines.

    Raises:
        ValueError: there are too few; the message names the option.
    """
    for name, kind in (("batch_size", "train"), ("valid_lines", "valid")):
        if getattr(config, name) > data.facts[kind]:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"{flag} must be at most {data.facts[kind]}, all lines, got {getattr(config, name)}")


def task(config: Config, data: Handwriting, accelerator: Accelerator) -> Task:
    """One run: the network, Adam, and what a batch's loss is."""
    device = accelerator.device
    train = data.sequences(valid=False, points=config.points)
    valid = data.sequences(valid=True, points=config.points)
    if config.valid_lines:
        valid = valid[torch.arange(config.valid_lines) * len(valid) // config.valid_lines]
    order = Shuffled(len(train), config.batch_size, config.seed, accelerator.process_index, accelerator.num_processes)
    model = build(config)

    def loss(model: nn.Module, update: int) -> Tensor:
        rows, size = order.share(update)
        # every process has to have gradients, also one that gets none of a small batch's lines
        lines = train[rows] if len(rows) else train[:1]
        return nats(model, lines.to(device)).sum() * (len(rows) > 0) / size

    def evaluate(model: nn.Module) -> dict[str, float]:
        parts = [nats(model, valid[start : start + 64].to(device)) for start in range(0, len(valid), 64)]
        total = float(torch.cat(parts).double().sum())
        return {"valid_nll": 500 * total / int(valid.lengths.sum()), "valid_nll_line": total / len(valid)}

    return Task(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=config.learning_rate, fused=True),
        updates=config.updates,
        evaluate_every=config.evaluate_every,
        updates_per_epoch=order.updates_per_epoch,
        loss=loss,
        evaluate=evaluate,
        seen=order.seen,
    )


def nats(model: nn.Module, lines: Sequences) -> Tensor:
    """The negative log-likelihood of each line `(B,)`, in nats; of the padding nothing counts."""
    T, U = int(lines.lengths.max()), int(lines.characters.max())
    points = lines.points[:, : T + 1].transpose(0, 1).contiguous()
    y = model(points[:-1], lines.text[:, :U], lines.characters)
    inside = torch.arange(T, device=points.device)[:, None] < lines.lengths
    # where, not a product: what the network says beyond a line's end may be infinite
    return -torch.where(inside, log_density(y.float(), points[1:]), 0.0).sum(0)


def load(config: Config, data: Path | None) -> Handwriting:
    """The data set of a configuration."""
    return handwriting_data.load(data)


_NORMS = ("none", "layer")

EXPERIMENT = Experiment(
    name="handwriting",
    summary="handwriting synthesis on IAM-OnDB (6.5, Figure 5): layer norm in three LSTMs against none",
    examples=(
        "layernorm data prepare iam-ondb --source ~/iam-ondb",
        "layernorm run handwriting --preset laptop",
        "layernorm run handwriting --norm layer weight --seeds 0 --updates 300",
    ),
    presets={
        "laptop": Preset(
            "600 updates on lines of 200 points, 64 lines to evaluate on, two seeds",
            Config(updates=600, points=200, evaluate_every=20, valid_lines=64),
            {"norm": _NORMS, "seed": (0, 1)},
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
    load=load,
    check=check,
    task=task,
    report=handwriting_report.report,
    # Two threads wait for each other between the small operations of 500 steps.
    threads=1,
    sampler=Sampler(
        options=handwriting_sampling.Options,
        sample=handwriting_sampling.sample,
        examples=(
            "layernorm sample handwriting RUN --text 'Layer normalization'",
            "layernorm sample handwriting RUN --text 'more of the same' --bias 1",
            "layernorm sample handwriting RUN --text 'in her hand' --prime a01-020x-01",
        ),
    ),
)
