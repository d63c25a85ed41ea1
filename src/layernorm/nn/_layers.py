"""The layers and directions of a recurrent network: their parameters, and the walk over them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..equations.arguments import NO_CHANGES, RecurrentArguments, StateChanges
from ..equations.schedule import count_rows, lines_of, unpacked
from ..formula import QUANTIZED, Formula
from ..functional._recurrent import recurrent
from ._gains import GainInit
from ._normalised import Normalised, State, check_flags, check_fraction, check_sizes, drop_mask
from ._population import BatchNormOverTime, Norm, Population, norm_name

if TYPE_CHECKING:
    from typing_extensions import Self


class Batch(NamedTuple):
    """What the layers of a network are called with, in the shapes that `RecurrentArguments` have.

    Attributes:
        input: (T, B, I), of a packed batch (lines, I).
        rows: B.
        hx: the initial state, each part (L * D, B, size); None: zeros.
        lengths: (B,), or None.
        reset: (T, B) bool, of a packed batch (lines,), true where a sequence is cut; None: nowhere.
        restart: the state that a sequence starts from after a cut, like ``hx``; empty: zeros.
        batch_sizes: of a packed batch.
    """

    input: Tensor
    rows: int
    hx: State | None
    lengths: Tensor | None = None
    reset: Tensor | None = None
    restart: State = ()
    batch_sizes: Tensor | None = None


class Layers(Normalised):
    """Layers and directions of one kind of recurrent network."""

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
        norm: Norm,
        formula: str | Formula,
        eps: float | None,
        gain_init: GainInit,
        recurrent_dropout: float,
        zoneout: float | tuple[float, float],
        variational: bool,
        forget_bias: float | None = None,
        gate_clip: float | None = None,
    ) -> None:
        super().__init__()
        check_flags(bias=bias, batch_first=batch_first, bidirectional=bidirectional, variational=variational)
        sizes = check_sizes(input_size, hidden_size, num_layers, dropout, proj_size)
        input_size, hidden_size, num_layers, proj_size = sizes
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects "
                f"num_layers greater than 1, but got dropout={dropout} and num_layers={num_layers}",
                stacklevel=3,
            )
        check_fraction("recurrent_dropout", recurrent_dropout)
        self.recurrent_dropout, self.variational = float(recurrent_dropout), variational
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size = bidirectional, proj_size
        settings = BatchNormOverTime() if norm == "batch" else norm
        self.over_time = settings if isinstance(settings, BatchNormOverTime) else None
        equations = {"bias": bias, "projected": proj_size > 0, "nonlinearity": nonlinearity, "gate_clip": gate_clip}
        self._describe(norm_name(norm), formula, eps, gain_init, forget_bias, zoneout, **equations)
        self._warn_of_lost_input(input_size, hidden_size)
        for layer, size in enumerate(self._input_sizes):
            shapes = self.recurrence.parameter_shapes(size, hidden_size, proj_size or None)
            for direction in self._directions:
                suffix = f"_l{layer}{direction}"
                self._register(shapes, suffix, device, dtype)
                if self.over_time is not None:
                    self._population(suffix).register(shapes, self.over_time.max_steps, device, dtype)
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
    def _input_sizes(self) -> list[int]:
        return [self.input_size] + [len(self._directions) * self._output_size] * (self.num_layers - 1)

    @property
    def _state_sizes(self) -> tuple[int, ...]:
        """The last dimension of each part of the state: h, and in an LSTM c."""
        return (self._output_size, self.hidden_size)[: len(self._state_names)]

    @property
    def _suffixes(self) -> list[str]:
        return [f"_l{layer}{direction}" for layer in range(self.num_layers) for direction in self._directions]

    def _population(self, suffix: str) -> Population:
        return Population(self, self.recurrence.gain_names, suffix)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.reset_running_stats()

    def reset_running_stats(self) -> None:
        """Sets batch norm's population statistics to mean 0 and variance 1. Without batch norm there are none."""
        if self.norm == "batch":
            for suffix in self._suffixes:
                self._population(suffix).reset()

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Converts the module, as ``half()`` and ``to()`` do. The scales of int8 weights stay in float32 or wider."""
        scales = {name: b for name, b in self._buffers.items() if b is not None and "_scale_l" in name}
        super()._apply(fn, recurse)
        for name, scale in scales.items() if self.recurrence.quantized else ():
            now = cast(Tensor, self._buffers[name])
            if now.dtype.itemsize < 4:
                self._buffers[name] = scale.to(now.device, torch.float32)
        return self

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, local_metadata: Any, strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        """Refuses int8 weights for others, and others for int8: torch would convert them without their scales."""
        quantized = self.recurrence.quantized
        for name in (f"{prefix}{weight}{suffix}" for weight in QUANTIZED for suffix in self._suffixes):
            given = state_dict.get(name)
            if isinstance(given, Tensor) and (given.dtype is torch.int8) != quantized:
                error_msgs.append(
                    f"{name}: expected {'torch.int8' if quantized else 'a floating-point type'}, got {given.dtype}; "
                    + ("load it before quantize" if quantized else "it is of a network that quantize made")
                )
                return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _initial_state(self, x: Tensor, hx: State | None, B: int) -> State:
        rows = self.num_layers * len(self._directions)
        if hx is None:
            return tuple(x.new_zeros(rows, B, size) for size in self._state_sizes)
        for name, part, size in zip(self._state_names, hx, self._state_sizes, strict=True):
            expected = (rows, B, size)
            if tuple(part.shape) != expected:
                raise RuntimeError(f"Expected hidden {name} of size {expected}, got {list(part.shape)}")
        return hx

    def _run_layers(self, batch: Batch) -> tuple[Tensor, State]:
        """Runs all layers: (T, B, I) -> (T, B, D * P), each part of the state (L * D, B, size).

        Of a packed batch (lines, I) -> (lines, D * P).
        """
        x, B, hx, lengths, reset, restart, batch_sizes = batch
        if x.shape[-1] != self.input_size:
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {x.shape[-1]}"
            )
        hx = self._initial_state(x, hx, B)
        finals: list[list[Tensor]] = []
        for layer in range(self.num_layers):
            outputs: list[Tensor] = []
            for direction in self._directions:
                k, suffix = len(finals), f"_l{layer}{direction}"
                changes = self._draw_changes(x, B, restart and [part[k] for part in restart])
                state, params = [part[k] for part in hx], self._parameters_of(suffix)
                masks = lengths, reset, bool(direction), batch_sizes
                a = RecurrentArguments(x, state, params, self.recurrence, changes, *masks)
                output, final = self._run_layer(a, suffix)
                outputs.append(output)
                finals.append(final)
            x = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
            if layer < self.num_layers - 1:
                x = self._apply_dropout(x, B, batch_sizes)
        return x, tuple(torch.stack(part) for part in zip(*finals, strict=True))

    def _run_layer(self, a: RecurrentArguments, suffix: str) -> tuple[Tensor, list[Tensor]]:
        """Runs one layer in one direction: output, final state."""
        if self.over_time is not None:
            return self._run_batch_norm(a, suffix, self.over_time)
        if self.recurrence.quantized:
            self._check_inference(a.tensors)
        return recurrent(a)[:2]

    def _run_batch_norm(
        self, a: RecurrentArguments, suffix: str, settings: BatchNormOverTime
    ) -> tuple[Tensor, list[Tensor]]:
        """Runs a layer by the moments of the batch, which its population takes in, or in evaluation by this one's."""
        if self.training and torch.compiler.is_exporting():
            name = type(self).__name__
            raise RuntimeError(
                f"{name}: batch norm in training changes its statistics, which no exported graph does; "
                "call eval() on the module first"
            )
        statistics, sizes = self._population(suffix), a.batch_sizes
        population = () if self.training else statistics.at_steps(a.sizes[0])
        ended_count = settings.count_padding and self.training  # rows that have ended take steps, too
        padded = unpacked(a) if ended_count else a
        padded = padded._replace(population=population, count_padding=settings.count_padding)
        output, final, moments = recurrent(padded)
        if moments:
            statistics.update(count_rows(padded), moments, settings.momentum)
        if sizes is not None and ended_count:
            times, rows = (index.to(output.device) for index in lines_of(sizes, len(a.input)))
            output = output[times, rows]
        return output, final

    def _apply_dropout(self, x: Tensor, B: int, batch_sizes: Tensor | None) -> Tensor:
        """Applies the dropout between two layers: (T, B, n) or (lines, n)."""
        if not self.dropout or not self.training:
            return x
        if not self.variational:
            return torch.nn.functional.dropout(x, self.dropout)
        mask = drop_mask(self.dropout, (B, x.shape[-1]), x).to(x.dtype)
        return x * (mask if batch_sizes is None else mask[lines_of(batch_sizes, len(x))[1].to(x.device)])

    def _draw_changes(self, x: Tensor, B: int, restart: Sequence[Tensor]) -> StateChanges:
        """Draws the changes of one layer and direction's state between its steps in this call."""
        drops, keeps = self.recurrent_dropout > 0 and self.training, any(self._zoneouts)
        if not (restart or drops or keeps):
            return NO_CHANGES
        dropout = drop_mask(self.recurrent_dropout, (B, self._output_size), x) if drops else None
        return StateChanges(restart, dropout, self._kept_shares(x, x.shape[:-1]) if keeps else ())

    def _check_inference(self, tensors: list[Tensor]) -> None:
        """Checks that nothing asks a quantized network for a gradient, or to train."""
        name, why = type(self).__name__, "a quantized network is for inference"
        if self.training:
            raise RuntimeError(f"{name}: {why}, got it in training mode; call eval() first")
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            raise RuntimeError(f"{name}: {why}, got a tensor that requires grad; call it under torch.no_grad()")
        if any(forward_ad.unpack_dual(t).tangent is not None for t in tensors if forward_ad._current_level >= 0):
            raise RuntimeError(f"{name}: {why}, got a tensor with a tangent; forward mode does not see the rounding")
