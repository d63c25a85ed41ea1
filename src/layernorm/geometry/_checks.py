"""What every function here asks of its arguments."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

NORMS = ("batch", "weight", "layer", "rms", None)

# A matrix of 2**26 entries in float64 is 512 MiB; the Jacobian beside it is held to the same.
MAX_ENTRIES = 2**26


def tensor(name: str, given: object, *shape: int | str) -> Tensor:
    """The tensor in float64, once its shape is the one expected; a letter stands for any size."""
    if not isinstance(given, Tensor):
        raise TypeError(f"expected {name} to be a Tensor, got {type(given).__name__}")
    fits = given.dim() == len(shape) and all(
        isinstance(n, str) or n == m for n, m in zip(shape, given.shape, strict=True)
    )
    if not fits or given.numel() == 0:
        expected = ", ".join(map(str, shape))
        raise ValueError(f"expected {name} of shape ({expected}), not empty, got {tuple(given.shape)}")
    if not given.dtype.is_floating_point:
        raise TypeError(f"expected {name} of a floating-point type, got {given.dtype}")
    if not given.isfinite().all():
        raise ValueError(f"expected {name} to be finite, got NaN or infinity in it")
    return given.to(torch.float64)


def layer(weight: object, inputs: object) -> tuple[Tensor, Tensor]:
    """The two that every layer has, weight (H, I) and inputs (B, I), in float64."""
    W = tensor("weight", weight, "H", "I")
    return W, tensor("inputs", inputs, "B", W.shape[1])


def norm_fits(norm: str | None, W: Tensor, X: Tensor) -> None:
    """A norm that exists, and enough units or cases for its statistics."""
    if norm not in NORMS:
        raise ValueError(f"expected norm to be one of {', '.join(map(repr, NORMS))}, got {norm!r}")
    if norm == "layer" and W.shape[0] < 2:
        raise ValueError(f"layer norm needs two units or more, got weight of shape {tuple(W.shape)}")
    if norm == "batch" and X.shape[0] < 2:
        raise ValueError(f"batch norm needs two cases or more, got inputs of shape {tuple(X.shape)}")


def positive(name: str, given: float, zero: bool = False) -> float:
    """A finite number above 0, or with ``zero`` at least 0."""
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise TypeError(f"expected {name} to be a number, got {type(given).__name__}")
    if not (given >= 0 if zero else given > 0) or given == float("inf"):
        raise ValueError(f"expected {name} to be finite and {'>= 0' if zero else '> 0'}, got {given}")
    return float(given)


def finite(what: Tensor, norm: str | None) -> Tensor:
    """A result, once it is finite."""
    if not what.isfinite().all():
        raise ValueError(f"the result under norm={norm!r} is not finite: a deviation is zero or the family overflows")
    return what


def alike(name: str, given: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    """A dict with the parameters' keys and shapes."""
    if set(given) != set(parameters):
        raise ValueError(f"expected {name} with the keys {sorted(parameters)}, got {sorted(given)}")
    for key, p in parameters.items():
        if given[key].shape != p.shape:
            raise ValueError(f"expected {name}[{key!r}] of shape {tuple(p.shape)}, got {tuple(given[key].shape)}")


def small_enough(P: int, outputs: int, instead: str, square: bool = True) -> None:
    """Refuses a dense matrix that no one would want, naming the function that never forms it."""
    if max(P * P if square else 0, P * outputs) > MAX_ENTRIES:
        raise ValueError(
            f"a Fisher matrix of {P} parameters over {outputs} outputs exceeds {MAX_ENTRIES} entries; "
            f"use {instead}, which never forms it"
        )
