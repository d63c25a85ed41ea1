"""One time step of a recurrent network, forward and backward: a program takes whole rows of the batch.

The product W_hh h is made outside, one a step; here is everything between two of them. A kernel reads its step's summed
inputs, zx (B, G*H) = W_ih x_t and zh = W_hh h_{t-1}, and the state before the step.

- A row takes the steps 0..lengths-1. After them its state stands still, its output is 0.
- ``cut`` belongs to the step after this one: the state before it is zero.
- ``h`` (float32, in place) is the state after the last step, ``h_next`` the state before the next one, with its cut.
- ``c_last`` and ``c`` are the cell after the step before and after this one; ``cut_before`` is this step's own cut.
- Backward, ``through`` (B, P) is dzh @ W_hh of the step after this one, ``direct`` (float32, in place) what else comes
  to this step's h, ``dc`` (float32, in place) what comes to its c.
- ``v`` are the layer's vectors, ``d`` their gradients, of each program its own part.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ._elementwise import sigmoid, tanh
from ._sites import add_up, load, load_gates, plus, site, site_backward, store_gates, sums

# FORM: what the gates' normalisations are of; without gains a split normalises nothing.
SPLIT, SUM, SUM_OVER_ALL = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
VECTORS = tl.constexpr(8)  # fields of `Vectors`


@triton.jit
def _tile(B, H, GATES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """row [ROWS, 1] in 64 bits, there [ROWS, 1], tile"""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    unit = tl.arange(0, COLUMNS)
    there, within = row < B, unit < H
    own = tl.program_id(0).to(tl.int64) * (VECTORS * GATES * H)
    return row, there, (unit, within, there & within[None, :], H, own)


@triton.jit
def _active(lengths_ptr, row, there, t):
    """Which rows take step t, [ROWS, 1]."""
    active = there
    if lengths_ptr is not None:
        active = there & (tl.load(lengths_ptr + row, mask=there, other=0) > t)
    return active


@triton.jit
def _zero_where(cut_ptr, row, there, z):
    if cut_ptr is not None:
        z = tl.where(tl.load(cut_ptr + row, mask=there, other=0) != 0, 0.0, z)
    return z


@triton.jit
def _emit(h, active, output_ptr, h_ptr, h_next_ptr, cut_ptr, row, there, at, inside):
    """The new h goes to the output, to the final state and to the next step."""
    h = tl.where(active, h, load(h_ptr, at, inside))
    tl.store(h_ptr + at, h, mask=inside)
    tl.store(output_ptr + at, tl.where(active, h, 0.0), mask=inside)
    tl.store(h_next_ptr + at, _zero_where(cut_ptr, row, there, h), mask=inside)


@triton.jit
def _arriving(through_ptr, direct_ptr, dy_ptr, active, cut_ptr, row, there, at, inside):
    """The gradient of this step's h, and what a row that does not take the step hands on."""
    d = _zero_where(cut_ptr, row, there, load(through_ptr, at, inside) + load(direct_ptr, at, inside))
    return tl.where(active, d + load(dy_ptr, at, inside), 0.0), tl.where(active, 0.0, d)


@triton.jit
def _with_inside(zx_ptr, zh_ptr, v, at, tile, GATES: tl.constexpr):
    """zx and zh with the biases that stand inside the normalisations."""
    zx, zh = load_gates(zx_ptr, at, tile, GATES), load_gates(zh_ptr, at, tile, GATES)
    return plus(zx, v.inside_x, tile, 0, GATES), plus(zh, v.inside_h, tile, 0, GATES)


@triton.jit
def _summed(
    zx, zh, v, tile, eps,
    LAYER: tl.constexpr, DEVIATION: tl.constexpr, SHARE: tl.constexpr, FORM: tl.constexpr,
    FIRST: tl.constexpr, GATES: tl.constexpr,
):  # fmt: skip
    """The two parts of a, N(zx) and N(zh) with gains and biases, and what `_summed_backward` needs.

    A sum has one part, N(zx + zh) with gain and biases; the second is then of no meaning."""
    if FORM == SPLIT:
        x, x_hat, x_r = site(zx, v.gain_x, v.outside_x, tile, eps, LAYER, DEVIATION, SHARE, FIRST, GATES)
        h, h_hat, h_r = site(zh, v.gain_h, v.outside_h, tile, eps, LAYER, DEVIATION, SHARE, FIRST, GATES)
    else:
        z = sums(zx, zh, GATES)
        x, x_hat, x_r = site(z, v.gain_x, v.outside_x, tile, eps, LAYER, DEVIATION, SHARE, FIRST, GATES)
        x = plus(x, v.outside_h, tile, FIRST, GATES)
        h, h_hat, h_r = x, x_hat, x_r
    return x, h, (x_hat, x_r, h_hat, h_r)


@triton.jit
def _summed_backward(
    dx, dh, kept, v, d, tile,
    LAYER: tl.constexpr, DEVIATION: tl.constexpr, SHARE: tl.constexpr, FORM: tl.constexpr,
    FIRST: tl.constexpr, GATES: tl.constexpr,
):  # fmt: skip
    """dzx and dzh from the gradients of the two parts; in a sum both are those of zx + zh."""
    x_hat, x_r, h_hat, h_r = kept
    dx = site_backward(
        dx, x_hat, x_r, v.gain_x, d.gain_x, d.outside_x, tile, LAYER, DEVIATION, SHARE, FIRST, GATES
    )  # fmt: skip
    if FORM == SPLIT:
        dh = site_backward(
            dh, h_hat, h_r, v.gain_h, d.gain_h, d.outside_h, tile, LAYER, DEVIATION, SHARE, FIRST, GATES
        )  # fmt: skip
    else:
        dh = dx
    return dx, dh


@triton.jit
def _store_summed_backward(dzx, dzh, dzx_ptr, dzh_ptr, d, at, tile, GATES: tl.constexpr):
    for g in tl.static_range(GATES):
        if d.inside_x is not None:
            add_up(d.inside_x, dzx[g], tile, g)
        if d.inside_h is not None:
            add_up(d.inside_h, dzh[g], tile, g)
    store_gates(dzx_ptr, at, dzx, tile, GATES)
    store_gates(dzh_ptr, at, dzh, tile, GATES)


# --- LSTM ---


@triton.jit
def _lstm(
    zx, zh, c, v, tile, eps, forget_bias,
    LAYER: tl.constexpr, DEVIATION: tl.constexpr, SHARE: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """i, f, g, o; c_t; N(c_t) with gain and bias; and what the backward needs of the sites."""
    x, h, kept = _summed(zx, zh, v, tile, eps, LAYER, DEVIATION, SHARE, FORM, 0, 4)
    a = x
    if FORM == SPLIT:
        a = sums(x, h, 4)
    i, f, g, o = sigmoid(a[0]), sigmoid(a[1] + forget_bias), tanh(a[2]), sigmoid(a[3])
    c = f * c + i * g
    n, c_hat, c_r = site((c,), v.gain_c, v.bias_c, tile, eps, LAYER, DEVIATION, 1, 0, 1)
    return i, f, g, o, c, n[0], c_hat, c_r, kept


@triton.jit(do_not_specialize=["t", "B"])
def lstm_forward(
    zx_ptr, zh_ptr, v, c_last_ptr, c_ptr, m_ptr, output_ptr, h_ptr, h_next_ptr, lengths_ptr, cut_before_ptr, cut_ptr,
    t, B, H, eps, forget_bias,
    LAYER: tl.constexpr, DEVIATION: tl.constexpr, SHARE: tl.constexpr, FORM: tl.constexpr, CARRY: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """With projections only m = o * tanh(N(c)), which is projected, is stored at ``m``, and no h."""
    row, there, tile = _tile(B, H, 4, ROWS, COLUMNS)
    unit, inside = tile[0][None, :], tile[2]
    active, at = _active(lengths_ptr, row, there, t), row * H + unit
    zx, zh = _with_inside(zx_ptr, zh_ptr, v, row * (4 * H) + unit, tile, 4)
    last = load(c_last_ptr, at, inside)
    before = _zero_where(cut_before_ptr, row, there, last)
    _, _, _, o, c, n, _, _, _ = _lstm(zx, zh, before, v, tile, eps, forget_bias, LAYER, DEVIATION, SHARE, FORM)
    m = o * tanh(n)
    if CARRY:
        c = n
    tl.store(c_ptr + at, tl.where(active, c, last), mask=inside)
    if m_ptr is not None:
        tl.store(m_ptr + at, m, mask=inside)
    else:
        _emit(m, active, output_ptr, h_ptr, h_next_ptr, cut_ptr, row, there, at, inside)


@triton.jit(do_not_specialize=["t", "B"])
def lstm_backward(
    zx_ptr, zh_ptr, v, c_last_ptr, through_ptr, direct_ptr, dy_ptr, dm_ptr, m_ptr, dc_ptr,
    lengths_ptr, cut_before_ptr, cut_ptr, dzx_ptr, dzh_ptr, d,
    t, B, H, eps, forget_bias,
    LAYER: tl.constexpr, DEVIATION: tl.constexpr, SHARE: tl.constexpr, FORM: tl.constexpr, CARRY: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """With projections the gradient of m comes at ``dm``, and m itself is stored."""
    row, there, tile = _tile(B, H, 4, ROWS, COLUMNS)
    unit, inside = tile[0][None, :], tile[2]
    active, at, gates_at = _active(lengths_ptr, row, there, t), row * H + unit, row * (4 * H) + unit
    zx, zh = _with_inside(zx_ptr, zh_ptr, v, gates_at, tile, 4)
    before = _zero_where(cut_before_ptr, row, there, load(c_last_ptr, at, inside))
    i, f, g, o, _, n, c_hat, c_r, kept = _lstm(
        zx, zh, before, v, tile, eps, forget_bias, LAYER, DEVIATION, SHARE, FORM
    )  # fmt: skip
    tanh_n = tanh(n)
    if m_ptr is not None:
        dm = tl.where(active, load(dm_ptr, at, inside), 0.0)
        tl.store(m_ptr + at, tl.where(active, o * tanh_n, 0.0), mask=inside)
    else:
        dm, on = _arriving(through_ptr, direct_ptr, dy_ptr, active, cut_ptr, row, there, at, inside)
        tl.store(direct_ptr + at, on, mask=inside)
    arriving = _zero_where(cut_ptr, row, there, load(dc_ptr, at, inside))
    dc = tl.where(active, arriving, 0.0)
    dn = dm * o * (1.0 - tanh_n * tanh_n)
    if CARRY:
        dn, dc = dn + dc, 0.0
    dc += site_backward((dn,), c_hat, c_r, v.gain_c, d.gain_c, d.bias_c, tile, LAYER, DEVIATION, 1, 0, 1)[0]
    da = (
        dc * g * i * (1.0 - i), dc * before * f * (1.0 - f), dc * i * (1.0 - g * g), dm * tanh_n * o * (1.0 - o),
    )  # fmt: skip
    dzx, dzh = _summed_backward(da, da, kept, v, d, tile, LAYER, DEVIATION, SHARE, FORM, 0, 4)
    tl.store(dc_ptr + at, tl.where(active, dc * f, arriving), mask=inside)
    _store_summed_backward(dzx, dzh, dzx_ptr, dzh_ptr, d, gates_at, tile, 4)


@triton.jit(do_not_specialize=["t", "B"])
def projection_forward(
    projected_ptr,
    output_ptr,
    h_ptr,
    h_next_ptr,
    lengths_ptr,
    cut_ptr,
    t,
    B,
    P,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """h = W_hr m, a product made outside, goes where h goes."""
    row, there, tile = _tile(B, P, 1, ROWS, COLUMNS)
    at = row * P + tile[0][None, :]
    h = load(projected_ptr, at, tile[2])
    _emit(h, _active(lengths_ptr, row, there, t), output_ptr, h_ptr, h_next_ptr, cut_ptr, row, there, at, tile[2])


@triton.jit(do_not_specialize=["t", "B"])
def projection_backward(
    through_ptr, direct_ptr, dy_ptr, dh_ptr, lengths_ptr, cut_ptr, t, B, P, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The gradient of h, from which the products with W_hr are made outside."""
    row, there, tile = _tile(B, P, 1, ROWS, COLUMNS)
    at = row * P + tile[0][None, :]
    active = _active(lengths_ptr, row, there, t)
    dh, on = _arriving(through_ptr, direct_ptr, dy_ptr, active, cut_ptr, row, there, at, tile[2])
    tl.store(direct_ptr + at, on, mask=tile[2])
    tl.store(dh_ptr + at, dh, mask=tile[2])


# --- GRU ---


@triton.jit
def _gru(
    zx, zh, v, tile, eps, forget_bias,
    LAYER: tl.constexpr, DEVIATION: tl.constexpr, SHARE: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """r, z, n; what r multiplies; and what the backward needs of the sites: of all gates, and of a sum's candidate."""
    if FORM == SUM:  # the candidate's own normalisation is of what r has multiplied
        a, _, kept = _summed(
            (zx[0], zx[1]), (zh[0], zh[1]), v, tile, eps, LAYER, DEVIATION, SHARE, FORM, 0, 2
        )  # fmt: skip
        r, z, gated = sigmoid(a[0]), sigmoid(a[1] + forget_bias), zh[2]
        a_n, _, kept_n = _summed((zx[2],), (r * gated,), v, tile, eps, LAYER, DEVIATION, 1, FORM, 2, 1)
        n = tanh(a_n[0])
    else:
        x, h, kept = _summed(zx, zh, v, tile, eps, LAYER, DEVIATION, SHARE, FORM, 0, 3)
        kept_n = kept
        if FORM == SPLIT:
            r, z, gated = sigmoid(x[0] + h[0]), sigmoid(x[1] + h[1] + forget_bias), h[2]
            n = tanh(x[2] + r * gated)
        else:
            r, z, gated = sigmoid(x[0]), sigmoid(x[1] + forget_bias), x[2]
            n = tanh(r * gated)
    return r, z, n, gated, kept, kept_n


@triton.jit(do_not_specialize=["t", "B"])
def gru_forward(
    zx_ptr, zh_ptr, v, output_ptr, h_ptr, h_next_ptr, lengths_ptr, cut_before_ptr, cut_ptr,
    t, B, H, eps, forget_bias,
    LAYER: tl.constexpr, DEVIATION: tl.constexpr, SHARE: tl.constexpr, FORM: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """h before the step is the state after the last, in float32, with the cut."""
    row, there, tile = _tile(B, H, 3, ROWS, COLUMNS)
    unit, inside = tile[0][None, :], tile[2]
    at = row * H + unit
    zx, zh = _with_inside(zx_ptr, zh_ptr, v, row * (3 * H) + unit, tile, 3)
    _, z, n, _, _, _ = _gru(zx, zh, v, tile, eps, forget_bias, LAYER, DEVIATION, SHARE, FORM)
    before = _zero_where(cut_before_ptr, row, there, load(h_ptr, at, inside))
    h = (1.0 - z) * n + z * before
    _emit(h, _active(lengths_ptr, row, there, t), output_ptr, h_ptr, h_next_ptr, cut_ptr, row, there, at, inside)


@triton.jit(do_not_specialize=["t", "B"])
def gru_backward(
    zx_ptr, zh_ptr, v, h_before_ptr, through_ptr, direct_ptr, dy_ptr, lengths_ptr, cut_ptr, dzx_ptr, dzh_ptr, d,
    t, B, H, eps, forget_bias,
    LAYER: tl.constexpr, DEVIATION: tl.constexpr, SHARE: tl.constexpr, FORM: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, there, tile = _tile(B, H, 3, ROWS, COLUMNS)
    unit, inside = tile[0][None, :], tile[2]
    active, at, gates_at = _active(lengths_ptr, row, there, t), row * H + unit, row * (3 * H) + unit
    zx, zh = _with_inside(zx_ptr, zh_ptr, v, gates_at, tile, 3)
    r, z, n, gated, kept, kept_n = _gru(zx, zh, v, tile, eps, forget_bias, LAYER, DEVIATION, SHARE, FORM)
    dh, on = _arriving(through_ptr, direct_ptr, dy_ptr, active, cut_ptr, row, there, at, inside)
    tl.store(direct_ptr + at, tl.where(active, dh * z, on), mask=inside)
    dn = dh * (1.0 - z) * (1.0 - n * n)
    d_z = dh * (load(h_before_ptr, at, inside) - n) * z * (1.0 - z)
    if FORM == SUM:
        of_n, _ = _summed_backward((dn,), (dn,), kept_n, v, d, tile, LAYER, DEVIATION, 1, FORM, 2, 1)
        dn = of_n[0]
        d_rz = (dn * gated * r * (1.0 - r), d_z)
        of_rz, _ = _summed_backward(d_rz, d_rz, kept, v, d, tile, LAYER, DEVIATION, SHARE, FORM, 0, 2)
        dzx, dzh = (of_rz[0], of_rz[1], dn), (of_rz[0], of_rz[1], dn * r)
    else:
        d_r = dn * gated * r * (1.0 - r)
        if FORM == SPLIT:
            of_x, of_h = (d_r, d_z, dn), (d_r, d_z, dn * r)
        else:
            of_x, of_h = (d_r, d_z, dn * r), (d_r, d_z, dn * r)
        dzx, dzh = _summed_backward(of_x, of_h, kept, v, d, tile, LAYER, DEVIATION, SHARE, FORM, 0, 3)
    _store_summed_backward(dzx, dzh, dzx_ptr, dzh_ptr, d, gates_at, tile, 3)


# --- RNN ---


@triton.jit
def _rnn(
    zx, zh, v, tile, eps,
    LAYER: tl.constexpr, DEVIATION: tl.constexpr, SHARE: tl.constexpr, FORM: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """h, and what the backward needs of the sites."""
    x, h, kept = _summed(zx, zh, v, tile, eps, LAYER, DEVIATION, SHARE, FORM, 0, 1)
    a = x[0]
    if FORM == SPLIT:
        a += h[0]
    if RELU:
        return tl.where(a < 0.0, 0.0, a), kept
    return tanh(a), kept


@triton.jit(do_not_specialize=["t", "B"])
def rnn_forward(
    zx_ptr, zh_ptr, v, output_ptr, h_ptr, h_next_ptr, lengths_ptr, cut_ptr, t, B, H, eps,
    LAYER: tl.constexpr, DEVIATION: tl.constexpr, SHARE: tl.constexpr, FORM: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, there, tile = _tile(B, H, 1, ROWS, COLUMNS)
    at = row * H + tile[0][None, :]
    zx, zh = _with_inside(zx_ptr, zh_ptr, v, at, tile, 1)
    h, _ = _rnn(zx, zh, v, tile, eps, LAYER, DEVIATION, SHARE, FORM, RELU)
    _emit(h, _active(lengths_ptr, row, there, t), output_ptr, h_ptr, h_next_ptr, cut_ptr, row, there, at, tile[2])


@triton.jit(do_not_specialize=["t", "B"])
def rnn_backward(
    zx_ptr, zh_ptr, v, through_ptr, direct_ptr, dy_ptr, lengths_ptr, cut_ptr, dzx_ptr, dzh_ptr, d, t, B, H, eps,
    LAYER: tl.constexpr, DEVIATION: tl.constexpr, SHARE: tl.constexpr, FORM: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, there, tile = _tile(B, H, 1, ROWS, COLUMNS)
    at = row * H + tile[0][None, :]
    zx, zh = _with_inside(zx_ptr, zh_ptr, v, at, tile, 1)
    h, kept = _rnn(zx, zh, v, tile, eps, LAYER, DEVIATION, SHARE, FORM, RELU)
    active = _active(lengths_ptr, row, there, t)
    dh, on = _arriving(through_ptr, direct_ptr, dy_ptr, active, cut_ptr, row, there, at, tile[2])
    tl.store(direct_ptr + at, on, mask=tile[2])
    da = tl.where(h > 0.0, dh, 0.0) if RELU else dh * (1.0 - h * h)
    dzx, dzh = _summed_backward((da,), (da,), kept, v, d, tile, LAYER, DEVIATION, SHARE, FORM, 0, 1)
    _store_summed_backward(dzx, dzh, dzx_ptr, dzh_ptr, d, at, tile, 1)
