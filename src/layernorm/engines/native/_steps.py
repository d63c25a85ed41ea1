"""One layer step by step: its weights are packed once, their gradients are one product over all steps at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...formula import GATES, Recurrence
from ..protocol import term_indices, vector_gradients
from ._layout import PARAMETERS, TYPES, WEIGHTS, Recurrent, compute_type, recurrent_call, transfer_type
from ._library import LIBRARY
from ._memory import contiguous, contiguous_or_none, materialize
from ._recurrent_plan import gradient_slots, saved_block, slot_gradients


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
        (units, self.I), (_, self.P) = params[0].shape, params[1].shape
        self.H = units // GATES[recurrence.network]
        self.params = [p.detach() for p in params]
        begins, _ = saved_block(recurrence, self.H, self.P, self.dtype)
        # Without the output: it would be that of the steps before, and there are none in one call.
        self.offsets = {name: n * self.compute_type.itemsize for name, n in begins.items() if name != "saved_output"}
        self.saved_size = begins["saved_output"]
        self.two_streams = "saved_h" in begins  # otherwise W x and U h are only added, and have one gradient
        self.template = recurrent_call(recurrence, T=1, I=self.I, H=self.H, P=self.P, x_b=self.I)
        self.packed_forward = self._packed(LIBRARY.layernorm_prepare_forward)
        self.packed_backward: Tensor | None = None  # until a step is to have a gradient

    def _packed(self, function: Callable[[Recurrent, int, int | None], int]) -> Tensor:
        """Packs the weights as the forward or the backward takes them."""
        call, sums = self.call(1), []
        call.prepares = True
        for name, terms in zip(PARAMETERS, term_indices(self.recurrence), strict=True):
            if terms:
                dtype = self.transfer_type if name in WEIGHTS else self.compute_type
                first, *rest = [contiguous(self.params[k], dtype) for k in terms]
                sums.append(sum(rest, first))
                setattr(call, name, sums[-1].data_ptr())
                setattr(self.template, name, 1)  # that it is there: a prepared call does not read it
        type_number = TYPES[self.transfer_type]
        packed = torch.empty(function(call, type_number, None), dtype=torch.uint8)
        function(call, type_number, packed.data_ptr())
        return packed

    def call(self, B: int) -> Recurrent:
        """Makes a step of B rows without its tensors."""
        call = Recurrent.from_buffer_copy(self.template)
        call.B, call.threads = B, torch.get_num_threads()
        return call

    def step(
        self, x: Tensor, state: Sequence[Tensor], dropout: Tensor | None, saved: Tensor | None, prepared: Tensor
    ) -> Recurrent:
        """Makes a step without its results."""
        B = x.shape[0]
        call = self.call(B)
        call.x, call.prepared = x.data_ptr(), prepared.data_ptr()
        call.h0, call.c0 = state_pointers(state)
        call.dropout = pointer(dropout)
        if saved is not None:
            address = saved.data_ptr()
            for name, begin in self.offsets.items():
                setattr(call, name, address + begin * B)
        return call

    def run(self, function: Callable[[Recurrent, int], int], call: Recurrent) -> None:
        """Computes a step.

        Raises:
            MemoryError: there is not enough of it.
        """
        if function(call, TYPES[self.transfer_type]):
            raise MemoryError(f"layernorm: not enough memory for a call with input {[call.B, self.I]}")

    def forward(
        self, input: Tensor, state: Sequence[Tensor], dropout: Tensor | None, save: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        dtype, dropout = self.transfer_type, contiguous_or_none(dropout, self.compute_type)
        if save and self.packed_backward is None:  # now, of the weights that the forward has
            self.packed_backward = self._packed(LIBRARY.layernorm_prepare_backward)
        x, before = contiguous(input, dtype), [contiguous(s, dtype) for s in state]
        after = [torch.empty_like(s) for s in before]
        saved = x.new_empty(self.saved_size * x.shape[0], dtype=self.compute_type) if save else None
        call = self.step(x, before, dropout, saved, self.packed_forward)
        call.h_n, call.c_n = state_pointers(after)
        call.output = call.h_n
        self.run(LIBRARY.layernorm_recurrent_forward, call)
        return after if self.dtype is dtype else [s.to(self.dtype) for s in after], [] if saved is None else [saved]

    def check_saved(self, saved: Tensor, B: int) -> None:
        """Checks that this is what the forward saved: a hook on saved tensors can put another in its place.

        Raises:
            RuntimeError: it is not.
        """
        size = self.saved_size * B
        fits = saved.shape == (size,) and saved.dtype is self.compute_type and saved.is_cpu and saved.is_contiguous()
        if not fits or materialize(saved) is not saved:
            expected = f"{size} numbers in {self.compute_type} on the CPU"
            raise RuntimeError(
                f"expected a saved tensor of {expected}, got {list(saved.shape)}, {saved.dtype}, {saved.device}"
            )

    def backward_pass(self) -> NativeBackwardPass:
        assert self.packed_backward is not None, "a step's forward has made it"
        return NativeBackwardPass(self, self.packed_backward)


class NativeBackwardPass:
    """The way back (`BackwardPass`)."""

    def __init__(self, layer: NativeLayer, prepared: Tensor) -> None:
        self.layer, self.prepared, self.steps = layer, prepared, list[Step]()
        size = LIBRARY.layernorm_recurrent_totals(layer.call(1))
        self.totals = torch.zeros(size, dtype=torch.float64)  # sums of the vectors' gradients

    def step(
        self,
        input: Tensor,
        state: Sequence[Tensor],
        dropout: Tensor | None,
        saved: Sequence[Tensor],
        grad_state: Sequence[Tensor | None],
    ) -> list[Tensor]:
        layer = self.layer
        dropout = contiguous_or_none(dropout, layer.compute_type)
        x, before = contiguous(input, layer.transfer_type), [contiguous(s, layer.transfer_type) for s in state]
        B, units = x.shape[0], layer.params[1].shape[0]
        (block,) = saved
        layer.check_saved(block, B)
        grads_after = [contiguous_or_none(g, layer.transfer_type) for g in grad_state]
        grads = [torch.empty_like(x), *(torch.empty_like(s) for s in before)]
        dzx = x.new_empty(B, units, dtype=layer.compute_type)
        dzh = torch.empty_like(dzx) if layer.two_streams else dzx
        m = dzx.new_empty(B, layer.H) if layer.recurrence.projected else None
        call = layer.step(x, before, dropout, block, self.prepared)
        call.d_h_n, call.d_c_n = state_pointers(grads_after)
        call.d_x = grads[0].data_ptr()
        call.d_h0, call.d_c0 = state_pointers(grads[1:])
        call.d_zx, call.m, call.totals = dzx.data_ptr(), pointer(m), self.totals.data_ptr()
        if layer.two_streams:
            call.d_zh = dzh.data_ptr()
        layer.run(LIBRARY.layernorm_recurrent_backward, call)
        dh = None
        if m is not None:
            dh = x.new_zeros(B, layer.P) if grads_after[0] is None else grads_after[0]
        h = before[0] if dropout is None else before[0] * dropout
        self.steps.append(Step(x, h, dzx, dzh, dh, m))
        return grads if layer.dtype is layer.transfer_type else [d.to(layer.dtype) for d in grads]

    def gradients(self) -> list[Tensor]:
        layer = self.layer
        columns = zip(*self.steps, strict=True)
        joined = [None if column[0] is None else torch.cat(column).to(layer.compute_type) for column in columns]
        x, h, dzx, dzh, dh, m = joined
        parameters = zip(layer.recurrence.parameter_names, layer.params, strict=True)
        d_params = {name: torch.empty_like(p, dtype=layer.compute_type) for name, p in parameters}
        with torch.autocast("cpu", enabled=False):  # a user may run the backward under it
            for name, d, factor in (("weight_ih", dzx, x), ("weight_hh", dzh, h), ("weight_hr", dh, m)):
                if d is not None and factor is not None:
                    torch.mm(d.t(), factor, out=d_params[name])
        grads = list(d_params.values())
        vectors = zip(gradient_slots(layer.recurrence), term_indices(layer.recurrence)[len(WEIGHTS) :], strict=True)
        others = [torch.empty_like(grads[terms[0]]) for slot, terms in vectors if slot == -1]
        d_vectors = slot_gradients(grads, others, layer.recurrence)
        call = layer.call(1)
        call.d_vectors[:], call.totals = list(map(pointer, d_vectors)), self.totals.data_ptr()
        LIBRARY.layernorm_recurrent_vectors(call, TYPES[layer.transfer_type])
        vector_gradients(d_vectors, grads, layer.recurrence)
        return [d.to(layer.dtype) for d in d_params.values()]


def pointer(tensor: Tensor | None) -> int | None:
    """Returns where a tensor's numbers begin."""
    return None if tensor is None else tensor.data_ptr()


def state_pointers(state: Sequence[Tensor | None]) -> tuple[int | None, int | None]:
    """Returns the pointers of h's part and of c's, if there is one."""
    return pointer(state[0]), pointer(state[1]) if len(state) > 1 else None


def prepare(params: Sequence[Tensor], recurrence: Recurrence) -> NativeLayer:
    """Prepares a layer for steps one by one."""
    return NativeLayer(params, recurrence)
