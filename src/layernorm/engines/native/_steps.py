"""One layer step by step: its weights are packed once, their gradients are one product over all steps at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...formula import GATES, Recurrence
from ._layout import compute_type, recurrent_call, transfer_type
from ._library import LIBRARY
from ._memory import contiguous, contiguous_or_none
from ._recurrent_plan import add_vector_gradients, saved_block
from ._step_plan import FOR_BACKWARD, FOR_FORWARD, gradient_plan, packing_plan, step_back_plan, step_plan


class Step(NamedTuple):
    """What the gradients of the weights need of one step."""

    x: Tensor  # (B, I)
    h: Tensor  # (B, P), before the step, as W_hh read it
    dzx: Tensor  # (B, G*H), the gradient of W_ih x
    dzh: Tensor  # of W_hh h
    dh: Tensor | None  # with projections (B, P), the gradient of h after the step,
    m: Tensor | None  # and (B, H), what is projected


class NativeLayer:
    """A layer with its weights packed (`PreparedLayer`)."""

    def __init__(self, params: Sequence[Tensor], recurrence: Recurrence) -> None:
        self.recurrence, self.dtype = recurrence, params[0].dtype
        self.transfer_type, self.compute_type = transfer_type(self.dtype), compute_type(self.dtype)
        self.params = [p.detach() for p in params]
        self.packed_forward = self._packed(FOR_FORWARD)
        self.packed_backward: Tensor | None = None  # until a step is to have a gradient

    def _packed(self, purpose: int) -> Tensor:
        """Packs the parameters as steps forward or backward take them."""
        plan = packing_plan(purpose, self.recurrence)
        params = [contiguous(p, self.transfer_type if p.dim() == 2 else self.compute_type) for p in self.params]
        results = plan.run([sum((params[k] for k in others), params[first]) for first, others in plan.terms])
        assert results is not None
        return results[0]

    def forward(
        self, input: Tensor, state: Sequence[Tensor], dropout: Tensor | None, save: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        if save and self.packed_backward is None:  # now, of the weights that the forward has
            self.packed_backward = self._packed(FOR_BACKWARD)
        plan, n = step_plan(save, self.recurrence, dropout is not None), len(state)
        results = plan.run(_present(input, *state, self.packed_forward, dropout))
        if results is not None:
            return list(results[:n]), list(results[n:])
        x, *before = [contiguous(t, self.transfer_type) for t in (input, *state)]
        results = plan.run(_present(x, *before, self.packed_forward, contiguous_or_none(dropout, self.compute_type)))
        assert results is not None
        return [s.to(self.dtype) for s in results[:n]], list(results[n:])

    def backward_pass(self) -> NativeBackwardPass:
        assert self.packed_backward is not None, "a step's forward has made it"
        return NativeBackwardPass(self, self.packed_backward)


class NativeBackwardPass:
    """The way back (`BackwardPass`)."""

    def __init__(self, layer: NativeLayer, packed: Tensor) -> None:
        self.layer, self.packed, self.steps = layer, packed, list[Step]()
        H, P = layer.params[0].shape[0] // GATES[layer.recurrence.network], layer.params[1].shape[1]
        totals = LIBRARY.layernorm_recurrent_totals(recurrent_call(layer.recurrence, H=H))
        self.totals = torch.zeros(totals, dtype=torch.float64)  # sums of the vectors' gradients
        self.two_streams = "saved_h" in saved_block(layer.recurrence, H, P, layer.dtype)[0]
        self.example: list[Tensor] = []  # x and state of a step

    def step(
        self,
        input: Tensor,
        state: Sequence[Tensor],
        dropout: Tensor | None,
        saved: Sequence[Tensor],
        grad_state: Sequence[Tensor | None],
    ) -> list[Tensor]:
        layer, (block,) = self.layer, saved
        has_grad = tuple([g is not None for g in grad_state])
        plan = step_back_plan(has_grad, layer.recurrence, dropout is not None, self.two_streams)
        before, grads_after = [input, *state], list(grad_state)
        results = plan.run(_present(*before, self.packed, dropout, self.totals, block, *grads_after))
        if results is None:
            before = [contiguous(t, layer.transfer_type) for t in before]
            grads_after = [contiguous_or_none(g, layer.transfer_type) for g in grad_state]
            dropout, block = contiguous_or_none(dropout, layer.compute_type), contiguous(block, layer.compute_type)
            results = plan.run(_present(*before, self.packed, dropout, self.totals, block, *grads_after))
        if results is None:  # a hook on saved tensors can put another in its place
            raise RuntimeError(
                f"expected the tensor that the step has saved, got {list(block.shape)}, {block.dtype}, {block.device}"
            )
        self.example = before
        x, h, end = before[0], before[1], len(before)
        grads, (dzx, *others) = list(results[:end]), results[end:]
        m = others.pop() if layer.recurrence.projected else None
        dh = None
        if m is not None:
            dh = torch.zeros_like(h) if grads_after[0] is None else grads_after[0]
        self.steps.append(Step(x, h if dropout is None else h * dropout, dzx, others[0] if others else dzx, dh, m))
        return grads if layer.dtype is layer.transfer_type else [d.to(layer.dtype) for d in grads]

    def gradients(self) -> list[Tensor]:
        layer, r = self.layer, self.layer.recurrence
        results = gradient_plan(r).run([*self.example, self.packed, self.totals])
        assert results is not None
        n = len(layer.params)
        d_params = list(results[:n])
        add_vector_gradients(d_params, results[n:], r)
        columns = zip(*self.steps, strict=True)
        joined = [None if column[0] is None else torch.cat(column).to(layer.compute_type) for column in columns]
        x, h, dzx, dzh, dh, m = joined
        by_name = dict(zip(r.parameter_names, d_params, strict=True))
        with torch.autocast("cpu", enabled=False):  # a user may run the backward under it
            for name, d, factor in (("weight_ih", dzx, x), ("weight_hh", dzh, h), ("weight_hr", dh, m)):
                if d is not None and factor is not None:
                    torch.mm(d.t(), factor, out=by_name[name])
        return [d.to(layer.dtype) for d in d_params]


def _present(*tensors: Tensor | None) -> list[Tensor]:
    """Returns the tensors that there are."""
    return [t for t in tensors if t is not None]


prepare = NativeLayer
