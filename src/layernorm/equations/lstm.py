"""LSTM, eqs. 20-22:

i, f, g, o = LN(W_hh h_{t-1}; gain_hh, bias_hh) + LN(W_ih x_t; gain_ih, bias_ih)
c_t = sigmoid(f) * c_{t-1} + sigmoid(i) * tanh(g)
h_t = sigmoid(o) * tanh(LN(c_t; gain_c, bias_c)),   projected by weight_hr if there is one
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from ..formula import Recurrence
from .arguments import Index
from .batch_norm import BatchNorm
from .network import Factors, StepGradients
from .schedule import State
from .sites import GateSaved, Parameters, Saved, Site, gate_sites, saved_at


class _WithClippedGradient(torch.autograd.Function):
    """The same tensor; each element of its gradient is clipped to +-limit on the way back."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, limit: float) -> Tensor:
        return a.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.limit = inputs[1]

    @staticmethod
    def backward(ctx: Any, da: Tensor) -> tuple[Tensor, None]:
        return _ClippedGradient.apply(da, ctx.limit), None

    @staticmethod
    def jvp(ctx: Any, da: Tensor, _: None) -> Tensor:
        return da.clone()


class _ClippedGradient(torch.autograd.Function):
    """Clips a gradient to +-limit. The result is not the derivative of any function, so that differentiating it raises
    an error."""

    generate_vmap_rule = True

    @staticmethod
    def forward(da: Tensor, limit: float) -> Tensor:
        return da.clamp(-limit, limit)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.limit = inputs[1]

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> NoReturn:
        raise RuntimeError(f"{_TWICE}, got gate_clip={ctx.limit}")

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> NoReturn:
        raise RuntimeError(f"{_TWICE}, got gate_clip={ctx.limit}")


_TWICE = "second derivatives of an LSTM need gate_clip=None, as a clipped gradient is not the derivative of a function"


class Activations(NamedTuple):
    """What the forward computed, for all steps at once: [T, B, H] each."""

    i: Tensor
    f: Tensor
    g: Tensor
    o: Tensor
    tanh_c: Tensor
    gates: GateSaved
    cell: Saved


class LSTM:
    """The equations of one layer with its parameters, and their backward."""

    def __init__(self, p: Parameters, recurrence: Recurrence, batch_norm: BatchNorm | None = None) -> None:
        self.p, self.recurrence, self.gates = p, recurrence, gate_sites(p, recurrence, batch_norm)
        self.cell = Site(recurrence.places.cell, p, recurrence, batch_norm)
        self.carry = recurrence.formula.cell == "carry"
        self.forget_bias = recurrence.formula.forget_bias
        self.gate_clip = recurrence.gate_clip

    def input_side(self, zx: Tensor) -> Tensor:
        return self.gates.input(zx)

    def activate(self, a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Computes the gates i, f, g, o from their summed inputs: [..., 4H] -> four times [..., H]."""
        i, f, g, o = a.chunk(4, -1)
        return torch.sigmoid(i), torch.sigmoid(f + self.forget_bias), torch.tanh(g), torch.sigmoid(o)

    def step(self, t: int, from_input: Tensor, zh: Tensor, state: State) -> State:
        """Takes step t: [B, 4H], [B, 4H], (h [B, P], c [B, H]) -> (h [B, P], c [B, H])."""
        c = state[1]
        a = self.gates.both(from_input + self.gates.hidden(zh, t), t)
        if self.gate_clip != math.inf and torch.is_grad_enabled():
            a = _WithClippedGradient.apply(a, self.gate_clip)
        i, f, g, o = self.activate(a)
        c = f * c + i * g
        normalised = self.cell(c, t)
        h = o * torch.tanh(normalised)
        if "weight_hr" in self.p:
            h = h @ self.p["weight_hr"].T
        return h, normalised if self.carry else c

    def activations(self, zx: Tensor, zh: Tensor, before: State) -> Activations:
        a, _, _, gates = self.gates.forward(zx, zh)
        i, f, g, o = self.activate(a)
        normalised, cell = self.cell.forward(f * before[1] + i * g)
        return Activations(i, f, g, o, torch.tanh(normalised), gates, cell)

    def step_backward(self, index: Index, d: State, before: State, s: Activations) -> StepGradients:
        dh, dc = d
        i, f, g, o, tanh_c = (gate[index] for gate in s[:5])
        dm = dh @ self.p["weight_hr"] if "weight_hr" in self.p else dh  # m = o * tanh(...), what is projected
        dn = dm * o * (1 - tanh_c * tanh_c)
        if self.carry:
            dn = dn + dc
            dc = self.cell.backward(dn, saved_at(s.cell, index))
        else:
            dc = dc + self.cell.backward(dn, saved_at(s.cell, index))
        di, df, dg = dc * g * i * (1 - i), dc * before[1][index] * f * (1 - f), dc * i * (1 - g * g)
        da = torch.cat([di, df, dg, dm * tanh_c * o * (1 - o)], -1).clamp(-self.gate_clip, self.gate_clip)
        dsum = self.gates.both.backward(da, saved_at(s.gates.both, index))
        dzh = self.gates.hidden.backward(dsum, saved_at(s.gates.hidden, index))
        return StepGradients(dzh, (None, dc * f), (da, dsum, dzh, dn, dh))

    def input_backward(self, s: Activations, steps: tuple[Tensor, ...]) -> Tensor:
        return self.gates.input.backward(steps[1], s.gates.input)

    def factors(self, h: Tensor, s: Activations, steps: tuple[Tensor, ...]) -> Factors:
        _, _, dzh, _, dh = steps
        factors = {"weight_hh": (dzh, h)}
        if "weight_hr" in self.p:
            factors["weight_hr"] = (dh, s.o * s.tanh_c)
        return factors

    def vector_gradients(self, s: Activations, steps: tuple[Tensor, ...], dzx: Tensor) -> Parameters:
        da, dsum, dzh, dn, _ = steps
        of_gates = self.gates.parameter_gradients((dsum, dsum, da), (dzx, dzh, dsum), s.gates)
        return of_gates | self.cell.parameter_gradients(dn, dn, s.cell)
