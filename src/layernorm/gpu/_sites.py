"""The places in one step where a normalisation may sit, on the units of whole rows.

A block of gates is a tuple of tiles [ROWS, UNITS], one a gate; ``SHARE`` neighbouring gates have one normalisation. A
site is

    y = N(z + inside) * gain + outside,   N(z) = (z - mean(z)) * r,   r = 1 / sqrt(var(z) + eps)

and without a gain nothing is normalised. Gains and biases are the layer's `Vectors`.

``tile``, where a program's numbers lie, is (unit [UNITS], within [UNITS], inside [ROWS, UNITS], H, own), ``own`` where
its sums over rows lie.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load(pointer, at, inside):
    """In float32, 0 outside."""
    return tl.load(pointer + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def load_gates(pointer, at, tile, GATES: tl.constexpr):
    """A block; ``at``: where the first gate's units lie."""
    _, _, inside, H, _ = tile
    z = ()
    for g in tl.static_range(GATES):
        z += (load(pointer, at + g * H, inside),)
    return z


@triton.jit
def store_gates(pointer, at, z, tile, GATES: tl.constexpr):
    _, _, inside, H, _ = tile
    for g in tl.static_range(GATES):
        tl.store(pointer + at + g * H, z[g], mask=inside)


@triton.jit
def plus(z, pointer, tile, FIRST: tl.constexpr, GATES: tl.constexpr):
    """z + vector; the block's first gate is the layer's gate ``FIRST``."""
    unit, within, _, H, _ = tile
    if pointer is not None:
        y = ()
        for g in tl.static_range(GATES):
            y += (z[g] + load(pointer, (FIRST + g) * H + unit, within)[None, :],)
        z = y
    return z


@triton.jit
def times(z, pointer, tile, FIRST: tl.constexpr, GATES: tl.constexpr):
    """z * vector"""
    unit, within, _, H, _ = tile
    y = ()
    for g in tl.static_range(GATES):
        y += (z[g] * load(pointer, (FIRST + g) * H + unit, within)[None, :],)
    return y


@triton.jit
def sums(a, b, GATES: tl.constexpr):
    """a + b"""
    y = ()
    for g in tl.static_range(GATES):
        y += (a[g] + b[g],)
    return y


@triton.jit
def products(a, b, GATES: tl.constexpr):
    """a * b"""
    y = ()
    for g in tl.static_range(GATES):
        y += (a[g] * b[g],)
    return y


@triton.jit
def means(z, tile, SHARE: tl.constexpr, GATES: tl.constexpr):
    """For each gate [ROWS, 1] the mean over the units of all gates that it shares a normalisation with."""
    found = ()
    for g in tl.static_range(GATES):
        total = z[g // SHARE * SHARE]
        for k in tl.static_range(GATES):
            if k // SHARE == g // SHARE and k % SHARE != 0:
                total += z[k]
        units = tl.cast(tile[3] * min(SHARE, GATES - g // SHARE * SHARE), tl.float32)
        found += (tl.div_rn(tl.sum(total, 1), units)[:, None],)
    return found


@triton.jit
def minus_mean(z, tile, SHARE: tl.constexpr, GATES: tl.constexpr):
    """z - mean(z), 0 outside."""
    mean = means(z, tile, SHARE, GATES)
    y = ()
    for g in tl.static_range(GATES):
        y += (tl.where(tile[2], z[g] - mean[g], 0.0),)
    return y


@triton.jit
def standardize(z, tile, eps, LAYER: tl.constexpr, DEVIATION: tl.constexpr, SHARE: tl.constexpr, GATES: tl.constexpr):
    """z_hat, and r for each gate [ROWS, 1]. The mean is taken away twice: the second time its rounding error."""
    if LAYER:
        z = minus_mean(minus_mean(z, tile, SHARE, GATES), tile, SHARE, GATES)
    square = means(products(z, z, GATES), tile, SHARE, GATES)
    z_hat, r = (), ()
    for g in tl.static_range(GATES):
        if DEVIATION:
            r += (tl.div_rn(1.0, tl.sqrt_rn(square[g]) + eps),)
        else:
            r += (tl.div_rn(1.0, tl.sqrt_rn(square[g] + eps)),)
        z_hat += (z[g] * r[g],)
    return z_hat, r


@triton.jit
def standardize_backward(
    d, z_hat, r, tile, LAYER: tl.constexpr, DEVIATION: tl.constexpr, SHARE: tl.constexpr, GATES: tl.constexpr
):
    """dz = r * (d - z_hat * mean(d * z_hat) - mean(d)); rms has no mean(d). With eps on the deviation, more flows
    through it: by 1 / sqrt(mean(z_hat^2))."""
    along = means(products(d, z_hat, GATES), tile, SHARE, GATES)
    square = means(products(z_hat, z_hat, GATES), tile, SHARE, GATES)
    dz = ()
    for g in tl.static_range(GATES):
        part = along[g]
        if DEVIATION:
            flat = square[g] == 0.0
            part = tl.where(flat, 0.0, tl.div_rn(part, tl.sqrt_rn(tl.where(flat, 1.0, square[g]))))
        dz += (d[g] - z_hat[g] * part,)
    if LAYER:
        dz = minus_mean(dz, tile, SHARE, GATES)
    return products(dz, r, GATES)


@triton.jit
def site(
    z, gain, outside, tile, eps,
    LAYER: tl.constexpr, DEVIATION: tl.constexpr, SHARE: tl.constexpr, FIRST: tl.constexpr, GATES: tl.constexpr,
):  # fmt: skip
    """y, and for `site_backward` z_hat and r; without a gain these are z and nothing."""
    z_hat, r = z, ()
    if gain is not None:
        z_hat, r = standardize(z, tile, eps, LAYER, DEVIATION, SHARE, GATES)
        z = times(z_hat, gain, tile, FIRST, GATES)
    return plus(z, outside, tile, FIRST, GATES), z_hat, r


@triton.jit
def add_up(pointer, values, tile, GATE: tl.constexpr):
    """Adds the sum over rows to the program's own, which no other program touches."""
    unit, within, _, H, own = tile
    at = own + GATE * H + unit
    tl.store(pointer + at, load(pointer, at, within) + tl.sum(values, 0), mask=within)


@triton.jit
def site_backward(
    dy, z_hat, r, gain, d_gain, d_outside, tile,
    LAYER: tl.constexpr, DEVIATION: tl.constexpr, SHARE: tl.constexpr, FIRST: tl.constexpr, GATES: tl.constexpr,
):  # fmt: skip
    """dz; the gradients of gain and outside, where there are such, are added up at ``d_gain`` and ``d_outside``."""
    for g in tl.static_range(GATES):
        if gain is not None:
            add_up(d_gain, dy[g] * z_hat[g], tile, FIRST + g)
        if d_outside is not None:
            add_up(d_outside, dy[g], tile, FIRST + g)
    if gain is not None:
        dy = times(dy, gain, tile, FIRST, GATES)
        dy = standardize_backward(dy, z_hat, r, tile, LAYER, DEVIATION, SHARE, GATES)
    return dy
