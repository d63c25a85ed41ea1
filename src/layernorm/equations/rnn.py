"""RNN, eq. 4:  h_t = f(LN(W_ih x_t + W_hh h_{t-1}; gain, bias_ih + bias_hh)),  f = tanh or relu."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..formula import Recurrence
from .arguments import Index
from .batch_norm import BatchNorm
from .network import Factors, StepGradients
from .schedule import State
from .sites import GateSaved, Parameters, gate_sites, saved_at


class Activations(NamedTuple):
    """What the forward computed, for all steps at once: [T, B, H] each."""

    h: Tensor
    gates: GateSaved


class RNN:
    """The equations of one layer with its parameters, and their backward."""

    def __init__(self, p: Parameters, recurrence: Recurrence, batch_norm: BatchNorm | None = None) -> None:
        self.p, self.recurrence, self.gates = p, recurrence, gate_sites(p, recurrence, batch_norm)
        self.relu = recurrence.nonlinearity == "relu"

    def input_side(self, zx: Tensor) -> Tensor:
        return self.gates.input(zx)

    def step(self, t: int, from_input: Tensor, zh: Tensor, state: State) -> State:
        """Takes step t: [B, H], [B, H], (h [B, H],) -> (h [B, H],)."""
        a = self.gates.both(from_input + self.gates.hidden(zh, t), t)
        return (torch.relu(a) if self.relu else torch.tanh(a),)

    def activations(self, zx: Tensor, zh: Tensor, before: State) -> Activations:
        a, _, _, gates = self.gates.forward(zx, zh)
        return Activations(torch.relu(a) if self.relu else torch.tanh(a), gates)

    def step_backward(self, index: Index, d: State, before: State, s: Activations) -> StepGradients:
        dh, h = d[0], s.h[index]
        da = torch.where(h > 0, dh, 0.0) if self.relu else dh * (1 - h * h)
        dsum = self.gates.both.backward(da, saved_at(s.gates.both, index))
        dzh = self.gates.hidden.backward(dsum, saved_at(s.gates.hidden, index))
        return StepGradients(dzh, (None,), (da, dsum, dzh))

    def input_backward(self, s: Activations, steps: tuple[Tensor, ...]) -> Tensor:
        return self.gates.input.backward(steps[1], s.gates.input)

    def factors(self, h: Tensor, s: Activations, steps: tuple[Tensor, ...]) -> Factors:
        return {"weight_hh": (steps[2], h)}

    def vector_gradients(self, s: Activations, steps: tuple[Tensor, ...], dzx: Tensor) -> Parameters:
        da, dsum, dzh = steps
        return self.gates.parameter_gradients((dsum, dsum, da), (dzx, dzh, dsum), s.gates)
