"""The soft window on the text: a mixture of bell curves over the characters. Its reading is an input of the network.

Letters in shapes: B batch, U characters, K window components, A characters of the alphabet.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def window_step(p: Tensor, kappa: Tensor, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Computes one step of the soft window from p `(B, 3K)`, the logarithms of alpha, of beta and of the step of kappa,
    from kappa `(B, K)` at the point before, and from codes `(B, U, A)`. Returns phi `(B, U + 1)` of the characters u =
    1..U and of the place after the last one, the reading w `(B, A)`, and kappa."""
    alpha, beta, way = p.exp().chunk(3, 1)
    kappa = kappa + way
    u = torch.arange(1, codes.shape[1] + 2, dtype=p.dtype, device=p.device)
    bells = torch.exp(-beta[:, :, None] * (kappa[:, :, None] - u).square())
    phi = torch.einsum("bk,bku->bu", alpha, bells)
    return phi, torch.einsum("bu,bua->ba", phi[:, :-1], codes), kappa


def read_window(p: Tensor, kappa: Tensor, codes: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the reading and kappa of `window_step` for training, as one operation of autograd instead of a dozen
    small ones. ``places``: u = 1..U."""
    reading, kappa = _Window.apply(p, kappa, codes, places)
    return reading, kappa


class _Window(torch.autograd.Function):
    """w = sum_u phi_u c_u,   phi_u = sum_k alpha_k exp(-beta_k (kappa_k - u)^2),   kappa = kappa before + way"""

    @staticmethod
    def forward(ctx: Any, p: Tensor, kappa: Tensor, codes: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        alpha, beta, way = p.exp().chunk(3, 1)
        kappa = kappa + way
        apart = kappa[:, :, None] - places  # (B, K, U)
        bells = (apart.square() * -beta[:, :, None]).exp_().mul_(alpha[:, :, None])
        ctx.save_for_backward(apart, bells, beta, way, codes)
        return torch.bmm(bells.sum(1, keepdim=True), codes).squeeze(1), kappa

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_reading: Tensor, d_kappa: Tensor) -> tuple[Tensor, Tensor, None, None]:
        apart, bells, beta, way, codes = ctx.saved_tensors
        d_phi = torch.bmm(codes, d_reading[:, :, None]).mT  # (B, 1, U)
        of_alpha = bells * d_phi
        slanted = of_alpha * apart
        # d phi / d kappa = -2 beta apart bells, and beta's share of the exponent is -beta apart^2
        by_kappa = d_kappa - 2 * beta * slanted.sum(2)
        d_p = torch.cat([of_alpha.sum(2), -beta * (slanted * apart).sum(2), by_kappa * way], 1)
        return d_p, by_kappa, None, None
