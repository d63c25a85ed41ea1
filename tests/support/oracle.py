"""The equations once more, in plain NumPy float64, row by row and step by step: what the library is compared with.

Nothing here uses torch or layernorm. There are three parts: the paper's numbered equations as the paper writes them;
the published programs that the presets are named after, each with its own gate order and weight layout; and the whole
space of formulas, with lengths, reset and reverse. A vector is one training case's; only `sequence` knows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

Array = np.ndarray
Parameters = Mapping[str, Array]
Step = Callable[..., tuple[Array, ...]]


def sigmoid(z: Array) -> Array:
    return 1 / (1 + np.exp(-z))


def tanh(z: Array) -> Array:
    return np.tanh(z)


def layer_norm(z: Array, gain: Any = 1.0, bias: Any = 0.0, eps: float = 1e-5, eps_on: str = "variance") -> Array:
    """LN of one vector: mean and biased variance over its units."""
    mean = z[0] + sum(z - z[0]) / len(z)  # exact where all units are equal
    variance = sum((z - mean) ** 2) / len(z)
    deviation = np.sqrt(variance + eps) if eps_on == "variance" else np.sqrt(variance) + eps
    return gain * ((z - mean) / deviation) + bias


def rms_norm(z: Array, gain: Any = 1.0, bias: Any = 0.0, eps: float = 1e-5, eps_on: str = "variance") -> Array:
    """RMS normalisation of one vector: as LN, with the root of the mean square and no re-centring."""
    mean_square = sum(z**2) / len(z)
    root = np.sqrt(mean_square + eps) if eps_on == "variance" else np.sqrt(mean_square) + eps
    return gain * (z / root) + bias


# --- The paper, arXiv:1607.06450. It has no eps, so neither have these; gate order and z are the paper's own. ---


def eq4(x: Array, h: Array, W_xh: Array, W_hh: Array, g: Array, b: Array, f: Callable[[Array], Array]) -> Array:
    """Eqs. 3 and 4: h_t = f(g / sigma * (a - mu) + b), a = W_hh h + W_xh x."""
    a = W_hh @ h + W_xh @ x
    H = len(a)
    mu = sum(a) / H
    sigma = np.sqrt(sum((a - mu) ** 2) / H)
    return f(g / sigma * (a - mu) + b)


def eq20(x: Array, h: Array, W_h: Array, W_x: Array, norms: Sequence[tuple[Array, Array]], b: Array) -> list[Array]:
    """Eq. 20: (f, i, o, g) = LN(W_h h; gain, bias) + LN(W_x x; gain, bias) + b; norms = [(gain, bias)] * 2."""
    LN_h, LN_x = (partial(layer_norm, gain=gain, bias=bias, eps=0.0) for gain, bias in norms)
    return np.split(LN_h(W_h @ h) + LN_x(W_x @ x) + b, 4)


def eq21(f: Array, i: Array, g: Array, c: Array) -> Array:
    """Eqs. 21 and 30: c_t = sigma(f) c_{t-1} + sigma(i) tanh(g)."""
    return sigmoid(f) * c + sigmoid(i) * tanh(g)


def eq22(o: Array, c: Array, gain: Array, bias: Array) -> Array:
    """Eqs. 22 and 31: h_t = sigma(o) tanh(LN(c_t; gain, bias))."""
    return sigmoid(o) * tanh(layer_norm(c, gain, bias, eps=0.0))


def eq26(x: Array, h: Array, W_h: Array, W_x: Array, norms: Sequence[tuple[Array, Array]]) -> list[Array]:
    """Eq. 26: (z, r) = LN(W_h h; gain, bias) + LN(W_x x; gain, bias), before the sigmoid."""
    LN_h, LN_x = (partial(layer_norm, gain=gain, bias=bias, eps=0.0) for gain, bias in norms)
    return np.split(LN_h(W_h @ h) + LN_x(W_x @ x), 2)


def eq27(x: Array, h: Array, r: Array, W: Array, U: Array, norms: Sequence[tuple[Array, Array]]) -> Array:
    """Eq. 27: candidate = tanh(LN(W x; gain, bias) + sigma(r) LN(U h; gain, bias))."""
    LN_x, LN_h = (partial(layer_norm, gain=gain, bias=bias, eps=0.0) for gain, bias in norms)
    return tanh(LN_x(W @ x) + sigmoid(r) * LN_h(U @ h))


def eq28(z: Array, h: Array, candidate: Array) -> Array:
    """Eq. 28: h_t = (1 - sigma(z)) h_{t-1} + sigma(z) candidate: here z lets the new state in."""
    return (1 - sigmoid(z)) * h + sigmoid(z) * candidate


def eq29(x: Array, h: Array, W_h: Array, W_x: Array, b: Array) -> list[Array]:
    """Eq. 29 (DRAW): (f, i, o, g) = W_h h + W_x x + b."""
    return np.split(W_h @ h + W_x @ x + b, 4)


# --- The programs that the presets are named after, from their published sources. State (h, c). ---


def kiros_lstm_step(x, h, c, W, b, U, b1, b2, b3, s1, s2, s3):
    """The authors' lnlstm_layer: order i, f, o, c; W, U (in, 4H); b inside LN(x W + b) and once more outside."""
    preact = layer_norm(h @ U, s2, b2) + layer_norm(x @ W + b, s1, b1) + b
    i, f, o, g = np.split(preact, 4)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(layer_norm(c, s3, b3)), c


def kiros_gru_step(x, h, W, b, U, Wx, bx, Ux, b1, b2, b3, b4, s1, s2, s3, s4):
    """The authors' lngru_layer: W, U (in, 2H) in the order r, u; Wx, Ux (in, H); the biases inside LN(x W)."""
    r, u = np.split(sigmoid(layer_norm(h @ U, s3, b3) + layer_norm(x @ W + b, s1, b1)), 2)
    candidate = tanh(layer_norm(h @ Ux, s4, b4) * r + layer_norm(x @ Wx + bx, s2, b2))
    return (u * h + (1 - u) * candidate,)


def haste_lstm_step(x, h, c, kernel, recurrent_kernel, bias, gamma, gamma_h, beta_h):
    """Haste's LayerNormLSTM: order i, g, f, o; kernels (in, 4H); gamma (2, 4H) has no beta; eps 1e-5."""
    v = layer_norm(x @ kernel, gamma[0]) + layer_norm(h @ recurrent_kernel, gamma[1]) + bias
    v_i, v_g, v_f, v_o = np.split(v, 4)
    c = sigmoid(v_f) * c + sigmoid(v_i) * tanh(v_g)
    return sigmoid(v_o) * tanh(layer_norm(c, gamma_h, beta_h)), c


def haste_gru_step(x, h, kernel, recurrent_kernel, bias, recurrent_bias, gamma):
    """Haste's LayerNormGRU: order z, r, g; kernels (in, 3H); gamma (2, 3H) has no beta; eps 1e-5."""
    vx = np.split(layer_norm(x @ kernel, gamma[0]) + bias, 3)
    vh = np.split(layer_norm(h @ recurrent_kernel, gamma[1]) + recurrent_bias, 3)
    z, r = sigmoid(vx[0] + vh[0]), sigmoid(vx[1] + vh[1])
    return (z * h + (1 - z) * tanh(vx[2] + r * vh[2]),)


def torchscript_lstm_step(x, h, c, weight_ih, weight_hh, layernorm_i, layernorm_h, layernorm_c):
    """PyTorch's benchmarks/fastrnns LayerNormLSTMCell: order i, f, g, o; each layernorm (weight, bias); eps 1e-5."""
    gates = layer_norm(weight_ih @ x, *layernorm_i) + layer_norm(weight_hh @ h, *layernorm_h)
    ingate, forgetgate, cellgate, outgate = np.split(gates, 4)
    c = layer_norm(sigmoid(forgetgate) * c + sigmoid(ingate) * tanh(cellgate), *layernorm_c)
    return sigmoid(outgate) * tanh(c), c


def torchaudio_lstm_step(x, h, c, x2g, p2g, g_norm, c_norm):
    """_CustomLSTM of torchaudio's models.rnnt: order i, f, g, o; each norm (weight, bias); the cell's is carried on."""
    i, f, g, o = np.split(layer_norm(x2g @ x + p2g @ h, *g_norm), 4)
    c = layer_norm(sigmoid(f) * c + sigmoid(i) * tanh(g), *c_norm)
    return sigmoid(o) * tanh(c), c


def keras_lstm_step(x, h, c, kernel, recurrent_kernel, bias, kernel_norm, recurrent_norm, state_norm):
    """TensorFlow Addons' LayerNormLSTMCell: order i, f, c, o; kernels (in, 4H); norms (gamma, beta); eps 1e-3."""
    z = layer_norm(x @ kernel, *kernel_norm, eps=1e-3)
    z = z + layer_norm(h @ recurrent_kernel, *recurrent_norm, eps=1e-3)
    z0, z1, z2, z3 = np.split(z + bias, 4)
    c = layer_norm(sigmoid(z1) * c + sigmoid(z0) * tanh(z2), *state_norm, eps=1e-3)
    return sigmoid(z3) * tanh(c), c


def tf1_lstm_step(x, h, c, kernel, norms):
    """tf.contrib.rnn.LayerNormBasicLSTMCell: order i, j, f, o; one kernel (I + H, 4H) for [x, h], no bias; norms by
    scope, (gamma, beta); forget_bias 1; tf.contrib.layers.layer_norm's eps 1e-12."""
    i, j, f, o = np.split(np.concatenate([x, h]) @ kernel, 4)
    i = layer_norm(i, *norms["input"], eps=1e-12)
    j = layer_norm(j, *norms["transform"], eps=1e-12)
    f = layer_norm(f, *norms["forget"], eps=1e-12)
    o = layer_norm(o, *norms["output"], eps=1e-12)
    c = c * sigmoid(f + 1.0) + sigmoid(i) * tanh(j)
    c = layer_norm(c, *norms["state"], eps=1e-12)
    return tanh(c) * sigmoid(o), c


def sonnet_lstm_step(x, h, c, w_xh, b, layer_norm_gates):
    """Sonnet 1's LSTM(use_layer_norm=True): order i, j, f, o; one matrix (I + H, 4H); forget_bias 1; eps 1e-5."""
    gates = layer_norm(np.concatenate([x, h]) @ w_xh, *layer_norm_gates) + b
    i, j, f, o = np.split(gates, 4)
    c = sigmoid(f + 1.0) * c + sigmoid(i) * tanh(j)
    return tanh(c) * sigmoid(o), c


def dreamer_gru_step(x, h, kernel, bias, gamma, beta):
    """DreamerV2's GRUCell(norm=True): order reset, cand, update; one kernel (I + H, 3H) for [x, h]; update_bias -1;
    Keras' LayerNormalization, eps 1e-3."""
    parts = layer_norm(np.concatenate([x, h]) @ kernel + bias, gamma, beta, eps=1e-3)
    reset, cand, update = np.split(parts, 3)
    cand = tanh(sigmoid(reset) * cand)
    update = sigmoid(update - 1.0)
    return (update * cand + (1 - update) * h,)


def dreamerv3_gru_step(x, h, weight, gain, bias):
    """The GRUCell of dreamerv3-torch: order reset, cand, update; weight (3H, I + H) for [x, h], no bias inside."""
    reset, cand, update = np.split(layer_norm(weight @ np.concatenate([x, h]), gain, bias, eps=1e-3), 3)
    update = sigmoid(update - 1.0)
    return (update * tanh(sigmoid(reset) * cand) + (1 - update) * h,)


# --- The space of formulas. f: anything with the fields of layernorm.Formula; order i, f, g, o and r, z, n. ---

PLAIN = SimpleNamespace(gates=None, cell=None, span="joint", bias_inside=False, gate_bias=True, cell_bias=True)
PLAIN.eps, PLAIN.eps_on, PLAIN.forget_bias = 1e-5, "variance", 0.0
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}


def parameter_shapes(network: str, f: Any, I: int, H: int, P: int = 0, bias: bool = True) -> dict[str, tuple[int, ...]]:  # noqa: E741
    """The parameters that a formula has, by the names in which the library's public functions take them."""
    rows = GATES[network] * H
    shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, I), "weight_hh": (rows, P or H)}
    if P:
        shapes["weight_hr"] = (P, H)
    sites = {"split": ["_ih", "_hh"], "hidden": ["_hh"], "sum": [""], None: []}[f.gates]
    for site in sites:
        shapes["gain" + site] = (rows,)
        if bias and f.gate_bias and f.bias_inside:
            shapes["norm_bias" + site] = (rows,)
    if bias and (not sites or f.bias_inside or f.gate_bias):
        shapes |= {"bias_ih": (rows,)} if sites and f.biases == "input" else {"bias_ih": (rows,), "bias_hh": (rows,)}
    if network == "LSTM" and f.cell:
        shapes["gain_c"] = (H,)
        if bias and f.cell_bias:
            shapes["bias_c"] = (H,)
    return shapes


def normalised(z: Array, gain: Array, bias: Array, pieces: int, f: Any, norm: str) -> Array:
    """One normalisation over each of so many equal pieces of z, then gain and bias."""
    over = {"layer": layer_norm, "rms": rms_norm}[norm]
    return gain * np.concatenate([over(piece, eps=f.eps, eps_on=f.eps_on) for piece in np.split(z, pieces)]) + bias


def site_biases(p: Parameters, f: Any, site: str, rows: int) -> tuple[Array, Array]:
    """What is added before and after the normalisation of W x (``"_ih"``), U h (``"_hh"``), their sum (``""``)."""
    none = np.zeros(rows)
    own = p.get("bias_ih", none) + p.get("bias_hh", none) if site == "" else p.get("bias" + site, none)
    if not f.bias_inside:
        return none, own
    again = p.get("bias_ih", none) if f.bias_again and site != "_hh" else none
    return own, p.get("norm_bias" + site, none) + again


def summed_inputs(x: Array, h: Array, p: Parameters, f: Any, norm: str, pieces: int) -> Array:
    """What the gates' non-linearities see, in a network whose gates all read W x and U h only through a sum."""
    wx, uh = p["weight_ih"] @ x, p["weight_hh"] @ h
    rows = len(wx)
    if f.gates is None:
        return wx + p.get("bias_ih", 0.0) + uh + p.get("bias_hh", 0.0)
    if f.gates == "sum":
        inside, after = site_biases(p, f, "", rows)
        return normalised(wx + uh + inside, p["gain"], after, pieces, f, norm)
    return sum(sides(wx, uh, p, f, norm, np.split(np.arange(rows), pieces)))


def sides(wx: Array, uh: Array, p: Parameters, f: Any, norm: str, spans: list[Array]) -> list[Array]:
    """W x and U h as they are added up: with a gain each span of units is normalised, without one there is a bias."""
    found = []
    for site, z in (("_ih", wx), ("_hh", uh)):
        if "gain" + site in p:
            inside, after = site_biases(p, f, site, len(z))
            z, gain = z + inside, p["gain" + site]
            found.append(np.concatenate([normalised(z[s], gain[s], after[s], 1, f, norm) for s in spans]))
        else:
            found.append(z + p.get("bias" + site, 0.0))
    return found


def rnn_step(x: Array, h: Array, p: Parameters, f: Any, norm: str, nonlinearity: str) -> tuple[Array]:
    a = summed_inputs(x, h, p, f, norm, pieces=1)
    return (np.tanh(a) if nonlinearity == "tanh" else np.maximum(a, 0.0),)


def lstm_step(x: Array, h: Array, c: Array, p: Parameters, f: Any, norm: str) -> tuple[Array, Array]:
    i, forget, g, o = np.split(summed_inputs(x, h, p, f, norm, pieces=1 if f.span == "joint" else 4), 4)
    c = sigmoid(forget + f.forget_bias) * c + sigmoid(i) * tanh(g)
    seen = c
    if f.cell is not None:
        seen = normalised(c, p["gain_c"], p.get("bias_c", np.zeros(len(c))), 1, f, norm)
    if f.cell == "carry":
        c = seen
    h = sigmoid(o) * tanh(seen)
    return (p["weight_hr"] @ h if "weight_hr" in p else h), c


def gru_step(x: Array, h: Array, p: Parameters, f: Any, norm: str) -> tuple[Array]:
    H = len(h)
    wx, uh = p["weight_ih"] @ x, p["weight_hh"] @ h
    rz, n = slice(0, 2 * H), slice(2 * H, 3 * H)
    pieces = 1 if f.span == "joint" else 2
    none = np.zeros(3 * H)
    b_ih, b_hh = p.get("bias_ih", none), p.get("bias_hh", none)
    if f.gates is None:
        r, z = np.split((wx + b_ih + uh + b_hh)[rz], 2)
        candidate = tanh(wx[n] + b_ih[n] + sigmoid(r) * (uh[n] + b_hh[n]))
    elif f.gates == "sum" and f.span == "all":  # r multiplies the normalised candidate
        inside, after = site_biases(p, f, "", len(wx))
        r, z, a = np.split(normalised(wx + uh + inside, p["gain"], after, 1, f, norm), 3)
        candidate = tanh(sigmoid(r) * a)
    elif f.gates == "sum":
        gain = p["gain"]
        after = site_biases(p, f, "", 3 * H)[1]
        if f.bias_inside:
            wx, uh = wx + b_ih, uh + b_hh
        r, z = np.split(normalised((wx + uh)[rz], gain[rz], after[rz], pieces, f, norm), 2)
        candidate = tanh(normalised(wx[n] + sigmoid(r) * uh[n], gain[n], after[n], 1, f, norm))
    else:
        units = np.arange(3 * H)
        spans = [units] if f.span == "all" else [*np.split(units[rz], pieces), units[n]]
        x_side, h_side = sides(wx, uh, p, f, norm, spans)
        r, z = np.split((x_side + h_side)[rz], 2)
        candidate = tanh(x_side[n] + sigmoid(r) * h_side[n])
    z = sigmoid(z + f.forget_bias)
    return ((1 - z) * candidate + z * h,)


# --- Sequences. ---


def sequence(
    step: Step,
    x: Array,
    state: Sequence[Array],
    lengths: Any = None,
    reset: Any = None,
    reverse: bool = False,
    restart: Sequence[Array] | None = None,
    kept: Sequence[Array] | None = None,
) -> tuple[Array, tuple[Array, ...]]:
    """Output (T, B, len(h)) and final state: each row by itself, each step by itself.

    Beyond a row's length the output is 0 and the state stays; backwards a row starts at its own end. ``reset[t, b]``
    cuts between steps t-1 and t: whichever of the two comes second in the direction of travel starts from
    ``restart[part][b]``, or zeros. After the k-th step that is taken, the share ``kept[part][k, b]`` is the old state's
    (zoneout).
    """
    T, B = x.shape[:2]
    output = np.zeros((T, B, state[0].shape[1]))
    final = [np.array(part) for part in state]
    restart = [np.zeros_like(part) for part in state] if restart is None else restart
    for b in range(B):
        length = T if lengths is None else int(lengths[b])
        row = tuple(part[b] for part in state)
        for k, t in enumerate(range(length - 1, -1, -1) if reverse else range(length)):
            cut = t + 1 if reverse else t
            if reset is not None and cut < length and reset[cut, b]:
                row = tuple(part[b] for part in restart)
            old, row = row, step(x[t, b], *row)
            if kept is not None:
                shares = [part[k, b] for part in kept]
                row = tuple(share * o + (1 - share) * n for share, o, n in zip(shares, old, row, strict=True))
            output[t, b] = row[0]
        for part, value in zip(final, row, strict=True):
            part[b] = value
    return output, tuple(final)


def run(
    network: str,
    x: Array,
    state: Sequence[Array],
    p: Parameters,
    f: Any = None,
    norm: str | None = "layer",
    nonlinearity: str = "tanh",
    **more: Any,
) -> tuple[Array, tuple[Array, ...]]:
    """One layer in one direction; ``norm=None`` is torch's network; more: what `sequence` takes."""
    f = PLAIN if norm is None else f
    if network == "RNN":
        return sequence(lambda x, h: rnn_step(x, h, p, f, norm, nonlinearity), x, state, **more)
    if network == "LSTM":
        return sequence(lambda x, h, c: lstm_step(x, h, c, p, f, norm), x, state, **more)
    return sequence(lambda x, h: gru_step(x, h, p, f, norm), x, state, **more)


def run_between(
    network: str,
    x: Array,
    state: Sequence[Array],
    p: Parameters,
    f: Any,
    norm: str | None,
    *,
    lengths: Any,
    reset: Any,
    reverse: bool,
    restart: Sequence[Array],
    dropout: Array,
    kept: Sequence[Array],
) -> tuple[Array, tuple[Array, ...]]:
    """Computes `run` with what happens between steps, where ``dropout[b]`` is a factor of the h that W_hh reads."""
    rows = []
    for b in range(x.shape[1]):
        own = slice(b, b + 1)
        of_row = {**p, "weight_hh": p["weight_hh"] * dropout[b]}  # W_hh's columns
        more = {"lengths": None if lengths is None else lengths[own], "reset": reset[:, own], "reverse": reverse}
        more |= {"restart": [part[own] for part in restart], "kept": [part[:, own] for part in kept]}
        rows.append(run(network, x[:, own], [part[own] for part in state], of_row, f, norm, **more))
    outputs, finals = zip(*rows, strict=True)
    return np.concatenate(outputs, 1), tuple(map(np.concatenate, zip(*finals, strict=True)))


def stack(
    network: str, x: Array, state: Sequence[Array], layers: Sequence[Sequence[Parameters]], **more: Any
) -> tuple[Array, tuple[Array, ...]]:
    """Layers of one or two directions; ``layers[l][d]`` are parameters, ``state`` parts (L * D, B, size)."""
    finals = []
    for number, directions in enumerate(layers):
        outputs = []
        for d, p in enumerate(directions):
            initial = tuple(part[number * len(directions) + d] for part in state)
            output, final = run(network, x, initial, p, reverse=d == 1, **more)
            outputs.append(output)
            finals.append(final)
        x = np.concatenate(outputs, axis=2)
    return x, tuple(np.stack(part) for part in zip(*finals, strict=True))
