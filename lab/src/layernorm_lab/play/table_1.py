"""Table 1 with sliders: a small layer's weights and inputs are moved; under each norm the output stays or changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layernorm import geometry

NORMS = {"batch": "batch norm", "weight": "weight norm", "layer": "layer norm", "rms": "RMS norm", None: "no norm"}
"""The norms in the order of Table 1, then the two that it does not list."""

MOVES = {item.name: item for item in (*geometry.TRANSFORMS.values(), geometry.CASE_RECENTRING)}
"""What can be moved, by name: the changes of Table 1, and the re-centring of a single case, which it does not list."""

_W, _X, _GAIN, _BIAS = geometry.standard_layer(units=6, inputs=5, cases=8, seed=0)
_DIRECTION = torch.linspace(0.2, 1.0, 5, dtype=torch.float64)  # of every shift: each input moves by another length
_PAPER = {(verdict.norm, verdict.transform): verdict.paper for verdict in geometry.invariance_table()}


START = {"dataset re-scaling": 0.3}
"""The positions of sliders at first: all inputs are doubled."""


class Outcome(NamedTuple):
    """The effect of moves under one norm: the change of the output, and the output (B, H) before and after."""

    verdict: geometry.Verdict
    before: Tensor
    after: Tensor


def listed(name: str) -> str:
    """Says what Table 1 says of a move."""
    norms = [label for norm, label in NORMS.items() if _PAPER.get((norm, name))]
    return f"Table 1: stays under {', '.join(norms)}" if norms else "not in Table 1"


def shifts(name: str) -> bool:
    """Tells whether a move adds a shift. The other moves multiply by delta."""
    return "shift" in MOVES[name].equation


def farthest(name: str) -> float:
    """Returns the largest position of a move's slider."""
    return 2.0 if shifts(name) else 1.0


def position(name: str, value: Any) -> float:
    """Returns the position of a move's slider from what a client sent. What is no number, or too far, is no move."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and abs(value) <= farthest(name) else 0.0


def amount(name: str, position: float) -> str:
    """Writes the size of a move as text: delta, or the shift of the input that moves furthest."""
    return f"shift {position:+.1f}" if shifts(name) else f"delta {10**position:.2f}"


def outcomes(positions: Mapping[str, float], eps: float) -> list[Outcome]:
    """Computes the output under each norm, with its own gain and bias, before and after some moves one after the other.

    Args:
        positions: a number for each move by name. 0 is no move. The shift is (0.2, 0.4, ..., 1) times this number; the
            delta is 10 to this power.
        eps: added to the variances.
    """
    moved = {name: position for name, position in positions.items() if position}

    def apply(W: Tensor, X: Tensor, delta: float, shift: Tensor) -> tuple[Tensor, Tensor]:
        for name, position in moved.items():
            by = (1.0, position * shift) if shifts(name) else (10**position, shift)
            W, X = MOVES[name].apply(W, X, *by)
        return W, X

    together = geometry.Transform(", ".join(moved), "", apply)
    W, X = apply(_W, _X, 1.0, _DIRECTION)
    by_norm = []
    for norm in NORMS:
        change = geometry.invariance(norm, together, _W, _X, gain=_GAIN, bias=_BIAS, shift=_DIRECTION, eps=eps)
        before, after = (geometry.normalized(*layer, norm, eps) * _GAIN + _BIAS for layer in ((_W, _X), (W, X)))
        verdict = geometry.Verdict(norm, together.name, change, _paper(norm, list(moved)))
        by_norm.append(Outcome(verdict, before, after))
    return by_norm


def _paper(norm: str | None, moved: list[str]) -> bool | None:
    """Returns Table 1's verdict on several moves together: an output that is invariant to each is invariant to all."""
    verdicts = [_PAPER.get((norm, name)) for name in moved]
    if len(verdicts) == 1:
        return verdicts[0]
    return True if verdicts and all(verdicts) else None
