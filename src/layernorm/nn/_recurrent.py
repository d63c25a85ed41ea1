"""What `RNN`, `LSTM` and `GRU` have in common: parameters, layers, directions, packed and padded sequences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from ..formula import PLAIN, Formula, Network, Recurrence
from ..functional import describe, recurrent, recurrent_over_cases
from ._population import Population
from ._stepper import CellStepper, Stepper

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


class Recurrent(Normalised):
    """Layers and directions of one kind of recurrent network, with torch's arguments, shapes and state-dict keys."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        proj_size: int,
        nonlinearity: str,
        device: Any,
        dtype: Any,
        norm: str | None,
        formula: str | Formula,
        eps: float | None,
        gain_init: float | None,
        max_steps: int,
        momentum: float | None,
        count_padding: bool,
    ) -> None:
        super().__init__()
        _check_flags(bias=bias, batch_first=batch_first, bidirectional=bidirectional, count_padding=count_padding)
        _check_sizes(input_size, hidden_size, num_layers, dropout, proj_size)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size = bidirectional, proj_size
        _check_population(max_steps, momentum)
        self.max_steps, self.momentum, self.count_padding = max_steps, momentum, count_padding
        self._describe(norm, formula, eps, gain_init, bias=bias, projected=proj_size > 0, nonlinearity=nonlinearity)
        for layer in range(num_layers):
            size = input_size if layer == 0 else len(self._directions) * self._output_size
            shapes = self.recurrence.parameter_shapes(size, hidden_size, proj_size or None)
            for direction in self._directions:
                suffix = f"_l{layer}{direction}"
                self._register(shapes, suffix, device, dtype)
                if norm == "batch":
                    self._population(suffix).register(shapes, max_steps, device, dtype)
        self.reset_parameters()
        self._normalise_weights()

    @property
    def _directions(self) -> tuple[str, ...]:
        """The suffixes of the directions in the parameters' names."""
        return ("", "_reverse") if self.bidirectional else ("",)

    @property
    def _output_size(self) -> int:
        return self.proj_size or self.hidden_size

    @property
    def _state_sizes(self) -> tuple[int, ...]:
        """The last dimension of each part of the state: h, and in an LSTM c."""
        return (self._output_size, self.hidden_size)[: len(self._state_names)]

    @property
    def _suffixes(self) -> list[str]:
        return [f"_l{layer}{direction}" for layer in range(self.num_layers) for direction in self._directions]

    def _parameters_of(self, suffix: str) -> list[Tensor]:
        return self._read([name + suffix for name in self._names])

    def _population(self, suffix: str) -> Population:
        return Population(self, self.recurrence.gain_names, suffix)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.norm == "batch":
            for suffix in self._suffixes:
                self._population(suffix).reset()

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The parameters, a list for each layer and direction."""
        return [self._parameters_of(suffix) for suffix in self._suffixes]

    @property
    def mode(self) -> str:
        """What torch calls the network: "LSTM", "GRU", "RNN_TANH" or "RNN_RELU"."""
        return f"RNN_{self.recurrence.nonlinearity.upper()}" if self.network == "RNN" else self.network

    def flatten_parameters(self) -> None:
        """Does nothing: the parameters need no flat copy. It is here because torch's modules have it."""

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Any = None,
        *,
        lengths: Tensor | list[int] | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Any, Any]:
        """Runs the sequence.

        Args:
            input: ``(T, B, I)``, ``(B, T, I)`` with ``batch_first``, ``(T, I)`` unbatched, or a `PackedSequence`.
            hx: the initial state ``h`` ``(L * D, B, P)``, in an LSTM ``(h, c)`` with ``c`` ``(L * D, B, H)``; without
                ``B`` if unbatched; ``None``: zeros.
            lengths: ``(B,)``, in 0..T, in any order: as packing would do, outputs beyond a length are 0, the final
                state is the one at the length, and the reverse direction starts there.
            reset: ``(T, B)`` bool (time first, with any ``batch_first``): true cuts the sequence between t-1 and t, so
                that step t starts from the zero state (in the reverse direction, step t-1).

        Returns:
            output, of ``input``'s kind, with ``D * P`` features, and the final state, like ``hx``; P is the projected
            size, H without projections.

        Raises:
            RuntimeError, ValueError, TypeError: a shape, type, device or length does not fit; the message names it.
        """
        output, state = self._run(input, hx, lengths, reset)
        return output, self._hx_from(state)

    def stepper(self) -> Stepper:
        """This network one step a call, for a step's input that depends on the output before it (`Stepper`).

        Raises:
            ValueError: the network is bidirectional, or has batch norm, whose statistics are of whole sequences.
        """
        name = type(self).__name__
        if self.bidirectional:
            raise ValueError(f"{name}.stepper: a bidirectional network needs the whole sequence")
        if self.norm == "batch":
            raise ValueError(f"{name}.stepper: batch norm has statistics of whole sequences; call the module itself")
        return Stepper(self)

    def _run(self, input: Any, hx: Any, lengths: Tensor | list[int] | None, reset: Tensor | None) -> tuple[Any, State]:
        """Any input that torch's module takes, and the state as a tuple of its parts."""
        name, state = type(self).__name__, self._state_from(hx)
        if not (reset is None or isinstance(reset, Tensor)):
            raise TypeError(f"{name}: expected reset to be a Tensor, got {type(reset).__name__}")
        if isinstance(input, PackedSequence):
            return self._run_packed(input, state, lengths, reset)
        if not isinstance(input, Tensor):
            raise TypeError(f"{name}: expected input to be a Tensor or PackedSequence, got {type(input).__name__}")
        if input.dim() not in (2, 3):
            raise ValueError(f"{name}: Expected input to be 2D or 3D, got {input.dim()}D instead")
        for part in state or ():
            if part.dim() != input.dim():
                kind = "batched 3-D" if input.dim() == 3 else "unbatched 2-D"
                raise RuntimeError(f"For {kind} input, hx should also be {input.dim()}-D but got {part.dim()}-D tensor")
        if input.dim() == 2:
            if lengths is not None:
                raise ValueError(f"{name}: lengths needs a batch, got unbatched input {list(input.shape)}")
            return self._run_unbatched(input, state, reset)
        x = input.transpose(0, 1) if self.batch_first else input
        if lengths is not None and not isinstance(lengths, Tensor):
            lengths = torch.tensor(lengths, device=x.device)
            lengths = lengths if lengths.numel() else lengths.long()
        output, state = self._run_padded(x, state, lengths, reset)
        return output.transpose(0, 1) if self.batch_first else output, state

    def _run_unbatched(self, input: Tensor, hx: State | None, reset: Tensor | None) -> tuple[Tensor, State]:
        hx = None if hx is None else tuple(part.unsqueeze(1) for part in hx)
        reset = None if reset is None else reset.unsqueeze(-1)
        output, state = self._run_padded(input.unsqueeze(1), hx, None, reset)
        return output.squeeze(1), tuple(part.squeeze(1) for part in state)

    def _run_packed(
        self, input: PackedSequence, hx: State | None, lengths: Any, reset: Tensor | None
    ) -> tuple[PackedSequence, State]:
        if lengths is not None:
            raise ValueError(f"{type(self).__name__}: a PackedSequence has its own lengths; lengths must be None")
        data, sizes, order, back = input
        padded, lengths = pad_packed_sequence(PackedSequence(data, sizes))
        hx = self._initial(padded, hx)
        if reset is not None and reset.shape != padded.shape[:2]:
            expected = list(padded.shape[:2])
            raise RuntimeError(f"{type(self).__name__}: expected reset of shape {expected}, got {list(reset.shape)}")
        if order is not None:
            hx = tuple(s.index_select(1, order) for s in hx)
            reset = None if reset is None else reset.index_select(1, order)
        output, state = self._run_padded(padded, hx, lengths.to(data.device), reset)
        if back is not None:
            state = tuple(s.index_select(1, back) for s in state)
        packed = pack_padded_sequence(output, lengths)
        return PackedSequence(packed.data, sizes, order, back), state

    def _run_padded(
        self, x: Tensor, hx: State | None, lengths: Tensor | None, reset: Tensor | None
    ) -> tuple[Tensor, State]:
        """(T, B, I) -> (T, B, D * P), each part of the state (L * D, B, size)."""
        if x.shape[-1] != self.input_size:
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {x.shape[-1]}"
            )
        hx = self._initial(x, hx)
        finals: list[list[Tensor]] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in self._directions:
                state = [s[len(finals)] for s in hx]
                output, final = self._run_layer(x, state, f"_l{layer}{direction}", lengths, reset, bool(direction))
                outputs.append(output)
                finals.append(final)
            x = torch.cat(outputs, -1) if self.bidirectional else outputs[0]
            if layer < self.num_layers - 1:
                x = torch.nn.functional.dropout(x, self.dropout, self.training) if self.dropout else x
        return x, tuple(torch.stack(part) for part in zip(*finals, strict=True))

    def _run_layer(
        self, x: Tensor, state: list[Tensor], suffix: str, lengths: Tensor | None, reset: Tensor | None, reverse: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """One layer in one direction."""
        params = self._parameters_of(suffix)
        if self.norm != "batch":
            return recurrent(x, state, params, self._encoded, lengths, reset, reverse)
        known = self._population(suffix)
        population = None if self.training else known.at(len(x))
        arguments = (lengths, reset, reverse, population, self.count_padding)
        output, final, batch = recurrent_over_cases(x, state, params, self.recurrence, *arguments)
        if batch is not None:
            known.update(batch, self.momentum)
        return output, final

    def _initial(self, x: Tensor, hx: State | None) -> State:
        rows = self.num_layers * len(self._directions)
        if hx is None:
            return tuple(x.new_zeros(rows, x.shape[1], size) for size in self._state_sizes)
        for name, part, size in zip(self._state_names, hx, self._state_sizes, strict=True):
            expected = (rows, x.shape[1], size)
            if tuple(part.shape) != expected:
                raise RuntimeError(f"Expected hidden {name} of size {expected}, got {list(part.shape)}")
        return hx

    def extra_repr(self) -> str:
        """As torch's, and what torch's has not."""
        text = f"{self.input_size}, {self.hidden_size}"
        given = {
            "proj_size": (self.proj_size, 0),
            "num_layers": (self.num_layers, 1),
            "bias": (self.bias, True),
            "batch_first": (self.batch_first, False),
            "dropout": (self.dropout, 0.0),
            "bidirectional": (self.bidirectional, False),
            "nonlinearity": (self.recurrence.nonlinearity, "tanh"),
            "max_steps": (self.max_steps, 100),
            "momentum": (self.momentum, 0.1),
            "count_padding": (self.count_padding, False),
        }
        text += "".join(f", {name}={value!r}" for name, (value, default) in given.items() if value != default)
        return text + self._described()


def _check_flags(**flags: bool) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name} should be of type bool, got: {type(flag).__name__}")


def _check_sizes(input_size: int, hidden_size: int, num_layers: int, dropout: float, proj_size: int) -> None:
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


def _check_population(max_steps: int, momentum: float | None) -> None:
    if not isinstance(max_steps, int) or isinstance(max_steps, bool):
        raise TypeError(f"max_steps should be of type int, got: {type(max_steps).__name__}")
    if max_steps < 1:
        raise ValueError(f"max_steps must be greater than zero, got {max_steps}")
    number = isinstance(momentum, (int, float)) and not isinstance(momentum, bool)
    if momentum is not None and not (number and 0 <= momentum <= 1):
        raise ValueError(f"momentum should be a number in range [0, 1] or None, got {momentum!r}")


class RecurrentCell(Normalised):
    """One step of one layer, with torch's arguments, shapes and state-dict keys."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        nonlinearity: str,
        device: Any,
        dtype: Any,
        norm: str | None,
        formula: str | Formula,
        eps: float | None,
        gain_init: float | None,
    ) -> None:
        super().__init__()
        if norm == "batch":
            raise ValueError(
                f"{self.network}Cell: batch norm needs to know the time step, use layernorm.{self.network}"
            )
        _check_flags(bias=bias)
        _check_sizes(input_size, hidden_size, 1, 0.0, 0)
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        self._describe(norm, formula, eps, gain_init, bias=bias, nonlinearity=nonlinearity)
        self._register(self.recurrence.parameter_shapes(input_size, hidden_size), "", device, dtype)
        self.reset_parameters()
        self._normalise_weights()

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """The next state.

        Args:
            input: ``(B, I)`` or ``(I,)``.
            hx: the state ``h`` ``(B, H)``, in an LSTM ``(h, c)``; without ``B`` if unbatched; ``None``: zeros.

        Returns:
            the next state, like ``hx``.

        Raises:
            RuntimeError, ValueError, TypeError: a shape, type or device does not fit; the message names it.
        """
        return self._step(input, hx, self._once)

    def stepper(self) -> CellStepper:
        """This cell with its weights prepared once, to be called step by step (`CellStepper`)."""
        return CellStepper(self, self._read(self._names))

    def _once(self, input: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
        """One step by itself: (B, I) and the state before it to the state after it."""
        return recurrent(input.unsqueeze(0), state, self._read(self._names), self._encoded)[1]

    def _step(self, input: Tensor, hx: Any, take: Callable[[Tensor, Sequence[Tensor]], list[Tensor]]) -> Any:
        """`forward`, with the function that takes the step."""
        name, given = type(self).__name__, self._state_from(hx)
        if not isinstance(input, Tensor):
            raise TypeError(f"{name}: expected input to be a Tensor, got {type(input).__name__}")
        if input.dim() not in (1, 2):
            raise ValueError(f"{name}: Expected input to be 1D or 2D, got {input.dim()}D instead")
        if input.shape[-1] != self.input_size:
            raise RuntimeError(
                f"{name}: input has inconsistent input_size: got {input.shape[-1]}, expected {self.input_size}"
            )
        expected = (*input.shape[:-1], self.hidden_size)
        if given is None:
            given = tuple([input.new_zeros(expected) for _ in self._state_names])
        else:
            for part_name, part in zip(self._state_names, given, strict=False):
                if part.shape != expected:
                    given_size = list(part.shape)
                    raise RuntimeError(f"{name}: Expected hidden {part_name} of size {expected}, got {given_size}")
        if input.dim() == 2:
            return self._hx_from(tuple(take(input, given)))
        final = take(input.unsqueeze(0), tuple([part.unsqueeze(0) for part in given]))
        return self._hx_from(tuple([part.squeeze(0) for part in final]))

    def extra_repr(self) -> str:
        """As torch's, and what torch's has not."""
        text = f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")
        if self.recurrence.nonlinearity != "tanh":
            text += f", nonlinearity={self.recurrence.nonlinearity}"
        return text + self._described()
