"""A kernel that needs a grid barrier: programs pass numbers round a ring."""

import triton
import triton.language as tl

from layernorm.gpu._grid import meet


@triton.jit
def ring(x_ptr, exchange_ptr, counter_ptr, T: tl.constexpr, SIZE: tl.constexpr, VISITS: tl.constexpr):
    """x (P, SIZE): T times, x of each program becomes that of the next, plus 1. Right with 2 visits a step, not fewer:
    one before the exchanged numbers are read, one before they are overwritten."""
    p, P = tl.program_id(0), tl.num_programs(0)
    at = tl.arange(0, SIZE)
    x = tl.load(x_ptr + p * SIZE + at)
    for t in range(T):
        tl.store(exchange_ptr + p * SIZE + at, x)
        if VISITS > 0:
            meet(counter_ptr, (VISITS * t + 1) * P)
        x = tl.load(exchange_ptr + (p + 1) % P * SIZE + at, cache_modifier=".cg") + 1.0
        if VISITS > 1:
            meet(counter_ptr, (VISITS * t + 2) * P)
    tl.store(x_ptr + p * SIZE + at, x)
