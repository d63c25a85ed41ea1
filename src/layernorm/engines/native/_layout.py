"""A call as the library takes it: `Recurrent` and `Norm` of engine.h as bytes, tensors as they lie in memory."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ...formula import GATES, Recurrence
from ..protocol import term_indices
from ._library import LIBRARY

RECURRENT = struct.Struct("=16q3d49q")
NORM = struct.Struct("=8qd13q")
TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
WEIGHTS = 3  # the rest of `term_indices` are vectors
FIRST = 1 << 40
"""Memory begins above it. What lies below is looked at: a tensor without memory has its offset as its address."""


def computed(dtype: torch.dtype) -> torch.dtype:
    """The type that a recurrent network is computed in, but for its products."""
    return dtype if dtype is torch.float64 else torch.float32


def handed(dtype: torch.dtype) -> torch.dtype:
    """The type in which a recurrent network's input, state, weights and results are handed over."""
    return torch.float32 if dtype is torch.float16 else dtype


def in_memory(tensor: Tensor) -> Tensor:
    """The tensor itself; zeros for one of torch's that stands for zeros and has no memory.

    Raises:
        RuntimeError: it has elements and no memory for them.
    """
    if tensor.data_ptr() > FIRST:
        return tensor
    if tensor._is_zerotensor():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    if tensor.numel() and not tensor.untyped_storage().data_ptr():
        given = f"a tensor of shape {list(tensor.shape)} without storage on {tensor.device}"
        raise RuntimeError(f"layernorm: expected a tensor with its elements in memory, got {given}")
    return tensor


def ready(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The same numbers, of this type and in order in memory; the tensor itself if it is so."""
    if tensor.dtype is dtype and tensor.is_contiguous() and not tensor.is_neg() and tensor.data_ptr() > FIRST:
        return tensor
    return in_memory(tensor).to(dtype).contiguous().resolve_neg()


def ready_or_none(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """`ready` of a tensor, if there is one."""
    return None if tensor is None else ready(tensor, dtype)


def pointer(tensor: Tensor | None) -> int:
    """Where a tensor's numbers begin; 0 without a tensor."""
    return 0 if tensor is None else tensor.data_ptr()


def pair(state: Sequence[Tensor]) -> tuple[int, int]:
    """The pointers of h's part and of c's, if there is one."""
    return state[0].data_ptr(), state[1].data_ptr() if len(state) > 1 else 0


Sizes = tuple[int, int, int, int, int]
"""T, B, I, H, P."""


class Given(NamedTuple):
    """The fields of `Recurrent` from `x` to `reset`, pointers but for the strides of x."""

    x: int = 0
    x_t: int = 0
    x_b: int = 0
    h0: int = 0
    c0: int = 0
    w_ih: int = 0
    w_hh: int = 0
    w_hr: int = 0
    gain_x: int = 0
    gain_h: int = 0
    inside_x: int = 0
    inside_h: int = 0
    outside_x: int = 0
    outside_h: int = 0
    gain_c: int = 0
    bias_c: int = 0
    lengths: int = 0
    reset: int = 0


class Made(NamedTuple):
    """The fields of `Recurrent` from `output` to `saved_output`, pointers: what a forward makes."""

    output: int = 0
    h_n: int = 0
    c_n: int = 0
    saved_x: int = 0
    saved_h: int = 0
    saved_c: int = 0
    saved_statistics: int = 0
    saved_output: int = 0


class Gradients(NamedTuple):
    """The fields of `Recurrent` from `d_output` to `d_vectors`, pointers."""

    d_output: int = 0
    d_h_n: int = 0
    d_c_n: int = 0
    d_x: int = 0
    d_h0: int = 0
    d_c0: int = 0
    d_w_ih: int = 0
    d_w_hh: int = 0
    d_w_hr: int = 0
    d_gain_x: int = 0
    d_gain_h: int = 0
    d_inside_x: int = 0
    d_inside_h: int = 0
    d_outside_x: int = 0
    d_outside_h: int = 0
    d_gain_c: int = 0
    d_bias_c: int = 0


class OneByOne(NamedTuple):
    """The fields of `Recurrent` from `prepared` on, of steps one by one: pointers, and whether parameters are packed
    for other calls."""

    prepared: int = 0
    prepares: int = 0
    d_zx: int = 0
    d_zh: int = 0
    m: int = 0
    totals: int = 0


NOTHING_MADE, NO_GRADIENTS, AT_ONCE = Made(), Gradients(), OneByOne()


@cache
def equations(recurrence: Recurrence) -> tuple[int, ...]:
    """The fields of `Recurrent` from `gates` to `projected`."""
    f = recurrence.formula
    if recurrence.norm == "batch":
        raise RuntimeError(f"{recurrence.network.lower()}: the native engine has no kernel for batch norm")
    rms, (first, last) = recurrence.norm == "rms", recurrence.spans[0]
    return (
        GATES[recurrence.network], f.gates == "split", 0 if f.gates is None else 2 if rms else 1, last - first,
        {None: 0, "output": 1, "carry": 2}[f.cell], rms, f.eps_on == "deviation", recurrence.nonlinearity == "relu",
        recurrence.projected,
    )  # fmt: skip


def pack(
    sizes: Sizes,
    recurrence: Recurrence,
    reverse: bool,
    threads: int,
    given: Sequence[int],
    made: Sequence[int] = NOTHING_MADE,
    gradients: Sequence[int] = NO_GRADIENTS,
    steps: Sequence[int] = AT_ONCE,
) -> bytes:
    """A call as `Recurrent`; the sequences of numbers are `Given`, `Made`, `Gradients` and `OneByOne`."""
    f = recurrence.formula
    return RECURRENT.pack(
        *sizes, *equations(recurrence), reverse, threads, f.eps, f.forget_bias, recurrence.gate_clip,
        *given, *made, *gradients, *steps,
    )  # fmt: skip


def run(function: Callable[[bytes, int], int], packed: bytes, dtype: torch.dtype, shape: Sequence[int]) -> None:
    """Calls a function of the library for tensors that are handed over in this type.

    Raises:
        MemoryError: it had no memory for its intermediate results; ``shape`` is the input's.
    """
    if function(packed, TYPES[dtype]):
        raise MemoryError(f"layernorm: not enough memory for a call with input {list(shape)}")


@cache
def saved_sizes(recurrence: Recurrence, H: int, P: int, dtype: torch.dtype) -> tuple[int, ...]:
    """How much the forward saves for each step and row, in the order of `Made`, in numbers of the type that is computed
    in; 0: there is no such part. The output, which is handed over in ``dtype``, may take fewer than it has elements."""
    found = (ctypes.c_int64 * 5)()
    LIBRARY.layernorm_recurrent_saved(pack((1, 1, 1, H, P), recurrence, False, 1, Given()), found)
    *parts, output = found
    return *parts, -(-output * handed(dtype).itemsize // computed(dtype).itemsize)


def addresses(saved: Tensor, sizes: Sequence[int], rows: int) -> list[int]:
    """Where in one block of memory the parts of what is saved begin, one behind the other; 0: there is no such part."""
    found, at, row = [], saved.data_ptr(), rows * saved.itemsize
    for size in sizes:
        found.append(at if size else 0)
        at += size * row
    return found


def check_saved(saved: Tensor, size: int, dtype: torch.dtype) -> None:
    """That this is what the forward saved: a hook on saved tensors can put another in its place.

    Raises:
        RuntimeError: it is not.
    """
    fits = saved.shape == (size,) and saved.dtype is dtype and saved.is_cpu and saved.is_contiguous()
    if not fits or in_memory(saved) is not saved:
        expected = f"{size} numbers in {dtype} on the CPU"
        raise RuntimeError(
            f"expected a saved tensor of {expected}, got {list(saved.shape)}, {saved.dtype}, {saved.device}"
        )


def parameters(params: Sequence[Tensor], recurrence: Recurrence, dtype: torch.dtype) -> tuple[list[int], list[Tensor]]:
    """A layer's parameters as the kernels take them, the weights in this type, the vectors in the one that is computed
    in: the fields of `Given` from `w_ih` to `bias_c`, and what has to stay in memory until the kernel has run."""
    fields, kept = [], []
    for place, terms in enumerate(term_indices(recurrence)):
        kind, address = dtype if place < WEIGHTS else computed(dtype), 0
        if terms:
            total = params[terms[0]]
            address = total.data_ptr()
            alone = len(terms) == 1 and address > FIRST
            if not alone or total.dtype is not kind or not total.is_contiguous() or total.is_neg():
                total = ready(total, kind)
                for k in terms[1:]:
                    total = total + ready(params[k], kind)
                kept.append(total)
                address = total.data_ptr()
        fields.append(address)
    return fields, kept


@cache
def own_places(recurrence: Recurrence) -> tuple[int | None, ...]:
    """For each of the eight vectors the parameter in whose place its gradient is made; None: there is no such vector,
    -1: it needs a place of its own, because its parameters stand in another vector, too."""
    places: list[int | None] = []
    seen: set[int] = set()
    for terms in term_indices(recurrence)[WEIGHTS:]:
        places.append(next((k for k in terms if k not in seen), -1) if terms else None)
        seen.update(terms)
    return tuple(places)


@cache
def shares_vectors(recurrence: Recurrence) -> bool:
    """Whether a parameter's gradient is not all in the place of one vector's: then `vector_gradients` adds them up."""
    return any(len(terms) > 1 for terms in term_indices(recurrence)) or -1 in own_places(recurrence)


def vector_places(d_params: Sequence[Tensor], more: Sequence[Tensor], recurrence: Recurrence) -> list[Tensor | None]:
    """The gradients of the eight vectors, where `own_places` has them; ``more``: those with a place of their own."""
    rest = iter(more)
    return [None if place is None else next(rest) if place < 0 else d_params[place] for place in own_places(recurrence)]
