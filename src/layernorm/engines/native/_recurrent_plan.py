"""The plans of recurrent calls."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from ...formula import GATES, Recurrence
from ..protocol import term_indices
from ._layout import PARAMETERS, TYPES, WEIGHTS, handed, recurrent_call
from ._library import LIBRARY
from ._plan import CALL, OTHER, SAVED, STEPS, UNITS, B, H, I, P, Plan, T, TensorSpec


@functools.cache
def saved_block(recurrence: Recurrence, H: int, P: int, dtype: torch.dtype) -> tuple[dict[str, int], int]:
    """What the forward saves, one part behind the other: where in the block each part begins, by the fields of
    `Recurrent`, and the size of all, in numbers for each step and row, of the type that is computed in."""
    found = (ctypes.c_int64 * 6)()
    call = recurrent_call(recurrence, H=H, P=P)
    LIBRARY.layernorm_recurrent_saved(call, TYPES[handed(dtype)], found)
    *begins, size = found
    names = ("saved_x", "saved_h", "saved_c", "saved_statistics", "saved_output")
    return {name: begin for name, begin in zip(names, begins, strict=True) if begin >= 0}, size


@functools.lru_cache(4096)
def forward_plan(
    save: bool, recurrence: Recurrence, reverse: bool, states: int, params: int, lengths: bool, reset: bool
) -> Plan | None:
    """Given ``[x, *state, *weights, *vectors, lengths, reset]``, those that there are; made ``[output, *final state]``
    and with ``save`` what is saved. None: there are not as many tensors.

    Args:
        recurrence, reverse: as in `RecurrentArguments`.
        states, params: how many tensors there are.
        lengths, reset: whether there are such.
    """
    if not _fits(recurrence, states, params):
        return None
    made = [TensorSpec("output", (T, B, _size_of_h(recurrence)), CALL), *_state(recurrence, "h_n", "c_n")]
    given = _given(recurrence, lengths, reset)
    return _plan("recurrent_forward", recurrence, reverse, given, [*made, _SAVED] if save else made)


@functools.lru_cache(4096)
def backward_plan(
    arriving: tuple[bool, ...],
    recurrence: Recurrence,
    reverse: bool,
    states: int,
    params: int,
    lengths: bool,
    reset: bool,
) -> Plan | None:
    """Given what the forward is given, what it saved, and those of the gradients of output, h and c that there are
    (``arriving``); made the gradients of x, state and parameters, and then those of `own_places`."""
    if not _fits(recurrence, states, params) or len(arriving) != 1 + states:
        return None
    grads = [TensorSpec("d_output", (T, B, _size_of_h(recurrence)), CALL), *_state(recurrence, "d_h_n", "d_c_n")]
    given = [*_given(recurrence, lengths, reset), _SAVED]
    given += [grad for grad, there in zip(grads, arriving, strict=True) if there]
    shapes, terms = _shapes(recurrence), term_indices(recurrence)
    d_params = [_parameter("", shape) for shape in shapes]
    for name, k in zip(WEIGHTS, terms, strict=False):
        if k:
            d_params[k[0]] = _parameter(f"d_{name}", shapes[k[0]])
    for i, (own, k) in enumerate(zip(own_places(recurrence), terms[len(WEIGHTS) :], strict=True)):
        if own is not None:
            d = _parameter("d_vectors", shapes[k[0]])._replace(element=i)
            if own < 0:
                d_params.append(d)
            else:
                d_params[own] = d
    made = [TensorSpec("d_x", (T, B, I), CALL), *_state(recurrence, "d_h0", "d_c0"), *d_params]
    return _plan("recurrent_backward", recurrence, reverse, given, made)


_SAVED = TensorSpec("saved_x", (SAVED,), OTHER)


def _plan(
    function: str, recurrence: Recurrence, reverse: bool, given: Sequence[TensorSpec], made: Sequence[TensorSpec]
) -> Plan:
    terms = [(k[0], k[1:]) for k in term_indices(recurrence) if k]
    return Plan(function, recurrent_call(recurrence, reverse), given, made, terms)


def _fits(recurrence: Recurrence, states: int, params: int) -> bool:
    return (len(recurrence.state_names), len(recurrence.parameter_names)) == (states, params)


def _size_of_h(recurrence: Recurrence) -> int:
    return P if recurrence.projected else H


def _state(recurrence: Recurrence, *names: str) -> list[TensorSpec]:
    """Tensors like h and, in an LSTM, c."""
    sizes = zip(names, (_size_of_h(recurrence), H), recurrence.state_names, strict=False)
    return [TensorSpec(name, (B, size), CALL) for name, size, _ in sizes]


def _shapes(recurrence: Recurrence) -> list[tuple[int, ...]]:
    """The parameters' shapes, in names of sizes."""
    units = GATES[recurrence.network] * H
    shapes = recurrence.parameter_shapes(I, H, _size_of_h(recurrence)).values()
    return [tuple([UNITS if size == units else size for size in shape]) for shape in shapes]


def _parameter(name: str, shape: Sequence[int]) -> TensorSpec:
    """A parameter or its gradient: vectors are in the type that is computed in."""
    return TensorSpec(name, shape, OTHER if len(shape) == 1 else CALL)


def _given(recurrence: Recurrence, lengths: bool, reset: bool) -> list[TensorSpec]:
    """What both directions are given."""
    shapes = _shapes(recurrence)
    found = [TensorSpec("x", (T, B, I), CALL, STEPS, "x_t"), *_state(recurrence, "h0", "c0")]
    for name, terms in zip(PARAMETERS, term_indices(recurrence), strict=True):
        if terms:
            found.append(_parameter(name, shapes[terms[0]]))
    if lengths:
        found.append(TensorSpec("lengths", (B,), torch.int64))
    if reset:
        found.append(TensorSpec("reset", (T, B), torch.bool))
    return found


@functools.cache
def own_places(recurrence: Recurrence) -> tuple[int | None, ...]:
    """For each of the eight vectors the parameter in whose place its gradient is made; None: there is no such vector,
    -1: it needs a place of its own, because its parameters stand in another vector, too."""
    places: list[int | None] = []
    seen: set[int] = set()
    for terms in term_indices(recurrence)[len(WEIGHTS) :]:
        places.append(next((k for k in terms if k not in seen), -1) if terms else None)
        seen.update(terms)
    return tuple(places)


@functools.cache
def shares_vectors(recurrence: Recurrence) -> bool:
    """Whether a parameter's gradient is not all in the place of one vector's: then `vector_gradients` adds them up."""
    return any(len(terms) > 1 for terms in term_indices(recurrence)) or -1 in own_places(recurrence)


def vector_places(d_params: Sequence[Tensor], more: Sequence[Tensor], recurrence: Recurrence) -> list[Tensor | None]:
    """The gradients of the eight vectors, where `own_places` has them; ``more``: those with a place of their own."""
    rest = iter(more)
    return [None if place is None else next(rest) if place < 0 else d_params[place] for place in own_places(recurrence)]
