"""What an engine is: the functions that it offers.

`functional` makes the arguments (`layernorm.equations.arguments`) and asks the engine that `backends` finds. The engine
computes, or refuses arguments that do not fit each other with the errors of `layernorm.equations.checks`. What each
function computes is said in `layernorm.equations`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..equations.arguments import NormArguments, RecurrentArguments
from ..formula import Recurrence


class Kind(NamedTuple):
    """A kind of call: what an engine's answer may depend on.

    Attributes:
        op: ``"normalize"``, ``"recurrent"`` or ``"steps"``.
        device: where the tensors are.
        dtype: the type of the input's numbers.
        recurrence: the equations of a recurrent op. None also where only op, device and type are asked about.
        widths: N of a norm, I, H, P of a recurrent op. Empty on the CPU, to save time in small calls: an engine cannot
            refuse a size there.
    """

    op: str
    device: torch.device
    dtype: torch.dtype
    recurrence: Recurrence | None = None
    widths: tuple[int, ...] = ()


class Support(NamedTuple):
    """Whether an engine computes a kind of call, and if not, why."""

    yes: bool
    reason: str = ""


YES = Support(True)


class PreparedLayer(Protocol):
    """One layer for steps one by one: its weights are prepared once, and their gradients are computed at the end."""

    def forward(
        self, input: Tensor, state: Sequence[Tensor], dropout: Tensor | None, save: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Takes a step from (B, I) and the state before it to the state after it; ``save``: and what backwards need.

        ``dropout`` is that of `StateChanges`.
        """

    def backward_pass(self) -> BackwardPass:
        """Starts a new backward pass through some of the steps."""


class BackwardPass(Protocol):
    """A backward pass through steps, from the last one to the first."""

    def step(
        self,
        input: Tensor,
        state: Sequence[Tensor],
        dropout: Tensor | None,
        saved: Sequence[Tensor],
        grad_state: Sequence[Tensor | None],
    ) -> list[Tensor]:
        """Computes the gradients of a step's input and of the state before it, from those of the state after it.

        ``input``, ``state`` and ``dropout`` are those of the step's forward, ``saved`` is what it saved. A gradient
        that is None is zero.
        """

    def gradients(self) -> list[Tensor]:
        """Returns the gradients of the parameters, summed over all steps of this pass."""


class Engine(Protocol):
    """A module with these functions. It may lack the functions of ops that it never supports.

    The four functions that compute an op refuse arguments that do not fit each other.

    Attributes:
        FORMULA_FIELDS: the fields of `Formula` that its kernels know. It never runs a formula that sets another one.
    """

    FORMULA_FIELDS: frozenset[str]

    def supports(self, kind: Kind) -> Support:
        """Says whether the engine computes this kind of call. A reason ends "not for ...", as in "norm='batch'"."""

    def is_worth_it(self, kind: Kind) -> Support:
        """Says whether it is faster than PyTorch's own kernels at what it supports: `accelerate` asks the engine that
        is chosen by itself. A reason says why not."""

    def normalize_forward(self, a: NormArguments, residual: Tensor | None, save: bool) -> Sequence[Tensor]:
        """Returns [y]; with ``residual`` [y, input + residual], where y normalises the sum.

        With ``save`` the list goes on with what the backward needs (`normalize_saved`).
        """

    def normalize_saved(self, a: NormArguments) -> list[Tensor]:
        """Returns empty tensors with the shapes and types of what `normalize_forward` saves."""

    def normalize_backward(
        self, a: NormArguments, saved: Sequence[Tensor], grad: Tensor, grad_total: Tensor | None
    ) -> Sequence[Tensor]:
        """Returns the gradients of ``a.input``, which was normalised, and of weight and bias where there are such.

        ``grad_total`` is the gradient that reaches ``a.input`` by other ways, and is added.
        """

    def recurrent_forward(self, a: RecurrentArguments, save: bool) -> Sequence[Tensor]:
        """Returns [output (T, B, P) or (lines, P), *final state, *moments], and with ``save`` what else the backward
        needs (`recurrent_saved`).

        The moments are those that batch norm has found, mean and variance (T, n) of each gain.
        """

    def recurrent_saved(self, a: RecurrentArguments) -> list[Tensor]:
        """Returns empty tensors with the shapes and types of what `recurrent_forward` saves, after the moments."""

    def recurrent_backward(
        self,
        a: RecurrentArguments,
        saved: Sequence[Tensor],
        grad_output: Tensor | None,
        grad_state: Sequence[Tensor | None],
    ) -> Sequence[Tensor]:
        """Returns [d input, *d initial state, *d params, *d restart]; a gradient that is ``None`` is zero.

        ``saved``: the moments that the forward has found, and what it has saved.
        """

    def prepare(self, params: Sequence[Tensor], recurrence: Recurrence) -> PreparedLayer:
        """Prepares a layer for steps one by one."""
