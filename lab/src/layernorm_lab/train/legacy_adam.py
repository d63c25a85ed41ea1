"""Adam as in the original code of 6.1 and 6.3, which has nearly no bias correction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch


class LegacyAdam(torch.optim.Adam):
    r"""Adam with the correction terms of the paper's order embeddings and skip-thoughts.

    .. math::
        m_t &= 0.9\, m_{t-1} + 0.1\, g_t, \quad v_t = 0.999\, v_{t-1} + 0.001\, g_t^2 \\
        \theta_t &= \theta_{t-1} - \eta\, \frac{\sqrt{1 - 0.001^t}}{1 - 0.1^t}\, \frac{m_t}{\sqrt{v_t} + 10^{-8}}

    The corrections have 0.1 and 0.001 to the power t where Adam has 0.9 and 0.999. They are 1 after a few steps, so
    that the first steps are 3 to 7 times as long as Adam's. t counts the calls of `step`. A parameter must have a
    gradient in all of them or in none.

    Args:
        params: as in `torch.optim.Adam`.
        lr: the learning rate, eta in the equation.
        fused: as in `torch.optim.Adam`.

    Source: the public code of Vendrov et al., "Order-Embeddings of Images and Language", 2016.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, *, fused: bool | None = None) -> None:
        super().__init__(params, lr=lr, betas=(0.9, 0.999), eps=1e-8, fused=fused)
        for group in self.param_groups:
            group["steps"] = 0  # counted here, too: torch's own counts are tensors, and reading them waits for the GPU

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes one step of torch's Adam, with the learning rate and eps for which its own corrections cancel out."""
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["steps"] += 1
            count = group["steps"]
            first, second = 1 - 0.9**count, math.sqrt(1 - 0.999**count)  # what torch divides by
            group["lr"] *= math.sqrt(1 - 0.001**count) / (1 - 0.1**count) * first / second
            group["eps"] = 1e-8 / second
        try:
            return super().step(closure)
        finally:
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["lr"] = rate


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"legacy_adam": LegacyAdam, "adam": torch.optim.Adam}
"""The optimisers, by the names that configurations give them."""
