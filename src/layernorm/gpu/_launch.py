"""How the kernels are launched: the norms by the row length N alone, so that a row's bits depend on no other row, and
whole sequences (`persistent`) by H, the type, the device and, for the rows of a program, B.

None of the numbers here has been measured on a GPU yet. They are such that the kernels, compiled for an H100, keep
their rows in registers (tests/gpu/test_compilation.py); which of those that do is fastest is not known. Bytes below are
what a thread spills in float32 by the assembler's report, with residual and 16 warps, under Triton 3.7.1.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """One kernel's tile and threads.

    Args:
        rows: of a tile.
        columns: of a tile, a power of 2; a row longer than ``columns`` is taken in chunks.
        warps: 32 threads each, for one program.
        programs: at most so many on a multiprocessor, where a program goes on to further rows.
    """

    rows: int
    columns: int
    warps: int
    programs: int = 1

    @property
    def arguments(self) -> dict[str, int]:
        """As a kernel takes them; also whether a product and a sum may be one instruction: Triton's default differs
        between its versions."""
        fusion = {"enable_fp_fusion": True}
        return {"ROWS": self.rows, "COLUMNS": self.columns, "num_warps": self.warps, **fusion}


SHORT = 512  # up to here several rows a program: a row alone has too few bytes on their way to hide memory's latency
FORWARD_LONG = 16384  # beyond, a row does not fit the registers of a program: 0 bytes, at 32768 236
BACKWARD_LONG = 8192  # likewise a row of x, of dy, of the gain and of two sums: 0 bytes, at 16384 744


def power_of_2(N: int) -> int:
    """The smallest that is at least N."""
    return 1 << max(0, N - 1).bit_length()


@functools.cache
def forward(N: int) -> Launch:
    """For `_forward_rows`, or beyond `FORWARD_LONG` for `_forward_long`."""
    columns = power_of_2(N)
    if N <= SHORT:
        return Launch(rows=2048 // columns, columns=columns, warps=4)
    if N <= FORWARD_LONG:
        return Launch(rows=1, columns=columns, warps=min(16, max(4, columns // 512)))
    return Launch(rows=1, columns=8192, warps=16)


@functools.cache
def backward(N: int) -> Launch:
    """For `_backward_rows`, or beyond `BACKWARD_LONG` for `_backward_long`."""
    columns = power_of_2(N)
    if N <= SHORT:
        return Launch(rows=1024 // columns, columns=columns, warps=4, programs=4)
    if N <= BACKWARD_LONG:
        warps = min(16, max(4, columns // 512))
        return Launch(rows=1, columns=columns, warps=warps, programs=16 // warps)
    return Launch(rows=1, columns=4096, warps=8)


PARAMETERS_LONG = Launch(rows=16, columns=128, warps=4, programs=4)  # `_backward_long_parameters`
COLUMN_SUM = Launch(rows=64, columns=32, warps=4)  # `_column_sum`


@functools.cache
def step(H: int) -> Launch:
    """For the kernels of `_steps`, where each of G gates has a tile."""
    units = power_of_2(H)
    return Launch(rows=max(1, 256 // units), columns=units, warps=min(16, max(4, units // 128)))


@dataclass(frozen=True)
class Persistent:
    """A cooperative launch for a whole sequence (`_persistent`).

    Args:
        units: HS, of one program, with all their gates.
        rows: BR, of one program.
        pieces: programs that share out a row's units among them.
        groups: of rows; those of one launch have pieces * groups programs, each on a multiprocessor of its own.
        depth: of the sums that one warp adds up at a time.
        warps: of a program; they share out the sums of the product among them.
        launches: one after another, which share out the groups.
    """

    units: int
    rows: int
    pieces: int
    groups: int
    depth: int
    warps: int
    launches: int = 1

    @property
    def grids(self) -> list[tuple[int, int]]:
        """Of each launch the first of its groups, and its programs."""
        at_once = -(-self.groups // self.launches)
        firsts = range(0, self.groups, at_once)
        return [(first, self.pieces * min(at_once, self.groups - first)) for first in firsts]


def persistent(
    H: int, B: int, gates: int, size: int, resident: int, multiprocessors: int, shared: int
) -> Persistent | None:
    """For H units of some gates; an operand's numbers take ``size`` bytes, the weights on the multiprocessor
    ``resident``. None: it does not fit.

    The slices are the smallest, 8 units, for which there are enough multiprocessors: by H alone, not by B, as the sums
    are cut up by them. Each group of rows has its own copy of the weights. More than 64 rows have more sums of the
    product than there are registers.

    What an LSTM is compiled to for an H100 by Triton 3.7.1, and what a thread spills, for 16 rows a program:

    | H, type | weights and all shared memory, KB | registers, bytes spilled: forward; backward |
    |---|---|---|
    | 256 bfloat16 | 16, 48 | 191, 0; 246, 0 |
    | 512 bfloat16 | 32, 96 | 212, 0; 255, 0 |
    | 1024 bfloat16 | 64, 128 | 251, 0; 255, 0 |
    | 512 float32 in TF32 | 64, 128 | 255, 0; 255, 0 |
    | 512 float32 in three products | 128, 160 | 255, 48; 255, 120 |
    | 768 float32 in three products | 192, 208 | 255, 68; 255, 56 |
    | 1024 float32 in TF32 | 128, 192 | 255, 8; 255, 16 |
    """
    for units in (8, 16, 32):
        pieces = -(-H // units)
        if pieces <= multiprocessors:
            at_once = multiprocessors // pieces
            for rows in (64, 32, 16):
                groups = -(-B // rows)
                launch = Persistent(units, rows, pieces, groups, _depth(H), WARPS, -(-groups // at_once))
                needed = rows == 16 or rows // 2 * at_once < B  # as few rows as one launch takes
                fits = launch.launches <= LAUNCHES and shared_memory(launch, H, gates, size, resident) <= shared
                if needed and fits:
                    return launch
            return None
    return None


WARPS = 8  # at 255 registers a thread all that a multiprocessor has
LAUNCHES = 2  # a guess at where a product a step, of all rows, becomes the better way


def _depth(H: int) -> int:
    """The largest that does not fill up H with more than an eighth of zeros."""
    return next((d for d in (64, 32) if -(-H // (WARPS * d)) * WARPS * d * 8 <= H * 9), 16)


def ahead(launch: Persistent, size: int, resident: int) -> int:
    """How many chunks of the operand are loaded ahead of the product: as many as 48 registers of a thread hold; none
    where each is taken apart into a high and a low half, which takes these registers."""
    return 0 if resident > size else 48 // (launch.rows * launch.depth * size // 128)


def shared_memory(launch: Persistent, H: int, gates: int, size: int, resident: int) -> int:
    """At most so many bytes: of the weights, and of what chunks of the operand or the sums of a product go through."""
    chunk = launch.warps * launch.depth
    weights = gates * launch.units * -(-H // chunk) * chunk * resident
    chunks = (1 + ahead(launch, size, resident)) * chunk * size
    return weights + launch.rows * max(chunks, launch.units * launch.warps * 4)
