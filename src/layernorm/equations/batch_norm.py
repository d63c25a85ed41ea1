"""Batch norm in a recurrent network (Cooijmans et al. 2016): moments over the rows of the batch, step by step.

z_hat_t = (z_t - mean_t) / sqrt(var_t + eps),   mean_t and var_t of each unit over the rows that count at step t

A step at which fewer than two rows count takes the moments of the last step at which two did. In evaluation the moments
are given, those of a population.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .arguments import RecurrentArguments
from .norms import reciprocal_deviation
from .schedule import Schedule, count_rows

Moments = tuple[Tensor, Tensor]
ALL = slice(None)  # every time step at once


class Standardized(NamedTuple):
    """What `BatchNorm.backward` needs, of one step's rows or of all lines.

    Attributes:
        z_hat: (..., n).
        r: of the moments, (..., 1 or rows, n).
        direction: factor of the gradient through the deviation: 1 with eps in the variance, (sqrt(var) + eps) /
            sqrt(var) with eps added to the deviation.
        share: (..., 1), 1 / (rows that count at this step); 0 for a row that does not count, and at a step that took
            over an earlier step's moments.
    """

    z_hat: Tensor
    r: Tensor
    direction: Tensor
    share: Tensor


class BatchNorm:
    """The moments of one call, as the sites of a network need them.

    Args:
        a: the call.
        schedule: of the call.
        made: in a backward the moments that the forward has found, mean and variance (T, n) of each gain.
    """

    def __init__(self, a: RecurrentArguments, schedule: Schedule, made: Sequence[Tensor] = ()) -> None:
        formula = a.recurrence.formula
        self.eps, self.eps_on, self.schedule = formula.eps, formula.eps_on, schedule
        self.counted = schedule.active  # (T, B, 1) bool, which rows count; None: all that have a line
        if self.counted is not None and a.count_padding:  # beyond the longest row there is no step
            self.counted = self.counted.any(1, keepdim=True).expand_as(self.counted)
        self.counts = count_rows(a)
        moments = made or a.population
        self.known = dict(zip(a.recurrence.gain_names, zip(moments[::2], moments[1::2], strict=True), strict=False))
        self.is_made = bool(made)
        self.found: dict[tuple[str, int], list[Moments]] = {}  # of each site, by its gain and first unit

    def standardize(self, z: Tensor, gain: str, units: slice, t: int | slice) -> Tensor:
        """Computes z_hat at one step, (B, n), or at all, of the site that has these units of a gain."""
        if self.schedule.sizes is not None and isinstance(t, slice):
            steps = enumerate(self.schedule.split(z))
            return torch.cat([self.standardize(rows, gain, units, step) for step, rows in steps] or [z[0]])[None]
        if self.known:
            mean, var = (s[t][..., units] for s in self.known[gain])
        else:
            mean, var = self._find(z, self.found.setdefault((gain, units.start or 0), []), t)
        return (z - mean.unsqueeze(-2)) * reciprocal_deviation(var, self.eps, self.eps_on).unsqueeze(-2)

    def _find(self, z: Tensor, before: list[Moments], t: int | slice) -> Moments:
        """Computes the moments over the rows, (n,) or (T, n); ``before`` has those of the steps before."""
        mean, var = moments(z, None if self.counted is None else self.counted[t])
        if self.counted is not None:
            enough = self.counts >= 2
            if isinstance(t, slice):
                steps = torch.arange(len(enough), device=z.device)
                last = torch.where(enough, steps, 0).cummax(0).values if len(enough) else steps
                mean, var = mean[last], var[last]
            elif before:
                mean, var = (torch.where(enough[t], new, old) for new, old in zip((mean, var), before[-1], strict=True))
        elif self.schedule.sizes is not None and before and len(z) < 2:
            mean, var = before[-1]
        before.append((mean, var))
        return mean, var

    def moments_found(self, a: RecurrentArguments) -> list[Tensor]:
        """Returns mean and variance (T, n) of each gain, once every step is taken; none, if they were given."""
        if not a.sizes[0] or self.known:
            return a.new_moments()
        by_gain: dict[str, list[Any]] = {}
        for gain, start in sorted(self.found):
            steps = self.found[gain, start]
            all_t = steps[0] if steps[0][0].dim() == 2 else tuple(torch.stack(s) for s in zip(*steps, strict=True))
            by_gain.setdefault(gain, []).append(all_t)
        gains = a.recurrence.gain_names
        return [torch.cat(part, -1) for gain in gains for part in zip(*by_gain[gain], strict=True)]

    def standardized(self, z: Tensor, gain: str, units: slice) -> Standardized:
        """Computes z_hat of all lines by moments that are known, and what its backward needs."""
        mean, var = (s[..., units].unsqueeze(-2) for s in self.known[gain])
        r = reciprocal_deviation(var, self.eps, self.eps_on)
        deviation = torch.where(var > 0, var, 1.0).sqrt()
        direction = torch.ones_like(r) if self.eps_on == "variance" else torch.where(var > 0, 1 / (r * deviation), 0.0)
        counts = self.counts.to(z.device)[:, None, None]
        share = torch.where(counts >= 2, 1 / counts.clamp_min(1).to(z.dtype), 0.0)
        if self.counted is not None:
            share = torch.where(self.counted, share, 0.0)
        if self.schedule.sizes is not None:
            rows = torch.tensor(self.schedule.sizes, device=z.device)
            mean, r, direction, share = (
                s[:, 0].repeat_interleave(rows, 0, output_size=z.shape[1])[None] for s in (mean, r, direction, share)
            )
        elif self.counted is None:
            share = share.expand(*z.shape[:2], 1)
        return Standardized((z - mean) * r, r, direction, share)

    def backward(self, d: Tensor, s: Standardized, later: Moments | None) -> tuple[Tensor, Moments | None]:
        """Computes the gradient of z from d of z_hat, at one step.

        z also has a gradient through mean and deviation, if these were made of z. Then ``later`` has the sums of d and
        of d * z_hat from later steps that reused this step's moments. The second result is for the step before: the
        sums, if this step reused moments itself, else zeros. It is None where the moments were given.
        """
        if not self.is_made:
            return d * s.r, None
        of_mean, of_deviation = d.sum(0), (d * s.z_hat).sum(0)
        if later is not None:
            of_mean, of_deviation = of_mean + later[0], of_deviation + later[1]
        through = of_mean + s.z_hat * (s.direction * of_deviation)
        enough = s.share.any()
        going_on = tuple(torch.where(enough, 0.0, part) for part in (of_mean, of_deviation))
        return s.r * (d - s.share * through), going_on  # type: ignore[return-value]


def moments(z: Tensor, counted: Tensor | None) -> Moments:
    """Computes mean and biased variance over the rows that count: (..., B, n) -> (..., n) twice."""
    if counted is None:
        counted, n = torch.ones((), dtype=torch.bool, device=z.device), z.new_tensor(z.shape[-2])
    else:
        n = counted.sum(-2).to(z.dtype)

    def mean_of(v: Tensor) -> Tensor:
        return torch.where(counted, v, 0.0).sum(-2) / n.clamp_min(1)

    mean = mean_of(z)
    mean = mean + mean_of(z - mean.unsqueeze(-2))  # its rounding error: see `centre`
    return mean, mean_of((z - mean.unsqueeze(-2)).square())
