"""What agents learn from a rollout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def advantages(rewards: Tensor, values: Sequence[Tensor], begins: Tensor, discount: float, decay: float) -> Tensor:
    """Computes generalised advantages (Schulman et al. 2016): rewards (T, B), values of T + 1 times -> (T, B).

    ``begins``: (T + 1, B) bool, whether an episode begins; what comes later does not count for the step before.
    """
    later, found = torch.zeros_like(values[0]), torch.zeros_like(rewards)
    for step in reversed(range(len(rewards))):
        goes_on = discount * ~begins[step + 1]
        later = rewards[step] + goes_on * values[step + 1] - values[step] + goes_on * decay * later
        found[step] = later
    return found
