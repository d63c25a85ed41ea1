"""The plans of recurrent calls."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...equations.arguments import RecurrentArguments, StateChanges
from ...formula import CACHED, GATES, QUANTIZED, Recurrence
from ._layout import PARAMETERS, TYPES, WEIGHTS, recurrent_call, transfer_type
from ._library import LIBRARY
from ._plan import CALL, LINES, OTHER, SAVED, STEPS, UNITS, B, H, I, P, Plan, T, TensorSpec


@functools.lru_cache(CACHED)
def saved_block(
    recurrence: Recurrence, H: int, P: int, dtype: torch.dtype, keeps_c: bool = False, batch_norm: int = 0
) -> tuple[dict[str, int], int]:
    """Returns where in the block that the forward saves each part begins, by the fields of `Recurrent`, and the size of
    the block: in numbers for each line, of the type computed in. ``keeps_c``: zoneout keeps a share of c."""
    numbers = (ctypes.c_int64 * 7)()
    call = recurrent_call(recurrence, batch_norm=batch_norm, H=H, P=P, kept_c=int(keeps_c) or None)
    LIBRARY.layernorm_recurrent_saved(call, TYPES[transfer_type(dtype)], numbers)
    *begins, size = numbers
    names = ("saved_x", "saved_h", "saved_c", "saved_kept", "saved_statistics", "saved_output")
    return {name: begin for name, begin in zip(names, begins, strict=True) if begin >= 0}, size


class Between(NamedTuple):
    """Which of the tensors of `StateChanges` there are.

    Attributes:
        restart: how many.
        dropout: whether there is one.
        kept: for each part of the state whether there is a share.
        one_share: whether the shares are one number each.
    """

    restart: int = 0
    dropout: bool = False
    kept: tuple[bool, ...] = ()
    one_share: bool = False


NOTHING = Between()
MADE, GIVEN, MADE_WITH_ENDED = 1, 2, 3
"""Of ``batch_norm``: it finds the moments of each step's rows, or is given them; rows that have ended also count."""


def moments_of(a: RecurrentArguments) -> int:
    """Returns ``batch_norm`` of a call, as is said at `Recurrent` in engine.h."""
    if a.recurrence.norm != "batch":
        return 0
    return GIVEN if a.population else MADE_WITH_ENDED if a.count_padding and a.lengths is not None else MADE


def between(changes: StateChanges) -> Between:
    """Returns which tensors there are. Shares of which only some are one number do not fit the plan, but for a mask of
    one element."""
    shares = [k for k in changes.kept if k is not None]
    one_share = bool(shares) and all(k.numel() == 1 for k in shares)
    kept = tuple([k is not None for k in changes.kept])
    return Between(len(changes.restart), changes.dropout is not None, kept, one_share)


@functools.lru_cache(CACHED)
def forward_plan(
    save: bool,
    recurrence: Recurrence,
    reverse: bool,
    states: int,
    params: int,
    ends: str | None,
    reset: bool,
    changes: Between = NOTHING,
    batch_norm: int = 0,
) -> Plan | None:
    """Plans a forward.

    It takes ``[x, *state, *weights, *vectors, lengths or batch_sizes, reset, *restart, dropout, *kept]``, those that
    there are, and moments that batch norm takes as given. It makes ``[output, *final state]``, the moments that batch
    norm finds, and with ``save`` what is saved. None: there are not as many tensors.

    Args:
        recurrence, reverse: as in `RecurrentArguments`.
        states, params: how many tensors there are.
        ends: what says where rows end, ``"lengths"`` or, in a packed call, ``"batch_sizes"``; None: nothing does.
        reset: whether there is one.
        changes: what else happens to the state between steps.
        batch_norm: whether it finds its moments or is given them: said at `Recurrent` in engine.h.
    """
    if not _fits(recurrence, states, params, changes):
        return None
    output = TensorSpec("output", (*_lines(ends), size_of_h(recurrence)), CALL)
    made = [output, *state_specs(recurrence, "h_n", "c_n")]
    given = _given_specs(recurrence, ends, reset, changes)
    if batch_norm:
        (given if batch_norm == GIVEN else made).extend(_moment_specs(recurrence))
    made = [*made, SAVED_SPEC] if save else made
    return _plan("recurrent_forward", recurrence, reverse, changes, given, made, batch_norm)


@functools.lru_cache(CACHED)
def backward_plan(
    has_grad: tuple[bool, ...],
    recurrence: Recurrence,
    reverse: bool,
    states: int,
    params: int,
    ends: str | None,
    reset: bool,
    changes: Between = NOTHING,
    batch_norm: int = 0,
) -> Plan | None:
    """Plans a backward. It takes the forward's tensors, batch norm's moments, what the forward saved, and the gradients
    of output, h and c that there are (``has_grad``). It makes the gradients of x, state, parameters, the state of
    restarts, and of vectors with tensors of their own."""
    if not _fits(recurrence, states, params, changes) or len(has_grad) != 1 + states:
        return None
    d_output = TensorSpec("d_output", (*_lines(ends), size_of_h(recurrence)), CALL)
    grads = [d_output, *state_specs(recurrence, "d_h_n", "d_c_n")]
    moments = _moment_specs(recurrence) if batch_norm else []
    given = [*_given_specs(recurrence, ends, reset, changes), *moments, SAVED_SPEC]
    given += [grad for grad, present in zip(grads, has_grad, strict=True) if present]
    d_params, others = gradient_specs(recurrence)
    made = [TensorSpec("d_x", (*_lines(ends), I), CALL), *state_specs(recurrence, "d_h0", "d_c0"), *d_params]
    if changes.restart:
        made += state_specs(recurrence, "d_restart_h", "d_restart_c")
    return _plan("recurrent_backward", recurrence, reverse, changes, given, [*made, *others], batch_norm)


SAVED_SPEC = TensorSpec("saved_x", (SAVED,), OTHER)


def _plan(
    function: str,
    recurrence: Recurrence,
    reverse: bool,
    changes: Between,
    given: Sequence[TensorSpec],
    made: Sequence[TensorSpec],
    batch_norm: int,
) -> Plan:
    terms = [(k[0], k[1:]) for k in (*term_indices(recurrence), *_scale_indices(recurrence)) if k]
    return Plan(
        function, recurrent_call(recurrence, reverse, batch_norm, one_share=changes.one_share), given, made, terms
    )


@functools.lru_cache(CACHED)
def term_indices(recurrence: Recurrence) -> tuple[tuple[int, ...], ...]:
    """Returns of which parameters each weight (W_ih, W_hh, W_hr) and each of the eight `Recurrence.vectors` is the sum.

    The numbers are indices into ``params``. Where there are none, there is no such weight or vector.
    """
    names = recurrence.parameter_names
    weights = [(name,) if name in names else () for name in ("weight_ih", "weight_hh", "weight_hr")]
    return tuple(tuple(names.index(name) for name in terms) for terms in (*weights, *recurrence.vectors))


def _moment_specs(recurrence: Recurrence) -> list[TensorSpec]:
    """Describes batch norm's moments: for each gain mean and variance, (T, n)."""
    specs = []
    for gain in recurrence.gain_names:
        place = {"gain": 0, "gain_ih": 0, "gain_hh": 1, "gain_c": 2}[gain]
        size = H if gain == "gain_c" else UNITS
        specs += [TensorSpec(name, (T, size), OTHER, element=place) for name in ("mean", "var")]
    return specs


def _scale_indices(recurrence: Recurrence) -> list[tuple[int]]:
    """Returns which parameters are the scales of int8 weights."""
    names = recurrence.parameter_names
    return [(names.index(f"{name}_scale"),) for name in QUANTIZED] if recurrence.quantized else []


def _fits(recurrence: Recurrence, states: int, params: int, changes: Between) -> bool:
    expected = len(recurrence.state_names)
    between_fit = changes.restart in (0, expected) and len(changes.kept) in (0, expected)
    return between_fit and (expected, len(recurrence.parameter_names)) == (states, params)


def _lines(ends: str | None) -> tuple[int, ...]:
    """Returns the leading sizes of what has a number for each line."""
    return (LINES,) if ends == "batch_sizes" else (T, B)


def size_of_h(recurrence: Recurrence) -> int:
    return P if recurrence.projected else H


def state_specs(recurrence: Recurrence, *names: str) -> list[TensorSpec]:
    """Describes tensors like h and, in an LSTM, c."""
    sizes = zip(names, (size_of_h(recurrence), H), recurrence.state_names, strict=False)
    return [TensorSpec(name, (B, size), CALL) for name, size, _ in sizes]


def _symbolic_shapes(recurrence: Recurrence) -> list[tuple[int, ...]]:
    """Returns the parameters' shapes, in names of sizes."""
    units = GATES[recurrence.network] * H
    shapes = recurrence.parameter_shapes(I, H, size_of_h(recurrence)).values()
    return [tuple([UNITS if size == units else size for size in shape]) for shape in shapes]


def _parameter_spec(name: str, shape: Sequence[int]) -> TensorSpec:
    """Describes a parameter or its gradient: vectors are in the type computed in."""
    return TensorSpec(name, shape, OTHER if len(shape) == 1 else CALL)


def _given_specs(recurrence: Recurrence, ends: str | None, reset: bool, changes: Between) -> list[TensorSpec]:
    """Describes the tensors that forward and backward are given."""
    lines = _lines(ends)
    x = TensorSpec("x", (LINES, I), CALL) if lines == (LINES,) else TensorSpec("x", (T, B, I), CALL, STEPS, "x_t")
    specs = [x, *state_specs(recurrence, "h0", "c0"), *parameter_specs(recurrence)]
    if recurrence.quantized:
        specs = [spec._replace(dtype=torch.int8) if spec.name in ("w_ih", "w_hh") else spec for spec in specs]
        specs += [TensorSpec(name, (UNITS,), OTHER) for name in ("scale_ih", "scale_hh")]
    if ends is not None:
        specs.append(TensorSpec(ends, (B,) if ends == "lengths" else (T,), torch.int64))
    if reset:
        specs.append(TensorSpec("reset", lines, torch.bool))
    if changes.restart:
        specs += state_specs(recurrence, "restart_h", "restart_c")
    if changes.dropout:
        specs.append(TensorSpec("dropout", (B, size_of_h(recurrence)), OTHER))
    shares = (("kept_h", size_of_h(recurrence)), ("kept_c", H))
    for there, (name, size) in zip(changes.kept, shares, strict=False):
        if there:
            sizes = (1,) * (len(lines) + 1) if changes.one_share else (*lines, size)
            specs.append(TensorSpec(name, sizes, OTHER))
    return specs


def gradient_specs(recurrence: Recurrence) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Describes the gradients of the parameters, and of the vectors that need tensors of their own."""
    shapes, terms = _symbolic_shapes(recurrence), term_indices(recurrence)
    d_params, others = [_parameter_spec("", shape) for shape in shapes], list[TensorSpec]()
    for name, k in zip(WEIGHTS, terms, strict=False):
        if k:
            d_params[k[0]] = _parameter_spec(f"d_{name}", shapes[k[0]])
    for i, (slot, k) in enumerate(zip(gradient_slots(recurrence), terms[len(WEIGHTS) :], strict=True)):
        if slot is not None:
            d = _parameter_spec("d_vectors", shapes[k[0]])._replace(element=i)
            if slot < 0:
                others.append(d)
            else:
                d_params[slot] = d
    return d_params, others


def parameter_specs(recurrence: Recurrence) -> list[TensorSpec]:
    """Describes the weights and vectors, each the sum of its `Plan.terms`."""
    shapes = _symbolic_shapes(recurrence)
    parameters = zip(PARAMETERS, term_indices(recurrence), strict=True)
    return [_parameter_spec(name, shapes[terms[0]]) for name, terms in parameters if terms]


@functools.lru_cache(CACHED)
def gradient_slots(recurrence: Recurrence) -> tuple[int | None, ...]:
    """Returns for each of the eight vectors the parameter in whose tensor its gradient is made; None: there is no such
    vector, -1: it needs a separate tensor, because its parameters also stand in another vector."""
    slots: list[int | None] = []
    seen: set[int] = set()
    for terms in term_indices(recurrence)[len(WEIGHTS) :]:
        slots.append(next((k for k in terms if k not in seen), -1) if terms else None)
        seen.update(terms)
    return tuple(slots)


@functools.lru_cache(CACHED)
def shares_vectors(recurrence: Recurrence) -> bool:
    """Says whether a parameter's gradient is not that of a single vector: then `add_vector_gradients` adds them up."""
    return any(len(terms) > 1 for terms in term_indices(recurrence)) or -1 in gradient_slots(recurrence)


def add_vector_gradients(d_params: Sequence[Tensor], others: Sequence[Tensor], recurrence: Recurrence) -> None:
    """Gives each parameter, in place, the gradients of all the vectors that it is a term of, added up.

    Args:
        d_params: in the order of ``recurrence.parameter_names``, with gradients of vectors as `gradient_slots` says.
        others: the gradients of the vectors with tensors of their own.
        recurrence: the equations.
    """
    rest, written = iter(others), set[int]()
    for slot, terms in zip(gradient_slots(recurrence), term_indices(recurrence)[len(WEIGHTS) :], strict=True):
        if slot is None:
            continue
        d_vector = next(rest) if slot < 0 else d_params[slot]
        for k in terms:
            if k in written:
                d_params[k] += d_vector
            elif k != slot:
                d_params[k].copy_(d_vector)
            written.add(k)
