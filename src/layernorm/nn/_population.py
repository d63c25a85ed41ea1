"""Population statistics of a batch-normalised recurrent network: a row for each time step, as buffers of its module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._normalised import check_flags, check_fraction


@dataclass(frozen=True)
class BatchNormOverTime:
    """Settings of batch norm in a recurrent network, for its argument ``norm``.

    Each time step has statistics of its own. ``norm="batch"`` is short for ``norm=BatchNormOverTime()``.

    Attributes:
        max_steps: how many time steps have population statistics of their own, as rows of the buffers
            ``running_mean_*`` and ``running_var_*``. In evaluation these are used instead of the batch's statistics.
            Later steps use the last row that was trained.
        momentum: each training batch moves the population statistics towards its own by this fraction, or by
            1 / (number of batches seen) while that is larger. ``None``: always by 1 / (number of batches seen).
        count_padding: whether sequences that have ended (``lengths``) still count in the statistics, with input 0 and
            their final state.

    Raises:
        TypeError, ValueError: a value is of another type, or out of its range.

    Source: Cooijmans et al., "Recurrent Batch Normalization", 2016, arXiv:1603.09025.
    """

    max_steps: int = 100
    momentum: float | None = 0.1
    count_padding: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.max_steps, int) or isinstance(self.max_steps, bool):
            raise TypeError(f"max_steps should be of type int, got: {type(self.max_steps).__name__}")
        if self.max_steps < 1:
            raise ValueError(f"max_steps must be greater than zero, got {self.max_steps}")
        if self.momentum is not None:
            check_fraction("momentum", self.momentum)
        check_flags(count_padding=self.count_padding)


Norm = str | BatchNormOverTime | None
"""The argument ``norm`` of a network."""


def norm_name(norm: Norm) -> str | None:
    """Returns the name of a network's ``norm``, which for batch norm may be its settings."""
    return "batch" if isinstance(norm, BatchNormOverTime) else norm


class Population:
    """The population statistics of one layer and direction, in buffers of its module.

    For each gain ``gain_X`` there are ``running_mean_X`` and ``running_var_X``, ``(max_steps, units)``. All gains share
    ``num_batches_tracked`` ``(max_steps,)``. Each name ends in the layer's suffix.

    Args:
        module: where the buffers are.
        gains: the names of the gains.
        suffix: of the layer and direction, ``_l0``, ``_l0_reverse``...
    """

    def __init__(self, module: torch.nn.Module, gains: tuple[str, ...], suffix: str) -> None:
        self.module, self.gains, self.suffix = module, gains, suffix

    def register(self, shapes: Mapping[str, tuple[int, ...]], max_steps: int, device: Any, dtype: Any) -> None:
        """Registers the buffers, one row of a gain's shape for each of ``max_steps`` time steps."""
        for gain in self.gains:
            for name in self._names(gain):
                self.module.register_buffer(name, torch.empty(max_steps, *shapes[gain], device=device, dtype=dtype))
        counts = torch.empty(max_steps, device=device, dtype=torch.long)
        self.module.register_buffer(f"num_batches_tracked{self.suffix}", counts)

    def reset(self) -> None:
        """Sets the statistics to mean 0 and variance 1, with no batch tracked."""
        self._tracked.zero_()
        for mean, var in self._buffers():
            mean.zero_()
            var.fill_(1.0)

    def at_steps(self, T: int) -> list[Tensor]:
        """Returns for each gain mean and variance at T time steps, (T, n). The last trained row serves later steps."""
        last = ((self._tracked > 0).sum() - 1).clamp_min(0)
        rows = torch.minimum(torch.arange(T, device=last.device), last)
        return [buffer[rows] for pair in self._buffers() for buffer in pair]

    def update(self, counts: Tensor, moments: Sequence[Tensor], momentum: float | None) -> None:
        """Moves each row towards a batch's mean and unbiased variance.

        It moves by the fraction ``momentum``, or by 1 / (the number of batches that the row has seen) while that is
        larger. A row for which the batch has fewer than two cases does not move.

        Args:
            counts: how many cases the batch has at each time step, (T,).
            moments: for each gain its mean and its biased variance over these, (T, n).
        """
        rows = min(len(counts), len(self._tracked))
        if not rows:
            return
        compute_type = moments[0].dtype
        n = counts[:rows].to(self._tracked.device)
        self._tracked[:rows] += n >= 2
        weight = self._tracked[:rows].clamp_min(1).to(compute_type).reciprocal().clamp_min(momentum or 0.0)
        weight = torch.where(n >= 2, weight, 0.0)[:, None]
        found = [moment[:rows].detach() for moment in moments]
        for (mean, var), new_mean, new_var in zip(self._buffers(), found[::2], found[1::2], strict=True):
            unbiased = new_var * (n.to(compute_type) / (n - 1).clamp_min(1))[:, None]
            mean[:rows] += (weight * (new_mean - mean[:rows])).to(mean.dtype)
            var[:rows] += (weight * (unbiased - var[:rows])).to(var.dtype)

    @property
    def _tracked(self) -> Tensor:
        return self.module.get_buffer(f"num_batches_tracked{self.suffix}")

    def _names(self, gain: str) -> tuple[str, str]:
        site = gain.removeprefix("gain")
        return f"running_mean{site}{self.suffix}", f"running_var{site}{self.suffix}"

    def _buffers(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields mean and variance of each gain."""
        for gain in self.gains:
            mean, var = (self.module.get_buffer(name) for name in self._names(gain))
            yield mean, var
