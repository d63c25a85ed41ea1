"""What the norms of a network would divide by if it computed the plain equations: loops in NumPy float64."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import oracle
from .oracle import GATES, Array, Parameters


def vectors(network: str, x: Array, state: tuple[Array, ...], p: Parameters, f: Any) -> dict[str, Array]:
    """By gain what the formula normalises in one step of the plain equations, for one case; "c" is in the state."""
    wx, uh = p["weight_ih"] @ x, p["weight_hh"] @ state[0]
    b_ih, b_hh = (p.get(name, np.zeros(len(wx))) for name in ("bias_ih", "bias_hh"))
    r = oracle.sigmoid(wx + b_ih + uh + b_hh)[: len(wx) // 3]
    if f.bias_inside:
        wx, uh = wx + b_ih, uh + b_hh
    if f.gates in ("split", "hidden"):
        return {"gain_ih": wx, "gain_hh": uh} if f.gates == "split" else {"gain_hh": uh}
    if network == "GRU" and f.span != "all":
        uh = np.concatenate([uh[: 2 * len(r)], r * uh[2 * len(r) :]])
    return {"gain": wx + uh} if f.gates else {}


def spans(network: str, H: int, f: Any) -> list[slice]:
    """The units of each normalisation of the gates."""
    if f.span == "per_gate":
        return [slice(k * H, (k + 1) * H) for k in range(GATES[network])]
    if network == "GRU" and f.span == "joint":
        return [slice(0, 2 * H), slice(2 * H, 3 * H)]
    return [slice(0, GATES[network] * H)]


def divisor(z: Array, f: Any) -> float:
    """The root of the mean square, with eps."""
    square = sum(z**2) / len(z)
    return np.sqrt(square + f.eps) if f.eps_on == "variance" else np.sqrt(square) + f.eps


def divisors(
    network: str, x: Array, state: Any, p: Parameters, f: Any, norm: str, nonlinearity: str = "tanh", **more: Any
) -> dict[str, Array]:
    """By gain the mean of what its normalisations would divide by, for each unit.

    ``more``: lengths, reset, reverse. A vector without a deviation does not count.
    """
    H = len(p["weight_ih"]) // GATES[network]
    plain = SimpleNamespace(**vars(oracle.PLAIN) | {"forget_bias": f.forget_bias})
    seen: dict[tuple[str, int], dict[tuple[int, int], Array]] = defaultdict(dict)  # by normalisation; by step and row
    step_of_row = iter([(k, row) for row, n in enumerate(more["lengths"]) for k in range(n)])

    def step(x: Array, *before: Array) -> tuple[Array, ...]:
        state = [part[None] for part in before]
        after = tuple(part[0] for part in oracle.run(network, x[None, None], state, p, plain, "layer", nonlinearity)[1])
        place = next(step_of_row)
        for gain, z in vectors(network, x, before, p, f).items():
            for number, units in enumerate(spans(network, H, f)):
                seen[gain, number][place] = z[units]
        if network == "LSTM" and f.cell:
            seen["gain_c", 0][place] = after[1]
        return after

    oracle.sequence(step, x, state, **more)
    means: dict[str, list[float]] = defaultdict(list)
    for (gain, _), by_place in seen.items():
        n = len(next(iter(by_place.values())))
        if norm == "batch":
            cases = [np.stack([z for (k, _), z in by_place.items() if k == t]) for t in {k for k, _ in by_place}]
            steps = [z - z.mean(0) for z in cases if len(z) > 1 and np.ptp(z, axis=0).any()]
            means[gain] += np.mean([[divisor(unit, f) for unit in z.T] for z in steps], axis=0).tolist()
        else:
            rows = [z - (z.mean() if norm == "layer" else 0.0) for z in by_place.values() if z.any()]
            means[gain] += [np.mean([divisor(z, f) for z in rows])] * n
    return {gain: np.array(values) for gain, values in means.items()}
