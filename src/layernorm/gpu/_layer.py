"""A layer's tensors as both ways of running a sequence take them, and what they give back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..engine import RecurrentArguments, term_indices, vector_gradients
from ..schedule import schedule, turned
from ._spans import centred


class Vectors(NamedTuple):
    """The vectors of a layer, as `formula.VectorTerms` names them, or their gradients: float32, G*H numbers, the
    cell's H; None: no such vector."""

    gain_x: Tensor | None = None
    gain_h: Tensor | None = None
    inside_x: Tensor | None = None
    inside_h: Tensor | None = None
    outside_x: Tensor | None = None
    outside_h: Tensor | None = None
    gain_c: Tensor | None = None
    bias_c: Tensor | None = None


class StepMasks(NamedTuple):
    """Which steps the rows take, in the order of the steps.

    ``lengths`` (B,) int32: a row takes so many steps; None: all. ``cut`` (T, B) uint8: whether a row's state is zero
    before a step; None: never.
    """

    lengths: Tensor | None = None
    cut: Tensor | None = None


class RowStatistics(NamedTuple):
    """Of every row and span, (T*B, S) in float32: the mean is mean + rest (`_norms`), r the reciprocal deviation."""

    mean: Tensor | None = None
    rest: Tensor | None = None
    r: Tensor | None = None


class Saved(NamedTuple):
    """What the forward saves for the backward, in the order of the steps."""

    zx: Tensor  # (T, B, G*H): W_ih x
    zh: Tensor  # (T, B, G*H): W_hh h
    hs: Tensor  # (T, B, P): h before each step, with its cut
    cs: Tensor | None = None  # LSTM: (T + 1, B, H) float32, the initial c and c after each step


class Forward(NamedTuple):
    """What the steps of the forward leave, in their order."""

    output: Tensor  # (T, B, P)
    final: list[Tensor]  # the final state, float32
    saved: Saved | None


class Backward(NamedTuple):
    """What the steps of the backward leave, in their order."""

    dzx: Tensor  # (T, B, G*H)
    dzh: Tensor
    d_state: list[Tensor]  # of the initial state
    d_vectors: Vectors
    d_weight_hr: Tensor | None = None


def total(terms: Iterable[Tensor | None]) -> Tensor | None:
    """The sum of those that there are."""
    there = [t for t in terms if t is not None]
    return sum(there[1:], there[0]) if there else None


def _single(tensor: Tensor) -> Tensor:
    """In float32, as it lies in memory for a kernel."""
    return tensor.float().resolve_neg().contiguous()


def _pair(state: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """h, and c if there is one."""
    return state[0], state[1] if len(state) > 1 else None


class LayerTensors:
    """A layer's tensors in the order of its steps, and its sizes.

    Attributes:
        given: the tensors as they came, in the order of the input.
        x: (T * B, I), what padding holds set to 0.
        W_ih, W_hh: centred (`_spans`); their gradients are the weights'.
        h0, c0: the initial state, float32; c0 is None where there is none.
    """

    def __init__(self, a: RecurrentArguments) -> None:
        self.given, self.recurrence, self.dtype, self.device = a, a.recurrence, a.input.dtype, a.device
        self.T, self.B, self.I, self.H, self.P = a.sizes
        ih, hh, hr, *vectors = term_indices(a.recurrence)
        self.W_ih = centred(a.params[ih[0]], a.recurrence, "ih")
        self.W_hh = centred(a.params[hh[0]], a.recurrence, "hh")
        self.W_hr = a.params[hr[0]].resolve_neg() if hr else None
        self.units = len(self.W_hh)
        plan = schedule(self.T, a.lengths, a.reset, a.reverse)
        x = self.turned(a.input.resolve_neg())
        self.x = (x if plan.active is None else torch.where(plan.active, x, 0.0)).reshape(self.T * self.B, self.I)
        self.masks = StepMasks(
            None if a.lengths is None else a.lengths.to(torch.int32).contiguous(),
            None if plan.cut is None else plan.cut.squeeze(-1).to(torch.uint8).contiguous(),
        )
        self.h0, self.c0 = _pair([_single(s) for s in a.state])
        self.vectors = Vectors(*(total(_single(a.params[k]) for k in terms) for terms in vectors))

    def turned(self, sequence: Tensor) -> Tensor:
        """From the order of the input to that of the steps, and back."""
        return turned(sequence, self.given.lengths, self.given.reverse)

    def before_first(self, s: Tensor) -> Tensor:
        """The state before the first step, given the initial one; and the gradient of that, given this one's."""
        cut = self.masks.cut
        return s if cut is None or not self.T else torch.where(cut[0, :, None] != 0, 0.0, s)

    def arriving(self, gradients: Sequence[Tensor | None]) -> tuple[Tensor, Tensor | None]:
        """The gradients of the final h and c, float32."""
        pairs = zip((self.h0, self.c0), gradients, strict=False)  # there may be no c
        return _pair([torch.zeros_like(s) if g is None else _single(g) for s, g in pairs if s is not None])

    def parameter_gradients(self, found: Backward, d_weight_ih: Tensor, d_weight_hh: Tensor) -> list[Tensor]:
        """In the order of the parameters."""
        weights = term_indices(self.recurrence)[:3]
        d_weights = zip(weights, (d_weight_ih, d_weight_hh, found.d_weight_hr), strict=True)
        known = {k: d for terms, d in d_weights for k in terms if d is not None}
        params = self.given.params
        grads = [
            known[k] if k in known else torch.empty(p.shape, dtype=torch.float32, device=p.device)
            for k, p in enumerate(params)
        ]
        vector_gradients(found.d_vectors, grads, self.recurrence)
        return [d.to(p.dtype) for d, p in zip(grads, params, strict=True)]
