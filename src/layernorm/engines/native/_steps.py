"""One layer step by step: its weights are packed once, their gradients are one product over all steps at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...formula import GATES, Recurrence
from ..protocol import term_indices, vector_gradients
from ._layout import PARAMETERS, TYPES, WEIGHTS, Recurrent, computed, handed, recurrent_call
from ._library import LIBRARY
from ._memory import in_memory, ready, ready_or_none
from ._recurrent_plan import own_places, saved_block, vector_places


class Step(NamedTuple):
    """What the gradients of the weights need of one step."""

    x: Tensor  # (B, I)
    h: Tensor  # (B, P), before the step
    dzx: Tensor  # (B, G*H), the gradient of W_ih x
    dzh: Tensor  # of W_hh h
    dh: Tensor | None  # with projections (B, P), the gradient of h after the step,
    m: Tensor | None  # and (B, H), what is projected


class Prepared:
    """A layer with its weights packed (`PreparedLayer`)."""

    def __init__(self, params: Sequence[Tensor], recurrence: Recurrence) -> None:
        self.recurrence, self.type = recurrence, params[0].dtype
        self.dtype, self.wide = handed(self.type), computed(self.type)
        (units, self.I), (_, self.P) = params[0].shape, params[1].shape
        self.H = units // GATES[recurrence.network]
        self.params = [p.detach() for p in params]
        begins, _ = saved_block(recurrence, self.H, self.P, self.type)
        # Without the output: it would be that of the steps before, and there are none in one call.
        self.saved = {name: begin * self.wide.itemsize for name, begin in begins.items() if name != "saved_output"}
        self.size = begins["saved_output"]
        self.two_streams = "saved_h" in begins  # otherwise W x and U h are only added, and have one gradient
        self.template = recurrent_call(recurrence, T=1, I=self.I, H=self.H, P=self.P, x_b=self.I)
        self.for_forward = self._packed(LIBRARY.layernorm_prepare_forward)
        self.for_backward: Tensor | None = None  # until a step is to have a gradient

    def _packed(self, function: Callable[[Recurrent, int, int | None], int]) -> Tensor:
        """The weights as one direction of the computation takes them."""
        call, kept = self.call(1), []
        call.prepares = True
        for name, terms in zip(PARAMETERS, term_indices(self.recurrence), strict=True):
            if terms:
                dtype = self.dtype if name in WEIGHTS else self.wide
                kept.append(sum((ready(self.params[k], dtype) for k in terms[1:]), ready(self.params[terms[0]], dtype)))
                setattr(call, name, kept[-1].data_ptr())
                setattr(self.template, name, 1)  # that it is there: a prepared call does not read it
        number = TYPES[self.dtype]
        place = torch.empty(function(call, number, None), dtype=torch.uint8)
        function(call, number, place.data_ptr())
        return place

    def call(self, B: int) -> Recurrent:
        """A step of B rows without its tensors."""
        call = Recurrent.from_buffer_copy(self.template)
        call.B, call.threads = B, torch.get_num_threads()
        return call

    def step(self, x: Tensor, state: Sequence[Tensor], saved: Tensor | None, prepared: Tensor) -> Recurrent:
        """A step without its results."""
        B = x.shape[0]
        call = self.call(B)
        call.x, call.prepared = x.data_ptr(), prepared.data_ptr()
        call.h0, call.c0 = pair(state)
        if saved is not None:
            at = saved.data_ptr()
            for name, begin in self.saved.items():
                setattr(call, name, at + begin * B)
        return call

    def run(self, function: Callable[[Recurrent, int], int], call: Recurrent) -> None:
        """Computes a step.

        Raises:
            MemoryError: there is not enough of it.
        """
        if function(call, TYPES[self.dtype]):
            raise MemoryError(f"layernorm: not enough memory for a call with input {[call.B, self.I]}")

    def forward(self, input: Tensor, state: Sequence[Tensor], save: bool) -> tuple[list[Tensor], list[Tensor]]:
        dtype = self.dtype
        if save and self.for_backward is None:  # now, of the weights that the forward has
            self.for_backward = self._packed(LIBRARY.layernorm_prepare_backward)
        x, before = ready(input, dtype), [ready(s, dtype) for s in state]
        after = [s.new_empty(s.shape) for s in before]
        saved = x.new_empty(self.size * x.shape[0], dtype=self.wide) if save else None
        call = self.step(x, before, saved, self.for_forward)
        call.h_n, call.c_n = pair(after)
        call.output = call.h_n
        self.run(LIBRARY.layernorm_recurrent_forward, call)
        return after if self.type is dtype else [s.to(self.type) for s in after], [] if saved is None else [saved]

    def check_saved(self, saved: Tensor, B: int) -> None:
        """Checks that this is what the forward saved: a hook on saved tensors can put another in its place.

        Raises:
            RuntimeError: it is not.
        """
        size = self.size * B
        fits = saved.shape == (size,) and saved.dtype is self.wide and saved.is_cpu and saved.is_contiguous()
        if not fits or in_memory(saved) is not saved:
            expected = f"{size} numbers in {self.wide} on the CPU"
            raise RuntimeError(
                f"expected a saved tensor of {expected}, got {list(saved.shape)}, {saved.dtype}, {saved.device}"
            )

    def backward_pass(self) -> Back:
        assert self.for_backward is not None, "a step's forward has made it"
        return Back(self, self.for_backward)


class Back:
    """The way back (`BackwardPass`)."""

    def __init__(self, layer: Prepared, prepared: Tensor) -> None:
        self.layer, self.prepared, self.steps = layer, prepared, list[Step]()
        size = LIBRARY.layernorm_recurrent_totals(layer.call(1))
        self.totals = torch.zeros(size, dtype=torch.float64)  # sums of the vectors' gradients

    def step(
        self, input: Tensor, state: Sequence[Tensor], saved: Sequence[Tensor], grad_state: Sequence[Tensor | None]
    ) -> list[Tensor]:
        layer = self.layer
        x, before = ready(input, layer.dtype), [ready(s, layer.dtype) for s in state]
        B, units = x.shape[0], layer.params[1].shape[0]
        (block,) = saved
        layer.check_saved(block, B)
        arriving = [ready_or_none(g, layer.dtype) for g in grad_state]
        found = [torch.empty_like(x), *(torch.empty_like(s) for s in before)]
        dzx = x.new_empty(B, units, dtype=layer.wide)
        dzh = torch.empty_like(dzx) if layer.two_streams else dzx
        m = dzx.new_empty(B, layer.H) if layer.recurrence.projected else None
        call = layer.step(x, before, block, self.prepared)
        call.d_h_n, call.d_c_n = pair(arriving)
        call.d_x = found[0].data_ptr()
        call.d_h0, call.d_c0 = pair(found[1:])
        call.d_zx, call.m, call.totals = dzx.data_ptr(), pointer(m), self.totals.data_ptr()
        if layer.two_streams:
            call.d_zh = dzh.data_ptr()
        layer.run(LIBRARY.layernorm_recurrent_backward, call)
        dh = None
        if m is not None:
            dh = x.new_zeros(B, layer.P) if arriving[0] is None else arriving[0]
        self.steps.append(Step(x, before[0], dzx, dzh, dh, m))
        return found if layer.type is layer.dtype else [d.to(layer.type) for d in found]

    def gradients(self) -> list[Tensor]:
        layer = self.layer
        columns = zip(*self.steps, strict=True)
        joined = [None if column[0] is None else torch.cat(column).to(layer.wide) for column in columns]
        x, h, dzx, dzh, dh, m = joined
        named = zip(layer.recurrence.parameter_names, layer.params, strict=True)
        d_params = {name: torch.empty_like(p, dtype=layer.wide) for name, p in named}
        with torch.autocast("cpu", enabled=False):  # a user may run the backward under it
            for name, d, factor in (("weight_ih", dzx, x), ("weight_hh", dzh, h), ("weight_hr", dh, m)):
                if d is not None and factor is not None:
                    torch.mm(d.t(), factor, out=d_params[name])
        found = list(d_params.values())
        vectors = zip(own_places(layer.recurrence), term_indices(layer.recurrence)[len(WEIGHTS) :], strict=True)
        more = [torch.empty_like(found[terms[0]]) for place, terms in vectors if place == -1]
        d_vectors = vector_places(found, more, layer.recurrence)
        call = layer.call(1)
        call.d_vectors[:], call.totals = list(map(pointer, d_vectors)), self.totals.data_ptr()
        LIBRARY.layernorm_recurrent_vectors(call, TYPES[layer.dtype])
        vector_gradients(d_vectors, found, layer.recurrence)
        return [d.to(layer.type) for d in d_params.values()]


def pointer(tensor: Tensor | None) -> int | None:
    """Where a tensor's numbers begin."""
    return None if tensor is None else tensor.data_ptr()


def pair(state: Sequence[Tensor | None]) -> tuple[int | None, int | None]:
    """The pointers of h's part and of c's, if there is one."""
    return pointer(state[0]), pointer(state[1]) if len(state) > 1 else None


def prepare(params: Sequence[Tensor], recurrence: Recurrence) -> Prepared:
    """A layer for steps one by one."""
    return Prepared(params, recurrence)
