"""The kernels of one step of a recurrent layer, forward and back, and the product with W_hh.

A kernel that runs inside a CUDA graph finds all that differs from call to call in a table of 64-bit numbers in device
memory, which `begin` writes: the number of the step, and addresses. One program computes one row. Its gates are the
rows of one tile, [4, BLOCK] or, in an RNN, [1, BLOCK].
"""

from __future__ import annotations

import triton
import triton.language as tl

SLOTS = (
    "step", "steps", "w", "x", "after", "before_h", "before_c", "active", "cut", "restart_h", "restart_c", "dropout",
    "kept_h", "kept_c", "first", "count", "gain_hidden", "inside_hidden", "outside_hidden", "gain_both",
    "outside_both", "gain_cell", "outside_cell",
    # of the way back
    "dy", "gates", "other", "start", "hat_hidden", "r_hidden", "hat_both", "r_both", "hat_cell", "r_cell", "da",
    "d_input", "d_hidden", "dzh", "dn", "d_restart_h", "d_restart_c",
)  # fmt: skip
"""What the table has, in its order: numbers and addresses."""

# Triton looks names up one by one, so that each slot needs one of its own.
(AT_STEP, AT_STEPS, AT_W, AT_X, AT_AFTER, AT_BEFORE_H) = map(tl.constexpr, range(6))
(AT_BEFORE_C, AT_ACTIVE, AT_CUT, AT_RESTART_H, AT_RESTART_C) = map(tl.constexpr, range(6, 11))
(AT_DROPOUT, AT_KEPT_H, AT_KEPT_C, AT_FIRST, AT_COUNT) = map(tl.constexpr, range(11, 16))
(AT_GAIN_HIDDEN, AT_INSIDE_HIDDEN, AT_OUTSIDE_HIDDEN, AT_GAIN_BOTH, AT_OUTSIDE_BOTH) = map(tl.constexpr, range(16, 21))
(AT_GAIN_CELL, AT_OUTSIDE_CELL, AT_DY, AT_GATES, AT_OTHER) = map(tl.constexpr, range(21, 26))
(AT_START, AT_HAT_HIDDEN, AT_R_HIDDEN, AT_HAT_BOTH, AT_R_BOTH) = map(tl.constexpr, range(26, 31))
(AT_HAT_CELL, AT_R_CELL, AT_DA, AT_D_INPUT, AT_D_HIDDEN) = map(tl.constexpr, range(31, 36))
(AT_DZH, AT_DN, AT_D_RESTART_H, AT_D_RESTART_C) = map(tl.constexpr, range(36, 40))
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
def product(table, a, out, M, STEPS_ON: tl.constexpr, K: tl.constexpr, N: tl.constexpr, W_N: tl.constexpr,
            W_K: tl.constexpr, TYPE: tl.constexpr, PRECISION: tl.constexpr, PART: tl.constexpr, BM: tl.constexpr,
            BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Computes out[s] (M, N) = a (M, K) @ w (K, N) over the s-th part of K; w lies as the strides W_N, W_K say.

    Who reads it adds the parts. STEPS_ON is added to the number of the step. TYPE: of w, and what is multiplied.
    """
    m, n, s = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if (m == 0) & (n == 0) & (s == 0):
        tl.store(table + AT_STEP, tl.load(table + AT_STEP) + STEPS_ON)
    w = tl.load(table + AT_W).to(tl.pointer_type(TYPE))
    rows, cols, ks = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN), s * PART + tl.arange(0, BK)
    a_at = a + rows[:, None] * K + ks[None, :]
    w_at = w + cols[None, :] * W_N + ks[:, None] * W_K
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, PART, BK):
        inside = ks + k < K
        left = tl.load(a_at + k, mask=(rows < M)[:, None] & inside[None, :], other=0.0).to(TYPE)
        right = tl.load(w_at + k * W_K, mask=(cols < N)[None, :] & inside[:, None], other=0.0)
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
def start_step(table, h, c, h_now, c_now, h_read, t, T, b, B, j, mask, H: tl.constexpr, NETWORK: tl.constexpr,
               CUT: tl.constexpr, RESTART: tl.constexpr, DROPOUT: tl.constexpr, PACKED: tl.constexpr):  # fmt: skip
    """Writes the state that step t starts from: after a cut the restart. ``h_read``: as W_hh reads it."""
    at = b * H + j
    if CUT:
        if t < T:
            line = line_of(table, t, b, B, PACKED)
            if line >= 0:
                if flag(table, AT_CUT, line):
                    h, c = 0.0 * h, 0.0 * c
                    if RESTART:
                        h = tl.load(address(table, AT_RESTART_H) + at, mask=mask, other=0.0)
                        if NETWORK == LSTM:
                            c = tl.load(address(table, AT_RESTART_C) + at, mask=mask, other=0.0)
    tl.store(h_now + at, h, mask=mask)
    if NETWORK == LSTM:
        tl.store(c_now + at, c, mask=mask)
    if DROPOUT:
        h = h * tl.load(address(table, AT_DROPOUT) + at, mask=mask, other=0.0)
    tl.store(h_read + at, h, mask=mask)


@triton.jit
def start_first(table, h0, c0, h_now, c_now, h_read, B, H: tl.constexpr, NETWORK: tl.constexpr, CUT: tl.constexpr,
                RESTART: tl.constexpr, DROPOUT: tl.constexpr, PACKED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Writes the state that the first step starts from."""
    b, j = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    mask = j < H
    h = tl.load(h0 + b * H + j, mask=mask, other=0.0)
    c = tl.load(c0 + b * H + j, mask=mask, other=0.0) if NETWORK == LSTM else h
    start_step(table, h, c, h_now, c_now, h_read, 0, tl.load(table + AT_STEPS), b, B, j, mask, H, NETWORK, CUT, RESTART,
               DROPOUT, PACKED)  # fmt: skip


@triton.jit
def forward_step(table, zh, h_now, c_now, h_read, B, eps, forget_bias, NETWORK: tl.constexpr, RELU: tl.constexpr,
                 OVER_ALL: tl.constexpr, H: tl.constexpr, GATES: tl.constexpr, SPANS: tl.constexpr,
                 PARTS: tl.constexpr, HIDDEN: tl.constexpr, INSIDE: tl.constexpr, OUTSIDE: tl.constexpr,
                 BOTH: tl.constexpr, OUTSIDE_BOTH: tl.constexpr, CELL: tl.constexpr, CARRY: tl.constexpr,
                 OUTSIDE_CELL: tl.constexpr, RMS: tl.constexpr, DEVIATION: tl.constexpr, ACTIVE: tl.constexpr,
                 CUT: tl.constexpr, RESTART: tl.constexpr, DROPOUT: tl.constexpr, KEPT_H: tl.constexpr,
                 KEPT_C: tl.constexpr, PACKED: tl.constexpr, SAVE: tl.constexpr, GATES_IN_TILE: tl.constexpr,
                 BLOCK: tl.constexpr):  # fmt: skip
    """Takes one step of one row. `product` has counted it before. KEPT: 0 no zoneout, 1 one share, 2 a share each."""
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
        old_h = tl.load(h_now + at, mask=mask, other=0.0)
        old_c = tl.load(c_now + at, mask=mask, other=0.0) if NETWORK == LSTM else old_h
        if SAVE:
            tl.store(address(table, AT_BEFORE_H) + line * H + j, old_h, mask=mask)
            if NETWORK == LSTM:
                tl.store(address(table, AT_BEFORE_C) + line * H + j, old_c, mask=mask)
        c = old_c
        if NETWORK == RNN:
            h = gate_of(a, 0, GATES_IN_TILE)
            h = tl.where(h > 0, h, 0.0) if RELU else tanh(h)
        if NETWORK == LSTM:
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
            h = (1.0 - z) * cand + z * old_h
        if KEPT_H:
            k = share(table, AT_KEPT_H, KEPT_H == 1, line, H, j, mask)
            h = k * old_h + (1.0 - k) * h
        if KEPT_C:
            k = share(table, AT_KEPT_C, KEPT_C == 1, line, H, j, mask)
            c = k * old_c + (1.0 - k) * c
        if ACTIVE:
            if not flag(table, AT_ACTIVE, line):
                h, c = old_h, old_c
        tl.store(address(table, AT_AFTER) + line * H + j, h, mask=mask)
        start_step(
            table, h, c, h_now, c_now, h_read, t + 1, T, b, B, j, mask, H, NETWORK, CUT, RESTART, DROPOUT, PACKED
        )


@triton.jit
def tile_of(v0, v1, v2, v3, GATES_IN_TILE: tl.constexpr):
    """Makes a tile of four gates, or of the first alone."""
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
def backward_step(table, dh_parts, carry_h, carry_c, dzh_now, B, gate_clip, NETWORK: tl.constexpr,
                  RELU: tl.constexpr, OVER_ALL: tl.constexpr, SPLIT: tl.constexpr, H: tl.constexpr,
                  GATES: tl.constexpr, SPANS: tl.constexpr, PARTS: tl.constexpr, HIDDEN: tl.constexpr,
                  BOTH: tl.constexpr, CELL: tl.constexpr, CARRY: tl.constexpr, CLIP: tl.constexpr,
                  RMS: tl.constexpr, DEVIATION: tl.constexpr, ACTIVE: tl.constexpr, CUT: tl.constexpr,
                  RESTART: tl.constexpr, DROPOUT: tl.constexpr, KEPT_H: tl.constexpr, KEPT_C: tl.constexpr,
                  PACKED: tl.constexpr, GATES_IN_TILE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Takes one step of one row back. `product` counts it afterwards, and multiplies the gradient of W_hh h."""
    b = tl.program_id(0).to(tl.int64)
    t, T = tl.load(table + AT_STEP), tl.load(table + AT_STEPS)
    line = line_of(table, t, b, B, PACKED)
    if line >= 0:
        j, gate = tl.arange(0, BLOCK), tl.arange(0, GATES_IN_TILE)[:, None]
        mask, of_tile = j < H, (gate < GATES) & (tl.arange(0, BLOCK)[None, :] < H)
        unit, at, of_line = gate * H + j[None, :], b * H + j, line * H + j
        n = count_of_spans(H, GATES, SPANS, GATES_IN_TILE)
        zero = tl.zeros((BLOCK,), tl.float32)
        d_h = summed(dh_parts, at, mask, B * H, PARTS)
        if DROPOUT:
            d_h *= tl.load(address(table, AT_DROPOUT) + at, mask=mask, other=0.0)
        d_h += tl.load(carry_h + at, mask=mask, other=0.0)
        d_c = tl.load(carry_c + at, mask=mask, other=0.0) if NETWORK == LSTM else zero
        if CUT:
            if t + 1 < T:
                later = line_of(table, t + 1, b, B, PACKED)
                if later >= 0:
                    if flag(table, AT_CUT, later):
                        if RESTART:
                            to = address(table, AT_D_RESTART_H) + at
                            tl.store(to, tl.load(to, mask=mask, other=0.0) + d_h, mask=mask)
                            if NETWORK == LSTM:
                                to = address(table, AT_D_RESTART_C) + at
                                tl.store(to, tl.load(to, mask=mask, other=0.0) + d_c, mask=mask)
                        d_h, d_c = zero, zero
        takes = True
        if ACTIVE:
            takes = flag(table, AT_ACTIVE, line)
        if takes:
            dh, dc = d_h + tl.load(address(table, AT_DY) + of_line, mask=mask, other=0.0), d_c
            kept_h, kept_c = zero, zero
            if KEPT_H:
                k = share(table, AT_KEPT_H, KEPT_H == 1, line, H, j, mask)
                kept_h = k * dh
                dh = (1.0 - k) * dh
            if KEPT_C:
                k = share(table, AT_KEPT_C, KEPT_C == 1, line, H, j, mask)
                kept_c = k * dc
                dc = (1.0 - k) * dc
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
                    da = tl.minimum(tl.maximum(da, -gate_clip), gate_clip)
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
            tl.store(carry_h + at, kept_h, mask=mask)
            if NETWORK == LSTM:
                tl.store(carry_c + at, kept_c, mask=mask)
        else:
            tl.store(dzh_now + b * GATES * H + unit, 0.0 * unit.to(tl.float32), mask=of_tile)
            tl.store(carry_h + at, d_h, mask=mask)
            if NETWORK == LSTM:
                tl.store(carry_c + at, d_c, mask=mask)
