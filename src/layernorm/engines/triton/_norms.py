"""The norm ops: by a kernel that has two reductions; layer norm of 16-bit numbers by torch's own kernels.

The kernel takes the mean of what differs from the row's first number, and then what rounding left of it together with
the squares. So a row whose mean is a thousand times its deviation keeps its digits, which torch's kernels lose. In 16
bits the error of torch's kernels is below half of the last rounding, and a small call of them takes less time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...equations import norms as equations
from ...equations.arguments import NormArguments
from ...equations.checks import check_norm, check_norm_gradients
from ...equations.dispatch import kernel
from ._self_check import self_check

MOST_COLUMNS = 8192
"""In a tile: more do not fit in a program's registers on the way back."""


@triton.jit
def row_of(x, residual, m, stride, j, N: tl.constexpr, RESIDUAL: tl.constexpr):
    """Loads some columns of a row, in their own type, with the residual added."""
    v = tl.load(x + m * stride + j, mask=j < N, other=0.0)
    if RESIDUAL:
        v = (v.to(tl.float32) + tl.load(residual + m * N + j, mask=j < N, other=0.0).to(tl.float32)).to(v.dtype)
    return v


@triton.jit
def norm_forward(x, residual, weight, bias, y, total, mean, rest, reciprocal, stride, eps, N: tl.constexpr,
                 RMS: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
                 BLOCK: tl.constexpr, TILES: tl.constexpr):  # fmt: skip
    """Normalises one row, which it reads tile by tile; of one tile the compiler joins the reads."""
    m, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    centre, left, square = 0.0, 0.0, 0.0
    if not RMS:
        first = tl.sum(
            tl.where(columns == 0, row_of(x, residual, m, stride, columns, N, RESIDUAL).to(tl.float32), 0.0), 0
        )
        for k in range(TILES):
            j = k * BLOCK + columns
            u = row_of(x, residual, m, stride, j, N, RESIDUAL).to(tl.float32) - first
            centre += tl.sum(tl.where(j < N, u, 0.0), 0)
        centre = first + centre / N
    for k in range(TILES):
        j = k * BLOCK + columns
        u = tl.where(j < N, row_of(x, residual, m, stride, j, N, RESIDUAL).to(tl.float32) - centre, 0.0)
        left += tl.sum(u, 0)
        square += tl.sum(u * u, 0)
    square = square / N
    if RMS:
        left = 0.0
    else:
        left = left / N
        square = tl.maximum(square - left * left, 0.0, propagate_nan=tl.PropagateNan.ALL)
    r = 1.0 / tl.sqrt(square + eps)
    for k in range(TILES):
        j = k * BLOCK + columns
        v = row_of(x, residual, m, stride, j, N, RESIDUAL)
        z = (v.to(tl.float32) - centre - left) * r
        if WEIGHT:
            z *= tl.load(weight + j, mask=j < N, other=0.0).to(tl.float32)
        if BIAS:
            z += tl.load(bias + j, mask=j < N, other=0.0).to(tl.float32)
        tl.store(y + m * N + j, z.to(y.dtype.element_ty), mask=j < N)
        if RESIDUAL:
            tl.store(total + m * N + j, v, mask=j < N)
    tl.store(mean + m, centre)
    tl.store(rest + m, left)
    tl.store(reciprocal + m, r)


@triton.jit
def z_and_d(x, dy, m, stride, j, centre, left, r, N: tl.constexpr):
    """Loads some columns of z_hat and of the gradient of y."""
    z = (tl.load(x + m * stride + j, mask=j < N, other=0.0).to(tl.float32) - centre - left) * r
    return tl.where(j < N, z, 0.0), tl.load(dy + m * N + j, mask=j < N, other=0.0).to(tl.float32)


@triton.jit
def norm_backward(x, dy, d_total, weight, mean, rest, reciprocal, dx, d_weight, d_bias, M, stride, N: tl.constexpr,
                  RMS: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, TOTAL: tl.constexpr,
                  BLOCK: tl.constexpr, TILES: tl.constexpr):  # fmt: skip
    """Computes d x of the rows p, p + P, ... in program p of P, and their part of the gradients of weight and bias."""
    p, P, columns = tl.program_id(0).to(tl.int64), tl.num_programs(0), tl.arange(0, BLOCK)
    own_weight, own_bias = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for m in range(p, M, P):
        centre, left, r = tl.load(mean + m), tl.load(rest + m), tl.load(reciprocal + m)
        along, across = 0.0, 0.0
        for k in range(TILES):
            j = k * BLOCK + columns
            z, d = z_and_d(x, dy, m, stride, j, centre, left, r, N)
            if WEIGHT:
                d *= tl.load(weight + j, mask=j < N, other=0.0).to(tl.float32)
            along += tl.sum(d * z, 0)
            across += tl.sum(d, 0)
        across = 0.0 if RMS else across / N
        for k in range(TILES):
            j = k * BLOCK + columns
            z, d = z_and_d(x, dy, m, stride, j, centre, left, r, N)
            if TILES == 1:  # in registers
                own_weight += d * z
                own_bias += d
            else:
                to_weight, to_bias = d_weight + p * N + j, d_bias + p * N + j
                if WEIGHT:
                    tl.store(to_weight, tl.load(to_weight, mask=j < N, other=0.0) + d * z, mask=j < N)
                if BIAS:
                    tl.store(to_bias, tl.load(to_bias, mask=j < N, other=0.0) + d, mask=j < N)
            if WEIGHT:
                d *= tl.load(weight + j, mask=j < N, other=0.0).to(tl.float32)
            d = r * (d - across - z * (along / N))
            if TOTAL:
                d += tl.load(d_total + m * N + j, mask=j < N, other=0.0).to(tl.float32)
            tl.store(dx + m * N + j, d.to(dx.dtype.element_ty), mask=j < N)
        if TILES > 1:
            tl.debug_barrier()  # before other threads read the parts
    if TILES == 1:
        if WEIGHT:
            tl.store(d_weight + p * N + columns, own_weight, mask=columns < N)
        if BIAS:
            tl.store(d_bias + p * N + columns, own_bias, mask=columns < N)


def normalize_saved(a: NormArguments) -> list[Tensor]:
    """Returns empty tensors like what `normalize_forward` saves: of each row the mean, what rounding left of it (0 by
    torch's kernels), and the reciprocal deviation."""
    return [a.input.new_empty(a.sizes[0], dtype=torch.float32) for _ in range(3)]


@kernel
def normalize_forward(a: NormArguments, residual: Tensor | None, save: bool) -> list[Tensor]:
    """Returns [y] or [y, input + residual], and with ``save`` the statistics."""
    check_norm(a, residual)
    with torch.cuda.device_of(a.input):
        return _ways(a)[0](a, residual, save)


@kernel
def normalize_backward(
    a: NormArguments, saved: Sequence[Tensor], grad: Tensor, grad_total: Tensor | None
) -> list[Tensor]:
    """Returns the gradients of what was normalised, and of weight and bias where there are such."""
    check_norm(a, None)
    check_norm_gradients(a, saved, normalize_saved(a), grad, grad_total)
    with torch.cuda.device_of(a.input):
        return _ways(a)[1](a, saved, grad, grad_total)


def _ways(a: NormArguments) -> tuple[Callable[..., list[Tensor]], Callable[..., list[Tensor]]]:
    """Returns the forward and the backward that compute a call. Each backward takes what any forward has saved."""
    kernels, by_equations = (_forward, _backward), (_forward_by_equations, _backward_by_equations)
    if a.norm == "layer" and a.input.itemsize == 2 and all(p is None or p.dtype is a.input.dtype for p in a[2:4]):
        return _forward_by_torch, _backward_by_torch
    rounding = torch.finfo(a.input.dtype).eps
    return kernels if a.input.numel() and self_check.passes(a, kernels, "float32", rounding) else by_equations


def _forward(a: NormArguments, residual: Tensor | None, save: bool) -> list[Tensor]:
    (M, N), saved = a.sizes, normalize_saved(a)
    x = _rows(a.input, M, N)
    y = torch.empty_like(a.input, memory_format=torch.contiguous_format)
    total = None if residual is None else torch.empty_like(y)
    norm_forward[(M,)](
        x, None if residual is None else residual.contiguous(), _vector(a.weight), _vector(a.bias), y, total, *saved,
        x.stride(0), a.eps, N=N, RMS=a.norm == "rms", WEIGHT=a.weight is not None, BIAS=a.bias is not None,
        RESIDUAL=residual is not None, **_tiles(N, 512),
    )  # fmt: skip
    return [y, *([] if total is None else [total]), *(saved if save else [])]


def _backward(a: NormArguments, saved: Sequence[Tensor], grad: Tensor, grad_total: Tensor | None) -> list[Tensor]:
    M, N = a.sizes
    x, dx = _rows(a.input, M, N), torch.empty_like(a.input, memory_format=torch.contiguous_format)
    programs = min(M, 2 * torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 4)
    parts = [None if p is None else x.new_zeros(programs, N, dtype=torch.float32) for p in (a.weight, a.bias)]
    norm_backward[(programs,)](
        x, grad.contiguous(), None if grad_total is None else grad_total.contiguous(), _vector(a.weight), *saved, dx,
        *parts, M, x.stride(0), N=N, RMS=a.norm == "rms", WEIGHT=a.weight is not None, BIAS=a.bias is not None,
        TOTAL=grad_total is not None, **_tiles(N, 256),
    )  # fmt: skip
    sums = (part.sum(0) for part in parts if part is not None)
    return [dx, *(s.to(p.dtype).view(p.shape) for s, p in zip(sums, a.differentiable[1:], strict=True))]


def _forward_by_equations(a: NormArguments, residual: Tensor | None, save: bool) -> list[Tensor]:
    *results, r = equations.normalize_forward(a, residual, True)
    mean = results.pop() if a.norm == "layer" else torch.zeros_like(r)
    return [*results, *([mean.float(), (mean - mean.float()).float(), r.float()] if save else [])]


def _backward_by_equations(
    a: NormArguments, saved: Sequence[Tensor], grad: Tensor, grad_total: Tensor | None
) -> list[Tensor]:
    mean, rest, r = (s.to(equations.compute_type(s)) for s in saved)
    return equations.normalize_backward(a, [mean + rest, r] if a.norm == "layer" else [r], grad, grad_total)


def _forward_by_torch(a: NormArguments, residual: Tensor | None, save: bool) -> list[Tensor]:
    x, shape = (a.input if residual is None else a.input + residual), list(a.normalized_shape)
    y, mean, r = torch.native_layer_norm(x, shape, a.weight, a.bias, a.eps)
    saved = [mean, torch.zeros_like(mean), r]
    return [y, *([] if residual is None else [x]), *([s.flatten().float() for s in saved] if save else [])]


def _backward_by_torch(
    a: NormArguments, saved: Sequence[Tensor], grad: Tensor, grad_total: Tensor | None
) -> list[Tensor]:
    shape, leading = list(a.normalized_shape), a.input.shape[: a.input.dim() - len(a.normalized_shape)]
    mean, _, r = (s.view(*leading, *[1] * len(shape)) for s in saved)
    asked = [True, a.weight is not None, a.bias is not None]
    stats = a.input.dtype if a.input.is_cpu else torch.float32
    given = grad, a.input, shape, mean.to(stats), r.to(stats), a.weight, a.bias
    grads = [*torch.ops.aten.native_layer_norm_backward(*given, asked)]
    grads[0] = grads[0] if grad_total is None else grads[0] + grad_total
    return [g for g, wanted in zip(grads, asked, strict=True) if wanted]


def _rows(x: Tensor, M: int, N: int) -> Tensor:
    """Returns the rows, each without gaps; the rows themselves may lie apart."""
    rows = x.reshape(M, N)
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _vector(p: Tensor | None) -> Tensor | None:
    return None if p is None else p.contiguous()


def _tiles(N: int, of_warp: int) -> dict[str, int]:
    """Returns how a row is cut, and how many warps compute it, each at least so many columns."""
    block = min(triton.next_power_of_2(N), MOST_COLUMNS)
    return {"BLOCK": block, "TILES": triton.cdiv(N, block), "num_warps": max(1, min(16, block // of_warp))}
