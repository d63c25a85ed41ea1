"""Mends Triton's interpreter (3.7), before a kernel runs, where it computes what no GPU does.

- A product of bfloat16 multiplies the patterns of bits, as NumPy has no such type.
- A number that becomes bfloat16 is cut off, not rounded.
- A product in TF32 is one in float32. On a GPU it does not see the last 13 bits.
"""

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

cast_as_it_was = InterpreterBuilder.cast_impl


def as_numbers(handle):
    """A tile's numbers in float32."""
    if handle.dtype.scalar == tl.bfloat16:
        return (handle.data.astype(np.uint32) << 16).view(np.float32)
    return handle.data.astype(np.float32)


def round_off(x, bits):
    """Float32 rounded to the nearest without its last bits, of two the even one."""
    pattern = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (pattern + (1 << bits - 1) - 1 + (pattern >> bits & 1)) >> bits << bits
    return np.where(np.isfinite(x), rounded.astype(np.uint32).view(np.float32), x)


def cut_off(x, bits):
    """Float32 without its last bits."""
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> bits << bits).view(np.float32)


def create_dot(self, a, b, total, precision, max_num_imprecise_acc):
    left, right = as_numbers(a), as_numbers(b)
    product = left @ right
    if a.dtype.scalar == tl.float32 and precision != ir.INPUT_PRECISION.IEEE:
        cut = round_off if precision == ir.INPUT_PRECISION.TF32x3 else cut_off
        large_left, large_right = cut(left, 13), cut(right, 13)
        product = large_left @ large_right
        if precision == ir.INPUT_PRECISION.TF32x3:
            small_left, small_right = round_off(left - large_left, 13), round_off(right - large_right, 13)
            product += small_left @ large_right + large_left @ small_right
    return TensorHandle((product + total.data).astype(total.data.dtype), total.dtype.scalar)


def cast_impl(self, source, to):
    if source.dtype.scalar != tl.float32 or to.scalar != tl.bfloat16:
        return cast_as_it_was(self, source, to)
    patterns = np.ascontiguousarray(round_off(source.data, 16)).view(np.uint32) >> 16
    return TensorHandle(patterns.astype(np.uint16), tl.bfloat16)


InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl = create_dot, cast_impl
