"""RNN, eq. 4:  h_t = f(LN(W_ih x_t + W_hh h_{t-1}; gain, bias_ih + bias_hh)),  f = tanh or relu."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..formula import Recurrence
from .batch_norm import BatchNorm
from .schedule import State as State
from .sites import Parameters, Saved, gate_sites, saved_at

Factors = dict[str, tuple[Tensor, Tensor]]
"""For each weight d [T, B, m] and z [T, B, n]. Its gradient is the sum over time and batch of d z^T."""


class StepGradients(NamedTuple):
    """What one step's backward computes."""

    dzh: Tensor  # [B, G*H], of W_hh h
    direct: tuple[Tensor | None, ...]  # of the state before the step, but for what goes through W_hh h; None: 0
    intermediates: tuple[Tensor, ...]  # for the functions that take all steps at once


class Network(Protocol):
    """One layer in one direction: its equations with its parameters, and their backward by hand."""

    p: Parameters

    def __init__(self, p: Parameters, recurrence: Recurrence, batch_norm: BatchNorm | None = None) -> None: ...

    def input_side(self, zx: Tensor) -> Tensor:
        """Computes the part of the summed inputs that does not wait for the state, from W_ih x: [T, B, G*H] twice."""

    def step(self, t: int, from_input: Tensor, zh: Tensor, state: State) -> State:
        """Takes step t, to the state after it; ``from_input`` is that step's, ``zh`` is W_hh h."""

    def activations(self, zx: Tensor, zh: Tensor, before: State) -> Any:
        """Computes the forward, every step at once: W_ih x, W_hh h and the states before each step are known."""

    def step_backward(self, t: int, d: State, before: State, s: Any) -> StepGradients:
        """Computes the gradients of step t from that of the state after it, and what the other functions need."""

    def input_backward(self, s: Any, steps: tuple[Tensor, ...]) -> Tensor:
        """Computes the gradient of W_ih x, every step at once."""

    def factors(self, h: Tensor, s: Any, steps: tuple[Tensor, ...]) -> Factors:
        """Returns the factors of the weights' gradients, but for W_ih's dzx and x; ``h``: before each step."""

    def vector_gradients(self, s: Any, steps: tuple[Tensor, ...], dzx: Tensor) -> Parameters:
        """Computes the gradients of gains and biases, each a sum over all steps."""


class Activations(NamedTuple):
    """What the forward computed, for all steps at once: [T, B, H] each."""

    h: Tensor
    input: Saved
    hidden: Saved
    both: Saved


class RNN:
    """The equations of one layer with its parameters, and their backward."""

    def __init__(self, p: Parameters, recurrence: Recurrence, batch_norm: BatchNorm | None = None) -> None:
        self.p, self.gates = p, gate_sites(p, recurrence, batch_norm)
        self.relu = recurrence.nonlinearity == "relu"

    def input_side(self, zx: Tensor) -> Tensor:
        return self.gates.input(zx)

    def step(self, t: int, from_input: Tensor, zh: Tensor, state: State) -> State:
        """Takes step t: [B, H], [B, H], (h [B, H],) -> (h [B, H],)."""
        a = self.gates.both(from_input + self.gates.hidden(zh, t), t)
        return (torch.relu(a) if self.relu else torch.tanh(a),)

    def activations(self, zx: Tensor, zh: Tensor, before: State) -> Activations:
        from_input, input = self.gates.input.forward(zx)
        from_hidden, hidden = self.gates.hidden.forward(zh)
        a, both = self.gates.both.forward(from_input + from_hidden)
        return Activations(torch.relu(a) if self.relu else torch.tanh(a), input, hidden, both)

    def step_backward(self, t: int, d: State, before: State, s: Activations) -> StepGradients:
        dh, h = d[0], s.h[t]
        da = torch.where(h > 0, dh, 0.0) if self.relu else dh * (1 - h * h)
        dsum = self.gates.both.backward(da, saved_at(s.both, t))
        dzh = self.gates.hidden.backward(dsum, saved_at(s.hidden, t))
        return StepGradients(dzh, (None,), (da, dsum, dzh))

    def input_backward(self, s: Activations, steps: tuple[Tensor, ...]) -> Tensor:
        return self.gates.input.backward(steps[1], s.input)

    def factors(self, h: Tensor, s: Activations, steps: tuple[Tensor, ...]) -> Factors:
        return {"weight_hh": (steps[2], h)}

    def vector_gradients(self, s: Activations, steps: tuple[Tensor, ...], dzx: Tensor) -> Parameters:
        da, dsum, dzh = steps
        return self.gates.parameter_gradients((dsum, dsum, da), (dzx, dzh, dsum), (s.input, s.hidden, s.both))
