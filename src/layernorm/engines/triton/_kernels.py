"""The kernels of one step of a recurrent layer, forward and back, and the product with W_hh.

A kernel that runs inside a CUDA graph finds all that differs from call to call in a table of 64-bit numbers in device
memory, which `begin` writes: the number of the step, and addresses. One program computes one row. Its gates are the
rows of one tile, [4, BLOCK] or, in an RNN, [1, BLOCK].
"""

from __future__ import annotations

import triton
import triton.language as tl

SLOTS = (
    "step", "steps", "w", "w_project", "x", "after", "before_h", "before_c", "active", "cut", "restart_h", "restart_c",
    "dropout", "kept_h", "kept_c", "first", "count", "gain_hidden", "inside_hidden", "outside_hidden", "gain_both",
    "outside_both", "gain_cell", "outside_cell",
    # of the way back
    "dy", "gates", "other", "start", "hat_hidden", "r_hidden", "hat_both", "r_both", "hat_cell", "r_cell", "da",
    "d_input", "d_hidden", "dzh", "dn", "dh", "d_restart_h", "d_restart_c",
)  # fmt: skip
"""What the table has, in its order: numbers and addresses."""

# Triton looks names up one by one, so that each slot needs one of its own.
(AT_STEP, AT_STEPS, AT_W, AT_W_PROJECT, AT_X, AT_AFTER, AT_BEFORE_H, AT_BEFORE_C) = map(tl.constexpr, range(8))
(AT_ACTIVE, AT_CUT, AT_RESTART_H, AT_RESTART_C, AT_DROPOUT, AT_KEPT_H, AT_KEPT_C) = map(tl.constexpr, range(8, 15))
(AT_FIRST, AT_COUNT, AT_GAIN_HIDDEN, AT_INSIDE_HIDDEN, AT_OUTSIDE_HIDDEN) = map(tl.constexpr, range(15, 20))
(AT_GAIN_BOTH, AT_OUTSIDE_BOTH, AT_GAIN_CELL, AT_OUTSIDE_CELL, AT_DY, AT_GATES) = map(tl.constexpr, range(20, 26))
(AT_OTHER, AT_START, AT_HAT_HIDDEN, AT_R_HIDDEN, AT_HAT_BOTH, AT_R_BOTH, AT_HAT_CELL) = map(tl.constexpr, range(26, 33))
(AT_R_CELL, AT_DA, AT_D_INPUT, AT_D_HIDDEN, AT_DZH, AT_DN, AT_DH) = map(tl.constexpr, range(33, 40))
(AT_D_RESTART_H, AT_D_RESTART_C) = map(tl.constexpr, range(40, 42))
RNN, LSTM, GRU = map(tl.constexpr, range(3))
TOGETHER, EACH, TWO = map(tl.constexpr, range(3))
"""What is normalised together: all gates, each by itself, or r and z of a GRU, and n by itself."""


@triton.jit
def tanh(x):
    """Computes tanh to a few roundings: by exp and, near 0, by its series."""
    e = tl.exp(-2.0 * tl.abs(x))
    t = (1.0 - e) / (1.0 + e)
    s = x * x
    near = x * (1.0 + s * (-0.333333333 + s * (0.133333333 + s * (-0.0539682540 + s * 0.0218694885))))
    return tl.where(tl.abs(x) < 0.25, near, tl.where(x < 0, -t, t))


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def address(table, slot: tl.constexpr):
    """Returns where a tensor of float32 begins."""
    return tl.load(table + slot).to(tl.pointer_type(tl.float32))


@triton.jit
def gate_of(tile, k: tl.constexpr, GATES_IN_TILE: tl.constexpr):
    """Returns one gate of a tile, [BLOCK]."""
    of = tl.arange(0, GATES_IN_TILE)[:, None]
    return tl.sum(tl.where(of == k, tile, 0.0), 0)


@triton.jit
def over_spans(tile, SPANS: tl.constexpr, GATES_IN_TILE: tl.constexpr):
    """Returns for each gate the sum over its span, [gates, 1]."""
    of_gate = tl.sum(tile, 1)
    gate = tl.arange(0, GATES_IN_TILE)
    if SPANS == TOGETHER:
        total = tl.sum(of_gate, 0)
        of_gate = tl.where(gate >= 0, total, 0.0)
    if SPANS == TWO:
        first, last = tl.sum(tl.where(gate < 2, of_gate, 0.0), 0), tl.sum(tl.where(gate == 2, of_gate, 0.0), 0)
        of_gate = tl.where(gate < 2, first, last)
    return of_gate[:, None]


@triton.jit
def count_of_spans(H: tl.constexpr, GATES: tl.constexpr, SPANS: tl.constexpr, GATES_IN_TILE: tl.constexpr):
    """Returns for each gate how many numbers its span has, [gates, 1]."""
    gate = tl.arange(0, GATES_IN_TILE)[:, None]
    if SPANS == TOGETHER:
        return tl.where(gate >= 0, GATES * H, 0).to(tl.float32)
    if SPANS == EACH:
        return tl.where(gate >= 0, H, 0).to(tl.float32)
    return tl.where(gate < 2, 2 * H, H).to(tl.float32)


@triton.jit
def normalised(z, mask, n, eps, SPANS: tl.constexpr, GATES_IN_TILE: tl.constexpr, RMS: tl.constexpr,
               DEVIATION: tl.constexpr):  # fmt: skip
    """Computes z_hat of a tile: the mean, then what its rounding left over together with the squares."""
    u = tl.where(mask, z, 0.0)
    if not RMS:
        u = tl.where(mask, z - over_spans(u, SPANS, GATES_IN_TILE) / n, 0.0)
        u = tl.where(mask, u - over_spans(u, SPANS, GATES_IN_TILE) / n, 0.0)
    square = over_spans(u * u, SPANS, GATES_IN_TILE) / n
    r = 1.0 / (tl.sqrt(square) + eps) if DEVIATION else 1.0 / tl.sqrt(square + eps)
    return u * r


@triton.jit
def backward_of(d, z_hat, r, n, SPANS: tl.constexpr, GATES_IN_TILE: tl.constexpr, RMS: tl.constexpr,
                DEVIATION: tl.constexpr):  # fmt: skip
    """Computes the gradient of z from d of z_hat: r * (d - mean(d) - z_hat * mean(d * z_hat))."""
    along = over_spans(d * z_hat, SPANS, GATES_IN_TILE) / n
    direction = z_hat
    if DEVIATION:
        size = tl.sqrt(over_spans(z_hat * z_hat, SPANS, GATES_IN_TILE) / n)
        direction = tl.where(size == 0.0, 0.0, z_hat / tl.where(size == 0.0, 1.0, size))
    if not RMS:
        d = d - over_spans(d, SPANS, GATES_IN_TILE) / n
    return r * (d - direction * along)


@triton.jit(do_not_specialize=["first_step", "steps"])
def begin(table, first_step, steps, odd):
    """Writes the table: the number of the first step, how many there are, and addresses, from 2 times each, + 1."""
    tl.store(table + AT_STEP, first_step)
    tl.store(table + AT_STEPS, steps)
    for k in tl.static_range(len(odd)):
        tl.store(table + AT_W + k, odd[k] >> 1)


@triton.jit
def as_tf32(x):
    """Rounds to the nearest TF32: a product by itself cuts the last 13 bits off."""
    bits = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
    return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)  # not NaN, which can be 0x7fffffff


@triton.jit
def product(table, a, out, M, W_AT: tl.constexpr, STEPS_ON: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
            W_N: tl.constexpr, W_K: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr, PART: tl.constexpr,
            BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Computes out[s] (M, N) = a (M, K) @ w (K, N) over the s-th part of K; w lies as the strides W_N, W_K say.

    Who reads it adds the parts. W_AT: the slot of w. STEPS_ON is added to the number of the step. TYPE: of w, and of
    what is multiplied.
    """
    m, n, s = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2).to(tl.int64)
    if STEPS_ON != 0:
        if (m == 0) & (n == 0) & (s == 0):
            tl.store(table + AT_STEP, tl.load(table + AT_STEP) + STEPS_ON)
    w = tl.multiple_of(tl.load(table + W_AT).to(tl.pointer_type(TYPE)), 16)  # so that copies are of 16 bytes
    rows, cols, ks = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN), s * PART + tl.arange(0, BK)
    a_at = a + rows[:, None] * K + ks[None, :]
    w_at = w + cols[None, :] * W_N + ks[:, None] * W_K
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, PART, BK):
        inside = ks + k < K
        left = tl.load(a_at + k, mask=(rows < M)[:, None] & inside[None, :], other=0.0).to(TYPE)
        right = tl.load(w_at + k * W_K, mask=(cols < N)[None, :] & inside[:, None], other=0.0)
        if PRECISION == "tf32":
            left, right = as_tf32(left), as_tf32(right)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    at = out + s * M * N + rows[:, None] * N + cols[None, :]
    tl.store(at, total, mask=(rows < M)[:, None] & (cols < N)[None, :])


@triton.jit
def summed(z, at, mask, size, PARTS: tl.constexpr):
    """Loads the sum of the parts of a product."""
    total = tl.load(z + at, mask=mask, other=0.0)
    for s in tl.static_range(1, PARTS):
        total += tl.load(z + s * size + at, mask=mask, other=0.0)
    return total


@triton.jit
def line_of(table, t, b, B, PACKED: tl.constexpr):
    """Returns the line of row b's step t; below 0: the row has no step then."""
    if PACKED:
        first = tl.load(tl.load(table + AT_FIRST).to(tl.pointer_type(tl.int64)) + t)
        count = tl.load(tl.load(table + AT_COUNT).to(tl.pointer_type(tl.int64)) + t)
        return tl.where(b < count, first + b, -1)
    return t * B + b


@triton.jit
def flag(table, slot: tl.constexpr, line):
    """Says whether a mask is set at a line."""
    return tl.load(tl.load(table + slot).to(tl.pointer_type(tl.int8)) + line) != 0


@triton.jit
def share(table, slot: tl.constexpr, ONE: tl.constexpr, line, H: tl.constexpr, j, mask):
    """Returns the share of the old state that zoneout keeps."""
    at = address(table, slot)
    if ONE:
        return tl.load(at + 0 * j)
    return tl.load(at + line * H + j, mask=mask, other=0.0)


@triton.jit
def start_of(table, part, t, T, b, B, at, mask, RESTART_AT: tl.constexpr, CUT: tl.constexpr, RESTART: tl.constexpr,
             PACKED: tl.constexpr):  # fmt: skip
    """Returns a part of the state that step t starts from: after a cut the restart."""
    if CUT:
        if t < T:
            line = line_of(table, t, b, B, PACKED)
            if line >= 0:
                if flag(table, AT_CUT, line):
                    part = tl.zeros_like(part)  # NaN, too, is cut
                    if RESTART:
                        part = tl.load(address(table, RESTART_AT) + at, mask=mask, other=0.0)
    return part


@triton.jit
def after_step(table, new, old, line, j, mask, W: tl.constexpr, KEPT_AT: tl.constexpr, KEPT: tl.constexpr,
               ACTIVE: tl.constexpr):  # fmt: skip
    """Returns a part of the state after a step, of which zoneout keeps a share; a row that has ended stands still."""
    if KEPT:
        k = share(table, KEPT_AT, KEPT == 1, line, W, j, mask)
        new = k * old + (1.0 - k) * new
    if ACTIVE:
        if not flag(table, AT_ACTIVE, line):
            new = old
    return new


@triton.jit
def start_h(table, h, t, T, h_now, h_read, b, B, at, mask, CUT: tl.constexpr, RESTART: tl.constexpr,
            DROPOUT: tl.constexpr, PACKED: tl.constexpr):  # fmt: skip
    """Writes the h that step t starts from. ``h_read``: as W_hh reads it."""
    h = start_of(table, h, t, T, b, B, at, mask, AT_RESTART_H, CUT, RESTART, PACKED)
    tl.store(h_now + at, h, mask=mask)
    if DROPOUT:
        h = h * tl.load(address(table, AT_DROPOUT) + at, mask=mask, other=0.0)
    tl.store(h_read + at, h, mask=mask)


@triton.jit
def start_first(table, h0, c0, h_now, c_now, h_read, B, H: tl.constexpr, P: tl.constexpr, NETWORK: tl.constexpr,
                CUT: tl.constexpr, RESTART: tl.constexpr, DROPOUT: tl.constexpr, PACKED: tl.constexpr,
                BLOCK: tl.constexpr):  # fmt: skip
    """Writes the state that the first step starts from."""
    b, j, T = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK), tl.load(table + AT_STEPS)
    at, mask = b * P + j, j < P
    h = tl.load(h0 + at, mask=mask, other=0.0)
    start_h(table, h, 0, T, h_now, h_read, b, B, at, mask, CUT, RESTART, DROPOUT, PACKED)
    if NETWORK == LSTM:
        at, mask = b * H + j, j < H
        c = tl.load(c0 + at, mask=mask, other=0.0)
        c = start_of(table, c, 0, T, b, B, at, mask, AT_RESTART_C, CUT, RESTART, PACKED)
        tl.store(c_now + at, c, mask=mask)


@triton.jit
def finish_h(table, h, t, T, line, h_now, h_read, b, B, j, P: tl.constexpr, ACTIVE: tl.constexpr, CUT: tl.constexpr,
             RESTART: tl.constexpr, DROPOUT: tl.constexpr, KEPT_H: tl.constexpr, PACKED: tl.constexpr,
             SAVE: tl.constexpr):  # fmt: skip
    """Writes h after step t, and what the next step starts from."""
    at, mask, of_line = b * P + j, j < P, line * P + j
    old = tl.load(h_now + at, mask=mask, other=0.0)
    if SAVE:
        tl.store(address(table, AT_BEFORE_H) + of_line, old, mask=mask)
    h = after_step(table, h, old, line, j, mask, P, AT_KEPT_H, KEPT_H, ACTIVE)
    tl.store(address(table, AT_AFTER) + of_line, h, mask=mask)
    start_h(table, h, t + 1, T, h_now, h_read, b, B, at, mask, CUT, RESTART, DROPOUT, PACKED)


@triton.jit
def project_step(table, projected, h_now, h_read, B, P: tl.constexpr, PARTS: tl.constexpr, ACTIVE: tl.constexpr,
                 CUT: tl.constexpr, RESTART: tl.constexpr, DROPOUT: tl.constexpr, KEPT_H: tl.constexpr,
                 PACKED: tl.constexpr, SAVE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Ends a step of a row whose h is W_hr m."""
    b, j = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    t, T = tl.load(table + AT_STEP) - 1, tl.load(table + AT_STEPS)
    line = line_of(table, t, b, B, PACKED)
    if line >= 0:
        h = summed(projected, b * P + j, j < P, B * P, PARTS)
        finish_h(table, h, t, T, line, h_now, h_read, b, B, j, P, ACTIVE, CUT, RESTART, DROPOUT, KEPT_H, PACKED, SAVE)


@triton.jit
def forward_step(table, zh, h_now, c_now, h_read, m, B, eps, forget_bias, NETWORK: tl.constexpr, RELU: tl.constexpr,
                 OVER_ALL: tl.constexpr, PROJECTED: tl.constexpr, H: tl.constexpr, GATES: tl.constexpr,
                 SPANS: tl.constexpr, PARTS: tl.constexpr, HIDDEN: tl.constexpr, INSIDE: tl.constexpr,
                 OUTSIDE: tl.constexpr,
                 BOTH: tl.constexpr, OUTSIDE_BOTH: tl.constexpr, CELL: tl.constexpr, CARRY: tl.constexpr,
                 OUTSIDE_CELL: tl.constexpr, RMS: tl.constexpr, DEVIATION: tl.constexpr, ACTIVE: tl.constexpr,
                 CUT: tl.constexpr, RESTART: tl.constexpr, DROPOUT: tl.constexpr, KEPT_H: tl.constexpr,
                 KEPT_C: tl.constexpr, PACKED: tl.constexpr, SAVE: tl.constexpr, GATES_IN_TILE: tl.constexpr,
                 BLOCK: tl.constexpr):  # fmt: skip
    """Takes one step of one row. `product` has counted it before. KEPT: 0 no zoneout, 1 one share, 2 a share each.

    ``m`` is o * tanh(...), for the projection.
    """
    b = tl.program_id(0).to(tl.int64)
    t, T = tl.load(table + AT_STEP) - 1, tl.load(table + AT_STEPS)
    line = line_of(table, t, b, B, PACKED)
    if line >= 0:
        j, gate = tl.arange(0, BLOCK), tl.arange(0, GATES_IN_TILE)[:, None]
        mask, of_tile = j < H, (gate < GATES) & (tl.arange(0, BLOCK)[None, :] < H)
        unit = gate * H + j[None, :]
        n = count_of_spans(H, GATES, SPANS, GATES_IN_TILE)
        y = summed(zh + b * GATES * H, unit, of_tile, B * GATES * H, PARTS)
        if INSIDE:
            y += tl.load(address(table, AT_INSIDE_HIDDEN) + unit, mask=of_tile, other=0.0)
        if HIDDEN:
            y = normalised(y, of_tile, n, eps, SPANS, GATES_IN_TILE, RMS, DEVIATION)
            y *= tl.load(address(table, AT_GAIN_HIDDEN) + unit, mask=of_tile, other=0.0)
        if OUTSIDE:
            y += tl.load(address(table, AT_OUTSIDE_HIDDEN) + unit, mask=of_tile, other=0.0)
        x = tl.load(address(table, AT_X) + line * GATES * H + unit, mask=of_tile, other=0.0)
        a = x + y
        if BOTH:
            gain = tl.load(address(table, AT_GAIN_BOTH) + unit, mask=of_tile, other=0.0)
            a = normalised(a, of_tile, n, eps, SPANS, GATES_IN_TILE, RMS, DEVIATION) * gain
        if OUTSIDE_BOTH:
            a += tl.load(address(table, AT_OUTSIDE_BOTH) + unit, mask=of_tile, other=0.0)
        at = b * H + j
        if NETWORK == RNN:
            h = gate_of(a, 0, GATES_IN_TILE)
            h = tl.where(h <= 0, 0.0, h) if RELU else tanh(h)
        if NETWORK == LSTM:
            old_c = tl.load(c_now + at, mask=mask, other=0.0)
            if SAVE:
                tl.store(address(table, AT_BEFORE_C) + line * H + j, old_c, mask=mask)
            i, f = sigmoid(gate_of(a, 0, GATES_IN_TILE)), sigmoid(gate_of(a, 1, GATES_IN_TILE) + forget_bias)
            g, o = tanh(gate_of(a, 2, GATES_IN_TILE)), sigmoid(gate_of(a, 3, GATES_IN_TILE))
            c = f * old_c + i * g
            to_h = c
            if CELL:
                hat = normalised(c[None, :], mask[None, :], H * 1.0, eps, EACH, 1, RMS, DEVIATION)
                to_h = tl.sum(hat, 0) * tl.load(address(table, AT_GAIN_CELL) + j, mask=mask, other=0.0)
            if OUTSIDE_CELL:
                to_h += tl.load(address(table, AT_OUTSIDE_CELL) + j, mask=mask, other=0.0)
            h = o * tanh(to_h)
            if CARRY:
                c = to_h
            c = after_step(table, c, old_c, line, j, mask, H, AT_KEPT_C, KEPT_C, ACTIVE)
            c = start_of(table, c, t + 1, T, b, B, at, mask, AT_RESTART_C, CUT, RESTART, PACKED)
            tl.store(c_now + at, c, mask=mask)
        if NETWORK == GRU:
            r, z = sigmoid(gate_of(a, 0, GATES_IN_TILE)), sigmoid(gate_of(a, 1, GATES_IN_TILE) + forget_bias)
            if OVER_ALL and BOTH:
                a_n = r * gate_of(a, 2, GATES_IN_TILE)
            else:
                a_n = gate_of(x, 2, GATES_IN_TILE) + r * gate_of(y, 2, GATES_IN_TILE)
                if BOTH:
                    hat = normalised(a_n[None, :], mask[None, :], H * 1.0, eps, EACH, 1, RMS, DEVIATION)
                    a_n = tl.sum(hat, 0) * gate_of(gain, 2, GATES_IN_TILE)
                if OUTSIDE_BOTH:
                    a_n += tl.load(address(table, AT_OUTSIDE_BOTH) + 2 * H + j, mask=mask, other=0.0)
            cand = tanh(a_n)
            h = (1.0 - z) * cand + z * tl.load(h_now + at, mask=mask, other=0.0)
        if PROJECTED:
            tl.store(m + at, h, mask=mask)
        else:
            finish_h(
                table, h, t, T, line, h_now, h_read, b, B, j, H, ACTIVE, CUT, RESTART, DROPOUT, KEPT_H, PACKED, SAVE
            )


@triton.jit
def tile_of(v0, v1, v2, v3, GATES_IN_TILE: tl.constexpr):
    """Makes a tile of four gates, or of only the first."""
    gate = tl.arange(0, GATES_IN_TILE)[:, None]
    if GATES_IN_TILE == 1:
        return tl.where(gate >= 0, v0[None, :], 0.0)
    low, high = tl.where(gate == 0, v0[None, :], v1[None, :]), tl.where(gate == 2, v2[None, :], v3[None, :])
    return tl.where(gate < 2, low, high)


@triton.jit
def site_backward(d, table, GAIN: tl.constexpr, HAT: tl.constexpr, R: tl.constexpr, line, unit, of_tile, n,
                  GATES: tl.constexpr, H: tl.constexpr, SPANS: tl.constexpr, GATES_IN_TILE: tl.constexpr,
                  RMS: tl.constexpr, DEVIATION: tl.constexpr):  # fmt: skip
    """The way back through a normalisation of the gates. GAIN, HAT, R: slots of the table."""
    gate = tl.arange(0, GATES_IN_TILE)[:, None]
    hat = tl.load(address(table, HAT) + line * GATES * H + unit, mask=of_tile, other=0.0)
    r = tl.load(address(table, R) + line * GATES + gate, mask=gate < GATES, other=0.0)
    d = d * tl.load(address(table, GAIN) + unit, mask=of_tile, other=0.0)
    return tl.where(of_tile, backward_of(d, hat, r, n, SPANS, GATES_IN_TILE, RMS, DEVIATION), 0.0)


@triton.jit
def met(table, d, t, T, b, B, at, mask, TO: tl.constexpr, CUT: tl.constexpr, RESTART: tl.constexpr,
        PACKED: tl.constexpr):  # fmt: skip
    """Returns the gradient of a part of the state after step t; one that comes from after a cut goes to the restart."""
    if CUT:
        if t + 1 < T:
            later = line_of(table, t + 1, b, B, PACKED)
            if later >= 0:
                if flag(table, AT_CUT, later):
                    if RESTART:
                        to = address(table, TO) + at
                        tl.store(to, tl.load(to, mask=mask, other=0.0) + d, mask=mask)
                    d = tl.zeros_like(d)
    return d


@triton.jit
def divided(table, d, line, j, mask, W: tl.constexpr, KEPT_AT: tl.constexpr, KEPT: tl.constexpr, ACTIVE: tl.constexpr):
    """Divides the gradient of a part of the state after a step into what goes through the step and what goes past."""
    past = tl.zeros_like(d)
    if ACTIVE:
        takes = flag(table, AT_ACTIVE, line)
        d, past = tl.where(takes, d, 0.0), tl.where(takes, 0.0, d)
    if KEPT:
        k = share(table, KEPT_AT, KEPT == 1, line, W, j, mask)
        past += k * d
        d = (1.0 - k) * d
    return d, past


@triton.jit
def gradient_of_h(table, dh_parts, carry_h, t, T, line, b, B, j, P: tl.constexpr, PARTS: tl.constexpr,
                  ACTIVE: tl.constexpr, CUT: tl.constexpr, RESTART: tl.constexpr, DROPOUT: tl.constexpr,
                  KEPT_H: tl.constexpr, PACKED: tl.constexpr):  # fmt: skip
    """Returns the gradient of h after step t, from the next step and the output, `divided`."""
    at, mask = b * P + j, j < P
    d = summed(dh_parts, at, mask, B * P, PARTS)
    if DROPOUT:
        d *= tl.load(address(table, AT_DROPOUT) + at, mask=mask, other=0.0)
    d = met(table, d + tl.load(carry_h + at, mask=mask, other=0.0), t, T, b, B, at, mask, AT_D_RESTART_H, CUT, RESTART,
            PACKED)  # fmt: skip
    of_output = tl.load(address(table, AT_DY) + line * P + j, mask=mask, other=0.0)
    if ACTIVE:
        of_output = tl.where(flag(table, AT_ACTIVE, line), of_output, 0.0)
    return divided(table, d + of_output, line, j, mask, P, AT_KEPT_H, KEPT_H, ACTIVE)


@triton.jit
def project_back(table, dh_parts, carry_h, dh_now, B, P: tl.constexpr, PARTS: tl.constexpr, ACTIVE: tl.constexpr,
                 CUT: tl.constexpr, RESTART: tl.constexpr, DROPOUT: tl.constexpr, KEPT_H: tl.constexpr,
                 PACKED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Begins a step of a row back, whose h is W_hr m: writes the gradient of h."""
    b, j = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    t, T = tl.load(table + AT_STEP), tl.load(table + AT_STEPS)
    line = line_of(table, t, b, B, PACKED)
    if line >= 0:
        dh, kept_h = gradient_of_h(table, dh_parts, carry_h, t, T, line, b, B, j, P, PARTS, ACTIVE, CUT, RESTART,
                                   DROPOUT, KEPT_H, PACKED)  # fmt: skip
        tl.store(dh_now + b * P + j, dh, mask=j < P)
        tl.store(carry_h + b * P + j, kept_h, mask=j < P)
        tl.store(address(table, AT_DH) + line * P + j, dh, mask=j < P)


@triton.jit
def backward_step(table, dh_parts, carry_h, carry_c, dzh_now, B, gate_clip, NETWORK: tl.constexpr,
                  RELU: tl.constexpr, OVER_ALL: tl.constexpr, SPLIT: tl.constexpr, PROJECTED: tl.constexpr,
                  H: tl.constexpr, GATES: tl.constexpr, SPANS: tl.constexpr, PARTS: tl.constexpr, HIDDEN: tl.constexpr,
                  BOTH: tl.constexpr, CELL: tl.constexpr, CARRY: tl.constexpr, CLIP: tl.constexpr,
                  RMS: tl.constexpr, DEVIATION: tl.constexpr, ACTIVE: tl.constexpr, CUT: tl.constexpr,
                  RESTART: tl.constexpr, DROPOUT: tl.constexpr, KEPT_H: tl.constexpr, KEPT_C: tl.constexpr,
                  PACKED: tl.constexpr, GATES_IN_TILE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Takes one step of one row back. `product` counts it afterwards, and multiplies the gradient of W_hh h.

    ``dh_parts``: of the next step, or, with a projection, the gradient of m.
    """
    b = tl.program_id(0).to(tl.int64)
    t, T = tl.load(table + AT_STEP), tl.load(table + AT_STEPS)
    line = line_of(table, t, b, B, PACKED)
    if line >= 0:
        j, gate = tl.arange(0, BLOCK), tl.arange(0, GATES_IN_TILE)[:, None]
        mask, of_tile = j < H, (gate < GATES) & (tl.arange(0, BLOCK)[None, :] < H)
        unit, at, of_line = gate * H + j[None, :], b * H + j, line * H + j
        n = count_of_spans(H, GATES, SPANS, GATES_IN_TILE)
        zero = tl.zeros((BLOCK,), tl.float32)
        if PROJECTED:
            dh, kept_h = summed(dh_parts, at, mask, B * H, PARTS), zero
        else:
            dh, kept_h = gradient_of_h(table, dh_parts, carry_h, t, T, line, b, B, j, H, PARTS, ACTIVE, CUT, RESTART,
                                       DROPOUT, KEPT_H, PACKED)  # fmt: skip
        if NETWORK == LSTM:
            dc = met(table, tl.load(carry_c + at, mask=mask, other=0.0), t, T, b, B, at, mask, AT_D_RESTART_C, CUT,
                     RESTART, PACKED)  # fmt: skip
            dc, kept_c = divided(table, dc, line, j, mask, H, AT_KEPT_C, KEPT_C, ACTIVE)
        own = address(table, AT_GATES) + line * GATES * H + j
        if NETWORK == RNN:
            h = tl.load(own, mask=mask, other=0.0)
            da = tile_of(tl.where(h > 0, dh, 0.0) if RELU else dh * (1.0 - h * h), zero, zero, zero, GATES_IN_TILE)
        if NETWORK == LSTM:
            i, f = tl.load(own, mask=mask, other=0.0), tl.load(own + H, mask=mask, other=0.0)
            g, o = tl.load(own + 2 * H, mask=mask, other=0.0), tl.load(own + 3 * H, mask=mask, other=0.0)
            of_c = tl.load(address(table, AT_OTHER) + of_line, mask=mask, other=0.0)
            dn = dh * o * (1.0 - of_c * of_c)
            if CARRY:
                dn += dc
            to_c = dn
            if CELL:
                d = dn * tl.load(address(table, AT_GAIN_CELL) + j, mask=mask, other=0.0)
                hat = tl.load(address(table, AT_HAT_CELL) + of_line, mask=mask, other=0.0)
                r_c = tl.load(address(table, AT_R_CELL) + line)
                to_c = tl.sum(backward_of(d[None, :], hat[None, :], r_c, H * 1.0, EACH, 1, RMS, DEVIATION), 0)
                to_c = tl.where(mask, to_c, 0.0)
            dc = to_c if CARRY else dc + to_c
            before = tl.load(address(table, AT_START) + of_line, mask=mask, other=0.0)
            da = tile_of(dc * g * i * (1.0 - i), dc * before * f * (1.0 - f), dc * i * (1.0 - g * g),
                         dh * of_c * o * (1.0 - o), GATES_IN_TILE)  # fmt: skip
            if CLIP:
                da = tl.maximum(da, -gate_clip, propagate_nan=tl.PropagateNan.ALL)
                da = tl.minimum(da, gate_clip, propagate_nan=tl.PropagateNan.ALL)
            tl.store(address(table, AT_DN) + of_line, dn, mask=mask)
            kept_c += dc * f
        if NETWORK == GRU:
            r, z = tl.load(own, mask=mask, other=0.0), tl.load(own + H, mask=mask, other=0.0)
            cand = tl.load(own + 2 * H, mask=mask, other=0.0)
            gated = tl.load(address(table, AT_OTHER) + of_line, mask=mask, other=0.0)
            h = tl.load(address(table, AT_START) + of_line, mask=mask, other=0.0)
            d_n = dh * (1.0 - z) * (1.0 - cand * cand)
            from_n = d_n
            if BOTH and not OVER_ALL:
                alone = tile_of(zero, zero, d_n, zero, GATES_IN_TILE)
                alone = site_backward(alone, table, AT_GAIN_BOTH, AT_HAT_BOTH, AT_R_BOTH, line, unit, of_tile, n,
                                      GATES, H, SPANS, GATES_IN_TILE, RMS, DEVIATION)  # fmt: skip
                from_n = gate_of(alone, 2, GATES_IN_TILE)
            d_z = dh * (h - cand) * z * (1.0 - z)
            d_r = from_n * gated * r * (1.0 - r)
            da = tile_of(d_r, d_z, d_n * r if OVER_ALL else d_n, zero, GATES_IN_TILE)
            kept_h += dh * z
        d_input = da
        if BOTH:
            d_input = site_backward(da, table, AT_GAIN_BOTH, AT_HAT_BOTH, AT_R_BOTH, line, unit, of_tile, n, GATES,
                                    H, SPANS, GATES_IN_TILE, RMS, DEVIATION)  # fmt: skip
        d_hidden = d_input
        if NETWORK == GRU:
            if not OVER_ALL:
                d_hidden = tl.where(gate == 2, d_input * r[None, :], d_input)
            if OVER_ALL and SPLIT:
                d_input = tl.where(gate == 2, d_n[None, :], da)
        dzh = d_hidden
        if HIDDEN:
            dzh = site_backward(d_hidden, table, AT_GAIN_HIDDEN, AT_HAT_HIDDEN, AT_R_HIDDEN, line, unit, of_tile, n,
                                GATES, H, SPANS, GATES_IN_TILE, RMS, DEVIATION)  # fmt: skip
        to = line * GATES * H + unit
        tl.store(address(table, AT_DA) + to, da, mask=of_tile)
        tl.store(address(table, AT_D_INPUT) + to, d_input, mask=of_tile)
        tl.store(address(table, AT_D_HIDDEN) + to, d_hidden, mask=of_tile)
        tl.store(address(table, AT_DZH) + to, dzh, mask=of_tile)
        tl.store(dzh_now + b * GATES * H + unit, dzh, mask=of_tile)
        if not PROJECTED:
            tl.store(carry_h + at, kept_h, mask=mask)
        if NETWORK == LSTM:
            tl.store(carry_c + at, kept_c, mask=mask)
