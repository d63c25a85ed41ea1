"""Batch norm in a recurrent network (Cooijmans et al. 2016): statistics over the training cases, by time step.

z_hat_t = (z_t - mean_t) / sqrt(var_t + eps),   mean_t and var_t of each unit over the cases that count at step t

A step at which fewer than two cases count takes the statistics of the last step at which two did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..formula import Recurrence
from .norms import reciprocal_deviation

Moments = tuple[Tensor, Tensor]
ALL = slice(None)  # every time step at once


class BatchMoments(NamedTuple):
    """What one training batch tells about the population."""

    cases: Tensor  # (T,), how many counted
    moments: dict[str, Moments]  # for each gain: mean (T, n) and biased variance (T, n)


class Cases:
    """The cases of one batch, as the sites of a network need them.

    Args:
        counted: (T, B, 1) bool, which cases count; ``None``: all that have a line.
        cases: (T,), how many count at each step.
        population: for each gain the mean and variance (T, n) to normalise by; ``None``: the batch's own.
        sizes: of a packed call how many rows take each step.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        counted: Tensor | None,
        cases: Tensor,
        population: Mapping[str, Moments] | None,
        sizes: Sequence[int] | None = None,
    ) -> None:
        self.counted, self.population, self.cases, self.sizes = counted, population, cases, sizes
        self.eps, self.eps_on = recurrence.formula.eps, recurrence.formula.eps_on
        self.moments_by_site: dict[tuple[str, int], list[Moments]] = {}

    def standardize(self, z: Tensor, gain: str, units: slice, t: int | slice) -> Tensor:
        """Computes z_hat at one step, (B, n), or at all, of the site that has these units of a gain."""
        if self.sizes is not None and isinstance(t, slice):
            steps = enumerate(z[0].split(list(self.sizes)))
            return torch.cat([self.standardize(rows, gain, units, step) for step, rows in steps] or [z[0]])[None]
        if self.population is not None:
            mean, var = (s[t][..., units] for s in self.population[gain])
        else:
            mean, var = self._moments(z, self.moments_by_site.setdefault((gain, units.start or 0), []), t)
        return (z - mean.unsqueeze(-2)) * reciprocal_deviation(var, self.eps, self.eps_on).unsqueeze(-2)

    def _moments(self, z: Tensor, before: list[Moments], t: int | slice) -> Moments:
        """Computes the moments over the cases, (n,) or (T, n); ``before`` has those of the steps before."""
        mean, var = moments(z, None if self.counted is None else self.counted[t])
        if self.counted is not None:
            enough = self.cases >= 2
            if isinstance(t, slice):
                steps = torch.arange(len(enough), device=z.device)
                last = torch.where(enough, steps, 0).cummax(0).values if len(enough) else steps
                mean, var = mean[last], var[last]
            elif before:
                mean, var = (torch.where(enough[t], new, old) for new, old in zip((mean, var), before[-1], strict=True))
        elif self.sizes is not None and before and len(z) < 2:
            mean, var = before[-1]
        before.append((mean, var))
        return mean, var

    def batch_moments(self) -> BatchMoments:
        """Returns the batch's moments, once every step is taken."""
        by_gain: dict[str, list[Moments]] = {}
        for gain, start in sorted(self.moments_by_site):
            steps = self.moments_by_site[gain, start]
            all_t = steps[0] if steps[0][0].dim() == 2 else tuple(torch.stack(s) for s in zip(*steps, strict=True))
            by_gain.setdefault(gain, []).append(all_t)  # type: ignore[arg-type]
        joined = {gain: [torch.cat(part, -1) for part in zip(*parts, strict=True)] for gain, parts in by_gain.items()}
        return BatchMoments(self.cases, {gain: (mean, var) for gain, (mean, var) in joined.items()})


def moments(z: Tensor, counted: Tensor | None) -> Moments:
    """Computes mean and biased variance over the cases that count: (..., B, n) -> (..., n) twice."""
    if counted is None:
        counted, n = torch.ones((), dtype=torch.bool, device=z.device), z.new_tensor(z.shape[-2])
    else:
        n = counted.sum(-2).to(z.dtype)

    def mean_of(v: Tensor) -> Tensor:
        return torch.where(counted, v, 0.0).sum(-2) / n.clamp_min(1)

    mean = mean_of(z)
    mean = mean + mean_of(z - mean.unsqueeze(-2))  # its rounding error: see `centre`
    return mean, mean_of((z - mean.unsqueeze(-2)).square())
