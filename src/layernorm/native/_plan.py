"""Calls that are planned once for all of their kind, and run by PyTorch's dispatcher in one op: see planned.cpp."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..engine import term_indices
from ..formula import Recurrence
from ._layout import (
    RECURRENT,
    TYPES,
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
from ._library import LIBRARY, TORCH

CALL = torch.ops.layernorm_native.call.default._op
NO_MEMORY, UNFIT = 1, 2  # `Status` in planned.cpp
MOST = 64  # tensors of one call
POINTERS = (*Given._fields, *Made._fields, *Gradients._fields, *OneByOne._fields)
WORD = {name: RECURRENT.size // 8 - len(POINTERS) + i for i, name in enumerate(POINTERS)}
"""Where in `Recurrent` a field of pointers is, in words of 8 bytes: they are the last."""
DTYPES = {
    torch.float32: TORCH.aoti_torch_dtype_float32(),
    torch.float64: TORCH.aoti_torch_dtype_float64(),
    torch.bfloat16: TORCH.aoti_torch_dtype_bfloat16(),
    torch.int64: TORCH.aoti_torch_dtype_int64(),
    torch.bool: TORCH.aoti_torch_dtype_bool(),
}
KIND, ADDRESS = struct.Struct("=8q"), struct.Struct("=3q")
Shape = tuple[int, ...]


class Plan:
    """`Plan` of planned.cpp. It lives as long as calls use it.

    Args:
        function: a name in the library.
        dtype: what the call is handed over in.
        call: `Recurrent` without addresses.
        given: the tensors that come, by the names of their fields: type, shape and strides; None: in order in memory.
        made: the results, in order: type and shape.
        places: where in `Recurrent` the address of a tensor goes: the field's name, which tensor, counted through given
            and made ones, and how many bytes behind its beginning.
    """

    def __init__(
        self,
        function: str,
        dtype: torch.dtype,
        call: bytes,
        given: Sequence[tuple[torch.dtype, Shape, Shape | None]],
        made: Sequence[tuple[torch.dtype, Shape]],
        places: Sequence[tuple[str, int, int]],
    ) -> None:
        address = ctypes.cast(getattr(LIBRARY, f"layernorm_{function}"), ctypes.c_void_p).value
        head = (address, TYPES[dtype], len(given), len(made), len(places))
        kinds = [*given, *((dtype, shape, None) for dtype, shape in made)]
        assert len(kinds) <= MOST
        self._bytes = ctypes.create_string_buffer(
            struct.pack("=5q", *head)
            + call
            + b"".join(_kind(*kind) for kind in kinds)
            + b"".join(ADDRESS.pack(WORD[name], tensor, offset) for name, tensor, offset in places)
        )
        self.address = ctypes.addressof(self._bytes)

    def run(self, tensors: list[Tensor]) -> list[Tensor] | None:
        """The results; None if a tensor is not of its kind, and so nothing has been computed.

        Raises:
            MemoryError: there is not enough of it.
        """
        results, status = CALL(self.address, tensors)
        if status == NO_MEMORY:
            raise MemoryError(f"layernorm: not enough memory for a call with input {list(tensors[0].shape)}")
        return None if status == UNFIT else results


def _kind(dtype: torch.dtype, shape: Shape, strides: Shape | None) -> bytes:
    if strides is None:
        strides = torch.empty(shape, device="meta").stride()
    room = (0,) * (3 - len(shape))
    return KIND.pack(DTYPES[dtype], len(shape), *shape, *room, *strides, *room)


@functools.cache
def present_terms(recurrence: Recurrence) -> tuple[tuple[int, ...], ...]:
    """`term_indices` without the weights and vectors that there are not."""
    return tuple(terms for terms in term_indices(recurrence) if terms)


def _type(shape: Shape, dtype: torch.dtype) -> torch.dtype:
    """Of a parameter, or of its gradient, of a layer that is handed over in ``dtype``: vectors are in the type that is
    computed in."""
    return computed(dtype) if len(shape) == 1 else dtype


def _given(
    recurrence: Recurrence, sizes: Sizes, dtype: torch.dtype, strides: Shape, lengths: bool, reset: bool
) -> dict[str, tuple[torch.dtype, Shape, Shape | None]]:
    """What both directions are given, by the names of `Given`."""
    T, B, I, H, P = sizes  # noqa: E741
    shapes = list(recurrence.parameter_shapes(I, H, P).values())
    found = {"x": (T, B, I), "h0": (B, P)}
    if recurrence.network == "LSTM":
        found["c0"] = (B, H)
    names = Given._fields[Given._fields.index("w_ih") : Given._fields.index("lengths")]
    found |= {name: shapes[terms[0]] for name, terms in zip(names, term_indices(recurrence), strict=True) if terms}
    kinds: dict[str, tuple[torch.dtype, Shape, Shape | None]] = {
        name: (_type(shape, dtype), shape, strides if name == "x" else None) for name, shape in found.items()
    }
    masks = {"lengths": (lengths, torch.int64, (B,)), "reset": (reset, torch.bool, (T, B))}
    return kinds | {name: (kind, shape, None) for name, (there, kind, shape) in masks.items() if there}


def _saved_places(sizes: Mapping[str, int], tensor: int, row: int) -> list[tuple[str, int, int]]:
    """The places of the parts of what is saved, in one tensor one behind the other; ``row``: bytes of a part of one
    number a row."""
    found, offset = [], 0
    for name, size in sizes.items():
        if size:
            found.append((name, tensor, offset))
        offset += size * row
    return found


def _saved(recurrence: Recurrence, H: int, P: int, dtype: torch.dtype) -> dict[str, int]:
    return dict(zip(Made._fields[3:], saved_sizes(recurrence, H, P, dtype), strict=True))


def _strided(strides: Shape) -> Given:
    return Given(x_t=strides[0], x_b=strides[1])


@functools.lru_cache(4096)
def forward_plan(
    recurrence: Recurrence,
    sizes: Sizes,
    strides: Shape,
    dtype: torch.dtype,
    reverse: bool,
    lengths: bool,
    reset: bool,
    threads: int,
    save: bool,
) -> Plan:
    """Given ``[x, *state, *weights, *vectors, lengths, reset]``, those that there are; made ``[output, *final state]``
    and with ``save`` what is saved. ``strides``: of x."""
    T, B, _, H, P = sizes
    given = _given(recurrence, sizes, dtype, strides, lengths, reset)
    results: list[Shape] = [(T, B, P), (B, P), (B, H)][: 1 + len(recurrence.state_names)]
    made = [(dtype, shape) for shape in results]
    places = [(name, i, 0) for i, name in enumerate([*given, *Made._fields[: len(made)]])]
    if save:
        saved = _saved(recurrence, H, P, dtype)
        places += _saved_places(saved, len(given) + len(made), T * B * computed(dtype).itemsize)
        made.append((computed(dtype), (T * B * sum(saved.values()),)))
    call = pack(sizes, recurrence, reverse, threads, _strided(strides))
    return Plan("recurrent_forward", dtype, call, list(given.values()), made, places)


@functools.lru_cache(4096)
def backward_plan(
    recurrence: Recurrence,
    sizes: Sizes,
    strides: Shape,
    dtype: torch.dtype,
    reverse: bool,
    lengths: bool,
    reset: bool,
    threads: int,
    arriving: tuple[bool, ...],
) -> Plan:
    """Given what the forward is given, what it saved, and those of the gradients of output, h and c that there are;
    made the gradients of x, state and parameters, and then those of `own_places`."""
    T, B, I, H, P = sizes  # noqa: E741
    given = _given(recurrence, sizes, dtype, strides, lengths, reset)
    places = [(name, i, 0) for i, name in enumerate(given)]
    saved = _saved(recurrence, H, P, dtype)
    places += _saved_places(saved, len(given), T * B * computed(dtype).itemsize)
    kinds = [*given.values(), (computed(dtype), (T * B * sum(saved.values()),), None)]
    for name, shape, there in zip(("d_output", "d_h_n", "d_c_n"), [(T, B, P), (B, P), (B, H)], arriving, strict=False):
        if there:
            places.append((name, len(kinds), 0))
            kinds.append((dtype, shape, None))
    state: list[Shape] = [(B, P), (B, H)]
    state = state[: len(recurrence.state_names)]
    of_params = list(recurrence.parameter_shapes(I, H, P).values())
    made: list[Shape] = [(T, B, I), *state, *of_params]
    first = len(kinds) + 1 + len(state)  # of the parameters' gradients
    places += [(name, len(kinds) + i, 0) for i, name in enumerate(("d_x", "d_h0", "d_c0")[: 1 + len(state)])]
    weights = zip(("d_w_ih", "d_w_hh", "d_w_hr"), term_indices(recurrence), strict=False)
    places += [(name, first + terms[0], 0) for name, terms in weights if terms]
    vectors = Gradients._fields[Gradients._fields.index("d_gain_x") :]
    for name, place, terms in zip(vectors, own_places(recurrence), term_indices(recurrence)[WEIGHTS:], strict=True):
        if place is None:
            continue
        if place < 0:
            place = len(made) - 1 - len(state)
            made.append(of_params[terms[0]])
        places.append((name, first + place, 0))
    call = pack(sizes, recurrence, reverse, threads, _strided(strides))
    return Plan("recurrent_backward", dtype, call, kinds, [(_type(shape, dtype), shape) for shape in made], places)
