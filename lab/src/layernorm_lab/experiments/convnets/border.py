"""Whether units near the image's border differ from the rest of their layer: section 6.7's reason, measured."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .network import Unit

CHUNK = 200
"""The number of images that are measured together."""

SHOWN = ("share", "mean", "deviation")
"""The measures at each distance: the share of units that are on (above 0), their mean, their deviation."""


def distances(height: int, width: int) -> Tensor:
    """Computes the distance of each position `[H, W]` of a map from its nearest border, 0 at the border."""
    down, across = torch.arange(height), torch.arange(width)
    down, across = torch.minimum(down, height - 1 - down), torch.minimum(across, width - 1 - across)
    return torch.minimum(down[:, None], across[None, :])


class Statistics:
    """The measures of the units of one layer, summed over images that come in parts.

    Args:
        shape: the shape of the layer's maps, (C, H, W).
    """

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.images = 0
        self.sums = torch.zeros(3, *shape, dtype=torch.float64)  # images with the unit on, activations, their squares
        self.distance = distances(*shape[1:]).flatten()

    def add(self, maps: Tensor) -> None:
        """Adds activations `[B, C, H, W]`."""
        wide = maps.double()
        self.sums += torch.stack([(maps > 0).double().sum(0), wide.sum(0), wide.square().sum(0)]).cpu()
        self.images += len(maps)

    def profile(self) -> Tensor:
        """Returns the rows `SHOWN` at each of D distances from the border, over all units there, `[3, D]`."""
        return _shown(self._by_distance(self.sums.mean(1).flatten(1) / self.images))

    def contrast(self) -> Tensor:
        """Returns the rows `SHOWN` over the units at the border and over those of the centre, the inner half of the
        distances, `[3, 2]`."""
        last = self.distance.max()
        places = [self.distance == 0, self.distance > last // 2]
        sums = self.sums.mean(1).flatten(1) / self.images
        return _shown(torch.stack([sums[:, place].mean(1) for place in places], 1))

    def explained(self) -> Tensor:
        """Returns the shares, between distances from the border and between channels, of the variance over units of how
        many images turn a unit on, `[2]`; 0 if all units are alike."""
        share = self.sums[0].flatten(1) / self.images  # [C, H W]
        mean, total = share.mean(), share.var(correction=0)
        rings = self._by_distance(share.mean(0)[None])[0][self.distance]  # [H W]
        between = torch.stack([(rings - mean).square().mean(), (share.mean(1) - mean).square().mean()])
        return between / total if total > 0 else torch.zeros(2, dtype=torch.float64)

    def _by_distance(self, values: Tensor) -> Tensor:
        """Averages values `[N, H W]` over the positions at each distance."""
        count = torch.bincount(self.distance)
        return values.new_zeros(len(values), len(count)).index_add_(1, self.distance, values) / count


def _shown(moments: Tensor) -> Tensor:
    """Makes the rows `SHOWN` of the means of units that are on, of activations and of their squares."""
    share, mean, square = moments
    return torch.stack([share, mean, (square - mean.square()).clamp_min(0).sqrt()])


def measure_units(model: nn.Sequential, images: Tensor) -> list[Statistics]:
    """Measures the units of a network, layer by layer, on scaled images `[M, 3, 32, 32]`. All of it is in evaluation
    mode, but batch norms may normalise by the images that are measured together."""
    statistics: dict[int, Statistics] = {}
    for maps in images.split(CHUNK):
        for number, layer in enumerate(model):
            maps = layer(maps)
            if isinstance(layer, Unit):
                shape = maps.shape[1], maps.shape[2], maps.shape[3]
                statistics.setdefault(number, Statistics(shape)).add(maps)
    return list(statistics.values())
