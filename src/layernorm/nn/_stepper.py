"""`Stepper`: a recurrent network one step a call."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ..equations.checks import check_dense
from ._layers import Layers
from ._normalised import drop_mask, types_of
from ._prepared import PreparedLayers, in_inference_mode

LayerStates = list[list[Tensor]]
"""For each layer h ``(B, P)``, in an LSTM also c ``(B, H)``."""

Hx = TypeVar("Hx")
"""The type of a network's state: `Tensor`, in an LSTM ``tuple[Tensor, Tensor]``."""


class Stepper(Generic[Hx]):
    """Runs an `RNN`, `LSTM` or `GRU` one step in each call. The network's ``stepper()`` makes it.

    The weights are prepared once, before the first step, and their gradients are computed once, for all steps together.
    A loop over the module itself does both at every step.

    In training make a new stepper for every forward pass. The dropout masks that the module draws once for all steps
    (``variational``, ``recurrent_dropout``) the stepper draws at its first step. For another batch size it draws new
    ones.

    A stepper computes what its module would compute: a step after a change of the module prepares the weights again. It
    does not see numbers that fused optimizers, or writes through ``.data``, put into the same memory.

    Example::

        step, state, output = lstm.stepper(), None, torch.zeros(B, H)
        for frame in frames:
            output, state = step(torch.cat([frame, output], 1), state)
        hx = step.hx(state)
    """

    def __init__(self, module: Layers) -> None:
        self.module = module
        self._prepared = PreparedLayers(module)
        self._masks: dict[tuple[Any, ...], Tensor] = {}

    def __call__(
        self,
        input: Tensor,
        state: LayerStates | Hx | None = None,
        *,
        reset: Tensor | None = None,
        reset_hx: LayerStates | Hx | None = None,
    ) -> tuple[Tensor, LayerStates]:
        """Takes one step of all layers. The letters in the shapes are those of the network's ``forward``.

        Args:
            input: ``(B, I)``.
            state: the state that the last call returned, or the module's ``hx``: h ``(L, B, P)``, in an LSTM ``(h, c)``
                with c ``(L, B, H)``. ``None``: zeros.
            reset: ``(B,)``, bool or 0 and 1. A 1 starts this row's step from the zero state.
            reset_hx: the state that such a row starts from instead of zeros. It is like ``state``, or has 1 instead
                of B.

        Returns:
            The output ``(B, P)`` of the last layer, and the state after the step. The output is the last layer's h in
            that state, the same tensor: write ``y.relu()``, as ``y.relu_()`` would change the next step.

        Raises:
            RuntimeError, ValueError, TypeError: a shape, type or device does not fit, or the module has got hooks.
        """
        module, name = self.module, type(self.module).__name__
        module._follow_attributes()
        if not isinstance(input, Tensor):
            raise TypeError(f"{name}.stepper: expected input to be a Tensor, got {type(input).__name__}")
        check_dense(f"{name}.stepper", "input", input)
        if input.dim() != 2 or input.shape[1] != module.input_size:
            raise ValueError(
                f"{name}.stepper: expected input of shape [B, {module.input_size}], got {list(input.shape)}"
            )
        layers = self._prepared.layers(input)
        if state is None:
            befores = [[input.new_zeros(input.shape[0], size) for size in module._state_sizes] for _ in layers]
        else:
            befores = self._layers_of(state, "state")
        if reset is not None:
            restarts = [None] * len(befores) if reset_hx is None else self._layers_of(reset_hx, "reset_hx")
            cut = zip(befores, restarts, strict=True)
            befores = [module._reset(before, reset, restart, f"{name}.stepper") for before, restart in cut]
        elif reset_hx is not None:
            raise ValueError(f"{name}.stepper: reset_hx is where a row starts again; it needs reset, got None")
        after: LayerStates = []
        for index, (layer, before) in enumerate(zip(layers, befores, strict=True)):
            if index:
                input = self._apply_dropout(input, index)
            dropout = self._mask("h", index, module.recurrent_dropout, before[0]) if module.recurrent_dropout else None
            after.append(module._apply_zoneout(before, layer(input, before, dropout)))
            input = after[-1][0]
        return input, after

    def _mask(self, what: str, layer: int, probability: float, like: Tensor) -> Tensor | None:
        """Returns a dropout mask that is the same at every step with as many rows."""
        if not probability or not self.module.training:
            return None
        dtype = torch.promote_types(like.dtype, torch.float32)  # autocast may give the next step's state another type
        key = what, layer, probability, like.shape, dtype, like.device, in_inference_mode()
        if key in self._masks and not self._draws_at_each_step:
            return self._masks[key]
        # Drawn, too, where there is one: a step that torch.utils.checkpoint makes again draws what it drew before.
        return self._masks.setdefault(key, drop_mask(probability, like.shape, like))

    @property
    def _draws_at_each_step(self) -> bool:
        module = self.module
        return any(module._zoneouts) or (module.num_layers > 1 and module.dropout > 0 and not module.variational)

    def _apply_dropout(self, x: Tensor, layer: int) -> Tensor:
        """Applies the dropout below a layer."""
        if not self.module.variational:
            return torch.nn.functional.dropout(x, self.module.dropout, self.module.training)
        mask = self._mask("x", layer, self.module.dropout, x)
        return x if mask is None else x * mask.to(x.dtype)

    def _layers_of(self, state: Any, what: str) -> LayerStates:
        """Returns the parts of a state by layers. `functional.Steps` checks their shapes.

        Raises:
            TypeError, ValueError: it does not have this network's layers, each with its parts.
        """
        name, L, sequences = f"{type(self.module).__name__}.stepper", self.module.num_layers, (list, tuple)
        parts = [state] if isinstance(state, Tensor) else state
        count = [True] * len(self.module._state_names)
        if not isinstance(parts, sequences):
            layers: list[Any] = [None]
        elif [isinstance(part, Tensor) for part in parts] == count:  # the module's hx
            if any(part.dim() != 3 or len(part) != L for part in parts):
                given = [list(part.shape) for part in parts]
                raise ValueError(f"{name}: expected {what} to have {L} layers, each part (L, B, size); got {given}")
            layers = list(zip(*(part.unbind() for part in parts), strict=True))
        else:
            layers = list(parts)
        for layer in layers:
            if not isinstance(layer, sequences) or [isinstance(part, Tensor) for part in layer] != count:
                form = "a tuple (h, c)" if len(count) == 2 else "a Tensor"
                raise TypeError(
                    f"{name}: expected {what} to be {form}, as the module takes it, or what the last call returned, a "
                    f"list with {len(count)} tensors for each layer; got {types_of(state)}"
                )
        if len(layers) != L:
            raise ValueError(f"{name}: expected {what} to have {L} layers, got {len(layers)}")
        return [list(layer) for layer in layers]

    def hx(self, state: LayerStates) -> Hx:
        """Returns a state as the module takes and returns it."""
        layers = self._layers_of(state, "state")
        return self.module._hx_from(tuple(torch.stack(part) for part in zip(*layers, strict=True)))
