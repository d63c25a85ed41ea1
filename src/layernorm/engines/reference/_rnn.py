"""RNN, eq. 4:  h_t = f(LN(W_ih x_t + W_hh h_{t-1}; gain, bias_ih + bias_hh)),  f = tanh or relu."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ...formula import Recurrence
from ..schedule import State as State
from ._cases import Cases
from ._sites import Parameters, Saved, block


class Network(Protocol):
    """One layer in one direction: its equations with its parameters, and their backward by hand."""

    def __init__(self, p: Parameters, recurrence: Recurrence, cases: Cases | None = None) -> None: ...

    def input_side(self, x: Tensor) -> Tensor:
        """The part of the summed inputs that does not wait for the state: [T, B, I] -> [T, B, G*H]."""

    def step(self, t: int, from_input: Tensor, state: State, read: Tensor) -> State:
        """The state after step t; ``from_input`` is that step's, ``read`` the h that W_hh reads."""

    def activations(self, x: Tensor, before: State) -> Any:
        """What the forward computed, every step at once: the states before each step are known by now."""

    def step_backward(self, t: int, d: State, before: State, s: Any) -> tuple[State, tuple[Tensor, ...]]:
        """The gradient of the state before step t from that of the state after it, and what `gradients` needs."""

    def input_backward(self, s: Any, steps: tuple[Tensor, ...]) -> Tensor:
        """The gradient of W_ih x, every step at once."""

    def gradients(self, x: Tensor, before: State, s: Any, steps: tuple[Tensor, ...], dzx: Tensor) -> Parameters:
        """The gradients of the parameters, as single products and sums over all steps."""


class Activations(NamedTuple):
    """What the forward computed, for all steps at once: [T, B, H] each."""

    h: Tensor
    input: Saved
    hidden: Saved
    both: Saved


class RNN:
    """The equations of one layer with its parameters, and their backward."""

    def __init__(self, p: Parameters, recurrence: Recurrence, cases: Cases | None = None) -> None:
        self.p, self.gates = p, block(p, recurrence, cases)
        self.relu = recurrence.nonlinearity == "relu"

    def input_side(self, x: Tensor) -> Tensor:
        return self.gates.input(x @ self.p["weight_ih"].T)

    def step(self, t: int, from_input: Tensor, state: State, read: Tensor) -> State:
        """[B, H], (h [B, H],) -> (h [B, H],)."""
        a = self.gates.both(from_input + self.gates.hidden(read @ self.p["weight_hh"].T, t), t)
        return (torch.relu(a) if self.relu else torch.tanh(a),)

    def activations(self, x: Tensor, before: State) -> Activations:
        from_input, input = self.gates.input.forward(x @ self.p["weight_ih"].T)
        from_hidden, hidden = self.gates.hidden.forward(before[0] @ self.p["weight_hh"].T)
        a, both = self.gates.both.forward(from_input + from_hidden)
        return Activations(torch.relu(a) if self.relu else torch.tanh(a), input, hidden, both)

    def step_backward(self, t: int, d: State, before: State, s: Activations) -> tuple[State, tuple[Tensor, ...]]:
        dh, h = d[0], s.h[t]
        da = torch.where(h > 0, dh, 0.0) if self.relu else dh * (1 - h * h)
        dsum = self.gates.both.backward(da, at(s.both, t))
        dzh = self.gates.hidden.backward(dsum, at(s.hidden, t))
        return (dzh @ self.p["weight_hh"],), (da, dsum, dzh)

    def input_backward(self, s: Activations, steps: tuple[Tensor, ...]) -> Tensor:
        return self.gates.input.backward(steps[1], s.input)

    def gradients(self, x: Tensor, before: State, s: Activations, steps: tuple[Tensor, ...], dzx: Tensor) -> Parameters:
        da, dsum, dzh = steps
        saved = (s.input, s.hidden, s.both)
        of_gates = self.gates.parameter_gradients((dsum, dsum, da), (dzx, dzh, dsum), saved)
        return products(dzx, dzh, x, before[0]) | of_gates


def at(saved: Saved, t: int) -> Saved:
    """What a site saved at step t."""
    return None if saved is None else (saved[0][t], saved[1][t])


def outer(d: Tensor, z: Tensor) -> Tensor:
    """sum over time and batch of d z^T: [T, B, m], [T, B, n] -> [m, n]."""
    return d.flatten(0, 1).T @ z.flatten(0, 1)


def products(dzx: Tensor, dzh: Tensor, x: Tensor, h: Tensor) -> Parameters:
    """The gradients of the weights in W_ih x and W_hh h."""
    return {"weight_ih": outer(dzx, x), "weight_hh": outer(dzh, h)}
