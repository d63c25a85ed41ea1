"""A recurrent network one step a call: for networks that make a step's input of the output before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..functional import Steps

if TYPE_CHECKING:
    from ._recurrent import Recurrent, RecurrentCell

State = list[list[Tensor]]
"""For each layer h ``(B, P)``, in an LSTM also c ``(B, H)``."""


class Stepper:
    """An `RNN`, `LSTM` or `GRU` one step a call, made by its ``stepper()``.

    The weights are prepared once, before the first step, and their gradients are computed once, for all steps together.
    A loop over the module itself does both at every step.

    Make a new stepper for every forward pass. It refuses to go on when the parameters have been changed.

    Example::

        step, state = lstm.stepper(), None
        for _ in range(T):
            output, state = step(torch.cat([frame, output], 1), state)
        hx = step.hx(state)
    """

    def __init__(self, module: Recurrent) -> None:
        self.module = module
        of_all = (module.recurrence, module._encoded, list(module.parameters()))
        self._layers = [Steps(module._parameters_of(suffix), *of_all) for suffix in module._suffixes]

    def __call__(self, input: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step of all layers.

        Args:
            input: ``(B, I)``.
            state: what the last call returned, or `state` made; ``None``: zeros.

        Returns:
            output ``(B, P)`` of the last layer, and the state after the step.

        Raises:
            RuntimeError, ValueError, TypeError: a shape, type or device does not fit, or the module's parameters have
                been changed since the stepper was made.
        """
        module, name = self.module, type(self.module).__name__
        if not isinstance(input, Tensor):
            raise TypeError(f"{name}.stepper: expected input to be a Tensor, got {type(input).__name__}")
        if input.dim() != 2 or input.shape[1] != module.input_size:
            raise ValueError(
                f"{name}.stepper: expected input of shape [B, {module.input_size}], got {list(input.shape)}"
            )
        if state is None:
            state = [[input.new_zeros(len(input), size) for size in module._state_sizes] for _ in self._layers]
        if len(state) != len(self._layers):
            raise ValueError(f"{name}.stepper: expected state to have {len(self._layers)} layers, got {len(state)}")
        after: State = []
        for layer, before in zip(self._layers, state, strict=True):
            if after and module.dropout:
                input = torch.nn.functional.dropout(input, module.dropout, module.training)
            after.append(layer(input, before))
            input = after[-1][0]
        return input, after

    def state(self, hx: Any) -> State:
        """The module's ``hx``, h ``(L, B, P)`` and in an LSTM c ``(L, B, H)``, as this stepper takes it."""
        parts = self.module._state_from(hx)
        if parts is None:
            raise TypeError(f"{type(self.module).__name__}.stepper: expected hx to be a state, got None")
        return [list(of_layer) for of_layer in zip(*(part.unbind() for part in parts), strict=True)]

    def hx(self, state: State) -> Any:
        """A state as the module takes and returns it."""
        return self.module._hx_from(tuple(torch.stack(part) for part in zip(*state, strict=True)))


class CellStepper:
    """A cell with its weights prepared once and their gradients computed once, made by its ``stepper()``.

    It is called as the cell is. Make a new one for every forward pass. It refuses to go on when the parameters have
    been changed.

    Example::

        step, hx = cell.stepper(), None
        for x in input:
            hx = step(x, hx)
    """

    def __init__(self, cell: RecurrentCell, params: Sequence[Tensor]) -> None:
        self.cell = cell
        self._steps = Steps(params, cell.recurrence, cell._encoded, list(cell.parameters()))

    def __call__(self, input: Tensor, hx: Any = None) -> Any:
        """The next state: arguments, shapes and errors are the cell's.

        Raises:
            RuntimeError: also if the cell's parameters have been changed since the stepper was made.
        """
        return self.cell._step(input, hx, self._steps)
