"""Calls that are planned once for all of their kind, and run by PyTorch's dispatcher in one op: see planned.cpp."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ._layout import TYPES
from ._library import LIBRARY, TORCH, call_op, why_nothing

NO_MEMORY = 1  # of `Status` in planned.cpp
MOST = 64  # tensors of one call
DTYPES = {
    torch.float32: TORCH.aoti_torch_dtype_float32(),
    torch.float64: TORCH.aoti_torch_dtype_float64(),
    torch.bfloat16: TORCH.aoti_torch_dtype_bfloat16(),
    torch.float16: TORCH.aoti_torch_dtype_float16(),
    torch.int64: TORCH.aoti_torch_dtype_int64(),
    torch.bool: TORCH.aoti_torch_dtype_bool(),
}
ADDRESS = struct.Struct("=3q")
Shape = tuple[int, ...]


class Kind(NamedTuple):
    """What a plan knows of a tensor."""

    dtype: torch.dtype
    shape: Shape
    strides: Shape

    def packed(self) -> bytes:
        """`Kind` of planned.cpp."""
        dim = len(self.shape)
        return struct.pack(f"={2 + 2 * dim}q", DTYPES[self.dtype], dim, *self.shape, *self.strides)


def in_order(dtype: torch.dtype, shape: Shape) -> Kind:
    """Of a tensor whose elements are in order in memory."""
    return Kind(dtype, shape, torch.empty(shape, device="meta").stride())


class Plan:
    """`Plan` of planned.cpp. It lives as long as calls use it.

    Args:
        function: a name in the library.
        dtype: what the call is handed over in.
        call: `Recurrent` or `Norm` without addresses.
        given: the tensors that come.
        made: the results.
        places: where in the call the address of a tensor goes: which word of 8 bytes, which tensor, counted through
            given and made ones, and how many bytes behind its beginning.
    """

    def __init__(
        self,
        function: str,
        dtype: torch.dtype,
        call: bytes,
        given: Sequence[Kind],
        made: Sequence[Kind],
        places: Sequence[tuple[int, int, int]],
    ) -> None:
        address = ctypes.cast(getattr(LIBRARY, f"layernorm_{function}"), ctypes.c_void_p).value
        head = (address, TYPES[dtype], len(given), len(made), len(call) // 8, len(places))
        assert len(given) + len(made) <= MOST
        self._bytes = ctypes.create_string_buffer(
            struct.pack("=6q", *head)
            + call
            + b"".join(ADDRESS.pack(*place) for place in places)
            + b"".join(kind.packed() for kind in (*given, *made))
        )
        self.address = ctypes.addressof(self._bytes)
        self._call, self._one = functools.partial(call_op(len(given), len(made)), self.address), len(made) == 1

    def run(self, *tensors: Tensor) -> Sequence[Tensor] | None:
        """The results; None if a tensor is not of its kind, and so nothing has been computed.

        Raises:
            MemoryError: there is not enough of it.
        """
        try:
            found = self._call(*tensors)
        except NotImplementedError:  # a tensor is on another kind of device, where there is no such op
            return None
        results: Sequence[Tensor] = (found,) if self._one else found
        if results[0] is not None:
            return results
        if why_nothing() == NO_MEMORY:
            raise MemoryError(f"layernorm: not enough memory for a call with input {list(tensors[0].shape)}")
        return None
