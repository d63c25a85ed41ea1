"""What `RNN`, `LSTM` and `GRU` have in common: torch's arguments, shapes and state-dict keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NoReturn, overload

from torch import Tensor
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence

from ..formula import PLAIN
from ._inputs import lengths_of, take_in
from ._layers import Layers
from ._population import BatchNormOverTime
from ._stepper import Hx, Stepper
from ._tracing import fx_call_module

_TORCH_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")


class Recurrent(Layers, Generic[Hx]):
    """A recurrent network: `Layers` with the calls of torch's module."""

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
        """Runs the network over a batch of sequences.

        In the shapes T is the sequence length, B the batch size, I the input size, H the hidden size, L the number of
        layers, and D the number of directions, 1 or 2. P is the size of the output: ``proj_size``, or H without
        projections.

        Args:
            input: ``(T, B, I)``, ``(B, T, I)`` with ``batch_first``, ``(T, I)`` unbatched, or a `PackedSequence`.
            hx: the initial state: ``h`` ``(L * D, B, P)``, and in an LSTM ``(h, c)`` with ``c`` ``(L * D, B, H)``.
                Without ``B`` if the input is unbatched. ``None``: zeros.
            lengths: the length of each sequence, ``(B,)``, from 0 to T, in any order. Outputs beyond a length are 0.
                The final state is the one at the length, and the reverse direction starts there. Packing does the same.
                On the CPU a batch of 256 steps and more, half or more of which are padding, is computed packed.
            reset: where to cut the sequences, in the order of the input: ``(T, B)``; ``(B, T)`` with ``batch_first``,
                also for a `PackedSequence`; ``(T,)`` unbatched. It is bool, or holds 0 and 1. A 1 at step t cuts
                between t-1 and t: step t starts from the zero state, and in the reverse direction step t-1 does.
            reset_hx: the state to start from after a cut, instead of zeros. It has the shape of ``hx``, or 1 instead
                of B, as learned parameters ``(L * D, 1, P)`` have. Gradients flow into it.
            mask: ``lengths`` in the form that TorchRL has: bool, ``(T, B)``, or ``(B, T)`` with ``batch_first``. It is
                true at the steps of each sequence, which come first.

        Returns:
            The output, of ``input``'s kind, with ``D * P`` features, and the final state, like ``hx``.

        Raises:
            RuntimeError, ValueError, TypeError: a shape, type, device or length does not fit, ``reset`` holds another
                number than 0 and 1, or ``reset_hx`` comes without ``reset``; the message names it.
        """
        if isinstance(input, Proxy):
            return fx_call_module(self, input, hx, lengths=lengths, reset=reset, reset_hx=reset_hx, mask=mask)
        if mask is not None:
            lengths = lengths_of(mask, input, lengths, self.batch_first, type(self).__name__)
        self._follow_attributes()
        batch, back = take_in(self, input, hx, lengths, reset, reset_hx)
        output, state = back(*self._run_layers(batch))
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

    def stepper(self) -> Stepper[Hx]:
        """Makes a `Stepper`, which runs one step in each call, so that each input may depend on the output before it.

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


class _OnlyTorchNames(list[list[str]]):
    """`Recurrent._all_weights` of a network that has more parameters than torch's.

    A loop over the names works. An index by layer raises an error: code that takes it, such as TorchRL's backends
    "scan" and "triton", computes torch's equations from only these weights.
    """

    def __getitem__(self, layer: Any) -> NoReturn:
        raise TypeError(
            "_all_weights: expected a loop over the names, got an index. A network with only these weights lacks its "
            "normalisation: call the module (in TorchRL recurrent_backend='pad')"
        )
