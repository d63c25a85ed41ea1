"""One layer step by step: its weights are packed once, their gradients are one product over all steps at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...formula import GATES, Recurrence
from ..protocol import term_indices, vector_gradients
from ._layout import (
    AT_ONCE,
    NO_GRADIENTS,
    NOTHING_MADE,
    TYPES,
    WEIGHTS,
    Given,
    Gradients,
    Made,
    OneByOne,
    addresses,
    check_saved,
    computed,
    handed,
    own_places,
    pack,
    pair,
    parameters,
    pointer,
    ready,
    ready_or_none,
    run,
    saved_sizes,
    vector_places,
)
from ._library import LIBRARY


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
        *sizes, _ = saved_sizes(recurrence, self.H, self.P, self.type)
        self.sizes = [*sizes, 0]  # no output: it would be that of the steps before, and there are none in one call
        self.two_streams = sizes[1] > 0  # saved_h; otherwise W x and U h are only added, and have one gradient
        self.for_forward = self._packed(LIBRARY.layernorm_prepare_forward)
        self.for_backward: Tensor | None = None  # until a step is to have a gradient

    def _packed(self, function: Callable[[bytes, int, int | None], int]) -> Tensor:
        """The weights as one direction of the computation takes them."""
        fields, _kept = parameters(self.params, self.recurrence, self.dtype)
        self.there = tuple(int(address != 0) for address in fields)
        packed = self.call(1, Given(0, 0, 0, 0, 0, *fields), steps=OneByOne(prepares=1))
        number = TYPES[self.dtype]
        place = torch.empty(function(packed, number, None), dtype=torch.uint8)
        function(packed, number, place.data_ptr())
        return place

    def call(
        self,
        B: int,
        given: Sequence[int],
        made: Sequence[int] = NOTHING_MADE,
        gradients: Sequence[int] = NO_GRADIENTS,
        steps: Sequence[int] = AT_ONCE,
    ) -> bytes:
        sizes = (1, B, self.I, self.H, self.P)
        return pack(sizes, self.recurrence, False, torch.get_num_threads(), given, made, gradients, steps)

    def given(self, x: Tensor, state: Sequence[Tensor]) -> Given:
        """Of the parameters only whether they are there: a prepared call does not read them."""
        h0, c0 = pair(state)
        return Given(x.data_ptr(), 0, self.I, h0, c0, *self.there)

    def forward(self, input: Tensor, state: Sequence[Tensor], save: bool) -> tuple[list[Tensor], list[Tensor]]:
        dtype, B = self.dtype, input.shape[0]
        if save and self.for_backward is None:  # now, of the weights that the forward has
            self.for_backward = self._packed(LIBRARY.layernorm_prepare_backward)
        x, before = ready(input, dtype), [ready(s, dtype) for s in state]
        after = [s.new_empty(s.shape) for s in before]
        h_n, c_n = pair(after)
        saved = [x.new_empty(sum(self.sizes) * B, dtype=self.wide)] if save else []
        made = Made(h_n, h_n, c_n, *(addresses(saved[0], self.sizes, B) if save else ()))
        prepared = OneByOne(self.for_forward.data_ptr())
        call = self.call(B, self.given(x, before), made, steps=prepared)
        run(LIBRARY.layernorm_recurrent_forward, call, dtype, x.shape)
        return after if self.type is dtype else [s.to(self.type) for s in after], saved

    def backward_pass(self) -> Back:
        assert self.for_backward is not None, "a step's forward has made it"
        return Back(self, self.for_backward)


class Back:
    """The way back (`BackwardPass`)."""

    def __init__(self, layer: Prepared, prepared: Tensor) -> None:
        self.layer, self.prepared, self.steps = layer, prepared, list[Step]()
        size = LIBRARY.layernorm_recurrent_totals(layer.call(1, Given()))
        self.totals = torch.zeros(size, dtype=torch.float64)  # sums of the vectors' gradients

    def step(
        self, input: Tensor, state: Sequence[Tensor], saved: Sequence[Tensor], grad_state: Sequence[Tensor | None]
    ) -> list[Tensor]:
        layer = self.layer
        x, before = ready(input, layer.dtype), [ready(s, layer.dtype) for s in state]
        B, units = x.shape[0], layer.params[1].shape[0]
        (block,) = saved
        check_saved(block, sum(layer.sizes) * B, layer.wide)
        arriving = [ready_or_none(g, layer.dtype) for g in grad_state]
        found = [torch.empty_like(x), *(torch.empty_like(s) for s in before)]
        dzx = x.new_empty(B, units, dtype=layer.wide)
        dzh = torch.empty_like(dzx) if layer.two_streams else dzx
        m = dzx.new_empty(B, layer.H) if layer.recurrence.projected else None
        d_h0, d_c0 = pair(found[1:])
        d_h_n, d_c_n = pointer(arriving[0]), pointer(arriving[1]) if len(arriving) > 1 else 0
        made = Made(0, 0, 0, *addresses(block, layer.sizes, B))
        gradients = Gradients(0, d_h_n, d_c_n, found[0].data_ptr(), d_h0, d_c0)
        steps = OneByOne(
            prepared=self.prepared.data_ptr(), d_zx=dzx.data_ptr(), d_zh=dzh.data_ptr() if layer.two_streams else 0,
            m=pointer(m), totals=self.totals.data_ptr(),
        )  # fmt: skip
        call = layer.call(B, layer.given(x, before), made, gradients, steps)
        run(LIBRARY.layernorm_recurrent_backward, call, layer.dtype, x.shape)
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
        vectors = zip(own_places(layer.recurrence), term_indices(layer.recurrence)[WEIGHTS:], strict=True)
        more = [torch.empty_like(found[terms[0]]) for place, terms in vectors if place == -1]
        d_vectors = vector_places(found, more, layer.recurrence)
        gradients, steps = Gradients(*[0] * 9, *map(pointer, d_vectors)), OneByOne(totals=self.totals.data_ptr())
        call = layer.call(1, Given(), gradients=gradients, steps=steps)
        LIBRARY.layernorm_recurrent_vectors(call, TYPES[layer.dtype])
        vector_gradients(d_vectors, found, layer.recurrence)
        return [d.to(layer.type) for d in d_params.values()]


def prepare(params: Sequence[Tensor], recurrence: Recurrence) -> Prepared:
    """A layer for steps one by one."""
    return Prepared(params, recurrence)
