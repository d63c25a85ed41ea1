"""A check at the first use of each kind of call on a device: the GPU, its driver and its compiler may be any."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...equations import norms, recurrent
from ...equations.arguments import NormArguments, RecurrentArguments
from ...equations.checks import check_norm, check_recurrent
from ...formula import CACHED
from ._lanes import is_captured, keeps_lanes, lanes
from ._steps import FEW

BOUND = 64
"""How many roundings of the type that is multiplied an error may have, of the largest number."""

PASSING = ("out of memory", "ALLOC_FAILED", "is capturing")

Call = RecurrentArguments | NormArguments

Engine = tuple[Callable[..., Any], Callable[..., Any]]
"""A forward and its backward."""


class SelfCheck:
    """What has been checked in this process, and what was found."""

    def __init__(self) -> None:
        self._found: dict[Any, str] = {}

    def passes(self, a: Call, engine: Engine, precision: str, rounding: float) -> bool:
        """Runs small calls of the same kind once, and warns once where they are wrong.

        While somebody captures a graph nothing is run: what has not been checked by then passes. So does what cannot be
        checked now, for want of memory or because another thread captures.
        """
        kind = a.recurrence if isinstance(a, RecurrentArguments) else (a.norm, a.weight is None, a.bias is None)
        many = isinstance(a, RecurrentArguments) and len(a.state[0]) > FEW  # rows, whose product has other blocks
        key = kind, a.device, a.input.dtype, a.widths, precision, many
        wrong = self._found.get(key)
        if wrong is None:
            if is_captured(a.device):
                return True
            if len(self._found) >= CACHED:
                self._found.clear()
            check_recurrent(a) if isinstance(a, RecurrentArguments) else check_norm(a, None)
            try:
                with lanes.without_new():
                    self._found[key] = wrong = _what_is_wrong(a, engine, rounding)
            except RuntimeError:  # of this moment
                return True
            if wrong:
                what = "a recurrent layer" if isinstance(a, RecurrentArguments) else "a norm"
                warnings.warn(
                    f"layernorm's engine 'triton' is wrong about {what} in {a.input.dtype} with {a.widths} numbers on "
                    f"{a.device}, so that plain equations compute it, more slowly: {wrong}",
                    stacklevel=2,
                )
        return not wrong


def _what_is_wrong(a: Call, engine: Engine, rounding: float) -> str:
    """Says what is wrong with a kind of call; an empty text: nothing.

    Steps by graphs have to be equal to those that are launched one by one, and two steps near to those in float64. Two
    units that differ by little in one draw of numbers, by which a layer norm divides, are no fault: three draws are.
    """
    told = ""
    try:
        if keeps_lanes(a.device):
            long = _small_call(a, 21, 0)
            first, second = (_results(long, engine) for _ in range(2))
            if not all(torch.equal(x, y) for x, y in zip(first, second, strict=True)):
                return "a second call, by CUDA graphs, has other results than the first"
        for seed in range(3):
            small = _small_call(a, 2, seed)
            found, expected = _results(small, engine), _results(_in_float64(small), _equations(a))
            pairs = [(x.double(), y) for x, y in zip(found, expected, strict=True) if x.numel()]
            errors = [float((x - y).abs().max() / (1 + y.abs().max())) for x, y in pairs]
            bad = [error for error in errors if not error <= BOUND * rounding]  # NaN is bad
            if not bad:
                return ""
            told = f"an error of {bad[0]:.1e}, where {BOUND * rounding:.1e} is expected"
    except Exception as error:  # whatever a compiler or a driver says, the equations still run
        if _passes_by(error):
            raise
        lines = str(error).splitlines() or [""]  # a compiler's first line has the place, its last one the reason
        return f"{type(error).__name__}: {' ... '.join(dict.fromkeys((lines[0], lines[-1])))}"
    return told


def _passes_by(error: Exception) -> bool:
    """Says whether an error tells of this moment, not of the engine: no memory, or a capture in another thread."""
    return isinstance(error, RuntimeError) and any(word in str(error) for word in PASSING)


def _equations(a: Call) -> Engine:
    if isinstance(a, NormArguments):
        return norms.normalize_forward, norms.normalize_backward
    return recurrent.recurrent_forward, recurrent.recurrent_backward


def _small_call(a: Any, count: int, seed: int) -> Any:
    """Returns a call of the same kind with other numbers, of so many rows, or steps of three rows, or of one more than
    the larger block of a product has."""
    generator = torch.Generator(a.device).manual_seed(seed)

    def drawn(like: Tensor, *shape: int) -> Tensor:
        return torch.randn(shape or like.shape, generator=generator, device=a.device, dtype=like.dtype)

    if isinstance(a, NormArguments):
        weight, bias = (None if p is None else drawn(p) for p in (a.weight, a.bias))
        return a._replace(input=drawn(a.input, count, *a.normalized_shape), weight=weight, bias=bias)
    size = max(a.widths[1], 1) ** -0.5
    params = [drawn(p) * size if p.dim() == 2 else 1 + 0.1 * drawn(p) for p in a.params]
    rows = 3 if len(a.state[0]) <= FEW else 2 * FEW + 1
    state = [0.5 * drawn(s, rows, s.shape[1]) for s in a.state]
    return RecurrentArguments(drawn(a.input, count, rows, a.widths[0]), state, params, a.recurrence)


def _in_float64(a: Any) -> Any:
    if isinstance(a, NormArguments):
        weight, bias = (None if p is None else p.double() for p in (a.weight, a.bias))
        return a._replace(input=a.input.double(), weight=weight, bias=bias)
    return a.with_tensors([t.double() for t in a.tensors])


@torch.no_grad()
def _results(a: Any, engine: Engine) -> Sequence[Tensor]:
    """Returns the results of a call, and its gradients where each gradient of a result is that result."""
    forward, backward = engine
    if isinstance(a, NormArguments):
        y, *saved = forward(a, None, True)
        return [y, *backward(a, saved, y, None)]
    n = 1 + len(a.state)
    found = forward(a, True)
    return [*found[:n], *backward(a, found[n:], found[0], found[1:n])]


self_check = SelfCheck()
