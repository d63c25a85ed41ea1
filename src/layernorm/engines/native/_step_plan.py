"""The plans of a layer that takes its steps one by one, with its parameters packed once."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from ...formula import CACHED, Recurrence
from ._layout import recurrent_call
from ._plan import CALL, OTHER, PREPARED, STEPS, TOTALS, UNITS, B, H, I, Plan, TensorSpec
from ._recurrent_plan import SAVED_SPEC, gradient_specs, parameter_specs, size_of_h, state_specs, term_indices

FOR_FORWARD, FOR_BACKWARD = 1, 2
"""What parameters are packed for: `prepares` in engine.h."""


@functools.lru_cache(CACHED)
def packing_plan(purpose: int, recurrence: Recurrence) -> Plan:
    """Plans the packing of weights and vectors, which are given. ``purpose``: `FOR_FORWARD` or `FOR_BACKWARD`."""
    terms = [(k[0], k[1:]) for k in term_indices(recurrence) if k]
    call = recurrent_call(recurrence, T=1, B=1, prepares=purpose)
    return Plan("recurrent_prepare", call, parameter_specs(recurrence), [_PACKED_SPEC], terms)


@functools.lru_cache(CACHED)
def step_plan(save: bool, recurrence: Recurrence, dropout: bool) -> Plan:
    """Plans a step. It takes ``[x, *state, packed parameters, dropout]``, and makes the state after the step, and with
    ``save`` what the backward needs."""
    made = state_specs(recurrence, "h_n", "c_n")
    given = _given_specs(recurrence, dropout)
    return _plan("recurrent_forward", recurrence, given, [*made, SAVED_SPEC] if save else made)


@functools.lru_cache(CACHED)
def step_back_plan(has_grad: Sequence[bool], recurrence: Recurrence, dropout: bool, two_streams: bool) -> Plan:
    """Plans a step back. It takes ``[x, *state, packed parameters, dropout, totals]``, what the step saved, and the
    gradients of the state after it that there are (``has_grad``). The vectors' gradients are added to the totals. It
    makes the gradients of x, of the state, of W_ih x and, if it has one of its own, of W_hh h (``two_streams``), and
    what is projected."""
    grads = zip(state_specs(recurrence, "d_h_n", "d_c_n"), has_grad, strict=True)
    given = [*_given_specs(recurrence, dropout), _TOTALS_SPEC, SAVED_SPEC]
    made = [TensorSpec("d_x", (B, I), CALL), *state_specs(recurrence, "d_h0", "d_c0")]
    made += [TensorSpec(name, (B, UNITS), OTHER) for name in (("d_zx", "d_zh") if two_streams else ("d_zx",))]
    if recurrence.projected:
        made.append(TensorSpec("m", (B, H), OTHER))
    return _plan("recurrent_backward", recurrence, [*given, *(grad for grad, present in grads if present)], made)


@functools.lru_cache(CACHED)
def gradient_plan(recurrence: Recurrence) -> Plan:
    """Plans the end of a backward pass. It takes x, state and packed parameters of a step, by whose sizes and types the
    results are made, and the totals. It makes the gradients of the parameters, in which those of the weights are still
    to be written, and those of vectors with tensors of their own."""
    d_params, others = gradient_specs(recurrence)
    made = [spec._replace(dtype=OTHER) for spec in (*d_params, *others)]
    return _plan("recurrent_vectors", recurrence, [*_given_specs(recurrence, False), _TOTALS_SPEC], made)


_PACKED_SPEC = TensorSpec("prepared", (PREPARED,), torch.uint8)
_TOTALS_SPEC = TensorSpec("totals", (TOTALS,), torch.float64)


def _plan(function: str, recurrence: Recurrence, given: Sequence[TensorSpec], made: Sequence[TensorSpec]) -> Plan:
    return Plan(function, recurrent_call(recurrence, T=1), given, made)


def _given_specs(recurrence: Recurrence, dropout: bool) -> list[TensorSpec]:
    x = TensorSpec("x", (B, I), CALL, STEPS, "x_b")
    dropouts = [TensorSpec("dropout", (B, size_of_h(recurrence)), OTHER)] if dropout else []
    return [x, *state_specs(recurrence, "h0", "c0"), _PACKED_SPEC, *dropouts]
