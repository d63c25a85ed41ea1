"""Calls that are planned once for all with the same equations, and run by PyTorch's dispatcher in one op: see
planned.cpp."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ._layout import POINTER, Recurrent, field_offset
from ._library import LIBRARY, call_op, last_status, torch_type_number

NO_MEMORY = 1  # of `Status` in planned.cpp
MOST = 64  # tensors of one call
# What a plan leaves open: `Size` and `Type` of planned.cpp.
T, B, I, H, P, UNITS, LINES, SAVED, M, PREPARED, TOTALS = range(-1, -12, -1)  # noqa: E741
CALL, OTHER = -1, -2
IN_ORDER, STEPS, ROWS = range(3)  # `Layout`


class TensorSpec(NamedTuple):
    """What a plan knows of a tensor: `TensorSpec` of planned.cpp.

    Attributes:
        name: the field of its address; "": none.
        sizes: numbers, or names of sizes.
        dtype: a type, or the name of one.
        layout: how its elements lie.
        strides: the field of how far they are apart; "": none.
        element: which address, in a field of several.
    """

    name: str
    sizes: Sequence[int]
    dtype: torch.dtype | int
    layout: int = IN_ORDER
    strides: str = ""
    element: int = 0

    def packed(self, call: type[ctypes.Structure]) -> bytes:
        """Packs it into bytes. ``call`` is the structure that has its fields."""
        dtype = self.dtype if isinstance(self.dtype, int) else torch_type_number(self.dtype)
        field = field_offset(call, self.name) + self.element * ctypes.sizeof(POINTER) if self.name else -1
        strides = field_offset(call, self.strides) if self.strides else -1
        return struct.pack(f"={5 + len(self.sizes)}q", dtype, self.layout, field, strides, len(self.sizes), *self.sizes)


class Plan:
    """`Plan` of planned.cpp. It lives as long as calls use it.

    Args:
        function: a name in the library.
        call: `Recurrent` or `Norm` without its tensors, and what is known by them.
        given: the tensors that come.
        made: the results.
        terms: of a recurrent call: of which parameters each weight and vector given is the sum, a first one and others.
    """

    def __init__(
        self,
        function: str,
        call: ctypes.Structure,
        given: Sequence[TensorSpec],
        made: Sequence[TensorSpec],
        terms: Sequence[tuple[int, tuple[int, ...]]] = (),
    ) -> None:
        self.terms = terms
        assert len(given) + len(made) <= MOST
        address = ctypes.cast(getattr(LIBRARY, f"layernorm_{function}"), ctypes.c_void_p).value
        head = (address, isinstance(call, Recurrent), len(given), len(made), ctypes.sizeof(call))
        packed = b"".join(spec.packed(type(call)) for spec in (*given, *made))
        self._bytes = ctypes.create_string_buffer(struct.pack("=5q", *head) + bytes(call) + packed)
        run = call_op(len(given), len(made))
        self._call, self._single_result = functools.partial(run, ctypes.addressof(self._bytes)), len(made) == 1

    def run(self, tensors: Sequence[Tensor]) -> Sequence[Tensor] | None:
        """Returns the results; None if a tensor is not as planned, and so nothing has been computed.

        Raises:
            MemoryError: there is not enough of it.
        """
        try:
            returned = self._call(*tensors)
        except NotImplementedError:  # a tensor is on another kind of device, where there is no such op
            return None
        results: Sequence[Tensor] = (returned,) if self._single_result else returned
        if results[0] is not None:
            return results
        if last_status() == NO_MEMORY:
            raise MemoryError(f"layernorm: not enough memory for a call with input {list(tensors[0].shape)}")
        return None
