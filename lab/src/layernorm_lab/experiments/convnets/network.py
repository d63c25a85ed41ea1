"""The network of experiment 6.7, ConvPool-CNN-C with or without a norm."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from layernorm.nn import LayerNorm

from ...data.cifar10 import CLASSES
from ...train.batches import INIT, derive_seed
from .config import Config

SLOPE = 0.1
"""The slope of the leaky ReLU below 0."""


GROUPS = 8
"""The number of groups in group norm, if it divides the number of channels."""


class ChannelsLastNorm(LayerNorm):
    """Layer norm of maps `[B, C, H, W]` whose channels lie last in memory: over `[H, W, C]`, or over `[C]` at each
    position. What it returns lies as its input does, so that the layers after it are as fast as after any other norm.
    """

    def forward(self, input: Tensor) -> Tensor:  # type: ignore[override]
        """Normalises `[B, C, H, W]`."""
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Noise(nn.Module):
    """Adds noise from N(0, deviation^2) in training."""

    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.deviation = deviation

    def forward(self, input: Tensor) -> Tensor:
        """Returns the input, with noise in training."""
        return input + self.deviation * torch.randn_like(input) if self.training and self.deviation else input


NORMS: dict[str, Callable[[int, int], nn.Module]] = {
    "layer": lambda channels, side: ChannelsLastNorm((side, side, channels)),
    # one group of all channels: layer norm over (C, H, W), with a gain and a bias for each channel, as in batch norm
    "layer-shared": lambda channels, side: nn.GroupNorm(1, channels),
    "layer-channels": lambda channels, side: ChannelsLastNorm(channels),
    "batch": lambda channels, side: nn.BatchNorm2d(channels),
    "group": lambda channels, side: nn.GroupNorm(math.gcd(GROUPS, channels), channels),
}
"""The norms between a convolution and its activation, by the number of channels and the side of their maps. Each has a
bias, and the convolution then has none."""


class Unit(nn.Sequential):
    """A convolution with its norm, one of `NORMS`, and the leaky ReLU: a layer of hidden units whose maps have `side`
    positions along a side."""

    def __init__(self, norm: str, inputs: int, outputs: int, size: int, padding: int, side: int) -> None:
        conv = nn.Conv2d(inputs, outputs, size, padding=padding)
        assert conv.bias is not None
        nn.init.zeros_(conv.bias)
        if norm in NORMS:  # removed only now, so that the generator has drawn it under every norm
            conv.bias = None
        nn.init.kaiming_normal_(conv.weight, a=SLOPE)
        after = [NORMS[norm](outputs, side)] if norm in NORMS else []
        # not in place: of a view, which the layer norms return, autograd would copy all of it
        super().__init__(weight_norm(conv) if norm == "weight" else conv, *after, nn.LeakyReLU(SLOPE))


def build_convnet(config: Config) -> nn.Sequential:
    """Builds the network: images `[B, 3, 32, 32]` to logits `[B, 10]`.

    Every layer of units is a `Unit`. One seed gives the same convolutions whatever the norm. All biases begin at 0 and
    all gains at 1, but weight norm's at the length of its weights. In every network each unit has one bias.
    """
    first, second = config.width, 2 * config.width
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(config.seed, INIT))
        layers: list[nn.Module] = [Noise(config.noise)]
        for inputs, outputs, side in ((3, first, 32), (first, second, 16)):
            into = (inputs, outputs, outputs)
            layers += [Unit(config.norm, channels, outputs, 3, padding=1, side=side) for channels in into]
            layers += [nn.MaxPool2d(2), nn.Dropout(config.dropout)]
        layers.append(Unit(config.norm, second, second, 3, padding=0, side=6))
        layers += [Unit(config.norm, second, second, 1, padding=0, side=6) for _ in range(2)]
        last = nn.Linear(second, CLASSES)
        nn.init.kaiming_normal_(last.weight, nonlinearity="linear")
        nn.init.zeros_(last.bias)
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), last]
    return nn.Sequential(*layers)
