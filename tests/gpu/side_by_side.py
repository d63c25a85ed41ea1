"""One launch under Triton's interpreter, each program in a process of its own: for kernels whose programs wait for
each other, which the interpreter, running one program after the other, would never finish.

The interpreter's atomics are the processor's, and work across processes, for all types but the 16-bit floats: for
those it has a lock, which each process has for itself. Its loads read memory each time. Linux alone.
"""

import itertools
import multiprocessing
import os
import random
import time
import traceback
import warnings
from multiprocessing.connection import wait

from triton.runtime import interpreter

FORK = multiprocessing.get_context("fork")


def run(kernel, grid, *args, time_limit=30.0, jitter=0.0, **kwargs):
    """``kernel[grid](*args, **kwargs)``, with the programs side by side.

    Args:
        grid: its 1 to 3 axes.
        args: tensors on the CPU, which are moved to shared memory in place; tuples of such; None; numbers.
        time_limit: in seconds, for all of it.
        jitter: before each load and each store a program sleeps up to so many seconds, at random: a barrier that is
            missing shows up.

    Raises:
        TimeoutError: at the time limit, where programs still run; they are killed.
        RuntimeError: with the traceback, where a program raised.
    """
    assert kernel.__class__ is interpreter.InterpretedFunction, "TRITON_INTERPRET=1 before Triton is imported"
    end = time.monotonic() + time_limit
    for argument in (*args, *kwargs.values()):
        _share(argument)
    grid = (*grid, 1, 1)[:3]
    processes, running = [], {}
    try:
        for index in itertools.product(*map(range, grid)):
            here, there = FORK.Pipe(duplex=False)
            process = FORK.Process(target=_program, args=(there, grid, index, jitter, kernel, args, kwargs))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside torch's threads, which none uses
                process.start()
            there.close()
            processes.append(process)
            running[here] = index
        while running:
            ready = wait(list(running), max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(f"{time_limit} s are over: programs {sorted(running.values())} of {grid} still run")
            for here in ready:
                index = running.pop(here)
                try:
                    failure = here.recv()
                except EOFError:
                    failure = "its process ended early"
                if failure:
                    raise RuntimeError(f"program {index} of {grid}: {failure}")
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def _share(argument):
    """The interpreter takes a tensor on a CPU as it is; its copy back is then one onto itself: torch does none."""
    if isinstance(argument, tuple):
        for one in argument:
            _share(one)
    elif hasattr(argument, "share_memory_"):
        assert argument.device.type == "cpu"
        argument.share_memory_()


def _program(report, grid, index, jitter, kernel, args, kwargs):
    """The program at ``index`` in this process, which ends with it: nothing that is set here is put back."""
    builder = interpreter.interpreter_builder
    builder.grid_dim, builder.grid_idx = grid, index
    builder.set_grid_dim = builder.set_grid_idx = lambda *_: None
    draw = random.Random(repr(index)).uniform
    if jitter:
        for name in ("create_masked_load", "create_masked_store"):
            setattr(builder, name, _after(lambda: time.sleep(draw(0.0, jitter)), getattr(builder, name)))
    builder.create_atomic_rmw = _after(os.sched_yield, builder.create_atomic_rmw)  # who waits leaves the processor
    failure = None
    try:
        kernel[(1,)](*args, **kwargs)
    except BaseException:
        failure = traceback.format_exc()
    report.send(failure)


def _after(first, operation):
    def both(*args, **kwargs):
        first()
        return operation(*args, **kwargs)

    return both
