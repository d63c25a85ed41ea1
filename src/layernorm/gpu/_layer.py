"""A call's tensors as both ways of running a sequence take them, and what they give back."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..formula import GATES, Recurrence
from ..schedule import schedule, turned
from ._sites import Sites
from ._spans import centred

OUTSIDE_X, OUTSIDE_H = Sites._fields.index("outside_x"), Sites._fields.index("outside_h")


class Forward(NamedTuple):
    """What the steps of the forward leave, in their order."""

    output: Tensor  # (T, B, P)
    final: list[Tensor]  # the final state, float32
    saved: list[Tensor]  # what `recurrent_saved` tells


class Backward(NamedTuple):
    """What the steps of the backward leave, in their order."""

    dzx: Tensor  # (T, B, G*H)
    dzh: Tensor
    d_state: list[Tensor]  # of the initial state
    d_sites: Sites  # of the vectors
    d_weight_hr: Tensor | None = None


@functools.cache
def _places(recurrence: Recurrence) -> tuple[tuple[int, ...], int]:
    """Where among the parameters weight_ih, weight_hh, weight_hr and the fields of `Sites` are, -1: nowhere; and which
    one is added to outside_x once more."""
    f, names = recurrence.formula, recurrence.parameter_names
    order = ("weight_ih", "weight_hh", "weight_hr", *recurrence.vector_names)
    again = names.index("bias_ih") if f.gates is not None and f.bias_again and "bias_ih" in names else -1
    return tuple(names.index(name) if name in names else -1 for name in order), again


def _single(tensor: Tensor) -> Tensor:
    """In float32, as it lies in memory for a kernel."""
    return tensor.float().resolve_neg().contiguous()


class Call:
    """One call's tensors in the order of the steps, and its sizes.

    Attributes:
        x: (T * B, I), what padding holds set to 0.
        W_ih, W_hh: centred (`_spans`); their gradients are the weights'.
        state: the initial state, float32.
        lengths: (B,) int32, or None.
        cut: (T, B) uint8, or None: the state before that step is zero.
        sites: the vectors, float32.
    """

    def __init__(
        self,
        input: Tensor,
        state: Sequence[Tensor],
        params: Sequence[Tensor],
        lengths: Tensor | None,
        reset: Tensor | None,
        recurrence: Recurrence,
        reverse: bool,
    ) -> None:
        self.recurrence, self._reverse, self._lengths, self.params = recurrence, reverse, lengths, params
        self.places, self.again = _places(recurrence)
        weight_ih, weight_hh, *weight_hr = (params[k] for k in self.places[:3] if k >= 0)
        self.W_ih, self.W_hh = centred(weight_ih, recurrence, "ih"), centred(weight_hh, recurrence, "hh")
        self.W_hr = weight_hr[0].resolve_neg() if weight_hr else None
        (self.T, self.B, self.I), (units, self.P) = input.shape, self.W_hh.shape
        self.H, self.units, self.dtype = units // GATES[recurrence.network], units, input.dtype
        plan = schedule(self.T, lengths, reset, reverse)
        x = self.turned(input.resolve_neg())
        self.x = (x if plan.active is None else torch.where(plan.active, x, 0.0)).reshape(self.T * self.B, self.I)
        self.cut = None if plan.cut is None else plan.cut.squeeze(-1).to(torch.uint8).contiguous()
        self.lengths = None if lengths is None else lengths.to(torch.int32).contiguous()
        self.state = [_single(s) for s in state]
        vectors = [None if k < 0 else _single(params[k]) for k in self.places[3:]]
        if self.again >= 0:
            terms = [v for v in (vectors[OUTSIDE_X], _single(params[self.again])) if v is not None]
            vectors[OUTSIDE_X] = sum(terms[1:], terms[0])
        self.sites = Sites(*vectors)

    def turned(self, sequence: Tensor) -> Tensor:
        """From the order of the input to that of the steps, and back."""
        return turned(sequence, self._lengths, self._reverse)

    def before_first(self, s: Tensor) -> Tensor:
        """The state before the first step, given the initial one; and the gradient of that, given this one's."""
        return s if self.cut is None or not self.T else torch.where(self.cut[0, :, None] != 0, 0.0, s)

    def arriving(self, gradients: Sequence[Tensor | None]) -> list[Tensor]:
        """The gradients of the final state, float32."""
        pairs = zip(self.state, gradients, strict=True)
        return [torch.zeros_like(s) if g is None else _single(g) for s, g in pairs]

    def parameter_gradients(self, found: Backward, d_weight_ih: Tensor, d_weight_hh: Tensor) -> list[Tensor]:
        """In the order of the parameters."""
        grads: dict[int, Tensor] = {}
        for k, d in zip(self.places, (d_weight_ih, d_weight_hh, found.d_weight_hr, *found.d_sites), strict=True):
            if k >= 0 and d is not None:
                grads[k] = d[: len(self.params[k])]
        if self.again >= 0:
            grads[self.again] = grads[self.again] + found.d_sites.outside_x
        # Vectors are rows of one tensor until here, and an op's results may not share memory.
        return [grads[k].to(p.dtype, copy=p.dim() == 1) for k, p in enumerate(self.params)]
