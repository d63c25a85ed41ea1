"""The kernels of whole sequences (`_persistent` says how they work and launches them)."""

# Tuples of tiles grow from () in loops that Triton unrolls, which mypy takes for one variable of several types:
# mypy: disable-error-code="assignment"

from __future__ import annotations

import triton
import triton.language as tl

from ._elementwise import sigmoid, tanh
from ._grid import arrive, wait
from ._norms import _reciprocal_deviation

_WIDE = tl.constexpr(bool(triton.knobs.runtime.interpret))  # its tl.dot takes bfloat16 for whole numbers


# --- Parts of both kernels ---


@triton.jit
def _depth(chunk, WARPS: tl.constexpr, DEPTH: tl.constexpr):
    """The summed index of a product in one chunk, (WARPS, DEPTH): each warp sums its own part."""
    return chunk * WARPS * DEPTH + tl.arange(0, WARPS)[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]


@triton.jit
def _resident(
    w_ptr, unit_at, within, k_stride, K: tl.constexpr, CHUNKS: tl.constexpr, WARPS: tl.constexpr, DEPTH: tl.constexpr
):
    """The program's columns of one factor of a product, CHUNKS times (WARPS, DEPTH, HS)."""
    w = ()
    for chunk in tl.static_range(CHUNKS):
        k = _depth(chunk, WARPS, DEPTH)
        inside = (k < K)[:, :, None] & within[None, None, :]
        tile = tl.load(w_ptr + k[:, :, None] * k_stride + unit_at[None, None, :], mask=inside, other=0.0)
        w += (tile.to(tl.float32) if _WIDE else tile,)
    return w


@triton.jit
def _chunk(
    operand_ptr, row_at, there, chunk, K: tl.constexpr, WARPS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A part of the rows of an operand, (WARPS, BR, DEPTH), that other programs have just written."""
    k = _depth(chunk, WARPS, DEPTH)
    inside = there[None, :, None] & (k < K)[:, None, :]
    at = row_at[None, :, None] + k[:, None, :]
    return tl.load(operand_ptr + at, mask=inside, other=0.0, cache_modifier=".cg")


@triton.jit
def _product(
    operand_ptr, row_at, there, w, N: tl.constexpr, K: tl.constexpr, CHUNKS: tl.constexpr, WARPS: tl.constexpr,
    DEPTH: tl.constexpr, AHEAD: tl.constexpr, BR: tl.constexpr, HS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Rows (BR, K) times N factors that are resident: N times (BR, HS). AHEAD further chunks are on their way while one
    is multiplied: each would take a trip to L2."""
    sums = ()
    for _ in tl.static_range(N):
        sums += (tl.zeros([WARPS, BR, HS], tl.float32),)
    chunks = ()
    for chunk in tl.static_range(min(AHEAD, CHUNKS)):
        chunks += (_chunk(operand_ptr, row_at, there, chunk, K, WARPS, DEPTH),)
    for chunk in tl.static_range(CHUNKS):
        if chunk + AHEAD < CHUNKS:
            chunks += (_chunk(operand_ptr, row_at, there, chunk + AHEAD, K, WARPS, DEPTH),)
        added = ()
        for n in tl.static_range(N):
            one = w[n * CHUNKS + chunk]
            added += (tl.dot(chunks[chunk].to(one.dtype), one, sums[n], input_precision=PRECISION),)
        sums = added
    z = ()
    for n in tl.static_range(N):
        z += (tl.sum(sums[n], 0),)
    return z


@triton.jit
def _gates(pointer, at, inside, H: tl.constexpr, G: tl.constexpr):
    """Of each gate (BR, HS), in float32."""
    z = ()
    for g in tl.static_range(G):
        z += (tl.load(pointer + at + g * H, mask=inside, other=0.0).to(tl.float32),)
    return z


@triton.jit
def _parameters(pointer, unit, within, H: tl.constexpr, G: tl.constexpr, ABSENT: tl.constexpr):
    """Of each gate (1, HS); ABSENT where there is none."""
    v = ()
    for g in tl.static_range(G):
        if pointer is None:
            v += (tl.full([1, 1], ABSENT, tl.float32),)
        else:
            v += (tl.load(pointer + g * H + unit, mask=within, other=0.0)[None, :],)
    return v


@triton.jit
def _standardized(z, statistics, at, there, inside, G: tl.constexpr, SHARE: tl.constexpr):
    """(z - mean) * r by the statistics that there are, of each gate; ``at``: of a row's first span."""
    result = ()
    for g in tl.static_range(G):
        u = z[g]
        if statistics.mean is not None:
            u -= tl.load(statistics.mean + at + g // SHARE, mask=there, other=0.0)[:, None]
            u -= tl.load(statistics.rest + at + g // SHARE, mask=there, other=0.0)[:, None]
        if statistics.r is not None:
            u *= tl.load(statistics.r + at + g // SHARE, mask=there, other=0.0)[:, None]
        result += (tl.where(inside, u, 0.0),)
    return result


@triton.jit
def _affine(z, gain, bias, G: tl.constexpr):
    result = ()
    for g in tl.static_range(G):
        result += (z[g] * gain[g] + bias[g],)
    return result


@triton.jit
def _tell(words_ptr, kind, tag, value, piece, KINDS: tl.constexpr, PIECES: tl.constexpr, BR: tl.constexpr):
    """This program's part (BR) of a sum, tagged: tags grow, and two that follow one another lie apart."""
    word = (tl.cast(tag, tl.int64) << 32) | value.to(tl.uint32, bitcast=True).to(tl.int64)
    at = (((tag & 1) * KINDS + kind) * PIECES + piece) * BR + tl.arange(0, BR)
    tl.atomic_xchg(words_ptr + at, word, sem="relaxed", scope="gpu")


@triton.jit
def _hear(words_ptr, kind, tag, KINDS: tl.constexpr, PIECES: tl.constexpr, PADDED: tl.constexpr, BR: tl.constexpr):
    """The parts of all programs (PADDED, BR), 0 beyond them, as soon as all have that tag.

    No program is two tags ahead of another, so that none of them is overwritten before it has been read here: between
    two sums of one kind there is a barrier. And (PADDED, BR) are as many words as there are threads, or more: Triton
    lets several threads load one word each for itself, but asks only one of them whether it has come."""
    piece = tl.arange(0, PADDED)[:, None]
    at = (((tag & 1) * KINDS + kind) * PIECES + piece) * BR + tl.arange(0, BR)[None, :]
    inside = (piece < PIECES) & (tl.arange(0, BR)[None, :] >= 0)
    tagged = tl.cast(tag, tl.int64) << 32
    words = tl.load(words_ptr + at, mask=inside, other=tagged, volatile=True)
    while tl.min(tl.min(words, 1), 0) < tagged:
        words = tl.load(words_ptr + at, mask=inside, other=tagged, volatile=True)
    return words.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _in_span(z, span: tl.constexpr, G: tl.constexpr, SHARE: tl.constexpr):
    """Sum over the gates of a span and the program's units: (BR)."""
    total = tl.sum(z[span * SHARE], 1)
    for g in tl.static_range(G):
        if g // SHARE == span and g != span * SHARE:
            total += tl.sum(z[g], 1)
    return total


# --- Forward ---


@triton.jit
def _tell_squares(
    z, words_ptr, tag, piece, G: tl.constexpr, SHARE: tl.constexpr, SPANS: tl.constexpr, KINDS: tl.constexpr,
    PIECES: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Of each span, over the program's units."""
    squares = ()
    for g in tl.static_range(G):
        squares += (z[g] * z[g],)
    for span in tl.static_range(SPANS):
        _tell(words_ptr, span, tag, _in_span(squares, span, G, SHARE), piece, KINDS, PIECES, BR)


@triton.jit
def _over_deviation(
    z, words_ptr, tag, eps, H: tl.constexpr, G: tl.constexpr, SHARE: tl.constexpr, SPANS: tl.constexpr,
    KINDS: tl.constexpr, PIECES: tl.constexpr, PADDED: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """z * r of each gate, from the squares that all programs have told: z is centred, or is not to be (rms)."""
    result = ()
    for span in tl.static_range(SPANS):
        total = tl.sum(_hear(words_ptr, span, tag, KINDS, PIECES, PADDED, BR), 0)
        r = _reciprocal_deviation(tl.div_rn(total, 1.0 * H * min(SHARE, G - span * SHARE)), eps)
        for g in tl.static_range(G):
            if g // SHARE == span:
                result += (z[g] * r[:, None],)
    return result


@triton.jit
def _cell_standardized(
    c, words_ptr, tag, piece, within, eps, LAYER: tl.constexpr, H: tl.constexpr, HS: tl.constexpr,
    SPANS: tl.constexpr, KINDS: tl.constexpr, PIECES: tl.constexpr, PADDED: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """(c - mean(c)) * r over the units of all programs."""
    if LAYER:
        mean = tl.div_rn(tl.sum(tl.where(within[None, :], c, 0.0), 1), 1.0 * tl.minimum(HS, H - piece * HS))
        _tell(words_ptr, SPANS + 1, tag, mean, piece, KINDS, PIECES, BR)
        u = tl.where(within[None, :], c - mean[:, None], 0.0)
    else:
        u = tl.where(within[None, :], c, 0.0)
    _tell(words_ptr, SPANS, tag, tl.sum(u * u, 1), piece, KINDS, PIECES, BR)
    if LAYER:
        units = tl.minimum(HS, tl.maximum(H - tl.arange(0, PADDED) * HS, 0)).to(tl.float32)[:, None]
        means = _hear(words_ptr, SPANS + 1, tag, KINDS, PIECES, PADDED, BR)
        mean = tl.div_rn(tl.sum(units * means, 0), 1.0 * H)
        apart = tl.where(units > 0, means - mean[None, :], 0.0)
        rest = tl.div_rn(tl.sum(units * apart, 0), 1.0 * H)
        apart = tl.where(units > 0, apart - rest[None, :], 0.0)
        squares = tl.sum(_hear(words_ptr, SPANS, tag, KINDS, PIECES, PADDED, BR) + units * apart * apart, 0)
        c = c - mean[:, None] - rest[:, None]
    else:
        squares = tl.sum(_hear(words_ptr, SPANS, tag, KINDS, PIECES, PADDED, BR), 0)
    return c * _reciprocal_deviation(tl.div_rn(squares, 1.0 * H), eps)[:, None]


@triton.jit
def _input_side(
    zx_ptr, statistics, gain_x, outside_x, step, row, gates_at, there, inside,
    H: tl.constexpr, G: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    """What a step's input adds to the summed inputs, of each gate."""
    SPANS: tl.constexpr = triton.cdiv(G, SHARE)
    x = _gates(zx_ptr, step * (G * H) + gates_at, inside, H, G)
    x = _standardized(x, statistics, (step + row) * SPANS, there, inside, G, SHARE)
    return _affine(x, gain_x, outside_x, G)


@triton.jit
def _leave(output_ptr, kept, h, c, t, B, H: tl.constexpr, at, inside, length):
    """h and c after step t; before the first one, t = -1, c alone."""
    step = tl.cast(t, tl.int64) * B * H
    taken = inside & (t >= 0) & (t < length)[:, None]
    tl.store(output_ptr + step + at, h.to(output_ptr.dtype.element_ty), mask=taken)
    if kept.cs is not None:
        tl.store(kept.cs + step + B * H + at, c, mask=inside)


@triton.jit(do_not_specialize=["first", "T", "B", "ring"])
def _forward(
    zx_ptr, statistics, w_ptr, v, h0_ptr, c0_ptr, masks, output_ptr, kept, words_ptr, counter_ptr,
    first, T, B, ring, eps, forget_bias,
    H: tl.constexpr, NETWORK: tl.constexpr, G: tl.constexpr, SHARE: tl.constexpr, SUM: tl.constexpr,
    LAYER: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr,
    BR: tl.constexpr, HS: tl.constexpr, PADDED: tl.constexpr, WARPS: tl.constexpr, DEPTH: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """All steps of a slice of units, of a group of rows; ``first``: the launch's first group."""
    PIECES: tl.constexpr = triton.cdiv(H, HS)
    CHUNKS: tl.constexpr = triton.cdiv(H, WARPS * DEPTH)
    SPANS: tl.constexpr = triton.cdiv(G, SHARE)
    KINDS: tl.constexpr = SPANS + 2
    piece, group = tl.program_id(0) % PIECES, first + tl.program_id(0) // PIECES
    words_ptr += group * 2 * KINDS * PIECES * BR
    counter_ptr += group * 32  # a line of the cache each
    row, unit = group * BR + tl.arange(0, BR), piece * HS + tl.arange(0, HS)
    there, within = row < B, unit < H
    inside = there[:, None] & within[None, :]
    row = row.to(tl.int64)
    at, gates_at = row[:, None] * H + unit[None, :], row[:, None] * (G * H) + unit[None, :]
    w = ()
    for g in tl.static_range(G):
        w += _resident(w_ptr, (g * H + unit) * H, within, 1, H, CHUNKS, WARPS, DEPTH)
    gain_x = _parameters(v.gain_x, unit, within, H, G, 1.0)
    outside_x = _parameters(v.outside_x, unit, within, H, G, 0.0)
    gain_h = _parameters(v.gain_h, unit, within, H, G, 1.0)
    outside_h = _parameters(v.outside_h, unit, within, H, G, 0.0)
    gain_c, bias_c = _parameters(v.gain_c, unit, within, H, 1, 1.0), _parameters(v.bias_c, unit, within, H, 1, 0.0)
    h = tl.load(h0_ptr + at, mask=inside, other=0.0)
    c = h
    if NETWORK == "LSTM":
        c = tl.load(c0_ptr + at, mask=inside, other=0.0)
    length = tl.zeros([BR], tl.int32) + T
    if masks.lengths is not None:
        length = tl.load(masks.lengths + row, mask=there, other=0)
    for t in range(T):
        step = tl.cast(t, tl.int64) * B
        active = there & (t < length)
        h_before, c_before = h, c
        if masks.cut is not None:
            cut = (tl.load(masks.cut + step + row, mask=active, other=0) != 0)[:, None]
            h_before, c_before = tl.where(cut, 0.0, h), tl.where(cut, 0.0, c)
        slot = tl.cast(t % ring, tl.int64) * B
        tl.store(kept.hs + slot * H + at, h_before.to(kept.hs.dtype.element_ty), mask=inside)
        arrive(counter_ptr)
        # While the others arrive: what the last step leaves, and what this one needs of what was there at the launch.
        _leave(output_ptr, kept, h, c, t - 1, B, H, at, inside, length)
        if BR <= 32:
            x = _input_side(zx_ptr, statistics, gain_x, outside_x, step, row, gates_at, there, inside, H, G, SHARE)
        wait(counter_ptr, (t + 1) * PIECES)
        z = _product(kept.hs, (slot + row) * H, there, w, G, H, CHUNKS, WARPS, DEPTH, AHEAD, BR, HS, PRECISION)
        if BR > 32:  # earlier, it would need the registers of the product
            x = _input_side(zx_ptr, statistics, gain_x, outside_x, step, row, gates_at, there, inside, H, G, SHARE)
        u = z
        if SUM:
            both = ()
            for g in tl.static_range(G):
                both += (tl.where(inside, z[g] + x[g], 0.0),)
            u = both
        if v.gain_h is not None:
            _tell_squares(u, words_ptr, t + 1, piece, G, SHARE, SPANS, KINDS, PIECES, BR)
        if kept.zh is not None:  # while the others tell theirs
            for g in tl.static_range(G):
                tl.store(kept.zh + step * (G * H) + gates_at + g * H, z[g].to(kept.zh.dtype.element_ty), mask=inside)
        if v.gain_h is not None:
            u = _over_deviation(u, words_ptr, t + 1, eps, H, G, SHARE, SPANS, KINDS, PIECES, PADDED, BR)
        z = _affine(u, gain_h, outside_h, G)
        moves = active[:, None]
        if NETWORK == "LSTM":
            a = z
            if not SUM:
                a = (x[0] + z[0], x[1] + z[1], x[2] + z[2], x[3] + z[3])
            c = tl.where(moves, sigmoid(a[1] + forget_bias) * c_before + sigmoid(a[0]) * tanh(a[2]), c)
            n = c
            if v.gain_c is not None:
                n = _cell_standardized(
                    c, words_ptr, t + 1, piece, within, eps, LAYER, H, HS, SPANS, KINDS, PIECES, PADDED, BR
                )
                n = n * gain_c[0] + bias_c[0]
            new = sigmoid(a[3]) * tanh(n)
        elif NETWORK == "GRU":
            keep = sigmoid(x[1] + z[1] + forget_bias)
            new = (1.0 - keep) * tanh(x[2] + sigmoid(x[0] + z[0]) * z[2]) + keep * h_before
        else:
            a = z[0]
            if not SUM:
                a += x[0]
            new = tl.where(a < 0.0, 0.0, a) if RELU else tanh(a)
        h = tl.where(moves, new, h)
    _leave(output_ptr, kept, h, c, T - 1, B, H, at, inside, length)
    tl.store(kept.h + at, h, mask=inside)
    if NETWORK == "LSTM":
        tl.store(kept.c + at, c, mask=inside)


# --- Backward ---


@triton.jit
def _mean_of_all(
    words_ptr, kind, tag, N: tl.constexpr, KINDS: tl.constexpr, PIECES: tl.constexpr, PADDED: tl.constexpr,
    BR: tl.constexpr,
):  # fmt: skip
    """Of N numbers, whose sums each program has told: (BR, 1)."""
    return tl.div_rn(tl.sum(_hear(words_ptr, kind, tag, KINDS, PIECES, PADDED, BR), 0), 1.0 * N)[:, None]


@triton.jit
def _through_hidden(
    da_ptr, row_at, there, w, q_ptr, q_at, q_stride, inside, hidden, statistics_at, words_ptr, tag,
    H: tl.constexpr, G: tl.constexpr, SHARE: tl.constexpr, KINDS: tl.constexpr, PIECES: tl.constexpr,
    PADDED: tl.constexpr, WARPS: tl.constexpr, DEPTH: tl.constexpr, AHEAD: tl.constexpr, BR: tl.constexpr,
    HS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of h at the program's units from the da that all programs have published:
    sum over spans of r * (da W - mean(d * zhat) * q)."""
    SPANS: tl.constexpr = triton.cdiv(G, SHARE)
    dh = tl.zeros([BR, HS], tl.float32)
    for span in tl.static_range(SPANS):
        part = _product(
            da_ptr + span * SHARE * H, row_at, there, w[span], 1, H * min(SHARE, G - span * SHARE),
            triton.cdiv(H * min(SHARE, G - span * SHARE), WARPS * DEPTH), WARPS, DEPTH, AHEAD, BR, HS, PRECISION,
        )[0]  # fmt: skip
        if hidden.r is not None:
            q = tl.load(q_ptr + span * q_stride + q_at, mask=inside, other=0.0).to(tl.float32)
            r = tl.load(hidden.r + statistics_at + span, mask=there, other=0.0)[:, None]
            part = r * (
                part
                - q * _mean_of_all(words_ptr, span, tag, H * min(SHARE, G - span * SHARE), KINDS, PIECES, PADDED, BR)
            )
        dh += part
    return dh


@triton.jit
def _recalled(
    zx_ptr, statistics, zh_ptr, hidden, hs_ptr, cs_ptr, cell, masks, dy_ptr,
    gain_x, outside_x, gain_h, outside_h, t, step, row, at, gates_at, active, moves, B,
    H: tl.constexpr, NETWORK: tl.constexpr, G: tl.constexpr, SHARE: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """What was there before the launch, of one step: of each gate the input side (nothing of use where it is part of a
    sum), zhat and the hidden side; dy; whether the state was cut; the state before (LSTM c, GRU h); c standardised."""
    SPANS: tl.constexpr = triton.cdiv(G, SHARE)
    x = _gates(zx_ptr, step * (G * H) + gates_at, moves, H, G)
    z = _gates(zh_ptr, step * (G * H) + gates_at, moves, H, G)
    if SUM:
        both = ()
        for g in tl.static_range(G):
            both += (x[g] + z[g],)
        z = both
    else:
        x = _standardized(x, statistics, (step + row) * SPANS, active, moves, G, SHARE)
        x = _affine(x, gain_x, outside_x, G)
    z_hat = _standardized(z, hidden, (step + row) * SPANS, active, moves, G, SHARE)
    a = _affine(z_hat, gain_h, outside_h, G)
    dy = tl.load(dy_ptr + step * H + at, mask=moves, other=0.0).to(tl.float32)
    cut = moves & (t < 0)
    if masks.cut is not None:
        cut |= (tl.load(masks.cut + step + row, mask=active, other=0) != 0)[:, None]
    before, c_hat = dy, dy
    if NETWORK == "LSTM":
        c = tl.load(cs_ptr + (step + B) * H + at, mask=moves, other=0.0)
        before = tl.load(cs_ptr + step * H + at, mask=moves & (cut == 0), other=0.0)
        c_hat = _standardized((c,), cell, step + row, active, moves, 1, 1)[0]
    if NETWORK == "GRU":
        before = tl.load(hs_ptr + step * H + at, mask=moves, other=0.0).to(tl.float32)
    return x, z_hat, a, dy, cut, before, c_hat


@triton.jit(do_not_specialize=["first", "T", "B"])
def _backward(
    zx_ptr, statistics, zh_ptr, hidden, q_ptr, hs_ptr, cs_ptr, cell, w_ptr, v, masks, dy_ptr, dh_ptr, dc_ptr,
    da_ptr, dn_ptr, dh0_ptr, dc0_ptr, words_ptr, counter_ptr,
    first, T, B, forget_bias,
    H: tl.constexpr, NETWORK: tl.constexpr, G: tl.constexpr, SHARE: tl.constexpr, SUM: tl.constexpr,
    LAYER: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr,
    BR: tl.constexpr, HS: tl.constexpr, PADDED: tl.constexpr, WARPS: tl.constexpr, DEPTH: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """All steps of a slice of units, of a group of rows, the last step first. A step begins with what is left to do of
    the step that follows in time: so there is one more of them, t = -1, which takes in the first's."""
    PIECES: tl.constexpr = triton.cdiv(H, HS)
    SPANS: tl.constexpr = triton.cdiv(G, SHARE)
    KINDS: tl.constexpr = SPANS + 2
    BLOCKS: tl.constexpr = 4 if NETWORK == "GRU" else G
    piece, group = tl.program_id(0) % PIECES, first + tl.program_id(0) // PIECES
    words_ptr += group * 2 * KINDS * PIECES * BR
    counter_ptr += group * 32
    row, unit = group * BR + tl.arange(0, BR), piece * HS + tl.arange(0, HS)
    there, within = row < B, unit < H
    inside = there[:, None] & within[None, :]
    row = row.to(tl.int64)
    at, gates_at = row[:, None] * H + unit[None, :], row[:, None] * (G * H) + unit[None, :]
    da_at = row[:, None] * (BLOCKS * H) + unit[None, :]
    w = ()
    for span in tl.static_range(SPANS):
        w += (
            _resident(
                w_ptr + span * SHARE * H * H, unit, within, H, H * min(SHARE, G - span * SHARE),
                triton.cdiv(H * min(SHARE, G - span * SHARE), WARPS * DEPTH), WARPS, DEPTH,
            ),
        )  # fmt: skip
    gain_x = _parameters(v.gain_x, unit, within, H, G, 1.0)
    outside_x = _parameters(v.outside_x, unit, within, H, G, 0.0)
    gain_h = _parameters(v.gain_h, unit, within, H, G, 1.0)
    outside_h = _parameters(v.outside_h, unit, within, H, G, 0.0)
    gain_c, bias_c = _parameters(v.gain_c, unit, within, H, 1, 1.0), _parameters(v.bias_c, unit, within, H, 1, 0.0)
    dh = tl.load(dh_ptr + at, mask=inside, other=0.0)
    dc = dh
    if NETWORK == "LSTM":
        dc = tl.load(dc_ptr + at, mask=inside, other=0.0)
    length = tl.zeros([BR], tl.int32) + T
    if masks.lengths is not None:
        length = tl.load(masks.lengths + row, mask=there, other=0)
    for visit in range(T + 1):
        t = T - 1 - visit
        step, later = tl.cast(t, tl.int64) * B, tl.cast(t + 1, tl.int64) * B
        active = there & (t >= 0) & (t < length)
        moves = active[:, None] & within[None, :]
        if BR <= 32:  # on its way while the others arrive
            x, z_hat, a, dy, cut, before, c_hat = _recalled(
                zx_ptr, statistics, zh_ptr, hidden, hs_ptr, cs_ptr, cell, masks, dy_ptr,
                gain_x, outside_x, gain_h, outside_h, t, step, row, at, gates_at, active, moves, B,
                H, NETWORK, G, SHARE, SUM,
            )  # fmt: skip
        # From the step that follows in time.
        wait(counter_ptr, visit * PIECES)
        moved = there & (visit > 0) & (t + 1 < length)
        through = _through_hidden(
            da_ptr, (later + row) * (BLOCKS * H), moved, w, q_ptr, later * H + at, tl.cast(T, tl.int64) * B * H,
            moved[:, None] & within[None, :], hidden, (later + row) * SPANS, words_ptr, visit,
            H, G, SHARE, KINDS, PIECES, PADDED, WARPS, DEPTH, AHEAD, BR, HS, PRECISION,
        )  # fmt: skip
        if masks.cut is not None:
            cut_later = tl.load(masks.cut + later + row, mask=moved, other=0) != 0
            moved = moved & (cut_later == 0)
        dh += tl.where(moved[:, None], through, 0.0)
        if BR > 32:  # earlier, it would need the registers of the product
            x, z_hat, a, dy, cut, before, c_hat = _recalled(
                zx_ptr, statistics, zh_ptr, hidden, hs_ptr, cs_ptr, cell, masks, dy_ptr,
                gain_x, outside_x, gain_h, outside_h, t, step, row, at, gates_at, active, moves, B,
                H, NETWORK, G, SHARE, SUM,
            )  # fmt: skip
        # This step: d is the gradient of h after it; dh and dc become what of it goes past the product.
        d = tl.where(moves, dh + dy, 0.0)
        if NETWORK == "LSTM":
            if not SUM:
                a = (x[0] + a[0], x[1] + a[1], x[2] + a[2], x[3] + a[3])
            i, f, g_, o = sigmoid(a[0]), sigmoid(a[1] + forget_bias), tanh(a[2]), sigmoid(a[3])
            tanh_c = tanh(c_hat * gain_c[0] + bias_c[0])
            dn = tl.where(moves, d * o * (1.0 - tanh_c * tanh_c), 0.0)
            d_hat = dn * gain_c[0]
            if v.gain_c is not None:
                _tell(words_ptr, SPANS, visit + 1, tl.sum(d_hat * c_hat, 1), piece, KINDS, PIECES, BR)
                if LAYER:
                    _tell(words_ptr, SPANS + 1, visit + 1, tl.sum(d_hat, 1), piece, KINDS, PIECES, BR)
                r = tl.load(cell.r + step + row, mask=active, other=0.0)[:, None]
                d_hat -= c_hat * _mean_of_all(words_ptr, SPANS, visit + 1, H, KINDS, PIECES, PADDED, BR)
                if LAYER:
                    d_hat -= _mean_of_all(words_ptr, SPANS + 1, visit + 1, H, KINDS, PIECES, PADDED, BR)
                d_hat *= r
            d_c = dc + d_hat
            da = (
                d_c * g_ * i * (1.0 - i), d_c * before * f * (1.0 - f), d_c * i * (1.0 - g_ * g_),
                d * tanh_c * o * (1.0 - o),
            )  # fmt: skip
            dc = tl.where(moves, tl.where(cut, 0.0, d_c * f), dc)
            past = tl.zeros([BR, HS], tl.float32)
        elif NETWORK == "GRU":
            reset, keep = sigmoid(x[0] + a[0]), sigmoid(x[1] + a[1] + forget_bias)
            n = tanh(x[2] + reset * a[2])
            da_n = d * (1.0 - keep) * (1.0 - n * n)
            da = (
                da_n * a[2] * reset * (1.0 - reset), d * (before - n) * keep * (1.0 - keep), da_n * reset, da_n,
            )  # fmt: skip
            past = tl.where(cut, 0.0, d * keep)
        else:
            a_ = a[0]
            if not SUM:
                a_ += x[0]
            if RELU:
                da = (tl.where(a_ > 0.0, d, 0.0),)
            else:
                h_after = tanh(a_)
                da = (d * (1.0 - h_after * h_after),)
            past = tl.zeros([BR, HS], tl.float32)
        dh = tl.where(moves, past, dh)
        products = ()
        for block in tl.static_range(BLOCKS):
            rounded = tl.where(moves, da[block], 0.0).to(da_ptr.dtype.element_ty)
            tl.store(da_ptr + step * (BLOCKS * H) + da_at + block * H, rounded, mask=inside & (t >= 0))
            if block < G:
                products += (rounded.to(tl.float32) * gain_h[block] * z_hat[block],)
        if hidden.r is not None:
            for span in tl.static_range(SPANS):
                _tell(words_ptr, span, visit + 1, _in_span(products, span, G, SHARE), piece, KINDS, PIECES, BR)
        arrive(counter_ptr)
        if dn_ptr is not None:
            tl.store(dn_ptr + step * H + at, dn, mask=inside & (t >= 0))
    tl.store(dh0_ptr + at, dh, mask=inside)
    if NETWORK == "LSTM":
        tl.store(dc0_ptr + at, dc, mask=inside)
