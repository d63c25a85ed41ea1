"""A barrier across the programs of one launch, in one piece or in two, between which a program goes on by itself."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def meet(counter_ptr, target):
    """Waits until all programs have come here: until the counter, to which each visit adds 1, has reached ``target``.

    What any thread of a program stored before, every thread of every program then finds, if it loads past the cache of
    its multiprocessor (``cache_modifier=".cg"``). All programs have to run at once (``launch_cooperative_grid=True``)
    and no load may be taken ahead across the barrier (``num_stages=1``).

    Args:
        counter_ptr: int32, 0 before the launch, and never reset: the first visit's target is the number of programs,
            the second's twice that.
        target: visit * programs
    """
    arrive(counter_ptr)
    wait(counter_ptr, target)


@triton.jit
def arrive(counter_ptr):
    """The first half of `meet`: what is stored after it may not be found by the others."""
    tl.debug_barrier()  # one thread adds, and releases what the others stored: they must have stored it
    tl.atomic_add(counter_ptr, 1, sem="release", scope="gpu")


@triton.jit
def wait(counter_ptr, target):
    """The second half of `meet`."""
    # Triton compiles this addition of 0 to one thread's `ld.acquire.gpu`, as cheap as a load can be. A volatile load
    # would be every thread's, and relaxed: by the PTX memory model it needs a fence behind it.
    while tl.atomic_add(counter_ptr, 0, sem="acquire", scope="gpu") < target:
        pass
    tl.debug_barrier()  # the others go on only once that one thread has acquired
