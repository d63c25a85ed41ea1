"""Initial weights that several experiments draw in the same way."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrize

from layernorm.nn import GRU

_WEIGHTS = ("weight_ih_l0", "weight_hh_l0")


@torch.no_grad()
def draw_gru(gru: GRU) -> None:
    """Draws the weights of a GRU of one layer: those of the inputs uniform on (-0.1, 0.1), those of the states
    orthogonal for each gate.

    They are drawn by torch's generator, those of the inputs first. Gains and biases stay as they are. Weight norm gets
    the direction and the gain of the same weights.
    """
    inputs, states = (torch.empty_like(getattr(gru, name)) for name in _WEIGHTS)
    inputs.uniform_(-0.1, 0.1)
    for block in states.chunk(3):
        nn.init.orthogonal_(block)
    for name, value in zip(_WEIGHTS, (inputs, states), strict=True):
        if parametrize.is_parametrized(gru, name):
            setattr(gru, name, value)
        else:
            getattr(gru, name).copy_(value)
