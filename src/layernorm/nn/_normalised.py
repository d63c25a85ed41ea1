"""What networks and cells have in common: the equations, parameters by name, initial values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ..formula import PLAIN, Formula, Network, Recurrence
from ..functional import describe

State = tuple[Tensor, ...]
Shapes = dict[str, tuple[int, ...]]

_GAIN_INIT: Mapping[str | None, float | None] = {"batch": 0.1, "weight": None}
"""Where it is not 1: Cooijmans et al., section 5, and under weight norm the norm of the weight itself."""


class Normalised(torch.nn.Module):
    """Constructor arguments and parameters of a recurrent layer or cell."""

    network: Network

    def _describe(
        self, norm: str | None, formula: str | Formula, eps: float | None, gain_init: float | None, **more: Any
    ) -> None:
        self.recurrence: Recurrence = describe(self.network, norm, formula, eps, **more)
        self._encoded = self.recurrence.encode()
        self._names, self._state_names = self.recurrence.parameter_names, self.recurrence.state_names
        self.norm, self.formula = norm, formula
        number = isinstance(gain_init, int | float) and not isinstance(gain_init, bool) and math.isfinite(gain_init)
        if gain_init is not None and not number:
            raise ValueError(f"gain_init should be a finite number or None, got {gain_init!r}")
        self.gain_init = _GAIN_INIT.get(norm, 1.0) if gain_init is None else gain_init
        self.eps = self.recurrence.formula.eps

    def _state_from(self, hx: Any) -> State | None:
        """The parts of a user's ``hx``: a tensor, in an LSTM a pair."""
        if hx is None:
            return None
        single = len(self._state_names) == 1
        if single and isinstance(hx, Tensor):
            return (hx,)
        if not single and isinstance(hx, (tuple, list)) and [isinstance(part, Tensor) for part in hx] == [True, True]:
            return tuple(hx)
        expected = "a Tensor" if single else "a tuple (h, c)"
        raise TypeError(f"{type(self).__name__}: expected hx to be {expected}, got {type(hx).__name__}")

    def _hx_from(self, state: State) -> Any:
        """`_state_from` backwards."""
        return state[0] if len(state) == 1 else state

    def _register(self, shapes: Shapes, suffix: str, device: Any, dtype: Any) -> None:
        for name, shape in shapes.items():
            parameter = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            self.register_parameter(name + suffix, parameter)

    def _read(self, names: Sequence[str]) -> list[Tensor]:
        """The parameters of these names. A module's `__getattr__` is slow; but what parametrizations, pruning and
        replicas put in a parameter's place is found only there."""
        own = self._parameters
        return [p if (p := own.get(name)) is not None else getattr(self, name) for name in names]

    def _leaves(self, suffix: str) -> list[Tensor]:
        """The parameters themselves of one layer and direction, also those of which weight norm makes weights."""
        names = {name: name.split(".")[-2 if "." in name else -1] for name, _ in self.named_parameters()}
        return [p for name, p in self.named_parameters() if names[name].endswith(suffix)]

    def _check_hooks(self) -> None:
        """That no hook would have to run before a step: a stepper calls none.

        Raises:
            ValueError: the module has hooks on its forward, as pruning adds.
        """
        if self._forward_pre_hooks or self._forward_hooks:
            name = type(self).__name__
            raise ValueError(f"{name}.stepper: {name} has hooks on its forward (pruning has), which no step would run")

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Weights as torch draws them, U(-1/sqrt(H), 1/sqrt(H)); gains ``gain_init``, biases 0; without norm and under
        weight norm the biases as torch too. In a new module the draws do not depend on ``norm``: one seed gives the
        same weights for all."""
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for name, parameter in self.named_parameters():
            if name.startswith(("weight", "bias_ih", "bias_hh")):
                torch.nn.init.uniform_(parameter, -bound, bound)
            if name.startswith("gain"):
                torch.nn.init.constant_(parameter, cast(float, self.gain_init))
            elif self.recurrence.formula != PLAIN and "bias" in name:
                torch.nn.init.zeros_(parameter)
        for name in self._computed:
            setattr(self, name, torch.empty_like(getattr(self, name)).uniform_(-bound, bound))
            self._set_gain(name)

    def _normalise_weights(self) -> None:
        """Under weight norm, once they are drawn."""
        if self.norm == "weight":
            for name in [f"weight_{side}{suffix}" for suffix in self._suffixes for side in ("ih", "hh")]:
                torch.nn.utils.parametrizations.weight_norm(self, name)
                self._set_gain(name)

    @property
    def _computed(self) -> list[str]:
        """The weights that weight norm makes of a direction and a gain."""
        made = self._modules.get("parametrizations") if self.norm == "weight" else None
        return [] if made is None else list(cast(torch.nn.ModuleDict, made))

    def _set_gain(self, name: str) -> None:
        if self.gain_init is not None:
            torch.nn.init.constant_(self.get_parameter(f"parametrizations.{name}.original0"), self.gain_init)

    def _described(self) -> str:
        """The keywords that torch's module does not have, for `extra_repr`."""
        text = f", norm={self.norm!r}"
        if self.recurrence.formula != PLAIN:
            text += f", formula={self.formula!r}, eps={self.eps}"
        return text + (f", gain_init={self.gain_init}" if self.gain_init != _GAIN_INIT.get(self.norm, 1.0) else "")

    @property
    def _suffixes(self) -> list[str]:
        """What follows a parameter's name, for each layer and direction."""
        return [""]

    hidden_size: int


def check_flags(**flags: bool) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name} should be of type bool, got: {type(flag).__name__}")


def check_sizes(input_size: int, hidden_size: int, num_layers: int, dropout: float, proj_size: int) -> None:
    sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers, "proj_size": proj_size}
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool):
            raise TypeError(f"{name} should be of type int, got: {type(size).__name__}")
        if size < (0 if name in ("input_size", "proj_size") else 1):
            raise ValueError(f"{name} must be greater than zero, got {size}")
    if not isinstance(dropout, (int, float)) or isinstance(dropout, bool) or not 0 <= dropout <= 1:
        raise ValueError(f"dropout should be a number in range [0, 1], got {dropout!r}")
    if not 0 <= proj_size < hidden_size:
        raise ValueError(f"proj_size should be at least 0 and smaller than hidden_size={hidden_size}, got {proj_size}")
