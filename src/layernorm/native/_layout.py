"""A call as the library takes it: `Recurrent` and `Norm` of engine.h as bytes, tensors as they lie in memory."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..engine import term_indices
from ..formula import GATES, Recurrence
from ._library import LIBRARY

RECURRENT = struct.Struct("=16q3d42q")
NORM = struct.Struct("=9qd13q")
TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
WEIGHTS, VECTORS = 3, 8
FIRST = 1 << 40
"""Memory begins above it. What lies below is looked at: a tensor without memory has its offset as its address."""


def computed(dtype: torch.dtype) -> torch.dtype:
    """The type that a recurrent network is computed in, but for its products."""
    return dtype if dtype is torch.float64 else torch.float32


def handed(dtype: torch.dtype) -> torch.dtype:
    """The type in which a recurrent network's input, state, weights and results are handed over."""
    return torch.float32 if dtype is torch.float16 else dtype


def saved_type(name: str, dtype: torch.dtype) -> torch.dtype:
    """The type of what the forward saves under this name in `Made`: a result, or what is computed in."""
    return handed(dtype) if name == "saved_output" else computed(dtype)


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
    """The fields of `Recurrent` from `output` on: pointers, and whether parameters are packed for other calls."""

    output: int = 0
    h_n: int = 0
    c_n: int = 0
    saved_x: int = 0
    saved_h: int = 0
    saved_c: int = 0
    saved_statistics: int = 0
    saved_output: int = 0
    d_output: int = 0
    d_h_n: int = 0
    d_c_n: int = 0
    d_x: int = 0
    d_h0: int = 0
    d_c0: int = 0
    d_w_ih: int = 0
    d_w_hh: int = 0
    d_w_hr: int = 0
    d_vectors: int = 0
    prepared: int = 0
    prepares: int = 0
    d_zx: int = 0
    d_zh: int = 0
    m: int = 0
    totals: int = 0


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


def pack(sizes: Sizes, recurrence: Recurrence, reverse: bool, given: Given, made: Made) -> bytes:
    """A call as `Recurrent`."""
    f = recurrence.formula
    return RECURRENT.pack(
        *sizes, *equations(recurrence), reverse, torch.get_num_threads(), f.eps, f.forget_bias, recurrence.gate_clip,
        *given, *made,
    )  # fmt: skip


def run(function: Callable[[bytes, int], int], packed: bytes, dtype: torch.dtype, shape: Sequence[int]) -> None:
    """Calls a function of the library for tensors that are handed over in this type.

    Raises:
        MemoryError: it had no memory for its intermediate results; ``shape`` is the input's.
    """
    if function(packed, TYPES[dtype]):
        raise MemoryError(f"layernorm: not enough memory for a call with input {list(shape)}")


@cache
def saved_sizes(recurrence: Recurrence, H: int, P: int) -> dict[str, int]:
    """How many numbers the forward saves for each step and row, by the names in `Made`."""
    found = (ctypes.c_int64 * 5)()
    LIBRARY.layernorm_recurrent_saved(pack((1, 1, 1, H, P), recurrence, False, Given(), Made()), found)
    names = ("saved_x", "saved_h", "saved_c", "saved_statistics", "saved_output")
    return {name: size for name, size in zip(names, found, strict=True) if size}


class Parameters:
    """A layer's parameters as the kernels take them: the weights in the type that they are handed over in, the vectors
    in the one that is computed in.

    Attributes:
        fields: of `Given`, from `w_ih` to `bias_c`.
    """

    def __init__(self, params: Sequence[Tensor], recurrence: Recurrence, dtype: torch.dtype) -> None:
        self.kept: list[Tensor] = []  # until the kernel has run
        self.fields: list[int] = []
        handed_over, wide = handed(dtype), computed(dtype)
        for k, terms in enumerate(term_indices(recurrence)):
            dtype, address = handed_over if k < WEIGHTS else wide, 0
            if terms:
                total = params[terms[0]]
                address = total.data_ptr()
                alone = len(terms) == 1 and address > FIRST
                if not alone or total.dtype is not dtype or not total.is_contiguous() or total.is_neg():
                    address = self._sum([params[k] for k in terms], dtype).data_ptr()
            self.fields.append(address)

    def _sum(self, terms: list[Tensor], dtype: torch.dtype) -> Tensor:
        total = ready(terms[0], dtype)
        for term in terms[1:]:
            total = total + ready(term, dtype)
        self.kept.append(total)
        return total
