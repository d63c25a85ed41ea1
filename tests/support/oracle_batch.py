"""Recurrent batch normalisation in plain NumPy float64: unit by unit, step by step, sums over the rows of a batch.

What `oracle` is for the norms that see one training case, this is for the one that sees a batch; also without torch or
layernorm. Rows are lists of vectors. Steps are counted as they are taken: backwards, step 0 is a row's last input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .oracle import Array, Parameters, sigmoid, site_biases

Rows = list[Array]
Learnt = dict[str, list[tuple[Array, Array, int]]]
"""Of each site, by its suffix ("", "_ih", "_hh", "_c"), and each step: mean, unbiased variance, how many rows."""


class Normaliser:
    """``BN(z) * gain`` at the sites of one step, training (``population=None``) or evaluation.

    Args:
        p: the parameters, of which the gains are used.
        f: a formula, of which ``eps`` and ``eps_on`` are used.
        population: in evaluation, ``running_mean{site}`` and ``running_var{site}`` (S, units) and
            ``num_batches_tracked`` (S,).
    """

    def __init__(self, p: Parameters, f: Any, population: Mapping[str, Array] | None) -> None:
        self.p, self.f, self.population = p, f, population
        self.learnt: Learnt = {}
        self.last: dict[tuple[str, int], tuple[float, float]] = {}

    def begin(self, step: int, counted: list[int]) -> None:
        """The statistics of this step are those of the rows ``counted``."""
        self.step, self.counted = step, counted
        if self.population is None and len(counted) >= 2:
            for site in ("", "_ih", "_hh", "_c"):
                if "gain" + site in self.p:
                    units = len(self.p["gain" + site])
                    self.learnt.setdefault(site, []).append((np.zeros(units), np.zeros(units), len(counted)))

    def statistics(self, site: str, unit: int, values: list[float]) -> tuple[float, float]:
        """Mean and variance that normalise one unit; ``values`` are the counted rows'."""
        if self.population is not None:
            tracked = sum(1 for times in self.population["num_batches_tracked"] if times > 0)
            if tracked == 0:
                return 0.0, 1.0
            row = min(self.step, tracked - 1)
            return self.population["running_mean" + site][row, unit], self.population["running_var" + site][row, unit]
        n = len(values)
        if n >= 2:
            mean = sum(values) / n
            squares = sum((value - mean) ** 2 for value in values)
            self.last[site, unit] = mean, squares / n
            self.learnt[site][-1][0][unit] = mean
            self.learnt[site][-1][1][unit] = squares / (n - 1)
        return self.last[site, unit]

    def __call__(self, site: str, z: Rows, first: int = 0) -> Rows:
        """z's units are the site's units ``first``, ``first + 1``, ..."""
        y = [np.zeros(len(row)) for row in z]
        for u in range(len(z[0])):
            mean, variance = self.statistics(site, first + u, [z[b][u] for b in self.counted])
            eps = self.f.eps
            deviation = np.sqrt(variance + eps) if self.f.eps_on == "variance" else np.sqrt(variance) + eps
            for b in range(len(z)):
                y[b][u] = self.p["gain" + site][first + u] * (z[b][u] - mean) / deviation
        return y


def summed_inputs(wx: Rows, uh: Rows, p: Parameters, f: Any, bn: Normaliser) -> Rows:
    """What the gates' non-linearities see where all read W x and U h only through a sum."""
    rows = len(p["weight_ih"])
    if f.gates is None:
        return [a + p.get("bias_ih", 0.0) + b + p.get("bias_hh", 0.0) for a, b in zip(wx, uh, strict=True)]
    if f.gates == "sum":
        inside, after = site_biases(p, f, "", rows)
        return [y + after for y in bn("", [a + b + inside for a, b in zip(wx, uh, strict=True)])]
    sides = split_inputs(wx, uh, p, f, bn)
    return [a + b for a, b in zip(*sides, strict=True)]


def split_inputs(wx: Rows, uh: Rows, p: Parameters, f: Any, bn: Normaliser) -> list[Rows]:
    sides = []
    for site, z in (("_ih", wx), ("_hh", uh)):
        if "gain" + site not in p:
            sides.append([row + p.get("bias" + site, 0.0) for row in z])
            continue
        inside, after = site_biases(p, f, site, len(p["weight_ih"]))
        sides.append([y + after for y in bn(site, [row + inside for row in z])])
    return sides


def rnn_step(x: Rows, state: Rows, p: Parameters, f: Any, bn: Normaliser, nonlinearity: str) -> Sequence[Rows]:
    (h,) = state
    a = summed_inputs([p["weight_ih"] @ v for v in x], [p["weight_hh"] @ v for v in h], p, f, bn)
    return ([np.tanh(row) if nonlinearity == "tanh" else np.maximum(row, 0.0) for row in a],)


def lstm_step(x: Rows, state: Sequence[Rows], p: Parameters, f: Any, bn: Normaliser) -> Sequence[Rows]:
    h, c = state
    a = summed_inputs([p["weight_ih"] @ v for v in x], [p["weight_hh"] @ v for v in h], p, f, bn)
    gates = [np.split(row, 4) for row in a]
    c = [
        sigmoid(forget + f.forget_bias) * old + sigmoid(i) * np.tanh(g)
        for (i, forget, g, _), old in zip(gates, c, strict=True)
    ]
    seen = c if f.cell is None else [y + p.get("bias_c", 0.0) for y in bn("_c", c)]
    h = [sigmoid(o) * np.tanh(row) for (_, _, _, o), row in zip(gates, seen, strict=True)]
    if "weight_hr" in p:
        h = [p["weight_hr"] @ row for row in h]
    return h, (seen if f.cell == "carry" else c)


def gru_step(x: Rows, state: Sequence[Rows], p: Parameters, f: Any, bn: Normaliser) -> Sequence[Rows]:
    (h,) = state
    H = len(h[0])
    wx, uh = [p["weight_ih"] @ v for v in x], [p["weight_hh"] @ v for v in h]
    if f.gates in ("split", "hidden"):
        sides = list(zip(*split_inputs(wx, uh, p, f, bn), strict=True))
        r, z = ([sigmoid((a + b)[gate * H : gate * H + H]) for a, b in sides] for gate in (0, 1))
        n = [np.tanh(a[2 * H :] + r_b * b[2 * H :]) for (a, b), r_b in zip(sides, r, strict=True)]
    elif f.span == "all":
        a = summed_inputs(wx, uh, p, f, bn)
        r, z = ([sigmoid(row[gate * H : gate * H + H]) for row in a] for gate in (0, 1))
        n = [np.tanh(r_b * row[2 * H :]) for row, r_b in zip(a, r, strict=True)]
    else:
        after = site_biases(p, f, "", 3 * H)[1]
        if f.bias_inside:
            wx, uh = [a + p.get("bias_ih", 0.0) for a in wx], [b + p.get("bias_hh", 0.0) for b in uh]
        a = [y + after[: 2 * H] for y in bn("", [(a + b)[: 2 * H] for a, b in zip(wx, uh, strict=True)])]
        r, z = ([sigmoid(row[gate * H : gate * H + H]) for row in a] for gate in (0, 1))
        summed = [a[2 * H :] + r_b * b[2 * H :] for a, b, r_b in zip(wx, uh, r, strict=True)]
        n = [np.tanh(y + after[2 * H :]) for y in bn("", summed, first=2 * H)]
    return ([(1 - z_b) * n_b + z_b * old for z_b, n_b, old in zip(z, n, h, strict=True)],)


def run(
    network: str,
    x: Array,
    state: Sequence[Array],
    p: Parameters,
    f: Any,
    *,
    lengths: Sequence[int] | None = None,
    reverse: bool = False,
    count_padding: bool = False,
    population: Mapping[str, Array] | None = None,
    nonlinearity: str = "tanh",
) -> tuple[Array, tuple[Array, ...], Learnt]:
    """One layer in one direction: output (T, B, P), final state, and what the population learns (training).

    A row that has ended keeps its state and its output is 0. ``count_padding``: it is still in the statistics, with
    inputs 0. Without, a step that fewer than two rows have uses the statistics of the last step that two have.
    """
    T, B = x.shape[:2]
    lengths = [T] * B if lengths is None else [int(length) for length in lengths]
    bn = Normaliser(p, f, population)
    now = [list(part) for part in state]
    output = np.zeros((T, B, state[0].shape[1]))
    for step in range(T):
        places = [length - 1 - step if reverse else step for length in lengths]
        going = [b for b in range(B) if step < lengths[b]]
        inputs = [x[places[b], b] if b in going else np.zeros(x.shape[2]) for b in range(B)]
        bn.begin(step, list(range(B)) if count_padding else going)
        if network == "RNN":
            new = rnn_step(inputs, now, p, f, bn, nonlinearity)
        else:
            new = {"LSTM": lstm_step, "GRU": gru_step}[network](inputs, now, p, f, bn)
        for b in going:
            output[places[b], b] = new[0][b]
            for part, value in zip(now, new, strict=True):
                part[b] = value[b]
    final = tuple(np.array(part).reshape(given.shape) for part, given in zip(now, state, strict=True))
    return output, final, bn.learnt


def learn(population: Mapping[str, Array], learnt: Learnt, momentum: float | None) -> dict[str, Array]:
    """The population's buffers after a batch: new = (1 - f) old + f batch; f is 1 at a row's first batch."""
    after = {name: values.copy() for name, values in population.items()}
    tracked = after["num_batches_tracked"]
    steps = range(min(len(tracked), max(len(found) for found in learnt.values())))
    for step in steps:
        tracked[step] += 1
        f = 1 / tracked[step] if momentum is None else max(momentum, 1 / tracked[step])
        for site, found in learnt.items():
            for name, batch in zip(("running_mean", "running_var"), found[step], strict=False):
                after[name + site][step] = (1 - f) * after[name + site][step] + f * batch
    return after


def stack(
    network: str,
    x: Array,
    state: Sequence[Array],
    layers: Sequence[Sequence[Parameters]],
    f: Any,
    *,
    populations: Sequence[Sequence[Mapping[str, Array]]] | None = None,
    **more: Any,
) -> tuple[Array, tuple[Array, ...], list[list[Learnt]]]:
    """Layers of one or two directions; ``layers[l][d]`` are parameters, ``state`` parts (L * D, B, size)."""
    finals, learnt = [], []
    for number, directions in enumerate(layers):
        outputs, learnt_here = [], []
        for d, p in enumerate(directions):
            initial = tuple(part[number * len(directions) + d] for part in state)
            population = None if populations is None else populations[number][d]
            output, final, found = run(network, x, initial, p, f, reverse=d == 1, population=population, **more)
            outputs.append(output)
            finals.append(final)
            learnt_here.append(found)
        x = np.concatenate(outputs, axis=2)
        learnt.append(learnt_here)
    return x, tuple(np.stack(part) for part in zip(*finals, strict=True)), learnt
