"""The plans of recurrent calls."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from ...formula import GATES, Recurrence
from ..protocol import term_indices
from ._layout import PARAMETERS, TYPES, WEIGHTS, recurrent_call, transfer_type
from ._library import LIBRARY
from ._plan import CALL, OTHER, SAVED, STEPS, UNITS, B, H, I, P, Plan, T, TensorSpec


@functools.cache
def saved_block(recurrence: Recurrence, H: int, P: int, dtype: torch.dtype) -> tuple[dict[str, int], int]:
    """Returns where in the block that the forward saves each part begins, by the fields of `Recurrent`, and the size of
    the block: in numbers for each step and row, of the type computed in."""
    numbers = (ctypes.c_int64 * 6)()
    call = recurrent_call(recurrence, H=H, P=P)
    LIBRARY.layernorm_recurrent_saved(call, TYPES[transfer_type(dtype)], numbers)
    *begins, size = numbers
    names = ("saved_x", "saved_h", "saved_c", "saved_statistics", "saved_output")
    return {name: begin for name, begin in zip(names, begins, strict=True) if begin >= 0}, size


@functools.lru_cache(4096)
def forward_plan(
    save: bool, recurrence: Recurrence, reverse: bool, states: int, params: int, lengths: bool, reset: bool
) -> Plan | None:
    """Plans a forward. Given are ``[x, *state, *weights, *vectors, lengths, reset]``, those that there are. Made are
    ``[output, *final state]`` and with ``save`` what is saved. None: there are not as many tensors.

    Args:
        recurrence, reverse: as in `RecurrentArguments`.
        states, params: how many tensors there are.
        lengths, reset: whether there are such.
    """
    if not _fits(recurrence, states, params):
        return None
    made = [TensorSpec("output", (T, B, _size_of_h(recurrence)), CALL), *_state_specs(recurrence, "h_n", "c_n")]
    given = _given_specs(recurrence, lengths, reset)
    return _plan("recurrent_forward", recurrence, reverse, given, [*made, _SAVED_SPEC] if save else made)


@functools.lru_cache(4096)
def backward_plan(
    has_grad: tuple[bool, ...],
    recurrence: Recurrence,
    reverse: bool,
    states: int,
    params: int,
    lengths: bool,
    reset: bool,
) -> Plan | None:
    """Plans a backward. Given are the forward's tensors, what it saved, and the gradients of output, h and c that there
    are (``has_grad``). Made are the gradients of x, state, parameters, and of vectors with tensors of their own."""
    if not _fits(recurrence, states, params) or len(has_grad) != 1 + states:
        return None
    grads = [TensorSpec("d_output", (T, B, _size_of_h(recurrence)), CALL), *_state_specs(recurrence, "d_h_n", "d_c_n")]
    given = [*_given_specs(recurrence, lengths, reset), _SAVED_SPEC]
    given += [grad for grad, present in zip(grads, has_grad, strict=True) if present]
    shapes, terms = _symbolic_shapes(recurrence), term_indices(recurrence)
    d_params = [_parameter_spec("", shape) for shape in shapes]
    for name, k in zip(WEIGHTS, terms, strict=False):
        if k:
            d_params[k[0]] = _parameter_spec(f"d_{name}", shapes[k[0]])
    for i, (slot, k) in enumerate(zip(gradient_slots(recurrence), terms[len(WEIGHTS) :], strict=True)):
        if slot is not None:
            d = _parameter_spec("d_vectors", shapes[k[0]])._replace(element=i)
            if slot < 0:
                d_params.append(d)
            else:
                d_params[slot] = d
    made = [TensorSpec("d_x", (T, B, I), CALL), *_state_specs(recurrence, "d_h0", "d_c0"), *d_params]
    return _plan("recurrent_backward", recurrence, reverse, given, made)


_SAVED_SPEC = TensorSpec("saved_x", (SAVED,), OTHER)


def _plan(
    function: str, recurrence: Recurrence, reverse: bool, given: Sequence[TensorSpec], made: Sequence[TensorSpec]
) -> Plan:
    terms = [(k[0], k[1:]) for k in term_indices(recurrence) if k]
    return Plan(function, recurrent_call(recurrence, reverse), given, made, terms)


def _fits(recurrence: Recurrence, states: int, params: int) -> bool:
    return (len(recurrence.state_names), len(recurrence.parameter_names)) == (states, params)


def _size_of_h(recurrence: Recurrence) -> int:
    return P if recurrence.projected else H


def _state_specs(recurrence: Recurrence, *names: str) -> list[TensorSpec]:
    """Describes tensors like h and, in an LSTM, c."""
    sizes = zip(names, (_size_of_h(recurrence), H), recurrence.state_names, strict=False)
    return [TensorSpec(name, (B, size), CALL) for name, size, _ in sizes]


def _symbolic_shapes(recurrence: Recurrence) -> list[tuple[int, ...]]:
    """Returns the parameters' shapes, in names of sizes."""
    units = GATES[recurrence.network] * H
    shapes = recurrence.parameter_shapes(I, H, _size_of_h(recurrence)).values()
    return [tuple([UNITS if size == units else size for size in shape]) for shape in shapes]


def _parameter_spec(name: str, shape: Sequence[int]) -> TensorSpec:
    """Describes a parameter or its gradient: vectors are in the type computed in."""
    return TensorSpec(name, shape, OTHER if len(shape) == 1 else CALL)


def _given_specs(recurrence: Recurrence, lengths: bool, reset: bool) -> list[TensorSpec]:
    """Describes the tensors that forward and backward are given."""
    shapes = _symbolic_shapes(recurrence)
    specs = [TensorSpec("x", (T, B, I), CALL, STEPS, "x_t"), *_state_specs(recurrence, "h0", "c0")]
    for name, terms in zip(PARAMETERS, term_indices(recurrence), strict=True):
        if terms:
            specs.append(_parameter_spec(name, shapes[terms[0]]))
    if lengths:
        specs.append(TensorSpec("lengths", (B,), torch.int64))
    if reset:
        specs.append(TensorSpec("reset", (T, B), torch.bool))
    return specs


@functools.cache
def gradient_slots(recurrence: Recurrence) -> tuple[int | None, ...]:
    """Returns for each of the eight vectors the parameter in whose tensor its gradient is made; None: there is no such
    vector, -1: it needs a separate tensor, because its parameters stand in another vector, too."""
    slots: list[int | None] = []
    seen: set[int] = set()
    for terms in term_indices(recurrence)[len(WEIGHTS) :]:
        slots.append(next((k for k in terms if k not in seen), -1) if terms else None)
        seen.update(terms)
    return tuple(slots)


@functools.cache
def shares_vectors(recurrence: Recurrence) -> bool:
    """Says whether a parameter's gradient is not that of a single vector: then `vector_gradients` adds them up."""
    return any(len(terms) > 1 for terms in term_indices(recurrence)) or -1 in gradient_slots(recurrence)


def slot_gradients(d_params: Sequence[Tensor], others: Sequence[Tensor], recurrence: Recurrence) -> list[Tensor | None]:
    """Returns the gradients of the eight vectors; ``others``: those with tensors of their own."""
    rest = iter(others)
    return [None if slot is None else next(rest) if slot < 0 else d_params[slot] for slot in gradient_slots(recurrence)]
