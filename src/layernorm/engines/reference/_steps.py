"""One layer step by step: for networks that make a step's input of the output before it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...formula import Recurrence
from ..dispatch import kernel
from ._recurrent import Share, backward_steps, forward_steps, named, network_of, parameter_gradients
from ._rnn import State
from ._sites import Parameters


class Prepared:
    """A layer's equations with its parameters (`PreparedLayer`)."""

    def __init__(self, params: Sequence[Tensor], recurrence: Recurrence) -> None:
        self.recurrence, self.dtype = recurrence, params[0].dtype
        self.p = named([p.detach() for p in params], recurrence, self.dtype)
        self.network = network_of(self.p, recurrence)
        self.wide = self.p["weight_ih"].dtype

    def forward(self, input: Tensor, state: Sequence[Tensor], save: bool) -> tuple[list[Tensor], list[Tensor]]:
        return _forward(input, state, self)

    def backward_pass(self) -> Back:
        return Back(self)

    def take_step(self, zx: Tensor, state: State) -> tuple[State, Tensor]:
        """`forward_steps` of one step: from (B, G*H) and the state before it to the state after it, and W_hh h."""
        (after,), (zh,) = forward_steps(self.network, [zx], state)
        return after, zh

    def take_step_back(self, zx: Tensor, zh: Tensor, before: State, dy: Tensor, d: State) -> tuple[State, Share]:
        """`backward_steps` of one step, T = 1."""
        return backward_steps(self.network, zx, zh, before, dy, d)


class Back:
    """The way back (`BackwardPass`); every gradient of a weight is one product over all steps, at the end."""

    def __init__(self, layer: Prepared) -> None:
        self.layer = layer
        self.inputs: list[Tensor] = []
        self.shares: list[Share] = []

    def step(
        self, input: Tensor, state: Sequence[Tensor], saved: Sequence[Tensor], grad_state: Sequence[Tensor | None]
    ) -> list[Tensor]:
        found, x, share = _backward(input, state, saved, grad_state, self.layer)
        self.inputs.append(x)
        self.shares.append(share)
        return found

    def gradients(self) -> list[Tensor]:
        grads = _gradients(torch.cat(self.inputs), self.shares)
        return [grads[name].to(self.layer.dtype) for name in self.layer.recurrence.parameter_names]


@kernel
def _forward(input: Tensor, state: Sequence[Tensor], layer: Prepared) -> tuple[list[Tensor], list[Tensor]]:
    """The state after a step; W_ih x and W_hh h."""
    zx = input.to(layer.wide) @ layer.p["weight_ih"].T
    after, zh = layer.take_step(zx, tuple(s.to(layer.wide) for s in state))
    return [s.to(input.dtype) for s in after], [zx, zh]


@kernel
def _backward(
    input: Tensor,
    state: Sequence[Tensor],
    saved: Sequence[Tensor],
    grad_state: Sequence[Tensor | None],
    layer: Prepared,
) -> tuple[list[Tensor], Tensor, Share]:
    before = tuple(s.to(layer.wide)[None] for s in state)
    d = tuple(torch.zeros_like(s[0]) if g is None else g.to(s.dtype) for s, g in zip(before, grad_state, strict=True))
    zx, zh = (z[None] for z in saved)
    previous, share = layer.take_step_back(zx, zh, before, torch.zeros_like(before[0]), d)
    found = [g.to(input.dtype) for g in (share.dzx[0] @ layer.p["weight_ih"], *previous)]
    return found, input.to(layer.wide)[None], share


@kernel
def _gradients(x: Tensor, shares: Sequence[Share]) -> Parameters:
    """By name."""
    return parameter_gradients(x, shares)


def prepare(params: Sequence[Tensor], recurrence: Recurrence) -> Prepared:
    """A layer for steps one by one (`PreparedLayer`)."""
    return Prepared(params, recurrence)
