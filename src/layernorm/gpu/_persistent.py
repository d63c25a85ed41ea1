"""Whole sequences of a recurrent network in one cooperative launch, W_hh in shared memory from first step to last.

A program owns a slice of the hidden units, with all their gates, for a group of the batch's rows: its part of W_hh is
read once, before the first step, and its part of the state stays in registers. Groups of rows never wait for one
another. Within a group, the programs exchange through the L2 cache, once or more in a step,

- the operand of the product, forward h_{t-1}, backward da_{t+1}: by a barrier (`_grid`);
- sums over the units of a normalisation, a few numbers a row: each is one 64-bit word with the step that it belongs to
  in its upper half, so that whoever reads the word sees whether it is there. That needs no barrier.

Forward: mean(W_hh h) over the units of a normalisation is the product of h and the mean of W_hh's rows. So the rows are
centred once, and what is left to exchange is the sum of squares. Of c, whose mean is not known beforehand, each program
tells the mean and the centred squares of its own units; they are added up without cancellation (Chan, Golub, LeVeque
1983).

Backward, with zhat = (z - mean) * r, d = da * gain and W the centred rows:

    dz       = r * (d - mean(d) - zhat * mean(d * zhat))
    dz W_hh  = r * (d W - mean(d * zhat) * q),    q = zhat W          (mean(d) falls out: the rows of W add up to 0)

The gain goes into the rows of W, and q is one product for all steps, before the first. So da_t is published before its
row's sums are known, and one barrier a step is left.

Every program adds up a row's sums in the same order: all have the same bits, in every run. Rows see nothing of one
another.

Letters in shapes: T steps, B batch, H units, G gates, S spans, each normalised by itself; in kernels BR rows and HS
units of a program, PIECES programs of a group of rows.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..formula import GATES, Recurrence
from . import _launch, _persistent_kernels
from ._norms import normalize_forward, row_statistics
from ._spans import share, spans


class Statistics(NamedTuple):
    """Of every row and span, (T*B, S) in float32: the mean is mean + rest (`_norms`), r the reciprocal deviation."""

    mean: Tensor | None = None
    rest: Tensor | None = None
    r: Tensor | None = None


class Vectors(NamedTuple):
    """Gains and biases in float32, (G*H) and for the cell (H); what is not there is None.

    Of a norm over the sum of both sides the gain is ``gain_h``; without norms the two biases are the outside ones."""

    gain_x: Tensor | None = None
    outside_x: Tensor | None = None
    gain_h: Tensor | None = None
    outside_h: Tensor | None = None
    gain_c: Tensor | None = None
    bias_c: Tensor | None = None


class Schedule(NamedTuple):
    """Steps of each row (B,) int32; whether its state is zero before a step (T, B) uint8. None: all; never."""

    lengths: Tensor | None = None
    cut: Tensor | None = None


class Kept(NamedTuple):
    """What the forward leaves: the final states (B, H) in float32, and for the backward, or else None, W_hh h before
    the normalisation (T, B, G*H), h before each step (T, B, H), and c at first and after each step (T + 1, B, H) in
    float32."""

    h: Tensor
    c: Tensor | None
    zh: Tensor | None
    hs: Tensor
    cs: Tensor | None


class Gradients(NamedTuple):
    """``da``: of the summed inputs of the nonlinearities (of a norm over the sum of both sides: of what it gives), for
    a GRU r, z, n as the hidden side sees it and as the input side does, (T, B, 3 or 4 times H); ``dn``: of what LN(c)
    gives (T, B, H), float32; of the initial states (B, H), float32."""

    da: Tensor
    dn: Tensor | None
    h0: Tensor
    c0: Tensor | None


def covers(recurrence: Recurrence) -> bool:
    """Whether there are equations for it here; whether it fits a device is `launch`'s to say."""
    f = recurrence.formula
    if recurrence.projected or recurrence.norm not in ("layer", "rms") or f.cell == "carry":
        return False
    if f.gates is None:
        return f.cell is None or f.eps_on == "variance"
    return not f.bias_inside and f.eps_on == "variance" and (recurrence.network != "GRU" or f.gates == "split")


@functools.cache
def _device(device: torch.device) -> tuple[int, int]:
    """Multiprocessors and the bytes of shared memory of one; an H100's for the interpreter."""
    if device.type == "cpu":
        return 132, 232448
    found = torch.cuda.get_device_properties(device)
    return found.multi_processor_count, found.shared_memory_per_block_optin  # type: ignore[attr-defined]


def precision(dtype: torch.dtype) -> str:
    """Of tl.dot: as PyTorch's own products on a GPU, but where those are float32, three products of TF32 make one."""
    allowed = torch.backends.cuda.matmul.fp32_precision == "tf32"  # under whichever of its names it was set
    return "tf32x3" if dtype == torch.float32 and not allowed else "tf32"


def _resident(dtype: torch.dtype) -> int:
    """Bytes of a weight on the multiprocessor: in three products of TF32 it is there in a high and a low half."""
    return dtype.itemsize * (2 if precision(dtype) == "tf32x3" else 1)


def launch(
    recurrence: Recurrence, H: int, B: int, dtype: torch.dtype, device: torch.device
) -> _launch.Persistent | None:
    """How a call is launched; None: its state does not fit the device."""
    sizes = dtype.itemsize, _resident(dtype)
    return _launch.persistent(H, B, GATES[recurrence.network], *sizes, *_device(device))


class Call(NamedTuple):
    """What forward and backward have in common.

    Args:
        zx: W_ih x, (T, B, G*H), in the order of the steps.
        statistics: of zx, by the function of that name: for ``gates="split"`` all, for ``"sum"`` without r, under rms
            no means.
        weight_hh: (G*H, H), centred (`_spans`), in zx's type.
        h0, c0: (B, H), float32.
    """

    recurrence: Recurrence
    launch: _launch.Persistent
    zx: Tensor
    statistics: Statistics
    weight_hh: Tensor
    vectors: Vectors
    h0: Tensor
    c0: Tensor | None
    schedule: Schedule


def _gathered(found: Sequence[Sequence[Tensor]]) -> Statistics:
    columns = [torch.stack(column, 1) for column in zip(*found, strict=True)]
    return Statistics(*[None] * (3 - len(columns)), *columns)


def statistics(z: Tensor, recurrence: Recurrence, H: int) -> Statistics:
    """Of all rows of (T, B, G*H), by spans."""
    rows, eps = z.flatten(0, 1), recurrence.formula.eps
    return _gathered([row_statistics(rows[:, a:b], eps, recurrence.norm) for a, b in spans(recurrence, H)])


def through_deviations(z: Tensor, call: Call) -> tuple[Statistics, Tensor]:
    """Of what the hidden side's normalisations are of, (T, B, G*H): the statistics, and q = zhat W (S, T*B, H)."""
    weight, found = call.weight_hh, []
    H, r, rows = weight.shape[1], call.recurrence, z.flatten(0, 1)
    parts = spans(r, H)
    q = weight.new_empty(len(parts), len(rows), H)
    for target, (a, b) in zip(q, parts, strict=True):
        z_hat, *saved = normalize_forward(rows[:, a:b], None, [b - a], None, None, r.formula.eps, r.norm, True)
        torch.mm(z_hat.to(weight.dtype), weight[a:b], out=target)
        found.append(saved)
    return _gathered(found), q


def _meeting(call: Call) -> tuple[Tensor, Tensor]:
    """What programs meet at, zeroed: tagged words, and for each group of rows a counter in a line of its own."""
    launch, kinds = call.launch, len(spans(call.recurrence, 1)) + 2
    words = call.zx.new_zeros(launch.groups * 2 * kinds * launch.pieces * launch.rows, dtype=torch.int64)
    return words, call.zx.new_zeros(launch.groups * 32, dtype=torch.int32)


def constants(recurrence: Recurrence, launch: _launch.Persistent, H: int, dtype: torch.dtype) -> dict[str, Any]:
    """What the kernels are compiled for."""
    f = recurrence.formula
    return {
        "H": H, "NETWORK": recurrence.network, "G": GATES[recurrence.network], "SHARE": share(recurrence),
        "SUM": f.gates == "sum", "LAYER": recurrence.norm == "layer", "RELU": recurrence.nonlinearity == "relu",
        "PRECISION": precision(dtype), "BR": launch.rows, "HS": launch.units,
        # No fewer words than threads: one that two threads wait for might have come for only one of them.
        "PADDED": max(_launch.power_of_2(launch.pieces), launch.warps * 32 // launch.rows),
        "WARPS": launch.warps, "DEPTH": launch.depth,
        "AHEAD": _launch.ahead(launch, dtype.itemsize, _resident(dtype)),
        "num_warps": launch.warps, "num_stages": 1, "enable_fp_fusion": True, "launch_cooperative_grid": True,
    }  # fmt: skip


def _constants(call: Call) -> dict[str, Any]:
    return constants(call.recurrence, call.launch, call.weight_hh.shape[1], call.zx.dtype)


def forward(call: Call, output: Tensor, save: bool) -> Kept:
    """All steps.

    Args:
        call: the sequence.
        output: (T, B, H) in zx's type, zeros: what lies beyond a row's length is not written.
        save: whether a backward follows.
    """
    zx, h0 = call.zx, call.h0
    T, B, _ = zx.shape
    H = call.weight_hh.shape[1]
    lstm = call.c0 is not None
    ring = max(2, T) if save else 2
    kept = Kept(
        h=torch.empty_like(h0),
        c=torch.empty_like(h0) if lstm else None,
        zh=torch.empty_like(zx) if save else None,
        hs=zx.new_empty(ring, B, H),
        cs=zx.new_empty(T + 1, B, H, dtype=torch.float32) if save and lstm else None,
    )
    formula = call.recurrence.formula
    with torch.cuda.device_of(zx):
        meeting = _meeting(call)
        for first, programs in call.launch.grids:
            _persistent_kernels._forward[(programs,)](
                zx, call.statistics, call.weight_hh, call.vectors, h0, call.c0, call.schedule, output, kept,
                *meeting, first, T, B, ring, formula.eps, formula.forget_bias, **_constants(call),
            )  # fmt: skip
    return kept._replace(hs=kept.hs[:T])


def backward(
    call: Call,
    kept: Kept,
    hidden: Statistics,
    q: Tensor | None,
    cell: Statistics,
    dy: Tensor,
    dh: Tensor,
    dc: Tensor | None,
) -> Gradients:
    """All steps back.

    Args:
        call: the one that `forward` had.
        kept: what it left.
        hidden, q: `through_deviations` of zh; of a norm over the sum of both sides, of zx + zh.
        cell: `statistics` of c after each step.
        dy: (T, B, H) in zx's type; beyond a row's length it does not count.
        dh, dc: of the final states (B, H), float32.
    """
    zx, weight, vectors = call.zx, call.weight_hh, call.vectors
    T, B, _ = zx.shape
    H = weight.shape[1]
    if vectors.gain_h is not None:
        weight = (weight * vectors.gain_h[:, None]).to(weight.dtype)
    blocks = 4 if call.recurrence.network == "GRU" else GATES[call.recurrence.network]
    found = Gradients(
        da=zx.new_empty(T, B, blocks * H),
        dn=None if vectors.gain_c is None else zx.new_empty(T, B, H, dtype=torch.float32),
        h0=torch.empty_like(dh),
        c0=None if dc is None else torch.empty_like(dc),
    )
    with torch.cuda.device_of(zx):
        meeting = _meeting(call)
        for first, programs in call.launch.grids:
            _persistent_kernels._backward[(programs,)](
                zx, call.statistics, kept.zh, hidden, q, kept.hs, kept.cs, cell, weight, vectors,
                call.schedule, dy, dh, dc, *found, *meeting, first, T, B, call.recurrence.formula.forget_bias,
                **_constants(call),
            )  # fmt: skip
    return found
