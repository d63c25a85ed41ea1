"""What the ops are called with: the object that holds the arguments of a norm op, and that of a recurrent op.

Letters in shapes: T time steps, B batch, I input size, H hidden size, P projected size (H without projections),
G gates, M rows, N row length. Lines are the steps of all rows of a packed call (`RecurrentArguments.batch_sizes`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..formula import GATES, Recurrence

Index = int | tuple[int, slice]
"""The index of one step's rows in a tensor of all lines."""


class NormArguments(NamedTuple):
    """The arguments of a norm op: its input, and how it is normalised.

    Attributes:
        input: ``(*, *normalized_shape)``.
        normalized_shape: the last dimensions, which are normalised together.
        weight, bias: of that shape, or None.
        eps: added to the variance or the mean square.
        norm: ``"layer"`` or ``"rms"``.
    """

    input: Tensor
    normalized_shape: tuple[int, ...]
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    norm: str

    @property
    def device(self) -> torch.device:
        """Where all tensors are."""
        return self.input.device

    @property
    def sizes(self) -> tuple[int, int]:
        """M and N: the number of rows, and the length of a row."""
        shape = self.normalized_shape
        N = shape[0] if len(shape) == 1 else math.prod(shape)
        return (self.input.numel() // N if N else math.prod(self.input.shape[: self.input.dim() - len(shape)])), N

    @property
    def widths(self) -> tuple[int]:
        """N, whatever the number of rows."""
        return self.sizes[1:]

    @property
    def differentiable(self) -> list[Tensor]:
        """The tensors that have gradients, in the order of `Engine.normalize_backward`."""
        return [t for t in (self.input, self.weight, self.bias) if t is not None]


class StateChanges(NamedTuple):
    """What happens to the state of one layer and direction between its steps, beyond lengths and resets.

    Attributes:
        restart: the state that a row starts from after a cut, with the shapes of the initial one; none: zeros.
        dropout: ``(B, P)``, a factor of the h that W_hh reads, the same at every step; None: 1.
        kept: zoneout: for each part of the state the share of the old state that is kept, ``(T, B, size)`` in the order
            in which a row takes its steps, or one number ``(1, 1, 1)``; in a packed call ``(lines, size)`` or
            ``(1, 1)``. None for a part without zoneout.

    Dropout and shares are in float32 or wider, the type that the layer is computed in.
    """

    restart: Sequence[Tensor] = ()
    dropout: Tensor | None = None
    kept: Sequence[Tensor | None] = ()

    def apply_dropout(self, h: Tensor) -> Tensor:
        """Applies the dropout to the h before a step, as W_hh reads it, or to its gradient."""
        return h if self.dropout is None else h * self.dropout.to(h.dtype)

    def shares(self, index: Index) -> list[Tensor | None]:
        """Returns the shares that are kept at one step, for each part of the state; empty: none.

        The shares are there for all lines (`schedule.shares_of_lines`).
        """
        return [None if k is None else k[index] for k in self.kept]

    def of_rows(self, rows: int) -> StateChanges:
        """Returns the changes of the first rows."""
        dropout = None if self.dropout is None else self.dropout[:rows]
        return self._replace(restart=[r[:rows] for r in self.restart], dropout=dropout)


NO_CHANGES = StateChanges()


class RecurrentArguments(NamedTuple):
    """One layer in one direction over a sequence.

    Attributes:
        input: ``(T, B, I)``.
        state: the initial state: ``h (B, P)``, in an LSTM also ``c (B, H)``.
        params: in the order of ``recurrence.parameter_names``.
        recurrence: the equations.
        changes: what else happens to the state between steps.
        lengths: ``(B,)`` integers in 0..T, or None. Beyond its length a row keeps its state, and its output is 0.
        reset: ``(T, B)`` bool, or None. True cuts the row between t-1 and t; the step after the cut starts from zeros.
        reverse: whether the steps go from the last to the first; with ``lengths``, from the end of each row.
        batch_sizes: ``(T,)`` int64 on the CPU, or None. Then the call is packed: rows come in the order of falling
            lengths, ``batch_sizes`` of them have a step at each time, and ``input`` has the steps that there are,
            ``(lines, I)``, those of the first time first. So have output and ``reset``, and there are no ``lengths``.
        population: under batch norm what to normalise by, for each gain its mean and its variance ``(T, n)`` in float32
            or wider; empty: the moments of the batch, which are results of the call.
        count_padding: under batch norm whether the batch's moments are over all rows, where a row that has ended has
            the input 0 and stands still in its final state, or over those that take the step. A packed call has no
            rows that have ended.
    """

    input: Tensor
    state: Sequence[Tensor]
    params: Sequence[Tensor]
    recurrence: Recurrence
    changes: StateChanges = NO_CHANGES
    lengths: Tensor | None = None
    reset: Tensor | None = None
    reverse: bool = False
    batch_sizes: Tensor | None = None
    population: Sequence[Tensor] = ()
    count_padding: bool = False

    @property
    def device(self) -> torch.device:
        """Where all tensors are."""
        return self.input.device

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """T, B, I, H, P."""
        T = self.input.shape[0] if self.batch_sizes is None else self.batch_sizes.shape[0]
        B = self.input.shape[1] if self.batch_sizes is None else self.state[0].shape[0]
        return T, B, *self.widths

    @property
    def widths(self) -> tuple[int, int, int]:
        """I, H, P, whatever the number of rows and steps."""
        units, P = self.params[1].shape
        return self.input.shape[-1], units // GATES[self.recurrence.network], P

    @property
    def lines(self) -> torch.Size:
        """The leading sizes of what has a number for each step of each row: T and B; of a packed call one number."""
        return self.input.shape[:-1]

    @property
    def differentiable(self) -> list[Tensor]:
        """The tensors that have gradients: input, state, parameters and the state of restarts, in the order of
        `Engine.recurrent_backward`."""
        return [self.input, *self.state, *self.params, *self.changes.restart]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that there are, in the order of the fields: first those that have gradients."""
        input, state, params, _, changes, lengths, reset, _, batch_sizes, population, _ = self
        tensors = [input, *state, *params]
        if changes is not NO_CHANGES:
            tensors += [*changes.restart, *[t for t in (changes.dropout, *changes.kept) if t is not None]]
        if lengths is not None:
            tensors.append(lengths)
        if reset is not None:
            tensors.append(reset)
        if batch_sizes is not None:
            tensors.append(batch_sizes)
        return [*tensors, *population] if population else tensors

    def with_tensors(self, tensors: Sequence[Any]) -> RecurrentArguments:
        """Returns the same call with others instead of its `tensors`."""
        _, state, params, recurrence, changes, lengths, reset, reverse, batch_sizes, population, count_padding = self
        n, end = 1 + len(state), 1 + len(state) + len(params)
        if len(tensors) == end:
            return RecurrentArguments(tensors[0], tensors[1:n], tensors[n:end], *self[3:])
        take = iter(tensors[end:]).__next__
        if changes is not NO_CHANGES:
            restart, dropout, kept = changes
            rows = [take() for _ in restart]
            dropout = None if dropout is None else take()
            changes = StateChanges(rows, dropout, [None if k is None else take() for k in kept])
        lengths = None if lengths is None else take()
        reset = None if reset is None else take()
        batch_sizes = None if batch_sizes is None else take()
        population = [take() for _ in population]
        input, state, params = tensors[0], tensors[1:n], tensors[n:end]
        return RecurrentArguments(
            input, state, params, recurrence, changes, lengths, reset, reverse, batch_sizes, population, count_padding
        )

    @property
    def finds_moments(self) -> bool:
        """Whether batch norm finds its moments in this call."""
        return self.recurrence.norm == "batch" and not self.population

    def new_moments(self) -> list[Tensor]:
        """Makes empty tensors like the moments that are found: mean and variance (T, n) of each gain; none: none is."""
        return self.empty_moments() if self.finds_moments else []

    def empty_moments(self) -> list[Tensor]:
        """Makes empty tensors like batch norm's moments: mean and variance (T, n) of each gain."""
        T, _, I, H, P = self.sizes  # noqa: E741
        shapes, dtype = self.recurrence.parameter_shapes(I, H, P), torch.promote_types(self.input.dtype, torch.float32)
        gains = [gain for gain in self.recurrence.gain_names for _ in ("mean", "variance")]
        return [self.input.new_empty(T, *shapes[gain], dtype=dtype) for gain in gains]
