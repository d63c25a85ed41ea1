"""One layer step by step: for networks that make a step's input of the output before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...formula import Recurrence
from ..dispatch import kernel
from ._recurrent import named, network_of
from ._rnn import State
from ._sites import Parameters


class Step(NamedTuple):
    """What the gradients of the parameters need of one step, in float32 or wider; all begin with a dimension of 1."""

    x: Tensor
    before: State
    activations: Any
    kept: tuple[Tensor, ...]
    dzx: Tensor


class Prepared:
    """A layer's equations with its parameters (`PreparedLayer`)."""

    def __init__(self, params: Sequence[Tensor], recurrence: Recurrence) -> None:
        self.recurrence, self.dtype = recurrence, params[0].dtype
        self.p = named([p.detach() for p in params], recurrence, self.dtype)
        self.network = network_of(self.p, recurrence)
        self.wide = self.p["weight_ih"].dtype

    def forward(self, input: Tensor, state: Sequence[Tensor], save: bool) -> tuple[list[Tensor], list[Tensor]]:
        return _forward(input, state, self), []

    def backward_pass(self) -> Back:
        return Back(self)


class Back:
    """The way back (`BackwardPass`); every gradient of a parameter is one product or sum over all steps, at the end."""

    def __init__(self, layer: Prepared) -> None:
        self.layer, self.steps = layer, list[Step]()

    def step(
        self, input: Tensor, state: Sequence[Tensor], saved: Sequence[Tensor], grad_state: Sequence[Tensor | None]
    ) -> list[Tensor]:
        found, step = _backward(input, state, grad_state, self.layer)
        self.steps.append(step)
        return found

    def gradients(self) -> list[Tensor]:
        grads = _gradients(self.layer.p["weight_ih"], self.layer, self.steps)
        return [grads[name].to(self.layer.dtype) for name in self.layer.recurrence.parameter_names]


@kernel
def _forward(input: Tensor, state: Sequence[Tensor], layer: Prepared) -> list[Tensor]:
    from_input = layer.network.input_side(input.to(layer.wide))
    wide = tuple(s.to(layer.wide) for s in state)
    return [s.to(input.dtype) for s in layer.network.step(0, from_input, wide, wide[0])]


@kernel
def _backward(
    input: Tensor, state: Sequence[Tensor], grad_state: Sequence[Tensor | None], layer: Prepared
) -> tuple[list[Tensor], Step]:
    x, before = input.to(layer.wide)[None], tuple(s.to(layer.wide)[None] for s in state)
    d = tuple(torch.zeros_like(s[0]) if g is None else g.to(s.dtype) for s, g in zip(before, grad_state, strict=True))
    activations = layer.network.activations(x, before)
    previous, one_step = layer.network.step_backward(0, d, before, activations)
    kept = tuple(k[None] for k in one_step)
    dzx = layer.network.input_backward(activations, kept)
    found = [g.to(input.dtype) for g in (dzx[0] @ layer.p["weight_ih"], *previous)]
    return found, Step(x, before, activations, kept, dzx)


@kernel
def _gradients(weight: Tensor, layer: Prepared, steps: Sequence[Step]) -> Parameters:
    """By name; ``weight`` tells the device."""
    return layer.network.gradients(*_joined(steps))


def _joined(parts: Sequence[Any]) -> Any:
    """Tensors one behind the other along the first dimension, in tuples of any depth; None stays None."""
    first = parts[0]
    if first is None:
        return None
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    found = [_joined(column) for column in zip(*parts, strict=True)]
    return type(first)(*found) if hasattr(first, "_fields") else tuple(found)


def prepare(params: Sequence[Tensor], recurrence: Recurrence) -> Prepared:
    """A layer for steps one by one (`PreparedLayer`)."""
    return Prepared(params, recurrence)
