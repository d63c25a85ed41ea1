r"""Gains of a network that starts as a plain one does, from the second moments of the plain equations.

The moments are a fixed point, found without any data: for inputs from N(0, 1), independent over features and time, and
weights and biases from U(-1/sqrt(H), 1/sqrt(H)), which have the variance k = 1/(3H).

What enters a unit's gate, a = W_ih x + W_hh h + biases, has a fixed part, which is the same at every step (biases, and
W_hh times the mean of h over time), and a varying part of mean 0. Both are sums of many terms and count as normal. E is
the mean over steps and units, E_s the mean over the steps of one unit:

    E a^2 = k (I E x^2 + P E h^2 + number of biases),   E (E_s a)^2 = k (I E (E_s x)^2 + P E (E_s h)^2 + same number)

So E s(a)^2 and E (E_s s(a))^2 of a gate s are integrals over two normal variables. What is carried from step to step,
y_t = s_t y_{t-1} + w_t v_t, adds up:

    E y^2       = E [(E_s w^2 E v^2 + 2 E_s[s w] E_s w (phi(1) E (E_s v)^2 + phi(rho) E (v - E_s v)^2)) / (1 - E_s s^2)]
    E (E_s y)^2 = E [(phi(1) E_s w)^2] E (E_s v)^2,       phi(rho) = rho / (1 - rho E_s s)

Here rho is the correlation of v's varying part from one step to the next, which is 0 for the inputs, but not for the
output of a layer below. An LSTM has y = c, s = f, w = i, v = tanh(a_g) and h = o tanh(c); a GRU y = h, s = z, w = 1 - z
and v = tanh(a_n); an RNN h = tanh(a) or relu(a).

Source: this library. `layernorm.match` measures the same numbers on data.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..formula import Recurrence

Array = npt.NDArray[np.float64]

_NODES = 32
"""Of an integral over one variable. With 96, gains change by less than 1 %, also where the gates saturate (I = 500, H =
32, or a forget bias of 5), and by less than 0.1 % elsewhere."""

_ITERATIONS, _ROUNDING = 1000, 1e-12


class Signal(NamedTuple):
    """The second moments of the entries v of a vector: each has a fixed part E_s v and a varying one of mean 0."""

    square: float = 0.0  # E v^2
    fixed: float = 0.0  # E (E_s v)^2
    rho: float = 0.0  # the correlation of the varying part from one step to the next

    @property
    def varying(self) -> float:
        """E (v - E_s v)^2."""
        return max(self.square - self.fixed, 0.0)


INPUT, BIAS = Signal(1.0), Signal(1.0, fixed=1.0)


class Gate(NamedTuple):
    """A gate s, by the nodes of the fixed part of its summed input."""

    mean: Array  # E_s s
    square: Array  # E_s s^2


class Layer(NamedTuple):
    """The moments of what the plain equations of a layer compute."""

    h: Signal
    c: Signal = Signal()  # in an LSTM
    r: Gate | None = None  # in a GRU


def matched_gains(
    recurrence: Recurrence, input_sizes: Sequence[int], H: int, P: int, forget_bias: float | None
) -> list[dict[str, Array]]:
    """Computes the gains of each layer by name, (G*H,) or (H,).

    A gain is the mean of what its normalisation would divide by, sqrt(var + eps), if the network computed the plain
    equations.

    Args:
        recurrence: the equations of every layer.
        input_sizes: for each layer I, from the lowest.
        H, P: units, and the size of h.
        forget_bias: the initial value of the learnable bias of the gate that keeps the old state.

    Raises:
        ValueError: there is no fixed point, as the forget bias is so large that the state grows for ever.
    """
    x, gains = INPUT, []
    for layer, size in enumerate(input_sizes):
        moments = _layer_moments(recurrence, x, size, H, P, forget_bias)
        if not math.isfinite(sum(moments.h) + sum(moments.c)):
            raise ValueError(f"gain_init='match': with forget_bias={forget_bias} a plain network's state never settles")
        # over the steps |x|^2 varies in the lowest layer; under batch norm there is one deviation for all cases
        spread = 2 * size / (3 * H) ** 2 if layer == 0 and recurrence.norm != "batch" else 0.0
        gains.append(_layer_gains(recurrence, x, size, H, P, moments, spread))
        x = moments.h
    return gains


def _layer_moments(recurrence: Recurrence, x: Signal, I: int, H: int, P: int, forget_bias: float | None) -> Layer:  # noqa: E741
    """Iterates the plain equations of a layer on the moments, from h = 0 to the fixed point."""
    k, plain = 1 / (3 * H), recurrence.plain
    bias_ih, bias_hh = (k * (name in plain.parameter_names) for name in ("bias_ih", "bias_hh"))
    is_set = forget_bias is not None and "bias_ih" in recurrence.added_biases  # to a number that all units share
    mean = recurrence.formula.forget_bias + (forget_bias or 0.0)
    layer = Layer(Signal())
    for _ in range(_ITERATIONS):
        from_input, from_hidden = _sum((k * I, x), (bias_ih, BIAS)), _sum((k * P, layer.h), (bias_hh, BIAS))
        a = _sum((1, from_input), (1, from_hidden))
        keep = _gate(_sum((k * I, x), (k * P, layer.h)) if is_set else a, mean)
        before = layer
        if recurrence.network == "LSTM":
            layer = _lstm(a, keep)
            if recurrence.projected:
                layer = layer._replace(h=_sum((k * H, layer.h)))
        elif recurrence.network == "GRU":
            layer = _gru(a, from_input, from_hidden, keep)
        else:
            layer = Layer(_apply(np.tanh if recurrence.nonlinearity == "tanh" else _relu, a))
        if not max(abs(np.subtract(before.h, layer.h))) > _ROUNDING:  # also where it is NaN
            break
    return layer


def _lstm(a: Signal, keep: Gate) -> Layer:
    """Computes the moments of c = f c + i tanh(a_g) and h = o tanh(c)."""
    write, weights = _gate(a), _nodes()[1]
    f = Gate(keep.mean[:, None], keep.square[:, None])  # f's nodes are the rows, i's the columns
    c = _carry(f, write, f.mean * write.mean, _apply(np.tanh, a), np.outer(weights, weights))
    return Layer(_times(write, _apply(np.tanh, c)), c)  # o has the moments of i


def _gru(a: Signal, from_input: Signal, from_hidden: Signal, keep: Gate) -> Layer:
    """Computes the moments of h = (1 - z) tanh(W_in x + b_in + r (W_hn h + b_hn)) + z h."""
    r, write = _gate(a), Gate(1 - keep.mean, 1 - 2 * keep.mean + keep.square)
    candidate = _apply(np.tanh, _sum((1, from_input), (1, _times(r, from_hidden))))
    return Layer(_carry(keep, write, keep.mean - keep.square, candidate, _nodes()[1]), r=r)


def _sum(*terms: tuple[float, Signal]) -> Signal:
    """Computes the moments of a sum of independent terms, each with a factor of its square."""
    square, fixed = (sum(factor * part[moment] for factor, part in terms) for moment in (0, 1))
    varying = sum(factor * part.varying for factor, part in terms)
    rho = sum(factor * part.varying * part.rho for factor, part in terms) / varying if varying else 0.0
    return Signal(square, fixed, rho)


def _over_steps(function: Callable[[Array], Array], a: Signal, mean: float = 0.0) -> Gate:
    """Computes E_s s and E_s s^2 of s = function(mean + a), for each node of the fixed part of a."""
    nodes, weights = _nodes()
    s = function(mean + math.sqrt(a.fixed) * nodes[:, None] + math.sqrt(a.varying) * nodes)
    return Gate(s @ weights, s**2 @ weights)


def _gate(a: Signal, mean: float = 0.0) -> Gate:
    return _over_steps(lambda z: 0.5 + 0.5 * np.tanh(z / 2), a, mean)  # the sigmoid


def _apply(function: Callable[[Array], Array], a: Signal) -> Signal:
    """Computes the moments of function(a)."""
    s, weights = _over_steps(function, a), _nodes()[1]
    return Signal(float(s.square @ weights), float(s.mean**2 @ weights), a.rho)


def _times(gate: Gate, v: Signal) -> Signal:
    """Computes the moments of a gate times v."""
    weights = _nodes()[1]
    square, mean = float(gate.square @ weights), float(gate.mean**2 @ weights)
    product = Signal(square * v.square, mean * v.fixed)
    return product._replace(rho=mean * v.varying * v.rho / product.varying if product.varying else 0.0)


def _carry(keep: Gate, write: Gate, both: Array, v: Signal, weights: Array) -> Signal:
    """Computes the moments of y = s y + w v, where ``keep`` is s, ``write`` is w and ``both`` E_s[s w] (see above)."""

    def mean(values: Array) -> float:
        return float((weights * values).sum())

    def since(rho: float) -> Array:
        return write.mean * rho / (1 - rho * keep.mean)

    with np.errstate(divide="ignore", invalid="ignore"):
        before = since(1.0) * v.fixed + since(v.rho) * v.varying
        square = mean((write.square * v.square + 2 * both * before) / (1 - keep.square))
        y = Signal(square, mean(since(1.0) ** 2) * v.fixed)
        if not y.varying:
            return y
        return y._replace(rho=mean(keep.mean) + mean(write.mean * since(v.rho)) * v.varying / y.varying)


def _relu(z: Array) -> Array:
    return np.maximum(z, 0.0)


@functools.cache
def _nodes() -> tuple[Array, Array]:
    """Returns nodes and weights of the mean over N(0, 1), Gauss-Hermite."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    return nodes, weights / weights.sum()


def _layer_gains(
    recurrence: Recurrence,
    x: Signal,
    I: int,  # noqa: E741
    H: int,
    P: int,
    moments: Layer,
    spread: float,
) -> dict[str, Array]:
    """Computes the gains of a layer from the moments of what its normalisations are given."""
    k, (input, hidden, both, cell) = 1 / (3 * H), recurrence.places
    from_input = _sum((k * I, x), (k * (input.inside is not None), BIAS))
    from_hidden = _sum((k * P, moments.h), (k * (hidden.inside is not None), BIAS))
    gains: dict[str, Array] = {}
    for first, last in recurrence.spans:
        is_candidate = recurrence.reset_multiplies == "product" and first == 2
        times_r = _times(moments.r, from_hidden) if is_candidate and moments.r else from_hidden
        total, n = _sum((1, from_input), (1, times_r)), (last - first) * H
        for gain, z, varies in (
            (input.gain, from_input, spread), (hidden.gain, from_hidden, 0.0), (both.gain, total, spread)
        ):  # fmt: skip
            if gain is not None:
                gains[gain] = np.append(gains.get(gain, []), np.full(n, _divisor(recurrence, z, n, varies)))
    if cell.gain is not None:
        gains[cell.gain] = np.full(H, _divisor(recurrence, moments.c, H))
    return gains


def _divisor(recurrence: Recurrence, z: Signal, n: int, spread: float = 0.0) -> float:
    """Computes the mean of what a normalisation of n entries divides by; ``spread``: the variance of their square."""
    square = z.varying if recurrence.norm == "batch" else z.square * (1 - 1 / n if recurrence.norm == "layer" else 1)
    eps = recurrence.formula.eps
    if recurrence.formula.eps_on == "deviation":
        return _mean_root(square, spread) + eps
    return _mean_root(square + eps, spread)


def _mean_root(mean: float, variance: float) -> float:
    """Computes the mean of the square root of a number with a gamma distribution, as the sum of normal squares has."""
    if not mean or not variance:
        return math.sqrt(mean)
    shape = mean**2 / variance
    return math.sqrt(mean / shape) * math.exp(math.lgamma(shape + 0.5) - math.lgamma(shape))
