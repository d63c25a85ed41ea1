"""The checks of the geometry functions' arguments and results."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

NORMS = ("batch", "weight", "layer", "rms", None)

# A matrix of 2**26 entries in float64 takes 512 MiB. The limit holds for the Jacobian, too.
MAX_ENTRIES = 2**26


# A deviation that is smaller than this times the size of the numbers is rounding: 64 units in float64's last place.
ROUNDING = 64 * torch.finfo(torch.float64).eps


def shaped(name: str, value: object, *shape: int | str) -> Tensor:
    """Checks that a value is a floating-point tensor of a shape, in which a letter stands for any size."""
    if not isinstance(value, Tensor):
        raise TypeError(f"expected {name} to be a Tensor, got {type(value).__name__}")
    fits = value.dim() == len(shape) and all(
        isinstance(n, str) or n == m for n, m in zip(shape, value.shape, strict=True)
    )
    if not fits or value.numel() == 0:
        expected = ", ".join(map(str, shape))
        raise ValueError(f"expected {name} of shape ({expected}), not empty, got {tuple(value.shape)}")
    if not value.dtype.is_floating_point:
        raise TypeError(f"expected {name} of a floating-point type, got {value.dtype}")
    return value


def tensor(name: str, value: object, *shape: int | str) -> Tensor:
    """Checks as `shaped` does a finite tensor, which is returned in float64."""
    t = shaped(name, value, *shape)
    if not t.isfinite().all():
        raise ValueError(f"expected {name} to be finite, got NaN or infinity in it")
    return t.to(torch.float64)


def layer(weight: object, inputs: object) -> tuple[Tensor, Tensor]:
    """Checks a layer's weight (H, I) and inputs (B, I), and returns them in float64."""
    W = tensor("weight", weight, "H", "I")
    return W, tensor("inputs", inputs, "B", W.shape[1])


def known_norm(norm: str | None) -> None:
    """Checks that there is such a norm."""
    if norm not in NORMS:
        raise ValueError(f"expected norm to be one of {', '.join(map(repr, NORMS))}, got {norm!r}")


def norm_fits(norm: str | None, W: Tensor, X: Tensor) -> None:
    """Checks that a norm exists, and that there are enough units or cases for its statistics."""
    known_norm(norm)
    if norm == "layer" and W.shape[0] < 2:
        raise ValueError(f"layer norm needs two units or more, got weight of shape {tuple(W.shape)}")
    if norm == "batch" and X.shape[0] < 2:
        raise ValueError(f"batch norm needs two cases or more, got inputs of shape {tuple(X.shape)}")


def deviations(norm: str | None, W: Tensor, X: Tensor, eps: float, inside: Tensor | None = None) -> None:
    """Checks that no deviation to divide by is zero up to rounding, as it is where all cases or units are alike."""
    if norm is None or eps:
        return
    a = X @ W.T if inside is None else X @ W.T + inside
    size = X.norm(dim=1, keepdim=True) * W.norm(dim=1) + (0 if inside is None else inside.abs())  # (B, H)
    if norm == "weight":
        what, sigma, least = "unit", W.norm(dim=1), W.new_zeros(len(W))
    elif norm == "batch":
        what, sigma, least = "unit", ((X - X.mean(0)) @ W.T).square().mean(0).sqrt(), ROUNDING * size.amax(0)
    else:
        centred = a - a.mean(1, keepdim=True) if norm == "layer" else a
        what, sigma, least = "case", centred.square().mean(1).sqrt(), ROUNDING * size.amax(1)
    zero = (sigma <= least).nonzero().flatten().tolist()
    if zero:
        raise ValueError(
            f"sigma under norm={norm!r} is zero up to rounding for {what} {zero[0]}: give an eps > 0, or weight and "
            "inputs that vary"
        )


def positive(name: str, value: float, zero: bool = False) -> float:
    """Checks that a value is a finite number above 0, or with ``zero`` at least 0."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"expected {name} to be a number, got {type(value).__name__}")
    if not (value >= 0 if zero else value > 0) or value == float("inf"):
        raise ValueError(f"expected {name} to be finite and {'>= 0' if zero else '> 0'}, got {value}")
    return float(value)


def whole(name: str, value: object, least: int, most: int | None = None) -> int:
    """Checks that a value is an int in a range."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"expected {name} to be an int, got {type(value).__name__}")
    if value < least or (most is not None and value > most):
        expected = f"{least} or more" if most is None else f"one of {least} to {most}"
        raise ValueError(f"expected {name} to be {expected}, got {value}")
    return value


def ratio(a: float, b: float, what: str) -> float:
    """Divides a / b, where b is not 0."""
    if b == 0:
        raise ValueError(f"{what} is zero: there is nothing to compare with")
    return a / b


def computed(result: Tensor) -> Tensor:
    """Checks that a model's result is finite."""
    if not result.isfinite().all():
        raise ValueError(
            "the result is not finite: parameters, step or inputs are not, a deviation is zero, or the family overflows"
        )
    return result


def finite(result: Tensor, norm: str | None) -> Tensor:
    """Checks that a result is finite."""
    if not result.isfinite().all():
        raise ValueError(f"the result under norm={norm!r} is not finite: a deviation is zero or the family overflows")
    return result


def tensors(name: str, value: object) -> None:
    """Checks that a value is a dict of floating-point tensors that is not empty."""
    if not isinstance(value, Mapping):
        raise TypeError(f"expected {name} to be a dict of tensors, got {type(value).__name__}")
    for key, t in value.items():
        if not isinstance(t, Tensor) or not t.dtype.is_floating_point:
            got = t.dtype if isinstance(t, Tensor) else type(t).__name__
            raise TypeError(f"expected {name}[{key!r}] to be a Tensor of a floating-point type, got {got}")
    if not sum(t.numel() for t in value.values()):
        raise ValueError(f"expected {name} to be a dict of tensors, got an empty one")


def alike(name: str, vector: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    """Checks that two dicts of tensors have the same keys, shapes and types."""
    tensors("parameters", parameters)
    tensors(name, vector)
    if set(vector) != set(parameters):
        raise ValueError(f"expected {name} with the keys {sorted(parameters)}, got {sorted(vector)}")
    for key, p in parameters.items():
        if vector[key].shape != p.shape:
            raise ValueError(f"expected {name}[{key!r}] of shape {tuple(p.shape)}, got {tuple(vector[key].shape)}")
        if vector[key].dtype != p.dtype:
            raise TypeError(f"expected {name}[{key!r}] of type {p.dtype}, got {vector[key].dtype}")


def small_enough(P: int, outputs: int, instead: str, square: bool = True) -> None:
    """Refuses a dense matrix that is too large for memory, and names the function that never forms it."""
    if max(P * P if square else 0, P * outputs) > MAX_ENTRIES:
        raise ValueError(
            f"a Fisher matrix of {P} parameters over {outputs} outputs exceeds {MAX_ENTRIES} entries; "
            f"use {instead}, which never forms it"
        )
