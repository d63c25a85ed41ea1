"""The network of experiment 6.6, two hidden layers with or without a norm."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from layernorm.nn import BatchNorm, LayerNorm

from ...train.batches import INIT, derive_seed
from .config import BATCH_NORMS, Config


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
