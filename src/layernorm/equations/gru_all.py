"""GRU with one normalisation over the units of all its gates, ``span="all"``; z keeps the old state as in torch.

split:  x', h' = LN(W x_t), LN(U h_{t-1});    r, z = sigmoid((x' + h')_rz);   n = tanh(x'_n + r * h'_n)
sum:    a = LN(W x_t + U h_{t-1});            r, z = sigmoid(a_rz);           n = tanh(r * a_n)
h_t = (1 - z) * n + z * h_{t-1}

In a sum r cannot stand inside: it is not known before all is normalised.
"""

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

    r: Tensor
    z: Tensor
    n: Tensor
    gated: Tensor  # what r multiplies
    gates: GateSaved


class GRUOverAll:
    """The equations of one layer with its parameters, and their backward."""

    def __init__(self, p: Parameters, recurrence: Recurrence, batch_norm: BatchNorm | None = None) -> None:
        self.p, self.recurrence, self.gates = p, recurrence, gate_sites(p, recurrence, batch_norm)
        self.split = recurrence.reset_multiplies == "hidden"
        self.forget_bias = recurrence.formula.forget_bias
        self.H = p["weight_hh"].shape[0] // 3

    def input_side(self, zx: Tensor) -> Tensor:
        return self.gates.input(zx)

    def activate(self, a: Tensor, from_input: Tensor, from_hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Computes r, z, n and what r multiplies: from [..., 3H] to four times [..., H]."""
        a_r, a_z, a_n = a.chunk(3, -1)
        r, z = torch.sigmoid(a_r), torch.sigmoid(a_z + self.forget_bias)
        if not self.split:
            return r, z, torch.tanh(r * a_n), a_n
        x_n, h_n = from_input[..., 2 * self.H :], from_hidden[..., 2 * self.H :]
        return r, z, torch.tanh(x_n + r * h_n), h_n

    def step(self, t: int, from_input: Tensor, zh: Tensor, state: State) -> State:
        """Takes step t: [B, 3H], [B, 3H], (h [B, H],) -> (h [B, H],)."""
        h = state[0]
        from_hidden = self.gates.hidden(zh, t)
        _, z, n, _ = self.activate(self.gates.both(from_input + from_hidden, t), from_input, from_hidden)
        return ((1 - z) * n + z * h,)

    def activations(self, zx: Tensor, zh: Tensor, before: State) -> Activations:
        a, from_input, from_hidden, gates = self.gates.forward(zx, zh)
        return Activations(*self.activate(a, from_input, from_hidden), gates)

    def step_backward(self, index: Index, d: State, before: State, s: Activations) -> StepGradients:
        dh, h = d[0], before[0][index]
        r, z, n, gated = (part[index] for part in s[:4])
        dn = dh * (1 - z) * (1 - n * n)
        d_rz = [dn * gated * r * (1 - r), dh * (h - n) * z * (1 - z)]
        da = torch.cat([*d_rz, dn * r], -1)  # in a split of the hidden side
        d_hidden = self.gates.both.backward(da, saved_at(s.gates.both, index))
        d_input = torch.cat([*d_rz, dn], -1) if self.split else d_hidden
        dzh = self.gates.hidden.backward(d_hidden, saved_at(s.gates.hidden, index))
        return StepGradients(dzh, (dh * z,), (da, d_input, d_hidden, dzh))

    def input_backward(self, s: Activations, steps: tuple[Tensor, ...]) -> Tensor:
        return self.gates.input.backward(steps[1], s.gates.input)

    def factors(self, h: Tensor, s: Activations, steps: tuple[Tensor, ...]) -> Factors:
        return {"weight_hh": (steps[3], h)}

    def vector_gradients(self, s: Activations, steps: tuple[Tensor, ...], dzx: Tensor) -> Parameters:
        da, d_input, d_hidden, dzh = steps
        return self.gates.parameter_gradients((d_input, d_hidden, da), (dzx, dzh, d_hidden), s.gates)
