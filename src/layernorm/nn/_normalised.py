"""What networks and cells have in common: the equations, parameters by name, initial values."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from ..equations.checks import check_dense
from ..equations.schedule import apply_zoneout
from ..formula import PLAIN, Formula, Network, Recurrence
from ..functional._networks import describe
from ..functional._resets import as_cuts
from ._gains import GainInit, check_gain_init, gains_of
from ._matched_gains import matched_gains
from ._tracing import not_scriptable

State = tuple[Tensor, ...]
Shapes = dict[str, tuple[int, ...]]


def types_of(value: Any) -> str:
    """Names the type of a value for a message, and the types of a tuple's or list's parts."""
    inside = f" of ({', '.join(type(part).__name__ for part in value)})" if isinstance(value, tuple | list) else ""
    return f"{type(value).__name__}{inside}"


class Normalised(torch.nn.Module):
    """Constructor arguments and parameters of a recurrent layer or cell."""

    network: Network
    __prepare_scriptable__ = not_scriptable

    def _describe(
        self,
        norm: str | None,
        formula: str | Formula,
        eps: float | None,
        gain_init: GainInit,
        forget_bias: float | None,
        zoneout: float | tuple[float, float],
        **equations: Any,
    ) -> None:
        self._set_equations(describe(self.network, norm, formula, eps, **equations), norm)
        self._state_names, self.formula = self.recurrence.state_names, formula
        check_gain_init(gain_init)
        self.gain_init = dict(gain_init) if isinstance(gain_init, Mapping) else gain_init
        gains_of(gain_init, self.recurrence, norm)  # refuses names that these equations do not have
        self.forget_bias = forget_bias
        self._check_forget_bias()
        self.zoneout = zoneout

    @property
    def eps(self) -> float | None:
        """The eps of the equations."""
        return self.recurrence.formula.eps

    @property
    def zoneout(self) -> float | tuple[float, float]:
        """The probability with which a number of the state stays; of an LSTM also a pair for (h, c)."""
        return self._zoneout

    @zoneout.setter
    def zoneout(self, zoneout: float | tuple[float, float]) -> None:
        self._zoneouts = _zoneouts(zoneout, self._state_names)
        self._zoneout = zoneout

    def _warn_of_lost_input(self, input_size: int, hidden_size: int) -> None:
        """Warns where the formula leaves nothing, or only the sign, of what one input or one unit says."""
        recurrence, name = self.recurrence, type(self).__name__
        where = recurrence.norms_of_one_unit(hidden_size) if recurrence.norm == "layer" else []
        if where:
            warnings.warn(
                f"{name}: layer norm of one unit is 0 whatever the input, and with hidden_size=1 {' and '.join(where)} "
                "is one unit; take more units, or norm=None",
                stacklevel=4,
            )
        if input_size == 1 and recurrence.loses_size:
            warnings.warn(
                f"{name}: with input_size=1 only the sign of the input is left, as W_ih x is normalised by itself; put "
                "an encoder of many units before it, or take formula='sum', which normalises W_ih x + W_hh h together",
                stacklevel=4,
            )

    def _set_equations(self, recurrence: Recurrence, norm: str | None) -> None:
        """Sets the equations that the network computes."""
        self.recurrence, self.norm = Recurrence.decode(recurrence.encoded), norm  # one object for equal ones
        self._names = recurrence.parameter_names

    def _follow_attributes(self) -> None:
        """Takes over, at every call, what has been set on the module since the last one: an `RNN`'s nonlinearity."""

    def _set_nonlinearity(self, nonlinearity: Any) -> None:
        """Sets the function of an `RNN`.

        Raises:
            ValueError: it is another than tanh and relu.
        """
        if nonlinearity == self.recurrence.nonlinearity:
            return
        if nonlinearity not in ("tanh", "relu"):
            name = type(self).__name__
            raise ValueError(f"{name}: expected nonlinearity to be 'tanh' or 'relu', got {nonlinearity!r}")
        self._set_equations(replace(self.recurrence, nonlinearity=nonlinearity), self.norm)

    def _check_forget_bias(self) -> None:
        value = self.forget_bias
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if value is not None and not is_number:
            raise ValueError(f"forget_bias should be a finite number or None, got {value!r}")
        if value is not None and not self.recurrence.added_biases:
            why = "the formula adds none after its normalisations" if self.recurrence.bias else "bias=False"
            raise ValueError(f"forget_bias={value!r} needs a bias in the gates, got {why}")

    def _state_from(self, hx: Any, what: str = "hx") -> State | None:
        """Returns the parts of a user's ``hx``: a tensor, in an LSTM a pair."""
        if hx is None:
            return None
        count = len(self._state_names)
        parts = (hx,) if count == 1 else hx
        fits = isinstance(parts, (tuple, list)) and len(parts) == count
        for part in parts if fits else ():
            fits = fits and isinstance(part, Tensor)
            if fits:
                check_dense(type(self).__name__, what, part)
        if not fits:
            expected = "a Tensor" if count == 1 else "a tuple (h, c) of two Tensors"
            raise TypeError(f"{type(self).__name__}: expected {what} to be {expected}, got {types_of(hx)}")
        return tuple(parts)

    def _hx_from(self, state: State) -> Any:
        """Returns a user's ``hx`` from its parts."""
        return state[0] if len(state) == 1 else state

    def _register(self, shapes: Shapes, suffix: str, device: Any, dtype: Any) -> None:
        for name, shape in shapes.items():
            parameter = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            self.register_parameter(name + suffix, parameter)

    def _parameters_named(self, names: Sequence[str]) -> list[Tensor]:
        """Returns the parameters of these names; what is quantized is a buffer.

        A module's `__getattr__` is slow, so it is the second choice. Only there is found what parametrizations, pruning
        and replicas put in a parameter's place.
        """
        parameters, buffers = self._parameters, self._buffers
        found: list[Tensor] = []
        for name in names:
            tensor: Tensor | None = parameters.get(name)
            if tensor is None:
                tensor = buffers.get(name)
            found.append(self._found_elsewhere(name) if tensor is None else tensor)
        return found

    def _found_elsewhere(self, name: str) -> Tensor:
        """Returns a parameter that is an attribute by other means.

        Raises:
            RuntimeError: it has been set to None.
        """
        tensor: Tensor | None = getattr(self, name)
        if tensor is None:
            raise RuntimeError(f"{type(self).__name__}: expected {name} to be a Tensor, got None{self._way_out}")
        return tensor

    _way_out = ""
    """What the error says to do about a parameter that has been set to None."""

    def _parameters_of(self, suffix: str) -> list[Tensor]:
        """Returns the parameters of one layer and direction."""
        return self._parameters_named([name + suffix for name in self._names])

    @property
    def _hooks_of_a_call(self) -> tuple[Mapping[int, Any], ...]:
        """The hooks that torch runs around a call of the module and its gradient."""
        return self._forward_pre_hooks, self._forward_hooks, self._backward_pre_hooks, self._backward_hooks

    def _check_calls(self) -> None:
        """Checks that a call runs nothing around a step or its gradient that a stepper would not.

        Raises:
            ValueError: the module has hooks on its forward, as pruning adds, or on its backward, or a ``forward`` that
                is not the library's.
        """
        name = type(self).__name__
        if "forward" in vars(self) or not type(self).forward.__module__.startswith("layernorm."):
            raise ValueError(
                f"{name}.stepper: no step runs the forward of {name}, which is not layernorm's; call the module"
            )
        if any(self._hooks_of_a_call):
            raise ValueError(
                f"{name}.stepper: no step runs the hooks on the forward (pruning adds one) and the backward of {name}"
            )

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Gives the parameters their initial values.

        Weights, ``bias_ih`` and ``bias_hh`` are drawn as torch draws them, from U(-1/sqrt(H), 1/sqrt(H)). Gains are
        ``gain_init``, and the norms' other biases 0. With ``forget_bias`` the biases of the gate that keeps the old
        state add up to it. In a new module the draws do not depend on ``norm``: one seed gives the same weights and
        biases under every norm, and those of torch's module. Of a parametrized weight that from which it is computed is
        drawn.

        Raises:
            ValueError: a parameter is computed from several, by a parametrization of the user's, or by pruning.
        """
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        self._gains()  # before anything is drawn: what is computed cannot be set
        self._forget_biases()
        for name, steps in self._parametrizations:
            if len(steps) > 1 if name in self._directed else not steps.is_tensor:  # it has several originals
                parameter_of(self, name)
        for key, parameter in self.named_parameters():
            name = key.removeprefix("parametrizations.").removesuffix(".original")
            if "." in name:  # a parametrization's own, such as a direction and a gain of weight norm
                continue
            if name.startswith(("weight", "bias_ih", "bias_hh")):
                torch.nn.init.uniform_(parameter, -bound, bound)
            elif "bias" in name:
                torch.nn.init.zeros_(parameter)
        self._set_gains()
        for name in self._computed:
            setattr(self, name, torch.empty_like(getattr(self, name)).uniform_(-bound, bound))
            self._set_gain(name)
        self._set_forget_bias()

    def _set_forget_bias(self) -> None:
        """Makes the biases of the gate that keeps the old state add up to ``forget_bias``, if there is one."""
        for number, part in enumerate(self._forget_biases()):
            part.fill_(0.0 if number % len(self.recurrence.added_biases) else cast(float, self.forget_bias))

    def _forget_biases(self) -> list[Tensor]:
        """Returns the parts of the biases that add up to ``forget_bias``, for each layer and direction; none without
        it."""
        gate = slice(self.hidden_size, 2 * self.hidden_size)  # of an LSTM's i, f, g, o and a GRU's r, z, n
        names = [] if self.forget_bias is None else self.recurrence.added_biases
        return [parameter_of(self, name + suffix).detach()[gate] for suffix in self._suffixes for name in names]

    def _gains(self) -> dict[str, list[torch.nn.Parameter]]:
        """Returns each gain's parameters, one for each layer and direction."""
        names = gains_of(None, self.recurrence, self.norm)
        return {name: [parameter_of(self, name + suffix) for suffix in self._suffixes] for name in names}

    def _set_gains(self) -> None:
        """Gives the gains their initial values."""
        starts = gains_of(None, self.recurrence, self.norm) | gains_of(self.gain_init, self.recurrence, self.norm)
        matched = [name for name, start in starts.items() if start == "match"]
        for name, gains in self._gains().items():
            for gain in gains if name not in matched else ():
                torch.nn.init.constant_(gain, cast(float, starts[name]))
        if not matched:
            return
        units, sizes = self.hidden_size, self._input_sizes
        layers = matched_gains(self.recurrence, sizes, units, self._state_sizes[0], self.forget_bias)
        directions = len(self._suffixes) // len(sizes)
        for number, suffix in enumerate(self._suffixes):
            for name in matched:
                parameter_of(self, name + suffix).copy_(torch.from_numpy(layers[number // directions][name]))

    def _normalise_weights(self) -> None:
        """Makes the weights computed ones under weight norm, once they are drawn."""
        for name in self._directed:
            torch.nn.utils.parametrizations.weight_norm(self, name)
            self._set_gain(name)

    @property
    def _computed(self) -> list[str]:
        """The names of the weights that weight norm computes from a direction and a gain."""
        return [name for name in self._directed if is_parametrized(self, name)]

    @property
    def _directed(self) -> list[str]:
        """The names of the weights that have a direction and a gain under weight norm."""
        return [f"weight_{side}{suffix}" for suffix in self._suffixes for side in ("ih", "hh") if self.norm == "weight"]

    @property
    def _parametrizations(self) -> list[tuple[str, Any]]:
        """Each parametrized parameter's name, and the list of what computes it."""
        lists: Any = self._modules.get("parametrizations")
        return [] if lists is None else [*lists.items()]

    @property
    def _may_be_drawn(self) -> bool:
        """Says whether the next call may have other weights: in training a user's parametrization may draw them."""
        return self.training and any(len(steps) > (name in self._directed) for name, steps in self._parametrizations)

    def _set_gain(self, name: str) -> None:
        if isinstance(self.gain_init, int | float):
            torch.nn.init.constant_(self.get_parameter(f"parametrizations.{name}.original0"), self.gain_init)

    def _kept_shares(self, like: Tensor, rows: Sequence[int]) -> tuple[Tensor | None, ...]:
        """Returns the share of the old state that zoneout keeps, for each part of the state.

        In training it is drawn, 0 or 1. In evaluation it is one number, the probability. It is None for a part without
        zoneout.
        """
        dtype = torch.promote_types(like.dtype, torch.float32)
        shares: list[Tensor | None] = []
        for probability, size in zip(self._zoneouts, self._state_sizes, strict=True):
            if not probability:
                shares.append(None)
            elif self.training:  # the numbers of `bernoulli`, in half of the time
                shares.append(torch.rand(*rows, size, dtype=dtype, device=like.device).lt_(probability))
            else:
                shares.append(like.new_full((1,) * (len(rows) + 1), probability, dtype=dtype))
        return tuple(shares)

    def _apply_zoneout(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> list[Tensor]:
        """Applies zoneout to the state after one step."""
        if not any(self._zoneouts):
            return list(after)
        shares = self._kept_shares(before[0], before[0].shape[:-1])
        return [apply_zoneout(k, old, new).to(new.dtype) for k, old, new in zip(shares, before, after, strict=True)]

    def _reset(self, state: Sequence[Tensor], reset: Any, restart: Sequence[Tensor] | None, who: str) -> list[Tensor]:
        """Puts zeros, or the rows of ``restart``, into the state where ``reset`` is true."""
        cut = as_cuts(reset, state[0].shape[:-1], who).unsqueeze(-1)
        if restart is None:
            return [torch.where(cut, 0.0, part) for part in state]
        for part, name, old in zip(restart, self._state_names, state, strict=True):
            check_dense(who, f"{name} of reset_hx", part)
            rows = part.shape[:-1]
            if part.dim() != old.dim() or part.shape[-1] != old.shape[-1] or rows not in (old.shape[:-1], (1,)):
                raise RuntimeError(
                    f"{who}: expected {name} of reset_hx of size {list(old.shape)}, or with 1 instead of the batch, "
                    f"got {list(part.shape)}"
                )
        return [torch.where(cut, new.to(old.dtype), old) for new, old in zip(restart, state, strict=True)]

    def _keywords(self, norm: object) -> str:
        """Writes the keywords that torch's module does not have, for `extra_repr`."""
        text = f", norm={norm!r}"
        if self.recurrence.formula != PLAIN:
            text += f", formula={self.formula!r}"
            if not (isinstance(self.formula, Formula) and self.formula.eps == self.eps):
                text += f", eps={self.eps}"
        values_and_defaults = {
            "gate_clip": (self.recurrence.gate_clip, math.inf),
            "gain_init": (self.gain_init, None),
            "forget_bias": (self.forget_bias, None),
            "zoneout": (self.zoneout, 0.0),
        }
        changed = {name: value for name, (value, default) in values_and_defaults.items() if value != default}
        return text + "".join(f", {name}={value!r}" for name, value in changed.items())

    @property
    def _suffixes(self) -> list[str]:
        """What follows a parameter's name, for each layer and direction."""
        return [""]

    @property
    def _input_sizes(self) -> list[int]:
        """The size of each layer's input."""
        return [self.input_size]

    @property
    def _state_sizes(self) -> tuple[int, ...]:
        """The last dimension of each part of the state: h, and in an LSTM c."""
        return (self.hidden_size,) * len(self._state_names)

    input_size: int
    hidden_size: int


def drop_mask(probability: float, rows: Sequence[int], like: Tensor) -> Tensor:
    """Draws a dropout mask that several steps share, scaled to the mean 1."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    return torch.nn.functional.dropout(like.new_ones(rows, dtype=dtype), probability)


def _zoneouts(zoneout: Any, names: Sequence[str]) -> tuple[float, ...]:
    """Returns the probability of each part of the state."""
    probabilities = zoneout if isinstance(zoneout, tuple | list) else (zoneout, *(0.0,) * (len(names) - 1))
    in_range = [isinstance(p, int | float) and not isinstance(p, bool) and 0 <= p <= 1 for p in probabilities]
    if len(probabilities) != len(names) or not all(in_range):
        or_pair = " or a pair of them for (h, c)" if len(names) > 1 else ""
        raise ValueError(f"zoneout should be a number in range [0, 1]{or_pair}, got {zoneout!r}")
    return tuple(map(float, probabilities))


def parameter_of(module: torch.nn.Module, name: str) -> torch.nn.Parameter:
    """Returns a parameter that is to be set.

    Raises:
        ValueError: it is computed.
    """
    found = module._parameters.get(name)
    if found is None:
        title = f"{name} of {type(module).__name__}"
        raise ValueError(f"{title} is computed, by pruning or a parametrization, and cannot be set; remove that first")
    return found


def check_module(who: str, module: object, argument: str = "module") -> None:
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"{who}: {argument} must be a torch.nn.Module, got {type(module).__name__} {module!r:.60}")


def check_flags(**flags: bool) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name} should be of type bool, got: {type(flag).__name__}")


def check_fraction(name: str, fraction: float) -> None:
    if not isinstance(fraction, numbers.Real) or isinstance(fraction, bool) or not 0 <= fraction <= 1:
        raise ValueError(f"{name} should be a number in range [0, 1], got {fraction!r}")


def check_sizes(
    input_size: int, hidden_size: int, num_layers: int, dropout: float, proj_size: int
) -> tuple[int, int, int, int]:
    """Checks a module's sizes, which may be NumPy's, and returns the first three and the last as Python's."""
    sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers, "proj_size": proj_size}
    for name, size in sizes.items():
        if not isinstance(size, numbers.Integral) or isinstance(size, bool):
            raise TypeError(f"{name} should be of type int, got: {type(size).__name__}")
        if name == "input_size" and size < 0:
            raise ValueError(f"{name} must be at least 0, got {size}")
        if name in ("hidden_size", "num_layers") and size < 1:
            raise ValueError(f"{name} must be greater than zero, got {size}")
    check_fraction("dropout", dropout)
    if not 0 <= proj_size < hidden_size:
        raise ValueError(f"proj_size should be at least 0 and smaller than hidden_size={hidden_size}, got {proj_size}")
    return int(input_size), int(hidden_size), int(num_layers), int(proj_size)
