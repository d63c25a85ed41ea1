"""Layer norm and RMS norm in Triton: kernels, then what launches them.

    z = x, or x + residual rounded to x's type
    z_hat = (z - mean(z)) * r,   r = 1 / sqrt(var(z) + eps)          (layer, eq. 3)
    z_hat = z * r,               r = 1 / sqrt(mean(z^2) + eps)       (rms)
    y = z_hat * gain + bias

and back, with d = dy * gain:

    dz = r * (d - z_hat * mean(d * z_hat) - mean(d)) + d_total       (rms has no mean(d))
    d gain = sum over rows of dy * z_hat,   d bias = sum over rows of dy

Everything is computed in float32. A row's mean is kept as two numbers, mean + rest, where rest is the mean of what is
left after the first subtraction: float32 rounds the first by up to |mean| * 2^-24, which is all that is left of a
constant row and much of a row with |mean| >> deviation. A constant row becomes exactly 0: its remainders are equal and
few units in the last place, so that their sum is exact, and so is its quotient by N, correctly rounded (Triton's `/` is
not: hence `div_rn`).

No kernel uses atomics: every sum has one order. Row offsets have 64 bits. M is not specialised on, so that no property
of it can change the code that a row is computed by.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..engine import NormArguments
from . import _launch


@triton.jit
def _load(pointer, at, inside):
    """In float32, 0 outside."""
    return tl.load(pointer + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _summed(x_ptr, residual_ptr, x_at, residual_at, inside):
    """z, in float32."""
    z = _load(x_ptr, x_at, inside)
    if residual_ptr is not None:
        z += _load(residual_ptr, residual_at, inside)
        z = z.to(x_ptr.dtype.element_ty).to(tl.float32)
    return z


@triton.jit
def _mean(values, N):
    """Of each row of a tile whose elements outside are 0."""
    return tl.div_rn(tl.sum(values, 1), tl.cast(N, tl.float32))


@triton.jit
def _reciprocal_deviation(square, eps):
    """1 / sqrt(square + eps); a rounded difference may be below 0, and a NaN stays one."""
    return tl.div_rn(1.0, tl.sqrt_rn(tl.where(square < 0.0, 0.0, square) + eps))


@triton.jit
def _affine(z_hat, gain_ptr, bias_ptr, column, within):
    """z_hat * gain + bias, (rows, columns)."""
    if gain_ptr is not None:
        z_hat *= _load(gain_ptr, column, within)[None, :]
    if bias_ptr is not None:
        z_hat += _load(bias_ptr, column, within)[None, :]
    return z_hat


@triton.jit(do_not_specialize=["M"])
def _forward_rows(
    x_ptr, residual_ptr, gain_ptr, bias_ptr, y_ptr, total_ptr, mean_ptr, rest_ptr, r_ptr, M, N, x_m, residual_m, eps,
    LAYER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """ROWS rows (M, N) a program, whole in its registers: memory is read once and written once."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    there, within = row < M, column < N
    inside = there[:, None] & within[None, :]
    at = row[:, None] * N + column[None, :]
    x_at, residual_at = row[:, None] * x_m + column[None, :], row[:, None] * residual_m + column[None, :]
    u = _summed(x_ptr, residual_ptr, x_at, residual_at, inside)
    if total_ptr is not None:
        tl.store(total_ptr + at, u, mask=inside)
    if LAYER:
        mean = _mean(u, N)
        u = tl.where(inside, u - mean[:, None], 0.0)
        rest = _mean(u, N)
        u = tl.where(inside, u - rest[:, None], 0.0)
        if mean_ptr is not None:
            tl.store(mean_ptr + row, mean, mask=there)
            tl.store(rest_ptr + row, rest, mask=there)
    r = _reciprocal_deviation(_mean(u * u, N), eps)
    if r_ptr is not None:
        tl.store(r_ptr + row, r, mask=there)
    if y_ptr is not None:
        tl.store(y_ptr + at, _affine(u * r[:, None], gain_ptr, bias_ptr, column, within), mask=inside)


@triton.jit(do_not_specialize=["M"])
def _forward_long(
    x_ptr, residual_ptr, gain_ptr, bias_ptr, y_ptr, total_ptr, mean_ptr, rest_ptr, r_ptr, M, N, x_m, residual_m, eps,
    LAYER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One row a program, in chunks, which are read again from cache.

    Two sums at once save a sweep: with u = z - mean, the variance is mean(u^2) - rest^2, where rest is a rounding error
    (Chan, Golub, LeVeque 1983, eq. 1.7: the corrected two-pass algorithm)."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column, there = tl.arange(0, COLUMNS), row < M
    at = row[:, None] * N + column[None, :]
    x_at, residual_at = row[:, None] * x_m + column[None, :], row[:, None] * residual_m + column[None, :]
    mean, rest = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    if LAYER:
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in range(0, N, COLUMNS):
            inside = there[:, None] & (start + column < N)[None, :]
            total += _summed(x_ptr, residual_ptr, x_at + start, residual_at + start, inside)
        mean = _mean(total, N)
    total, squares = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, N, COLUMNS):
        inside = there[:, None] & (start + column < N)[None, :]
        u = _summed(x_ptr, residual_ptr, x_at + start, residual_at + start, inside) - mean[:, None]
        u = tl.where(inside, u, 0.0)
        total += u
        squares += u * u
    if LAYER:
        rest = _mean(total, N)
        if mean_ptr is not None:
            tl.store(mean_ptr + row, mean, mask=there)
            tl.store(rest_ptr + row, rest, mask=there)
    r = _reciprocal_deviation(_mean(squares, N) - rest * rest, eps)
    if r_ptr is not None:
        tl.store(r_ptr + row, r, mask=there)
    if y_ptr is not None:
        for start in range(0, N, COLUMNS):
            within = start + column < N
            inside = there[:, None] & within[None, :]
            z = _summed(x_ptr, residual_ptr, x_at + start, residual_at + start, inside)
            if total_ptr is not None:
                tl.store(total_ptr + at + start, z, mask=inside)
            z_hat = tl.where(inside, (z - mean[:, None] - rest[:, None]) * r[:, None], 0.0)
            tl.store(y_ptr + at + start, _affine(z_hat, gain_ptr, bias_ptr, start + column, within), mask=inside)


@triton.jit
def _normalized(x_ptr, mean_ptr, rest_ptr, r, row, x_at, there, inside):
    """z_hat of rows whose statistics were saved; 0 outside."""
    u = _load(x_ptr, x_at, inside)
    if mean_ptr is not None:
        u -= _load(mean_ptr, row, there)[:, None]
        u -= _load(rest_ptr, row, there)[:, None]
    return tl.where(inside, u * r[:, None], 0.0)


@triton.jit(do_not_specialize=["M"])
def _backward_rows(
    dy_ptr, d_total_ptr, x_ptr, gain_ptr, mean_ptr, rest_ptr, r_ptr, dx_ptr, d_gain_ptr, d_bias_ptr,
    M, N, dy_m, d_total_m, x_m,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A program goes through every R-th tile of rows; its sums for gain and bias stay in registers, and end as one of R
    partial rows, (R, N)."""
    column = tl.arange(0, COLUMNS)
    within = column < N
    d_gain, d_bias = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, COLUMNS], tl.float32)
    first, step = tl.program_id(0).to(tl.int64) * ROWS, tl.num_programs(0) * ROWS
    for start in range(first, M, step):
        row = start + tl.arange(0, ROWS).to(tl.int64)
        there = row < M
        inside = there[:, None] & within[None, :]
        r = _load(r_ptr, row, there)
        x_at = row[:, None] * x_m + column[None, :]
        z_hat = _normalized(x_ptr, mean_ptr, rest_ptr, r, row, x_at, there, inside)
        d = _load(dy_ptr, row[:, None] * dy_m + column[None, :], inside)
        if d_gain_ptr is not None:
            d_gain += d * z_hat
        if d_bias_ptr is not None:
            d_bias += d
        if gain_ptr is not None:
            d *= _load(gain_ptr, column, within)[None, :]
        dx = d - z_hat * _mean(d * z_hat, N)[:, None]
        if mean_ptr is not None:
            dx -= _mean(d, N)[:, None]
        dx *= r[:, None]
        if d_total_ptr is not None:
            dx += _load(d_total_ptr, row[:, None] * d_total_m + column[None, :], inside)
        tl.store(dx_ptr + row[:, None] * N + column[None, :], dx, mask=inside)
    partial = tl.program_id(0).to(tl.int64) * N + column
    if d_gain_ptr is not None:
        tl.store(d_gain_ptr + partial, tl.sum(d_gain, 0), mask=within)
    if d_bias_ptr is not None:
        tl.store(d_bias_ptr + partial, tl.sum(d_bias, 0), mask=within)


@triton.jit(do_not_specialize=["M"])
def _backward_long(
    dy_ptr, d_total_ptr, x_ptr, gain_ptr, mean_ptr, rest_ptr, r_ptr, dx_ptr, M, N, dy_m, d_total_m, x_m,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """dx of one row a program, in chunks: first its two means, then dx."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < M
    column = tl.arange(0, COLUMNS)
    r = _load(r_ptr, row, there)
    x_at, dy_at = row[:, None] * x_m + column[None, :], row[:, None] * dy_m + column[None, :]
    sum_d, sum_dz = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, N, COLUMNS):
        within = start + column < N
        inside = there[:, None] & within[None, :]
        d = _load(dy_ptr, dy_at + start, inside)
        if gain_ptr is not None:
            d *= _load(gain_ptr, start + column, within)[None, :]
        sum_d += d
        sum_dz += d * _normalized(x_ptr, mean_ptr, rest_ptr, r, row, x_at + start, there, inside)
    mean_d, mean_dz = _mean(sum_d, N), _mean(sum_dz, N)
    for start in range(0, N, COLUMNS):
        within = start + column < N
        inside = there[:, None] & within[None, :]
        d = _load(dy_ptr, dy_at + start, inside)
        if gain_ptr is not None:
            d *= _load(gain_ptr, start + column, within)[None, :]
        z_hat = _normalized(x_ptr, mean_ptr, rest_ptr, r, row, x_at + start, there, inside)
        dx = d - z_hat * mean_dz[:, None]
        if mean_ptr is not None:
            dx -= mean_d[:, None]
        dx *= r[:, None]
        if d_total_ptr is not None:
            dx += _load(d_total_ptr, row[:, None] * d_total_m + column[None, :] + start, inside)
        tl.store(dx_ptr + row[:, None] * N + column[None, :] + start, dx, mask=inside)


@triton.jit(do_not_specialize=["M"])
def _backward_long_parameters(
    dy_ptr, x_ptr, mean_ptr, rest_ptr, r_ptr, d_gain_ptr, d_bias_ptr, M, N, dy_m, x_m,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gain and bias of long rows: a program sums COLUMNS columns of every R-th tile of rows, for R partial rows."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    within = column < N
    d_gain, d_bias = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, COLUMNS], tl.float32)
    first, step = tl.program_id(1).to(tl.int64) * ROWS, tl.num_programs(1) * ROWS
    for start in range(first, M, step):
        row = start + tl.arange(0, ROWS).to(tl.int64)
        there = row < M
        inside = there[:, None] & within[None, :]
        d = _load(dy_ptr, row[:, None] * dy_m + column[None, :], inside)
        if d_gain_ptr is not None:
            x_at = row[:, None] * x_m + column[None, :]
            r = _load(r_ptr, row, there)
            d_gain += d * _normalized(x_ptr, mean_ptr, rest_ptr, r, row, x_at, there, inside)
        if d_bias_ptr is not None:
            d_bias += d
    partial = tl.program_id(1).to(tl.int64) * N + column
    if d_gain_ptr is not None:
        tl.store(d_gain_ptr + partial, tl.sum(d_gain, 0), mask=within)
    if d_bias_ptr is not None:
        tl.store(d_bias_ptr + partial, tl.sum(d_bias, 0), mask=within)


@triton.jit(do_not_specialize=["R"])
def _column_sum(parts_ptr, sums_ptr, R, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The R partial rows (R, N) added up, in sums' type."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    within = column < N
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, R, ROWS):
        part = start + tl.arange(0, ROWS).to(tl.int64)
        total += _load(parts_ptr, part[:, None] * N + column[None, :], (part < R)[:, None] & within[None, :])
    tl.store(sums_ptr + column, tl.sum(total, 0), mask=within)


def _rows(tensor: Tensor, M: int, N: int) -> Tensor:
    """(M, N), each row's elements side by side; a view where that is possible."""
    rows = tensor.resolve_neg().reshape(M, N)
    return rows if N == 1 or rows.stride(1) == 1 else rows.contiguous()


def _in_order(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.resolve_neg().contiguous()


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    """Of a GPU; the interpreter, which runs one program after the other, is given enough for partial sums to differ."""
    return 3 if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


def normalize_forward(a: NormArguments, residual: Tensor | None, save: bool) -> list[Tensor]:
    """[y], with ``residual`` [y, input + residual], and with ``save`` what `normalize_saved` tells."""
    M, N = a.sizes
    y = torch.empty_like(a.input, memory_format=torch.contiguous_format)
    total = None if residual is None else torch.empty_like(y)
    saved = normalize_saved(a) if save else []
    if M * N:
        rows = a._replace(input=_rows(a.input, M, N), weight=_in_order(a.weight), bias=_in_order(a.bias))
        _forward(rows, None if residual is None else _rows(residual, M, N), y, total, saved)
    return [t for t in (y, total, *saved) if t is not None]


def _forward(
    a: NormArguments, residual: Tensor | None, y: Tensor | None, total: Tensor | None, saved: Sequence[Tensor]
) -> None:
    """Of rows, ``a.input`` (M, N), into what there is of y, total and saved."""
    (M, N), statistics = a.input.shape, (*[None] * (3 - len(saved)), *saved)  # mean, rest, r
    launch = _launch.forward(N)
    kernel = _forward_long if launch.columns < N else _forward_rows
    with torch.cuda.device_of(a.input):
        kernel[(triton.cdiv(M, launch.rows),)](
            a.input, residual, a.weight, a.bias, y, total, *statistics,
            M, N, a.input.stride(0), 0 if residual is None else residual.stride(0), a.eps,
            LAYER=a.norm == "layer", **launch.arguments,
        )  # fmt: skip


def row_statistics(x: Tensor, eps: float, norm: str) -> list[Tensor]:
    """What `normalize_forward` saves of rows (M, N), and nothing else."""
    a = NormArguments(_rows(x, *x.shape), [x.shape[1]], None, None, eps, norm)
    saved = normalize_saved(a)
    _forward(a, None, None, None, saved)
    return saved


def normalize_saved(a: NormArguments) -> list[Tensor]:
    """Empty tensors with the shapes and types of what `normalize_forward` saves: of each row, in float32, mean and
    rest, whose sum is the mean (rms: neither), and reciprocal deviation."""
    M, _ = a.sizes
    return [a.input.new_empty(M, dtype=torch.float32) for _ in range(3 if a.norm == "layer" else 1)]


def normalize_backward(
    a: NormArguments, saved: Sequence[Tensor], grad: Tensor, grad_total: Tensor | None
) -> list[Tensor]:
    """The gradients of what was normalised, of weight and of bias, of those that there are."""
    M, N = a.sizes
    parameters = [p for p in (a.weight, a.bias) if p is not None]
    d_x, *d_parameters = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (a.input, *parameters))
    if not M * N:
        return [d_x, *(d.zero_() for d in d_parameters)]
    with torch.cuda.device_of(a.input):
        parts = _backward(a, saved, grad, grad_total, d_x)
        columns = triton.cdiv(N, _launch.COLUMN_SUM.columns)
        for part, found in zip(parts, d_parameters, strict=True):
            _column_sum[(columns,)](part, found, part.shape[0], N, **_launch.COLUMN_SUM.arguments)
    return [d_x, *d_parameters]


def _backward(
    a: NormArguments, saved: Sequence[Tensor], grad: Tensor, grad_total: Tensor | None, d_x: Tensor
) -> Tensor:
    """Fills d_x; returns the partial sums of the parameters' gradients, (how many parameters there are, R, N)."""
    M, N = a.sizes
    x, dy = _rows(a.input, M, N), _rows(grad, M, N)
    more = None if grad_total is None else _rows(grad_total, M, N)
    *mean_and_rest, r = [s.contiguous() for s in saved]
    statistics = (*(mean_and_rest or (None, None)), r)
    launch = _launch.backward(N)
    long = launch.columns < N
    tile = _launch.PARAMETERS_LONG if long else launch
    across = triton.cdiv(N, tile.columns)
    R = min(triton.cdiv(M, tile.rows), max(1, _multiprocessors(a.device) * tile.programs // across))
    parts = x.new_empty((a.weight is not None) + (a.bias is not None), R, N, dtype=torch.float32)
    d_gain, d_bias = parts[0] if a.weight is not None else None, parts[-1] if a.bias is not None else None
    strides = (dy.stride(0), 0 if more is None else more.stride(0), x.stride(0))
    given = (dy, more, x, _in_order(a.weight), *statistics, d_x)
    if not long:
        _backward_rows[(R,)](*given, d_gain, d_bias, M, N, *strides, **launch.arguments)
        return parts
    _backward_long[(triton.cdiv(M, launch.rows),)](*given, M, N, *strides, **launch.arguments)
    if len(parts):
        _backward_long_parameters[across, R](
            dy, x, *statistics, d_gain, d_bias, M, N, dy.stride(0), x.stride(0), **tile.arguments
        )
    return parts
