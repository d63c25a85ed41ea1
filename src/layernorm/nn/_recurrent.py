"""What `RNN`, `LSTM` and `GRU` have in common: layers, directions, packed and padded sequences, steps one by one."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TypeVar, cast, overload

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from ..formula import PLAIN, Formula
from ..functional import (
    NO_CHANGES,
    StateChanges,
    as_cuts,
    autocast_type,
    cast_tensors,
    check_dense,
    count_rows,
    is_eager,
    is_onednns,
    lines_of,
    recurrent,
)
from ._gains import GainInit
from ._normalised import Normalised, State, check_flags, check_fraction, check_sizes, drop_mask
from ._population import BatchNormOverTime, Norm, Population, norm_name
from ._prepared import PreparedLayers, in_inference_mode
from ._tracing import fx_call_module

if TYPE_CHECKING:
    from typing_extensions import Self

LayerStates = list[list[Tensor]]
"""For each layer h ``(B, P)``, in an LSTM also c ``(B, H)``."""

Hx = TypeVar("Hx")
"""The type of a network's state: `Tensor`, in an LSTM ``tuple[Tensor, Tensor]``."""

_WORTH_PACKING = 256  # steps, padding included: fewer take as long as it takes to pack them
_TORCH_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")


class Cuts(NamedTuple):
    """Where the sequences of a batch are cut.

    Attributes:
        reset: (T, B) bool, of a packed batch (lines,), true where a sequence is cut.
        restart: the parts of the state, each ``(L * D, B, size)``, that a sequence starts from after a cut.
            Empty: zeros.
    """

    reset: Tensor
    restart: State


class Recurrent(Normalised, Generic[Hx]):
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
        check_sizes(input_size, hidden_size, num_layers, dropout, proj_size)
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

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The parameters, a list for each layer and direction."""
        return [self._parameters_of(suffix) for suffix in self._suffixes]

    @property
    def _all_weights(self) -> list[list[str]]:
        """The names of torch's own parameters, a list for each layer and direction, as torch's modules have them.

        Gains and the biases of normalisations are not among them: loops over these names take a "bias" for one of G * H
        numbers.
        """
        names = [[name + suffix for name in self._names if name in _TORCH_NAMES] for suffix in self._suffixes]
        return names if self.recurrence.formula == PLAIN else _OnlyTorchNames(names)

    @property
    def mode(self) -> str:
        """What torch calls the network: "LSTM", "GRU", "RNN_TANH" or "RNN_RELU"."""
        return f"RNN_{self.recurrence.nonlinearity.upper()}" if self.network == "RNN" else self.network

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Converts the module, as ``half()`` and ``to()`` do. The scales of int8 weights stay in float32 or wider."""
        scales = {name: b for name, b in self._buffers.items() if b is not None and "_scale_l" in name}
        super()._apply(fn, recurse)
        for name, scale in scales.items() if self.recurrence.quantized else ():
            now = cast(Tensor, self._buffers[name])
            if now.dtype.itemsize < 4:
                self._buffers[name] = scale.to(now.device, torch.float32)
        return self

    def flatten_parameters(self) -> None:
        """Does nothing: the parameters need no flat copy. It is here because torch's modules have it."""

    @overload
    def forward(
        self,
        input: Tensor,
        hx: Hx | None = None,
        *,
        lengths: Tensor | list[int] | None = None,
        reset: Tensor | None = None,
        reset_hx: Hx | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Hx]: ...
    @overload
    def forward(
        self,
        input: PackedSequence,
        hx: Hx | None = None,
        *,
        reset: Tensor | None = None,
        reset_hx: Hx | None = None,
    ) -> tuple[PackedSequence, Hx]: ...
    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Hx | None = None,
        *,
        lengths: Tensor | list[int] | None = None,
        reset: Tensor | None = None,
        reset_hx: Hx | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Any, Hx]:
        """Runs the sequence.

        Args:
            input: ``(T, B, I)``, ``(B, T, I)`` with ``batch_first``, ``(T, I)`` unbatched, or a `PackedSequence`.
            hx: the initial state: ``h`` ``(L * D, B, P)``, and in an LSTM ``(h, c)`` with ``c`` ``(L * D, B, H)``.
                Without ``B`` if the input is unbatched. ``None``: zeros.
            lengths: the length of each sequence, ``(B,)``, from 0 to T, in any order. Outputs beyond a length are 0.
                The final state is the one at the length, and the reverse direction starts there. Packing does the same.
                On the CPU a batch of which half or more is padding is computed packed.
            reset: where to cut the sequences, in the order of the input: ``(T, B)``; ``(B, T)`` with ``batch_first``,
                of a `PackedSequence`, too; ``(T,)`` unbatched. It is bool, or holds 0 and 1. A 1 at step t cuts between
                t-1 and t: step t starts from the zero state, and in the reverse direction step t-1 does.
            reset_hx: the state to start from after a cut, instead of zeros. It has the shape of ``hx``, or 1 in place
                of B, as learned parameters ``(L * D, 1, P)`` have. Gradients flow into it.
            mask: ``lengths`` in the form that TorchRL has: bool, ``(T, B)``, or ``(B, T)`` with ``batch_first``. It is
                true at the steps of each sequence, which come first.

        Returns:
            output, of ``input``'s kind, with ``D * P`` features, and the final state, like ``hx``; P is the projected
            size, H without projections.

        Raises:
            RuntimeError, ValueError, TypeError: a shape, type, device or length does not fit, ``reset`` holds another
                number than 0 and 1, or ``reset_hx`` comes without ``reset``; the message names it.
        """
        if isinstance(input, Proxy):
            return fx_call_module(self, input, hx, lengths=lengths, reset=reset, reset_hx=reset_hx, mask=mask)
        if mask is not None:
            lengths = self._lengths_of(mask, input, lengths)
        output, state = self._run(input, hx, lengths, reset, reset_hx)
        return output, self._hx_from(state)

    if TYPE_CHECKING:  # torch declares nothing of a call; pyright does not take `__call__ = forward` against that

        @overload
        def __call__(
            self,
            input: Tensor,
            hx: Hx | None = None,
            *,
            lengths: Tensor | list[int] | None = None,
            reset: Tensor | None = None,
            reset_hx: Hx | None = None,
            mask: Tensor | None = None,
        ) -> tuple[Tensor, Hx]: ...
        @overload
        def __call__(
            self,
            input: PackedSequence,
            hx: Hx | None = None,
            *,
            reset: Tensor | None = None,
            reset_hx: Hx | None = None,
        ) -> tuple[PackedSequence, Hx]: ...
        def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Hx]: ...

    def _lengths_of(self, mask: Tensor, input: Any, lengths: Any) -> Tensor:
        """Counts the steps that a mask has of each row.

        Raises:
            TypeError, ValueError: it is no bool tensor of the input's first two dimensions, a row's steps do not come
                first, or there are ``lengths``, too.
        """
        name = type(self).__name__
        if lengths is not None:
            raise ValueError(f"{name}: mask says what lengths says; expected one of them, got both")
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            dtype = getattr(mask, "dtype", type(mask).__name__)
            raise TypeError(f"{name}: expected mask to be a bool Tensor, got {dtype}")
        check_dense(name, "mask", mask)
        if not isinstance(input, Tensor) or input.dim() != 3 or mask.shape != input.shape[:2]:
            size = list(input.shape) if isinstance(input, Tensor) else type(input).__name__
            raise ValueError(
                f"{name}: expected mask to have the first two sizes of input {size}, got {list(mask.shape)}"
            )
        rows = mask.transpose(0, 1) if self.batch_first else mask
        counts = rows.sum(0)
        first = (rows == (torch.arange(rows.shape[0], device=rows.device)[:, None] < counts)).all()
        if torch.compiler.is_compiling():
            torch._assert_async(first, "each row's steps must come first in mask")
        elif not mask.is_meta and not bool(first):
            raise ValueError(f"{name}: expected each row's steps to come first in mask, got a row with a gap")
        return counts

    def stepper(self) -> Stepper[Hx]:
        """Makes a `Stepper`, which runs this network one step a call: each input may depend on the output before it.

        Raises:
            ValueError: the network is bidirectional; it has batch norm, which needs the statistics of whole sequences;
                it has int8 weights; or it has hooks on its forward or its backward.
        """
        name = type(self).__name__
        if self.bidirectional:
            raise ValueError(f"{name}.stepper: a bidirectional network needs the whole sequence")
        if self.norm == "batch":
            raise ValueError(f"{name}.stepper: batch norm has statistics of whole sequences; call the module itself")
        if self.recurrence.quantized:
            raise ValueError(
                f"{name}.stepper: a quantized network has none; call the module with one step and the state before it"
            )
        return Stepper(self)

    def _run(
        self, input: Any, hx: Any, lengths: Tensor | list[int] | None, reset: Any, reset_hx: Any
    ) -> tuple[Any, State]:
        """Runs any input that torch's module takes. The state is a tuple of its parts."""
        self._follow_attributes()
        name, state, restart = type(self).__name__, self._state_from(hx), self._state_from(reset_hx, "reset_hx")
        if restart is not None and reset is None:
            raise ValueError(f"{name}: reset_hx is where a sequence starts again after a cut; it needs reset, got None")
        if isinstance(input, PackedSequence):
            return self._run_packed(input, state, lengths, reset, restart)
        if not isinstance(input, Tensor):
            raise TypeError(f"{name}: expected input to be a Tensor or PackedSequence, got {type(input).__name__}")
        check_dense(name, "input", input)
        if input.dim() not in (2, 3):
            raise ValueError(f"{name}: Expected input to be 2D or 3D, got {input.dim()}D instead")
        for part in state or ():
            if part.dim() != input.dim():
                form = "batched 3-D" if input.dim() == 3 else "unbatched 2-D"
                raise RuntimeError(f"For {form} input, hx should also be {input.dim()}-D but got {part.dim()}-D tensor")
        if input.dim() == 2:
            if lengths is not None:
                raise ValueError(f"{name}: lengths needs a batch, got unbatched input {list(input.shape)}")
            return self._run_unbatched(input, state, reset, restart)
        x = input.transpose(0, 1) if self.batch_first else input
        T, B = x.shape[:2]
        cuts, state = self._cuts(reset, restart, (T, B), x), self._state_of_padded(x, state, B)
        if lengths is not None and not isinstance(lengths, Tensor):
            try:
                lengths = torch.tensor(lengths, device=x.device)
            except (TypeError, ValueError, RuntimeError):
                raise TypeError(f"{name}: expected lengths to be a Tensor or a list of ints, got {lengths!r}") from None
            lengths = lengths if lengths.numel() else lengths.long()
        if lengths is not None and self._packs(x, lengths):
            packed, state = self._run_lines(pack_padded_sequence(x, lengths, enforce_sorted=False), state, B, cuts)
            output, _ = pad_packed_sequence(packed, total_length=T)
        else:
            output, state = self._run_layers(x, state, B, lengths, cuts)
        return output.transpose(0, 1) if self.batch_first else output, state

    def _cuts(self, reset: Any, restart: State | None, rows: Sequence[int], x: Tensor) -> Cuts | None:
        """Returns the cuts of ``rows``, T and B, from a user's ``reset`` and ``reset_hx``, or None."""
        if reset is None:
            return None
        T, B = rows
        name, layers = type(self).__name__, self.num_layers * len(self._directions)
        shape, order = ((B, T), " (batch first, as the input)") if self.batch_first else ((T, B), "")
        cut = as_cuts(reset, shape, name, order)
        for part_name, part, size in zip(self._state_names, restart or (), self._state_sizes, strict=False):
            if tuple(part.shape) not in ((layers, B, size), (layers, 1, size)):
                expected = f"{(layers, B, size)} or {(layers, 1, size)}"
                raise RuntimeError(f"Expected {part_name} of reset_hx of size {expected}, got {list(part.shape)}")
        if autocast_type(x) is None:
            restart = tuple(part.to(x.dtype) for part in restart or ())
        expanded = tuple(_expand_rows(part, B) for part in restart or ())
        return Cuts(cut.transpose(0, 1).contiguous() if self.batch_first else cut, expanded)

    def _run_unbatched(
        self, input: Tensor, hx: State | None, reset: Any, restart: State | None
    ) -> tuple[Tensor, State]:
        hx = None if hx is None else tuple(part.unsqueeze(1) for part in hx)
        x = input.unsqueeze(1)
        if reset is not None:
            reset = as_cuts(reset, input.shape[:1], type(self).__name__).unsqueeze(0 if self.batch_first else 1)
            restart = None if restart is None else tuple(part.unsqueeze(1) for part in restart)
        cuts = self._cuts(reset, restart, x.shape[:2], x)
        output, state = self._run_layers(x, self._state_of_padded(x, hx, 1), 1, None, cuts)
        return output.squeeze(1), tuple(part.squeeze(1) for part in state)

    def _run_packed(
        self, input: PackedSequence, hx: State | None, lengths: Any, reset: Any, restart: State | None
    ) -> tuple[PackedSequence, State]:
        if lengths is not None:
            raise ValueError(f"{type(self).__name__}: a PackedSequence has its own lengths; lengths must be None")
        data, sizes, order, _ = input
        if torch.compiler.is_exporting() and sizes.dtype != torch.int64:  # what pack_padded_sequence gives there
            raise RuntimeError(
                f"{type(self).__name__}: pack_padded_sequence cannot be exported; call the module with the padded "
                "batch and lengths= in place of packing"
            )
        check_dense(type(self).__name__, "input's data", data)
        if torch.jit.is_tracing():  # a number would be the example's; torch's modules have a tensor here, too
            B: Any = sizes[0]
        else:
            B = len(order) if order is not None else int(sizes[0].item()) if len(sizes) else 0
        return self._run_lines(input, hx, B, self._cuts(reset, restart, (sizes.shape[0], B), data))

    def _packs(self, x: Tensor, lengths: Tensor) -> bool:
        """Says whether a padded batch is to be computed packed: at most half of it are steps of a row.

        Errors are left to the padded call. Rows of no steps have no place in a packed batch.
        """
        if not (x.is_cpu and is_eager([x, lengths])) or (self.over_time is not None and self.over_time.count_padding):
            return False
        steps = x.shape[0] * x.shape[1]
        if steps < _WORTH_PACKING:
            return False
        fits = lengths.dtype == torch.int64 and lengths.is_cpu and lengths.shape == x.shape[1:2]
        return fits and 2 * int(lengths.sum()) <= steps and int(lengths.min()) >= 1 and int(lengths.max()) <= len(x)

    def _run_lines(
        self, input: PackedSequence, hx: State | None, B: int, cuts: Cuts | None
    ) -> tuple[PackedSequence, State]:
        """Runs a packed batch of B rows. The cuts are those of a padded one."""
        data, sizes, order, inverse = input
        if order is not None:
            hx = tuple(s.index_select(1, order) for s in self._initial_state(data, hx, B))
        if cuts is not None:
            times, rows = (index.to(data.device) for index in lines_of(sizes, len(data)))
            if order is not None:
                rows, cuts = order[rows], cuts._replace(restart=tuple(s.index_select(1, order) for s in cuts.restart))
            cuts = cuts._replace(reset=cuts.reset[times, rows])
        output, state = self._run_layers(data, hx, B, None, cuts, sizes)
        if inverse is not None:
            state = tuple(s.index_select(1, inverse) for s in state)
        return PackedSequence(output, sizes, order, inverse), state

    def _run_layers(
        self,
        x: Tensor,
        hx: State | None,
        B: int,
        lengths: Tensor | None,
        cuts: Cuts | None,
        batch_sizes: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Runs all layers: (T, B, I) -> (T, B, D * P), each part of the state (L * D, B, size).

        With ``batch_sizes`` the batch is packed: (lines, I) -> (lines, D * P).
        """
        if x.shape[-1] != self.input_size:
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {x.shape[-1]}"
            )
        hx = self._initial_state(x, hx, B)
        finals: list[list[Tensor]] = []
        for layer in range(self.num_layers):
            outputs: list[Tensor] = []
            for direction in self._directions:
                state = [s[len(finals)] for s in hx]
                reset = None if cuts is None else cuts.reset
                restart = () if cuts is None else [s[len(finals)] for s in cuts.restart]
                changes, suffix = self._draw_changes(x, B, restart), f"_l{layer}{direction}"
                masks = lengths, reset, bool(direction), changes, batch_sizes
                output, final = self._run_layer(x, state, suffix, *masks)
                outputs.append(output)
                finals.append(final)
            x = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
            if layer < self.num_layers - 1:
                x = self._apply_dropout(x, B, batch_sizes)
        return x, tuple(torch.stack(part) for part in zip(*finals, strict=True))

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

    def _run_layer(
        self,
        x: Tensor,
        state: list[Tensor],
        suffix: str,
        lengths: Tensor | None,
        reset: Tensor | None,
        reverse: bool,
        changes: StateChanges,
        batch_sizes: Tensor | None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Runs one layer in one direction: output, final state."""
        params = self._parameters_of(suffix)
        if self.recurrence.quantized:
            self._check_inference([x, *state, *params])
        call = x, state, params, self._encoded, lengths, reset, reverse, changes, batch_sizes
        if self.norm != "batch":
            return recurrent(*call)[:2]
        if self.training and torch.compiler.is_exporting():
            name = type(self).__name__
            raise RuntimeError(
                f"{name}: batch norm in training changes its statistics, which no exported graph does; "
                "call eval() on the module first"
            )
        assert self.over_time is not None
        statistics = self._population(suffix)
        steps = (x if batch_sizes is None else batch_sizes).shape[0]  # len() would fix it in an exported graph
        population, count_padding = () if self.training else statistics.at_steps(steps), self.over_time.count_padding
        output, final, moments = recurrent(*call, population, count_padding)
        if moments:
            counts = count_rows(x.shape[:-1], lengths, batch_sizes, count_padding)
            statistics.update(counts, moments, self.over_time.momentum)
        return output, final

    def _state_of_padded(self, x: Tensor, hx: State | None, B: int) -> State | None:
        """Casts the initial state of a padded call where torch does.

        Under autocast on a CPU torch computes an LSTM without projections by oneDNN, with the state in autocast's type.
        Other calls keep their state; `type_under_autocast` then chooses the type as torch's cells do.
        """
        dtype = autocast_type(x) if self.network == "LSTM" and not self.proj_size and x.is_cpu and x.numel() else None
        if dtype is None or not is_onednns(x.dtype):
            return hx
        return tuple(cast_tensors(self._initial_state(x, hx, B), dtype))

    def _check_inference(self, tensors: list[Tensor]) -> None:
        """Checks that nothing asks a quantized network for a gradient, or to train."""
        name, why = type(self).__name__, "a quantized network is for inference"
        if self.training:
            raise RuntimeError(f"{name}: {why}, got it in training mode; call eval() first")
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            raise RuntimeError(f"{name}: {why}, got a tensor that requires grad; call it under torch.no_grad()")

    def _initial_state(self, x: Tensor, hx: State | None, B: int) -> State:
        rows = self.num_layers * len(self._directions)
        if hx is None:
            return tuple(x.new_zeros(rows, B, size) for size in self._state_sizes)
        for name, part, size in zip(self._state_names, hx, self._state_sizes, strict=True):
            expected = (rows, B, size)
            if tuple(part.shape) != expected:
                raise RuntimeError(f"Expected hidden {name} of size {expected}, got {list(part.shape)}")
        return hx

    def extra_repr(self) -> str:
        """Returns the arguments that torch shows, and those that torch's module does not have."""
        text = f"{self.input_size}, {self.hidden_size}"
        given = {
            "proj_size": (self.proj_size, 0),
            "num_layers": (self.num_layers, 1),
            "bias": (self.bias, True),
            "batch_first": (self.batch_first, False),
            "dropout": (self.dropout, 0.0),
            "bidirectional": (self.bidirectional, False),
            "nonlinearity": (self.recurrence.nonlinearity, "tanh"),
            "recurrent_dropout": (self.recurrent_dropout, 0.0),
            "variational": (self.variational, False),
        }
        text += "".join(f", {name}={value!r}" for name, (value, default) in given.items() if value != default)
        text += self._keywords(self.norm if self.over_time in (None, BatchNormOverTime()) else self.over_time)
        return text + (", dtype=torch.int8" if self.recurrence.quantized else "")


def _expand_rows(state: Tensor, B: int) -> Tensor:
    """Repeats one part of a state, (L * D, 1, size), for every row; one that has all rows stays."""
    if state.shape[1] == B:
        return state.contiguous()
    if torch.compiler.is_exporting():  # ONNX Runtime has no Expand of bfloat16
        return state.index_select(1, torch.zeros(B, dtype=torch.long, device=state.device))
    return state.expand(-1, B, -1).contiguous()


class _OnlyTorchNames(list[list[str]]):
    """`Recurrent._all_weights` of a network that has more parameters than torch's.

    A loop over the names works. An index by layer raises an error: code that takes it, such as TorchRL's backends
    "scan" and "triton", computes torch's equations from these weights alone.
    """

    def __getitem__(self, layer: Any) -> NoReturn:
        raise TypeError(
            "_all_weights: expected a loop over the names, got an index. The network of these weights alone lacks its "
            "normalisation: call the module (in TorchRL recurrent_backend='pad')"
        )


class Stepper(Generic[Hx]):
    """An `RNN`, `LSTM` or `GRU` one step a call, made by its ``stepper()``.

    The weights are prepared once, before the first step, and their gradients are computed once, for all steps together.
    A loop over the module itself does both at every step. What the module draws once for all steps, ``variational`` and
    ``recurrent_dropout``, the stepper draws at its first step, and for another batch size at the first step with it. So
    make a new stepper for every forward pass.

    A stepper computes what its module would compute: a step after a change of the module prepares the weights again. It
    does not see numbers that fused optimizers, or writes through ``.data``, put into the same memory.

    Example::

        step, state, output = lstm.stepper(), None, torch.zeros(B, H)
        for frame in frames:
            output, state = step(torch.cat([frame, output], 1), state)
        hx = step.hx(state)
    """

    def __init__(self, module: Recurrent[Hx]) -> None:
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
        """Takes one step of all layers.

        Args:
            input: ``(B, I)``.
            state: the state that the last call returned, or the module's ``hx``: h ``(L, B, P)``, in an LSTM ``(h, c)``
                with c ``(L, B, H)``. ``None``: zeros.
            reset: ``(B,)``, bool or 0 and 1. A 1 starts this row's step from the zero state.
            reset_hx: the state that such a row starts from instead of zeros: like ``state``, or with 1 in place of B.

        Returns:
            output ``(B, P)`` of the last layer, and the state after the step.

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
        key = what, layer, probability, like.shape, like.dtype, like.device, in_inference_mode()
        if key not in self._masks:
            self._masks[key] = drop_mask(probability, like.shape, like)
        return self._masks[key]

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
                    f"list with {len(count)} tensors for each layer; got {type(state).__name__} with "
                    f"{type(layer).__name__}"
                )
        if len(layers) != L:
            raise ValueError(f"{name}: expected {what} to have {L} layers, got {len(layers)}")
        return [list(layer) for layer in layers]

    def hx(self, state: LayerStates) -> Hx:
        """Returns a state as the module takes and returns it."""
        layers = self._layers_of(state, "state")
        return self.module._hx_from(tuple(torch.stack(part) for part in zip(*layers, strict=True)))
