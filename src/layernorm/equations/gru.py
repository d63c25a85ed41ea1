"""GRU, eqs. 26-28, in torch's convention (z keeps the old state; the paper's z is its complement):

r, z = sigmoid(LN(W_rz x_t) + LN(U_rz h_{t-1}))
n    = tanh(LN(W_n x_t) + r * LN(U_n h_{t-1}))
h_t  = (1 - z) * n + z * h_{t-1}

z is what keeps the old state: a formula's ``forget_bias`` is added to its summed input.
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
    n_hidden: Tensor
    rz_gates: GateSaved
    n_gate: GateSaved


class GRU:
    """The equations of one layer with its parameters, and their backward."""

    def __init__(self, p: Parameters, recurrence: Recurrence, batch_norm: BatchNorm | None = None) -> None:
        self.p, self.recurrence = p, recurrence
        H = p["weight_hh"].shape[0] // 3
        self.sizes = (2 * H, H)
        self.rz = gate_sites(p, recurrence, batch_norm, 0, 2)
        self.candidate = gate_sites(p, recurrence, batch_norm, 2, 3)
        self.forget_bias = recurrence.formula.forget_bias

    def input_side(self, zx: Tensor) -> Tensor:
        rz, n = zx.split(self.sizes, -1)
        return torch.cat([self.rz.input(rz), self.candidate.input(n)], -1)

    def activate(self, a_rz: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the gates r, z from their summed inputs: [..., 2H] -> twice [..., H]."""
        r, z = a_rz.chunk(2, -1)
        return torch.sigmoid(r), torch.sigmoid(z + self.forget_bias)

    def step(self, t: int, from_input: Tensor, zh: Tensor, state: State) -> State:
        """Takes step t: [B, 3H], [B, 3H], (h [B, H],) -> (h [B, H],)."""
        h = state[0]
        x_rz, x_n = from_input.split(self.sizes, -1)
        h_rz, h_n = zh.split(self.sizes, -1)
        r, z = self.activate(self.rz.both(x_rz + self.rz.hidden(h_rz, t), t))
        n = torch.tanh(self.candidate.both(x_n + r * self.candidate.hidden(h_n, t), t))
        return ((1 - z) * n + z * h,)

    def activations(self, zx: Tensor, zh: Tensor, before: State) -> Activations:
        (zx_rz, zx_n), (zh_rz, zh_n) = zx.split(self.sizes, -1), zh.split(self.sizes, -1)
        a_rz, _, _, rz_gates = self.rz.forward(zx_rz, zh_rz)
        r, z = self.activate(a_rz)
        a_n, _, n_hidden, n_gate = self.candidate.forward(zx_n, zh_n, r)
        return Activations(r, z, torch.tanh(a_n), n_hidden, rz_gates, n_gate)

    def step_backward(self, index: Index, d: State, before: State, s: Activations) -> StepGradients:
        dh, h = d[0], before[0][index]
        r, z, n, n_hidden = (gate[index] for gate in s[:4])
        da_n = dh * (1 - z) * (1 - n * n)
        dsum_n = self.candidate.both.backward(da_n, saved_at(s.n_gate.both, index))
        dr, dz = dsum_n * n_hidden, dh * (h - n)
        da_rz = torch.cat([dr * r * (1 - r), dz * z * (1 - z)], -1)
        dsum_rz = self.rz.both.backward(da_rz, saved_at(s.rz_gates.both, index))
        dzh_rz = self.rz.hidden.backward(dsum_rz, saved_at(s.rz_gates.hidden, index))
        dzh_n = self.candidate.hidden.backward(dsum_n * r, saved_at(s.n_gate.hidden, index))
        dzh = torch.cat([dzh_rz, dzh_n], -1)
        return StepGradients(dzh, (dh * z,), (da_rz, dsum_rz, da_n, dsum_n, dzh))

    def input_backward(self, s: Activations, steps: tuple[Tensor, ...]) -> Tensor:
        _, dsum_rz, _, dsum_n, _ = steps
        dzx_rz = self.rz.input.backward(dsum_rz, s.rz_gates.input)
        return torch.cat([dzx_rz, self.candidate.input.backward(dsum_n, s.n_gate.input)], -1)

    def factors(self, h: Tensor, s: Activations, steps: tuple[Tensor, ...]) -> Factors:
        return {"weight_hh": (steps[4], h)}

    def vector_gradients(self, s: Activations, steps: tuple[Tensor, ...], dzx: Tensor) -> Parameters:
        da_rz, dsum_rz, da_n, dsum_n, dzh = steps
        (dzx_rz, dzx_n), (dzh_rz, dzh_n) = dzx.split(self.sizes, -1), dzh.split(self.sizes, -1)
        of_rz = self.rz.parameter_gradients((dsum_rz, dsum_rz, da_rz), (dzx_rz, dzh_rz, dsum_rz), s.rz_gates)
        of_n = self.candidate.parameter_gradients((dsum_n, dsum_n * s.r, da_n), (dzx_n, dzh_n, dsum_n), s.n_gate)
        return {name: torch.cat([of_rz[name], of_n[name]]) for name in of_rz}
