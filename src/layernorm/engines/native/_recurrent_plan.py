"""The plans of recurrent calls."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import torch

from ...formula import Recurrence
from ..protocol import term_indices
from ._layout import (
    RECURRENT,
    WEIGHTS,
    Given,
    Gradients,
    Made,
    OneByOne,
    Sizes,
    computed,
    own_places,
    pack,
    saved_sizes,
)
from ._plan import Kind, Plan, Shape, in_order

POINTERS = (*Given._fields, *Made._fields, *Gradients._fields, *OneByOne._fields)
WORD = {name: RECURRENT.size // 8 - len(POINTERS) + i for i, name in enumerate(POINTERS)}
"""Where in `Recurrent` a field of pointers is, in words of 8 bytes: they are the last."""


class Signature(NamedTuple):
    """What a call of either direction depends on.

    Attributes:
        strides, dtype: of x; the latter is what the call is handed over in.
        lengths, reset: whether there are such.
        threads: of PyTorch's pool.
    """

    recurrence: Recurrence
    sizes: Sizes
    strides: Shape
    dtype: torch.dtype
    reverse: bool
    lengths: bool
    reset: bool
    threads: int

    def call(self) -> bytes:
        """`Recurrent` without addresses."""
        strides = Given(x_t=self.strides[0], x_b=self.strides[1])
        return pack(self.sizes, self.recurrence, self.reverse, self.threads, strides)


@functools.cache
def present_terms(recurrence: Recurrence) -> tuple[tuple[int, ...], ...]:
    """`term_indices` without the weights and vectors that there are not."""
    return tuple(terms for terms in term_indices(recurrence) if terms)


def _type(shape: Shape, dtype: torch.dtype) -> torch.dtype:
    """Of a parameter, or of its gradient, of a layer that is handed over in ``dtype``: vectors are in the type that is
    computed in."""
    return computed(dtype) if len(shape) == 1 else dtype


def _given(signature: Signature) -> dict[str, Kind]:
    """What both directions are given, by the names of `Given`."""
    recurrence, (T, B, I, H, P), strides, dtype, _, lengths, reset, _ = signature  # noqa: E741
    shapes = list(recurrence.parameter_shapes(I, H, P).values())
    found = {"x": (T, B, I), "h0": (B, P)}
    if recurrence.network == "LSTM":
        found["c0"] = (B, H)
    names = Given._fields[Given._fields.index("w_ih") : Given._fields.index("lengths")]
    found |= {name: shapes[terms[0]] for name, terms in zip(names, term_indices(recurrence), strict=True) if terms}
    kinds = {name: in_order(_type(shape, dtype), shape) for name, shape in found.items()}
    kinds["x"] = kinds["x"]._replace(strides=strides)
    masks = {"lengths": (lengths, in_order(torch.int64, (B,))), "reset": (reset, in_order(torch.bool, (T, B)))}
    return kinds | {name: kind for name, (there, kind) in masks.items() if there}


def _saved_places(sizes: Mapping[str, int], tensor: int, row: int) -> list[tuple[int, int, int]]:
    """The places of the parts of what is saved, in one tensor one behind the other; ``row``: bytes of a part of one
    number a row."""
    found, offset = [], 0
    for name, size in sizes.items():
        if size:
            found.append((WORD[name], tensor, offset))
        offset += size * row
    return found


def _saved(recurrence: Recurrence, H: int, P: int, dtype: torch.dtype) -> dict[str, int]:
    return dict(zip(Made._fields[3:], saved_sizes(recurrence, H, P, dtype), strict=True))


@functools.lru_cache(4096)
def forward_plan(signature: Signature, save: bool) -> Plan:
    """Given ``[x, *state, *weights, *vectors, lengths, reset]``, those that there are; made ``[output, *final state]``
    and with ``save`` what is saved."""
    recurrence, (T, B, _, H, P), _, dtype, *_ = signature
    given = _given(signature)
    results: list[Shape] = [(T, B, P), (B, P), (B, H)][: 1 + len(recurrence.state_names)]
    made = [in_order(dtype, shape) for shape in results]
    places = [(WORD[name], i, 0) for i, name in enumerate([*given, *Made._fields[: len(made)]])]
    if save:
        saved = _saved(recurrence, H, P, dtype)
        places += _saved_places(saved, len(given) + len(made), T * B * computed(dtype).itemsize)
        made.append(in_order(computed(dtype), (T * B * sum(saved.values()),)))
    return Plan("recurrent_forward", dtype, signature.call(), list(given.values()), made, places)


@functools.lru_cache(4096)
def backward_plan(signature: Signature, arriving: tuple[bool, ...]) -> Plan:
    """Given what the forward is given, what it saved, and those of the gradients of output, h and c that there are;
    made the gradients of x, state and parameters, and then those of `own_places`."""
    recurrence, (T, B, I, H, P), _, dtype, *_ = signature  # noqa: E741
    given = _given(signature)
    places = [(WORD[name], i, 0) for i, name in enumerate(given)]
    saved = _saved(recurrence, H, P, dtype)
    places += _saved_places(saved, len(given), T * B * computed(dtype).itemsize)
    kinds = [*given.values(), in_order(computed(dtype), (T * B * sum(saved.values()),))]
    for name, shape, there in zip(("d_output", "d_h_n", "d_c_n"), [(T, B, P), (B, P), (B, H)], arriving, strict=False):
        if there:
            places.append((WORD[name], len(kinds), 0))
            kinds.append(in_order(dtype, shape))
    state: list[Shape] = [(B, P), (B, H)]
    state = state[: len(recurrence.state_names)]
    of_params = list(recurrence.parameter_shapes(I, H, P).values())
    made: list[Shape] = [(T, B, I), *state, *of_params]
    first = len(kinds) + 1 + len(state)  # of the parameters' gradients
    places += [(WORD[name], len(kinds) + i, 0) for i, name in enumerate(("d_x", "d_h0", "d_c0")[: 1 + len(state)])]
    weights = zip(("d_w_ih", "d_w_hh", "d_w_hr"), term_indices(recurrence), strict=False)
    places += [(WORD[name], first + terms[0], 0) for name, terms in weights if terms]
    vectors = Gradients._fields[Gradients._fields.index("d_gain_x") :]
    for name, place, terms in zip(vectors, own_places(recurrence), term_indices(recurrence)[WEIGHTS:], strict=True):
        if place is None:
            continue
        if place < 0:
            place = len(made) - 1 - len(state)
            made.append(of_params[terms[0]])
        places.append((WORD[name], first + place, 0))
    results = [in_order(_type(shape, dtype), shape) for shape in made]
    return Plan("recurrent_backward", dtype, signature.call(), kinds, results, places)
