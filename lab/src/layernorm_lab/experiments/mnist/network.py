"""The network of experiment 6.6, two hidden layers with or without a norm, and the experiment's options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from layernorm.nn import BatchNorm, LayerNorm

from ...protocol import CheckedOptions, decay_option, option, seed_option
from ...train.batches import INIT, derive_seed

BATCH_NORMS = ("batch", "batch-hidden")


@dataclass(frozen=True)
class Config(CheckedOptions):
    """Options of the experiment. The defaults are the paper's protocol."""

    norm: Literal["none", "layer", "batch", "batch-hidden"] = option(
        "layer",
        "what is normalised: nothing; the hidden layers (layer, batch-hidden); all layers, the logits too (batch)",
        several="norm",
    )
    batch_size: int = option(
        128,
        "training cases in a batch, over all processes together",
        several="batch-size",
        mark="b",
        outermost=True,
        least=1,
    )
    seed: int = seed_option("seeds of the initial weights and of the order of the training cases")
    epochs: int = option(60, "passes over the training set", least=1)
    decay: float = decay_option()
    hidden: int = option(1000, "units in each of the two hidden layers", least=1)
    learning_rate: float = option(1e-3, "Adam's step size", mark="lr", above=0)
    held_out: int = option(5000, "cases at the end of the training set that are kept for validation", least=1)
    train_cases: int = option(0, "number of cases to train on, from the first on (0: all)", least=0)
    unbiased_up_to: int = option(4, "largest batch size M at which batch norm's variance divides by M - 1", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm in BATCH_NORMS and self.batch_size == 1:
            raise ValueError("--batch-size must be at least 2 for batch norm, got 1")


def build_mlp(config: Config, inputs: int) -> nn.Sequential:
    """Builds the network: inputs - hidden - hidden - 10, ReLU. One seed gives the same linear weights whatever the
    norm.

    The weights are those of He (2015): normal with variance 2 / inputs, for the logits 1 / inputs. The biases are 0.
    The paper does not give its initial weights. Torch's own weights have a third of this variance. With them the
    baseline's first gradient is 40 times smaller than batch norm's; here they differ by a factor of 4.
    """
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(config.seed, INIT))
        layers: list[nn.Module] = []
        for width, wide in ((inputs, config.hidden), (config.hidden, config.hidden)):
            layers += [_linear(width, wide, "relu"), *_norm_layers(config, wide), nn.ReLU()]
        layers.append(_linear(config.hidden, 10, "linear"))
        if config.norm == "batch":  # "BN on all layers", the logits' too; layer norm leaves those alone
            layers += _norm_layers(config, 10)
    return nn.Sequential(*layers)


def _linear(inputs: int, units: int, nonlinearity: Literal["relu", "linear"]) -> nn.Linear:
    layer = nn.Linear(inputs, units)
    nn.init.kaiming_normal_(layer.weight, nonlinearity=nonlinearity)
    nn.init.zeros_(layer.bias)
    return layer


def _norm_layers(config: Config, units: int) -> list[nn.Module]:
    if config.norm == "layer":
        return [LayerNorm(units)]
    if config.norm in BATCH_NORMS:
        return [BatchNorm(units, unbiased=config.batch_size <= config.unbiased_up_to)]
    return []
