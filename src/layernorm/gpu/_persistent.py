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

After the backward's launch the gradient da of the summed inputs is known for all steps. What is left are normalisations
over rows, the ops of `_norms`.

Letters in shapes: T steps, B batch, H units, G gates, S spans, each normalised by itself; in kernels BR rows and HS
units of a program, PIECES programs of a group of rows.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..engine import NormArguments
from ..formula import GATES, Recurrence
from . import _launch, _persistent_kernels
from ._layer import Backward, Forward, LayerTensors, RowStatistics, Saved, Vectors, total
from ._norms import normalize_backward, normalize_forward, row_statistics
from ._spans import share, spans

# --- Whether and how ---


def covers(recurrence: Recurrence) -> bool:
    """Whether there are equations for it here; whether it fits a device is `fitting`'s to say."""
    f = recurrence.formula
    if recurrence.projected or recurrence.norm not in ("layer", "rms") or f.cell == "carry":
        return False
    if recurrence.gain_names and f.eps_on != "variance":
        return False
    return recurrence.reset_multiplies in (None, "hidden") and not (f.gates and f.bias_inside)


def launch(layer: LayerTensors) -> _launch.Persistent | None:
    """How a layer is launched; None: it has no equations here, does not fit, or programs run one after the other."""
    if layer.device.type == "cpu" or not (layer.T and layer.B and covers(layer.recurrence)):
        return None
    return fitting(layer.recurrence, layer.H, layer.B, layer.dtype, layer.device)


def fitting(
    recurrence: Recurrence, H: int, B: int, dtype: torch.dtype, device: torch.device
) -> _launch.Persistent | None:
    """How a layer of these sizes is launched on a device; None: its state does not fit it."""
    sizes = dtype.itemsize, _resident(dtype)
    return _launch.persistent(H, B, GATES[recurrence.network], *sizes, *_device(device))


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


def constants(recurrence: Recurrence, chosen: _launch.Persistent, H: int, dtype: torch.dtype) -> dict[str, Any]:
    """What the kernels are compiled for."""
    return {
        "H": H, "NETWORK": recurrence.network, "G": GATES[recurrence.network], "SHARE": share(recurrence),
        "SUM": recurrence.formula.gates == "sum", "LAYER": recurrence.norm == "layer",
        "RELU": recurrence.nonlinearity == "relu", "PRECISION": precision(dtype), "BR": chosen.rows, "HS": chosen.units,
        # No fewer words than threads: one that two threads wait for might have come for only one of them.
        "PADDED": max(_launch.power_of_2(chosen.pieces), chosen.warps * 32 // chosen.rows),
        "WARPS": chosen.warps, "DEPTH": chosen.depth,
        "AHEAD": _launch.ahead(chosen, dtype.itemsize, _resident(dtype)),
        "num_warps": chosen.warps, "num_stages": 1, "enable_fp_fusion": True, "launch_cooperative_grid": True,
    }  # fmt: skip


# --- What both launches need ---


def _by_sides(layer: LayerTensors) -> Vectors:
    """The layer's vectors as the kernels take them: each side has one gain and one bias, ``gain_*`` and ``outside_*``.
    The gain and the bias of a norm over the sum of both sides are ``gain_h`` and ``outside_h``."""
    v = layer.vectors
    if layer.recurrence.formula.gates == "sum":
        outside = total((v.outside_x, v.outside_h))
        return Vectors(gain_h=v.gain_x, outside_h=outside, gain_c=v.gain_c, bias_c=v.bias_c)
    outside_x, outside_h = total((v.inside_x, v.outside_x)), total((v.inside_h, v.outside_h))
    return v._replace(inside_x=None, inside_h=None, outside_x=outside_x, outside_h=outside_h)


def _gathered(found: Sequence[Sequence[Tensor]]) -> RowStatistics:
    columns = [torch.stack(column, 1) for column in zip(*found, strict=True)]
    return RowStatistics(*[None] * (3 - len(columns)), *columns)


def _statistics(z: Tensor, recurrence: Recurrence, parts: Sequence[tuple[int, int]]) -> RowStatistics:
    """Of all rows of (T, B, n), by spans."""
    rows, eps = z.flatten(0, 1), recurrence.formula.eps
    return _gathered([row_statistics(rows[:, a:b], eps, recurrence.norm) for a, b in parts])


def _input_statistics(layer: LayerTensors, zx: Tensor) -> RowStatistics:
    """What the kernels take away of the input's side, and what they multiply it by."""
    r = layer.recurrence
    if r.formula.gates is None:
        return RowStatistics()
    found = _statistics(zx, r, spans(r, layer.H))
    # Of a sum, zx loses its mean here, W_hh h has none, and the deviation is that of both.
    return found._replace(r=None) if r.formula.gates == "sum" else found


def _meeting(layer: LayerTensors, chosen: _launch.Persistent) -> tuple[Tensor, Tensor]:
    """What programs meet at, zeroed: tagged words, and for each group of rows a counter in a line of its own."""
    kinds = -(-GATES[layer.recurrence.network] // share(layer.recurrence)) + 2
    words = layer.x.new_zeros(chosen.groups * 2 * kinds * chosen.pieces * chosen.rows, dtype=torch.int64)
    return words, layer.x.new_zeros(chosen.groups * 32, dtype=torch.int32)


# --- Forward ---


class Kept(NamedTuple):
    """What the forward's launch fills: the final states (B, H) in float32; for the backward, or else None, zh and cs of
    `Saved`; and h before each step, or before the last two (T or 2, B, H)."""

    h: Tensor
    c: Tensor | None
    zh: Tensor | None
    hs: Tensor
    cs: Tensor | None


def forward(layer: LayerTensors, zx: Tensor, save: bool, chosen: _launch.Persistent) -> Forward:
    T, B, H, formula = layer.T, layer.B, layer.H, layer.recurrence.formula
    h0, c0, vectors = layer.h0, layer.c0, _by_sides(layer)
    # What lies beyond a row's length is not written.
    output = zx.new_empty(T, B, H) if layer.masks.lengths is None else zx.new_zeros(T, B, H)
    ring = max(2, T) if save else 2
    kept = Kept(
        h=torch.empty_like(h0),
        c=None if c0 is None else torch.empty_like(c0),
        zh=torch.empty_like(zx) if save else None,
        hs=zx.new_empty(ring, B, H),
        cs=zx.new_empty(T + 1, B, H, dtype=torch.float32) if save and c0 is not None else None,
    )
    statistics, constant = _input_statistics(layer, zx), constants(layer.recurrence, chosen, H, layer.dtype)
    with torch.cuda.device_of(zx):
        meeting = _meeting(layer, chosen)
        for first, programs in chosen.grids:
            _persistent_kernels._forward[(programs,)](
                zx, statistics, layer.W_hh, vectors, h0, c0, layer.masks, output, kept,
                *meeting, first, T, B, ring, formula.eps, formula.forget_bias, **constant,
            )  # fmt: skip
    final = [s for s in (kept.h, kept.c) if s is not None]
    return Forward(output, final, None if kept.zh is None else Saved(zx, kept.zh, kept.hs[:T], kept.cs))


# --- Backward ---


class Recalled(NamedTuple):
    """What the backward's launch needs of the forward's normalisations, made for all steps before it.

    ``input``: of zx, as the forward had it. ``z`` (T, B, G*H): what the hidden side's normalisations are of, zh, or in
    a norm over the sum of both sides zx + zh; ``hidden`` are its statistics, and ``q`` (S, T*B, H) is zhat W.
    ``cell``: of c after each step.
    """

    input: RowStatistics
    z: Tensor
    hidden: RowStatistics = RowStatistics()
    q: Tensor | None = None
    cell: RowStatistics = RowStatistics()


class Gradients(NamedTuple):
    """What the backward's launch finds.

    ``da``: the gradient of the summed inputs of the nonlinearities (of a norm over the sum of both sides: of what it
    gives), for a GRU r, z, n as the hidden side sees it and as the input side does, (T, B, 3 or 4 times H). ``dn``: of
    what LN(c) gives (T, B, H), float32. ``h0``, ``c0``: of the initial states (B, H), float32.
    """

    da: Tensor
    dn: Tensor | None
    h0: Tensor
    c0: Tensor | None


def recall(layer: LayerTensors, saved: Saved) -> Recalled:
    """For `steps_back`."""
    r = layer.recurrence
    z = saved.zx.float() + saved.zh.float() if r.formula.gates == "sum" else saved.zh
    found = Recalled(_input_statistics(layer, saved.zx), z)
    if r.formula.gates is not None:
        hidden, q = _through_deviations(z, layer)
        found = found._replace(hidden=hidden, q=q)
    if r.formula.cell is not None and saved.cs is not None:
        found = found._replace(cell=_statistics(saved.cs[1:], r, [(0, layer.H)]))
    return found


def _through_deviations(z: Tensor, layer: LayerTensors) -> tuple[RowStatistics, Tensor]:
    """Of what the hidden side's normalisations are of, (T, B, G*H): the statistics, and q = zhat W (S, T*B, H)."""
    weight, r, rows, found = layer.W_hh, layer.recurrence, z.flatten(0, 1), []
    parts = spans(r, layer.H)
    q = weight.new_empty(len(parts), len(rows), layer.H)
    for target, (a, b) in zip(q, parts, strict=True):
        span = NormArguments(rows[:, a:b], [b - a], None, None, r.formula.eps, r.norm)
        z_hat, *statistics = normalize_forward(span, None, True)
        torch.mm(z_hat.to(weight.dtype), weight[a:b], out=target)
        found.append(statistics)
    return _gathered(found), q


def steps_back(
    layer: LayerTensors,
    saved: Saved,
    recalled: Recalled,
    dy: Tensor,
    arriving: tuple[Tensor, Tensor | None],
    chosen: _launch.Persistent,
) -> Gradients:
    """The launch. ``dy`` (T, B, H): beyond a row's length it does not count; ``arriving``: `LayerTensors.arriving`."""
    T, B, H, r = layer.T, layer.B, layer.H, layer.recurrence
    vectors, weight = _by_sides(layer), layer.W_hh
    if vectors.gain_h is not None:
        weight = (weight * vectors.gain_h[:, None]).to(weight.dtype)
    dh, dc = arriving
    found = Gradients(
        da=saved.zx.new_empty(T, B, (4 if r.network == "GRU" else GATES[r.network]) * H),
        dn=None if vectors.gain_c is None else saved.zx.new_empty(T, B, H, dtype=torch.float32),
        h0=torch.empty_like(dh),
        c0=None if dc is None else torch.empty_like(dc),
    )
    constant = constants(r, chosen, H, layer.dtype)
    with torch.cuda.device_of(dy):
        meeting = _meeting(layer, chosen)
        for first, programs in chosen.grids:
            _persistent_kernels._backward[(programs,)](
                saved.zx, recalled.input, saved.zh, recalled.hidden, recalled.q, saved.hs, saved.cs, recalled.cell,
                weight, vectors, layer.masks, dy, dh, dc, *found, *meeting, first, T, B, r.formula.forget_bias,
                **constant,
            )  # fmt: skip
    return found


def backward(
    layer: LayerTensors,
    saved: Saved,
    dy: Tensor,
    arriving: tuple[Tensor, Tensor | None],
    chosen: _launch.Persistent,
) -> Backward:
    recalled = recall(layer, saved)
    found = steps_back(layer, saved, recalled, dy, arriving, chosen)
    recalled = recalled._replace(q=None)  # it is large
    da, gates, v = found.da.flatten(0, 1), layer.recurrence.formula.gates, layer.vectors
    of_hidden, of_input = da[:, : layer.units], da
    if layer.recurrence.network == "GRU":  # whose last block is n as the input's side sees it
        of_input = torch.cat([da[:, : 2 * layer.H], da[:, 3 * layer.H :]], 1)
    parts = spans(layer.recurrence, layer.H)
    if gates is None:
        dzx, dzh = of_input, of_hidden.contiguous()
        d = Vectors(inside_x=_over_rows(dzx), inside_h=_over_rows(dzh))
    elif gates == "sum":
        dzh, gain, bias = _normalized(layer, of_hidden, recalled.z, recalled.hidden, v.gain_x, parts)
        dzx, d = dzh, Vectors(gain_x=gain, outside_x=bias, outside_h=bias)
    else:
        dzh, gain_h, bias_h = _normalized(layer, of_hidden, recalled.z, recalled.hidden, v.gain_h, parts)
        dzx, gain_x, bias_x = _normalized(layer, of_input, saved.zx, recalled.input, v.gain_x, parts)
        d = Vectors(gain_x=gain_x, gain_h=gain_h, outside_x=bias_x, outside_h=bias_h)
    if found.dn is not None and saved.cs is not None:
        dn, cells = found.dn.flatten(0, 1), saved.cs[1:]
        _, gain, bias = _normalized(layer, dn, cells, recalled.cell, v.gain_c, [(0, layer.H)])
        d = d._replace(gain_c=gain, bias_c=bias)
    d_state = [s for s in (found.h0, found.c0) if s is not None]
    return Backward(dzx.view_as(saved.zx), dzh.view_as(saved.zh), d_state, d)


def _over_rows(d: Tensor) -> Tensor:
    return d.sum(0, dtype=torch.float32)


def _normalized(
    layer: LayerTensors,
    dy: Tensor,
    z: Tensor,
    statistics: RowStatistics,
    gain: Tensor | None,
    parts: Sequence[tuple[int, int]],
) -> tuple[Tensor, Tensor, Tensor]:
    """Back through a normalisation of all steps: dz (T * B, n), and the gradients of its gain and bias."""
    assert gain is not None
    rows, r, found = z.flatten(0, 1), layer.recurrence, []
    for k, (first, last) in enumerate(parts):
        columns = [s[:, k].contiguous() for s in statistics if s is not None]
        vectors = gain[first:last], torch.empty_like(gain[first:last])  # a bias has no value here, only a gradient
        span = NormArguments(rows[:, first:last], [last - first], *vectors, r.formula.eps, r.norm)
        found.append(normalize_backward(span, columns, dy[:, first:last], None))
    dz, d_gain, d_bias = (torch.cat(part, -1) if len(part) > 1 else part[0] for part in zip(*found, strict=True))
    return dz.to(layer.dtype), d_gain, d_bias
