"""A barrier across the programs of one launch, in one piece or in two, between which a program may go on."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def arrive(counter_ptr):
    """One visit of this program: what any of its threads stored before, is seen by those who `wait` for it."""
    tl.debug_barrier()  # a scalar atomic is one thread's: it releases what the others stored once they have met here
    tl.atomic_add(counter_ptr, 1, sem="release", scope="gpu")


@triton.jit
def wait(counter_ptr, target):
    # Adding 0 reads with acquire, by one thread. A volatile load is relaxed by the memory model, and made by every
    # thread; it would need a fence after it, which Triton has only as part of an atomic: a second trip to L2.
    while tl.atomic_add(counter_ptr, 0, sem="acquire", scope="gpu") < target:
        pass
    tl.debug_barrier()
