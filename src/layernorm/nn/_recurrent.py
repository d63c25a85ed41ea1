"""What `RNN`, `LSTM` and `GRU` have in common: layers, directions, packed and padded sequences, steps one by one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from ..formula import Formula
from ..functional import Steps, recurrent, recurrent_over_cases
from ._normalised import Normalised, State, check_flags, check_sizes
from ._population import Population

LayerStates = list[list[Tensor]]
"""For each layer h ``(B, P)``, in an LSTM also c ``(B, H)``."""


class Recurrent(Normalised):
    """Layers and directions of one kind of recurrent network, with torch's arguments, shapes and state-dict keys."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        proj_size: int = 0,
        nonlinearity: str = "tanh",
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
        check_flags(bias=bias, batch_first=batch_first, bidirectional=bidirectional, count_padding=count_padding)
        check_sizes(input_size, hidden_size, num_layers, dropout, proj_size)
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
            ValueError: the network is bidirectional, or has batch norm, whose statistics are of whole sequences, or has
                hooks on its forward.
        """
        name = type(self).__name__
        if self.bidirectional:
            raise ValueError(f"{name}.stepper: a bidirectional network needs the whole sequence")
        if self.norm == "batch":
            raise ValueError(f"{name}.stepper: batch norm has statistics of whole sequences; call the module itself")
        self._check_hooks()
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


class Stepper:
    """An `RNN`, `LSTM` or `GRU` one step a call, made by its ``stepper()``.

    The weights are prepared once, before the first step, and their gradients are computed once, for all steps together.
    A loop over the module itself does both at every step.

    Make a new stepper for every forward pass, under the same autocast as its steps. It refuses to go on when the
    parameters have been changed, as far as torch counts changes: fused optimizers' and those of ``.data`` are not seen.

    Example::

        step, state, output = lstm.stepper(), None, torch.zeros(B, H)
        for frame in frames:
            output, state = step(torch.cat([frame, output], 1), state)
        hx = step.hx(state)
    """

    def __init__(self, module: Recurrent) -> None:
        self.module = module
        self._layers = [
            Steps(module._parameters_of(suffix), module.recurrence, module._encoded, module._leaves(suffix))
            for suffix in module._suffixes
        ]

    def __call__(self, input: Tensor, state: LayerStates | None = None) -> tuple[Tensor, LayerStates]:
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
        self._check_state(state)
        if len(state) != len(self._layers):
            raise ValueError(f"{name}.stepper: expected state to have {len(self._layers)} layers, got {len(state)}")
        after: LayerStates = []
        for layer, before in zip(self._layers, state, strict=True):
            if after and module.dropout:
                input = torch.nn.functional.dropout(input, module.dropout, module.training)
            after.append(layer(input, before))
            input = after[-1][0]
        return input, after

    def _check_state(self, state: Any) -> None:
        """That it has layers with the parts of a state, of which `functional.Steps` checks shapes."""
        parts, known = len(self.module._state_names), (list, tuple)
        layers = state if isinstance(state, known) else [None]
        for layer in layers:
            if not isinstance(layer, known) or len(layer) != parts or not all(isinstance(s, Tensor) for s in layer):
                given = f"{type(state).__name__} with {type(layer).__name__}"
                raise TypeError(
                    f"{type(self.module).__name__}.stepper: expected state to be what the last call returned, or "
                    f"step.state(hx): a list with {parts} tensors for each layer; got {given}"
                )

    def state(self, hx: Any) -> LayerStates:
        """The module's ``hx``, h ``(L, B, P)`` and in an LSTM c ``(L, B, H)``, as this stepper takes it."""
        parts = self.module._state_from(hx)
        if parts is None:
            raise TypeError(f"{type(self.module).__name__}.stepper: expected hx to be a state, got None")
        return [list(of_layer) for of_layer in zip(*(part.unbind() for part in parts), strict=True)]

    def hx(self, state: LayerStates) -> Any:
        """A state as the module takes and returns it."""
        return self.module._hx_from(tuple(torch.stack(part) for part in zip(*state, strict=True)))


def _check_population(max_steps: int, momentum: float | None) -> None:
    if not isinstance(max_steps, int) or isinstance(max_steps, bool):
        raise TypeError(f"max_steps should be of type int, got: {type(max_steps).__name__}")
    if max_steps < 1:
        raise ValueError(f"max_steps must be greater than zero, got {max_steps}")
    number = isinstance(momentum, (int, float)) and not isinstance(momentum, bool)
    if momentum is not None and not (number and 0 <= momentum <= 1):
        raise ValueError(f"momentum should be a number in range [0, 1] or None, got {momentum!r}")
