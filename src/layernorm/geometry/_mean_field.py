"""The largest exponent without W_hh: what W_hh multiplies is replaced by normal numbers with its second moments."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ..equations.recurrent import network_of, parameters_by_name
from ..formula import GATES, Recurrence
from ..functional._networks import describe
from . import _checks
from ._stability import Lyapunov, recurrent_module, stays_finite, steps_of

_LAGS = (1, 2, 20, 40)
"""Where correlations over time are measured: two exponentials have four numbers."""

_WINDOW = 50
"""The steps over which correlations are averaged, the later ones counting more."""


def predicted_exponent(
    module: torch.nn.Module, inputs: Tensor, *, warmup: int = 0, generator: torch.Generator | None = None
) -> Lyapunov:
    r"""Predicts the largest Lyapunov exponent of a recurrent network from the second moments of its recurrent weights.

    .. math:: (W_{hh} h_{t-1})_j = |w_j| \, |h_{t-1}| \, u_{tj} / \sqrt P, \qquad
              (W_{hh} \, dh_{t-1})_j = |w_j| \, |dh_{t-1}| \, u'_{tj} / \sqrt P, \qquad
              \lambda = \frac{1}{T - warmup} \sum_{t > warmup} \log \frac{|ds_t|}{|ds_{t-1}|}

    Everything but W_hh is the network's own: inputs, W_ih, biases, gains and normalisations. Of W_hh only the lengths
    of its rows w_j are used. u and u' are drawn: standard normal numbers that are independent of each other and from
    unit to unit. From step to step they are correlated as h is, and as dh is: that is measured on the way, and written
    as a sum of two exponentials. This is the mean-field theory of a random network. It holds for many units, and for
    weights that are independent of each other, as an untrained network's are. `lyapunov` measures the same on the
    network itself. docs/theory.md, "Stability", has the derivation.

    Args:
        module: as in `dynamics`. Of several layers every one is predicted, and the largest exponent is returned.
        inputs: ``(T, B, I)``, the input of each step. Two hundred steps and some cases make the error of the draws 0.01
            or less.
        warmup: the number of steps at the start that are not counted.
        generator: draws u and u'.

    Returns:
        `Lyapunov` with one exponent, in float64.

    Raises:
        ValueError, TypeError: as in `dynamics` and `lyapunov`.

    Source: this library. For plain random networks Sompolinsky, Crisanti, Sommers 1988, and for gated ones Can,
    Krishnamurthy, Schwab 2020, "Gating creates slow modes and controls phase-space complexity in GRUs and LSTMs".
    """
    network = recurrent_module(module)
    B = _checks.tensor("inputs", inputs, "T", "B", network.input_size).shape[1]
    _checks.whole("warmup", warmup, 0, steps_of(inputs, B) - 1)
    x, of_layers = inputs.detach().to("cpu", torch.float64), []
    kept = getattr(network, "_zoneouts", ())
    for recurrence, parameters in _layers(network):
        x, growth = _run_layer(recurrence, parameters, kept, x, generator)
        of_layers.append(growth[warmup:].mean(0))
    cases = torch.stack(of_layers).amax(0)[:, None]
    return Lyapunov(cases.mean(0), cases)


def _layers(network: Any) -> list[tuple[Recurrence, list[Tensor]]]:
    """Returns the equations and parameters of each layer of a network or cell, of layernorm or of torch."""
    recurrence = getattr(network, "recurrence", None)
    if recurrence is None:
        kinds = {name: (getattr(torch.nn, name), getattr(torch.nn, f"{name}Cell")) for name in GATES}
        kind = next((name for name, of in kinds.items() if isinstance(network, of)), None)
        if kind is None:
            raise TypeError(f"expected a network or cell of layernorm or torch, got {type(network).__name__}")
        nonlinearity = "tanh"
        if kind == "RNN":  # of a network torch computes what `mode` says
            nonlinearity = str(getattr(network, "mode", network.nonlinearity)).removeprefix("RNN_").lower()
        projected = getattr(network, "proj_size", 0) > 0
        recurrence = describe(kind, None, "paper", None, bool(network.bias), projected, nonlinearity)
    names = recurrence.parameter_names
    suffixes = [f"_l{k}" for k in range(network.num_layers)] if hasattr(network, "num_layers") else [""]
    return [(recurrence, [getattr(network, name + suffix) for name in names]) for suffix in suffixes]


def _run_layer(
    recurrence: Recurrence,
    parameters: list[Tensor],
    kept: Sequence[float],
    x: Tensor,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Runs a layer and a small change of its state: (T, B, I) -> h (T, B, P), the logarithm of the growth (T, B).

    kept: the share of each part of the state that zoneout keeps in the mean; none without zoneout."""
    p = parameters_by_name([p.detach().to("cpu", torch.float64) for p in parameters], recurrence, torch.float64)
    equations, weight, B = network_of(p, recurrence), p["weight_hh"], x.shape[1]
    units = len(weight) // GATES[recurrence.network]
    sizes = [weight.shape[1], units][: len(recurrence.state_names)]
    times_h, times_dh = _Product(weight, B, generator), _Product(weight, B, generator)
    state = tuple(x.new_zeros(B, size) for size in sizes)
    change = tuple(torch.randn(B, size, generator=generator, dtype=x.dtype) for size in sizes)
    h, growth = [], []
    with torch.no_grad():
        for t, from_input in enumerate(equations.input_side(x @ p["weight_ih"].T)):

            def step(zh: Tensor, *state: Tensor, t: int = t, from_input: Tensor = from_input) -> tuple[Tensor, ...]:
                after = equations.step(t, from_input, zh, state)
                mixed = zip(kept or [0.0] * len(state), state, after, strict=True)
                return tuple(share * old + (1 - share) * new for share, old, new in mixed)

            before, products = (times_h(state[0]), *state), (times_dh(change[0]), *change)
            state, change = cast(Any, torch.func.jvp(step, before, products))
            size = torch.cat(change, 1).norm(dim=1, keepdim=True)
            change = tuple(torch.where(size > 0, part / size, 0.0) for part in change)  # a change that died stays 0
            h.append(stays_finite(state[0], t))
            growth.append(size[:, 0].log())
    return torch.stack(h), torch.stack(growth)


class _Product:
    """Draws W v_t, step by step, for a matrix W of which only the lengths of its rows are known."""

    def __init__(self, weight: Tensor, cases: int, generator: torch.Generator | None) -> None:
        self.lengths = weight.norm(dim=1) / math.sqrt(weight.shape[1])
        self.shape, self.generator = (cases, len(weight)), generator
        self.slow, self.fast = self._draw(), self._draw()
        self.past: deque[Tensor] = deque(maxlen=_LAGS[-1])  # directions, the newest first
        self.steps, self.correlations = 0, dict.fromkeys(_LAGS, 0.0)

    def __call__(self, v: Tensor) -> Tensor:
        """Returns the product of the next step: (B, P) -> (B, G*H)."""
        size = v.norm(dim=1, keepdim=True)
        self._measure(torch.where(size > 0, v / size, 0.0))
        S, r, F, rho = self._shares()
        self.slow = r * self.slow + math.sqrt(1 - r**2) * self._draw()
        self.fast = rho * self.fast + math.sqrt(1 - rho**2) * self._draw()
        parts = math.sqrt(S) * self.slow, math.sqrt(F) * self.fast, math.sqrt(max(1 - S - F, 0.0)) * self._draw()
        return size * self.lengths * sum(parts)

    def _measure(self, direction: Tensor) -> None:
        for lag, mean in self.correlations.items():
            if self.steps >= lag:
                now = float((direction * self.past[lag - 1]).sum(1).mean())
                self.correlations[lag] = mean + (now - mean) / min(self.steps - lag + 1, _WINDOW)
        self.past.appendleft(direction)
        self.steps += 1

    def _shares(self) -> tuple[float, float, float, float]:
        """Returns S, r, F and rho: correlations ``S r^lag + F rho^lag`` are those measured, as far as they can be."""
        one, two, far, farther = (min(max(c, 0.0), 1.0) for c in self.correlations.values())
        after = min(farther / far, 1.0) if far else 0.0  # r to the power of the lags between the far ones
        S, r = (min(far / after, one), after ** (1 / (_LAGS[3] - _LAGS[2]))) if after else (0.0, 0.0)
        one, two, rest = one - S * r, two - S * r**2, 1 - S
        if min(one, two, rest) <= 0:
            return S, r, 0.0, 0.0
        rho = min(max(two / one, one / rest), 1.0)  # not below one / rest, as F is at most the rest
        return S, r, one / rho, rho

    def _draw(self) -> Tensor:
        return torch.randn(self.shape, generator=self.generator, dtype=torch.float64)
