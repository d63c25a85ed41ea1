"""One layer step by step: for networks that make a step's input of the output before it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..formula import Recurrence
from .arguments import StateChanges
from .dispatch import kernel
from .recurrent import (
    EVERY_ROW,
    Contribution,
    backward_steps,
    forward_steps,
    joined,
    network_of,
    parameter_gradients,
    parameters_by_name,
)
from .schedule import State


class SteppedLayer:
    """A layer's equations with its parameters (`PreparedLayer`)."""

    def __init__(self, params: Sequence[Tensor], recurrence: Recurrence) -> None:
        self.recurrence, self.dtype = recurrence, params[0].dtype
        self.device = params[0].device  # `kernel` asks for it
        self.p = parameters_by_name([p.detach() for p in params], recurrence, self.dtype)
        self.network = network_of(self.p, recurrence)
        self.compute_type = self.p["weight_ih"].dtype

    @kernel
    def forward(
        self, input: Tensor, state: Sequence[Tensor], dropout: Tensor | None, save: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        zx = self.multiply(input.to(self.compute_type), self.p["weight_ih"].T)
        before = tuple(s.to(self.compute_type) for s in state)
        after = self.take_step(zx, before, StateChanges(dropout=dropout))
        return [s.to(input.dtype) for s in after], [zx]

    def backward_pass(self) -> SteppedBackwardPass:
        return SteppedBackwardPass(self)

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """Multiplies over all rows (`Multiply`)."""
        return a @ b

    def take_step(self, zx: Tensor, state: State, changes: StateChanges) -> State:
        """Takes one step from (B, G*H) and the state before it: the state after it."""
        return forward_steps(self.network, zx[None], state, EVERY_ROW, changes, save=False).final

    def take_step_back(
        self, zx: Tensor, zh: Tensor, before: State, dy: Tensor, d: State, changes: StateChanges
    ) -> tuple[State, Contribution]:
        """Takes one step back by `backward_steps`, T = 1."""
        return backward_steps(self.network, zx, zh, before, dy, d, changes=changes)


class SteppedBackwardPass:
    """The way back (`BackwardPass`); every gradient of a weight is one product over all steps, at the end."""

    def __init__(self, layer: SteppedLayer) -> None:
        self.layer, self.device = layer, layer.device
        self.inputs: list[Tensor] = []
        self.contributions: list[Contribution] = []

    @kernel
    def step(
        self,
        input: Tensor,
        state: Sequence[Tensor],
        dropout: Tensor | None,
        saved: Sequence[Tensor],
        grad_state: Sequence[Tensor | None],
    ) -> list[Tensor]:
        layer = self.layer
        before = tuple(s.to(layer.compute_type)[None] for s in state)
        grads_after = zip(before, grad_state, strict=True)
        d = tuple(torch.zeros_like(s[0]) if g is None else g.to(s.dtype) for s, g in grads_after)
        dy, changes = torch.zeros_like(before[0]), StateChanges(dropout=dropout)
        zx, zh = saved[0][None], layer.multiply(changes.apply_dropout(before[0]), layer.p["weight_hh"].T)
        previous, contribution = layer.take_step_back(zx, zh, before, dy, d, changes)
        self.inputs.append(input.to(layer.compute_type)[None])
        self.contributions.append(contribution)
        return [g.to(input.dtype) for g in (layer.multiply(contribution.dzx[0], layer.p["weight_ih"]), *previous)]

    @kernel
    def gradients(self) -> list[Tensor]:
        grads = parameter_gradients(torch.cat(self.inputs), joined(self.contributions), self.layer.multiply)
        return [grads[name].to(self.layer.dtype) for name in self.layer.recurrence.parameter_names]


prepare = SteppedLayer
