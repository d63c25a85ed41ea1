"""What the equations of a recurrent network are: the functions of one layer, forward and backward."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ..formula import Recurrence
from .arguments import Index
from .batch_norm import BatchNorm
from .schedule import State
from .sites import Parameters

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
    recurrence: Recurrence

    def __init__(self, p: Parameters, recurrence: Recurrence, batch_norm: BatchNorm | None = None) -> None: ...

    def input_side(self, zx: Tensor) -> Tensor:
        """Computes the part of the summed inputs that does not wait for the state, from W_ih x: [T, B, G*H] twice."""

    def step(self, t: int, from_input: Tensor, zh: Tensor, state: State) -> State:
        """Takes step t, to the state after it; ``from_input`` is that step's, ``zh`` is W_hh h."""

    def activations(self, zx: Tensor, zh: Tensor, before: State) -> Any:
        """Computes the forward, every step at once: W_ih x, W_hh h and the states before each step are known."""

    def step_backward(self, index: Index, d: State, before: State, s: Any) -> StepGradients:
        """Computes the gradients of one step from that of the state after it, and what the other functions need."""

    def input_backward(self, s: Any, steps: tuple[Tensor, ...]) -> Tensor:
        """Computes the gradient of W_ih x, every step at once."""

    def factors(self, h: Tensor, s: Any, steps: tuple[Tensor, ...]) -> Factors:
        """Returns the factors of the weights' gradients, but for W_ih's dzx and x; ``h``: before each step."""

    def vector_gradients(self, s: Any, steps: tuple[Tensor, ...], dzx: Tensor) -> Parameters:
        """Computes the gradients of gains and biases, each a sum over all steps."""
