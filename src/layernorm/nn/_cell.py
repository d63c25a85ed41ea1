"""What `RNNCell`, `LSTMCell` and `GRUCell` have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch import Tensor
from torch.fx import Proxy

from ..equations.arguments import RecurrentArguments
from ..equations.checks import check_dense
from ..formula import Formula
from ..functional._recurrent import recurrent
from ._gains import GainInit
from ._normalised import Normalised, check_flags, check_sizes
from ._population import norm_name
from ._prepared import PreparedLayers
from ._tracing import fx_call_module

Hx = TypeVar("Hx")
"""The type of a cell's state: `Tensor`, in an LSTM ``tuple[Tensor, Tensor]``."""


class RecurrentCell(Normalised, Generic[Hx]):
    """One step of one layer, with torch's arguments, shapes and state-dict keys."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        bias: bool,
        nonlinearity: str = "tanh",
        device: Any,
        dtype: Any,
        norm: str | None,
        formula: str | Formula,
        eps: float | None,
        gain_init: GainInit,
        zoneout: float | tuple[float, float],
        forget_bias: float | None = None,
        gate_clip: float | None = None,
    ) -> None:
        super().__init__()
        if norm_name(norm) == "batch":
            raise ValueError(
                f"{self.network}Cell: batch norm needs to know the time step, use layernorm.{self.network}"
            )
        check_flags(bias=bias)
        input_size, hidden_size, *_ = check_sizes(input_size, hidden_size, 1, 0.0, 0)
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        equations = {"bias": bias, "nonlinearity": nonlinearity, "gate_clip": gate_clip}
        self._describe(norm, formula, eps, gain_init, forget_bias, zoneout, **equations)
        self._warn_of_lost_input(input_size, hidden_size)
        self._register(self.recurrence.parameter_shapes(input_size, hidden_size), "", device, dtype)
        self.reset_parameters()
        self._normalise_weights()

    def forward(
        self, input: Tensor, hx: Hx | None = None, *, reset: Tensor | None = None, reset_hx: Hx | None = None
    ) -> Hx:
        """Takes one step. In the shapes B is the batch size, I the input size, and H the hidden size.

        Args:
            input: ``(B, I)`` or ``(I,)``.
            hx: the state before the step, ``h`` ``(B, H)``, in an LSTM ``(h, c)``. Unbatched: ``(H,)``. ``None``:
                zeros.
            reset: ``(B,)``, unbatched ``()``; bool, or 0 and 1. Where it is 1, the step starts from the zero state.
            reset_hx: the state to start from where ``reset`` is 1, instead of zeros. It has the shape of ``hx``, or 1
                instead of B.

        Returns:
            The state after the step, like ``hx``.

        Raises:
            RuntimeError, ValueError, TypeError: a shape, type or device does not fit. The message names it.
        """
        if isinstance(input, Proxy):
            return fx_call_module(self, input, hx, reset=reset, reset_hx=reset_hx)
        return self._step(input, hx, reset, reset_hx, self._take_step)

    if TYPE_CHECKING:

        def __call__(
            self, input: Tensor, hx: Hx | None = None, *, reset: Tensor | None = None, reset_hx: Hx | None = None
        ) -> Hx: ...

    def stepper(self) -> CellStepper[Hx]:
        """Makes a `CellStepper`: this cell for many steps, with its weights prepared once.

        Raises:
            ValueError: the cell has hooks on its forward or its backward.
        """
        return CellStepper(self)

    def _take_step(self, input: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
        """Takes one step by itself, from (B, I) and the state before it to the state after it."""
        params = self._parameters_named(self._names)
        return recurrent(RecurrentArguments(input[None], state, params, self.recurrence))[1]

    def _step(
        self,
        input: Tensor,
        hx: Any,
        reset: Tensor | None,
        reset_hx: Any,
        take: Callable[[Tensor, Sequence[Tensor]], list[Tensor]],
    ) -> Any:
        """Runs `forward` with the function that takes the step."""
        self._follow_attributes()
        name, state = type(self).__name__, self._state_from(hx)
        if not isinstance(input, Tensor):
            raise TypeError(f"{name}: expected input to be a Tensor, got {type(input).__name__}")
        check_dense(name, "input", input)
        dims = input.dim()
        if dims not in (1, 2):
            raise ValueError(f"{name}: Expected input to be 1D or 2D, got {dims}D instead")
        if input.shape[-1] != self.input_size:
            raise RuntimeError(
                f"{name}: input has inconsistent input_size: got {input.shape[-1]}, expected {self.input_size}"
            )
        expected = (input.shape[0], self.hidden_size) if dims == 2 else (self.hidden_size,)
        if state is None:
            state = tuple([input.new_zeros(expected) for _ in self._state_names])
        else:
            for k, part in enumerate(state):
                if part.shape != expected:
                    what, size = self._state_names[k], list(part.shape)
                    raise RuntimeError(f"{name}: Expected hidden {what} of size {expected}, got {size}")
        if reset is not None:
            state = tuple(self._reset(state, reset, self._state_from(reset_hx, "reset_hx"), name))
        elif reset_hx is not None:
            raise ValueError(f"{name}: reset_hx is where a row starts again; it needs reset, got None")
        if dims == 2:
            final = take(input, state)
            return self._hx_from(tuple(self._apply_zoneout(state, final) if any(self._zoneouts) else final))
        batch = tuple([part.unsqueeze(0) for part in state])
        final = self._apply_zoneout(batch, take(input.unsqueeze(0), batch))
        return self._hx_from(tuple([part.squeeze(0) for part in final]))

    def extra_repr(self) -> str:
        """Returns the text of torch's module, with the keywords that torch's does not have."""
        text = f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")
        if self.recurrence.nonlinearity != "tanh":
            text += f", nonlinearity={self.recurrence.nonlinearity}"
        return text + self._keywords(self.norm)


class CellStepper(Generic[Hx]):
    """Runs a cell for many steps: it prepares the weights once, and computes their gradients once.

    The cell's ``stepper()`` makes it. It is called as the cell is, and computes what the cell would: a step after a
    change of the cell prepares its weights again. It does not see numbers that fused optimizers, or writes through
    ``.data``, put into the same memory.

    Example::

        step, hx = cell.stepper(), None
        for x in input:
            hx = step(x, hx)
    """

    def __init__(self, cell: RecurrentCell[Hx]) -> None:
        self.cell = cell
        self._prepared = PreparedLayers(cell)

    def __call__(
        self, input: Tensor, hx: Hx | None = None, *, reset: Tensor | None = None, reset_hx: Hx | None = None
    ) -> Hx:
        """Takes one step. Arguments, shapes and errors are those of the cell.

        Raises:
            ValueError: also if the cell has got hooks on its forward or its backward.
        """
        return self.cell._step(input, hx, reset, reset_hx, self._take_step)

    def _take_step(self, input: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
        return self._prepared.layers(input)[0](input, state)
