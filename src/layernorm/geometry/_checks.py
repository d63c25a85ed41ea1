"""What every function here asks of its arguments."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

NORMS = ("batch", "weight", "layer", "rms", None)

# A matrix of 2**26 entries in float64 is 512 MiB; the Jacobian beside it is held to the same.
MAX_ENTRIES = 2**26


# A deviation below so many times the size of what it is the deviation of is rounding: 64 units in float64's last place.
ROUNDING = 64 * torch.finfo(torch.float64).eps


def shaped(name: str, given: object, *shape: int | str) -> Tensor:
    """A floating-point tensor of the shape expected; a letter stands for any size."""
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
    return given


def tensor(name: str, given: object, *shape: int | str) -> Tensor:
    """`shaped`, finite, in float64."""
    t = shaped(name, given, *shape)
    if not t.isfinite().all():
        raise ValueError(f"expected {name} to be finite, got NaN or infinity in it")
    return t.to(torch.float64)


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


def deviations(norm: str | None, W: Tensor, X: Tensor, eps: float, inside: Tensor | None = None) -> None:
    """Nothing is divided by a deviation that is zero up to rounding, as of cases or units that are all alike."""
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


def positive(name: str, given: float, zero: bool = False) -> float:
    """A finite number above 0, or with ``zero`` at least 0."""
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise TypeError(f"expected {name} to be a number, got {type(given).__name__}")
    if not (given >= 0 if zero else given > 0) or given == float("inf"):
        raise ValueError(f"expected {name} to be finite and {'>= 0' if zero else '> 0'}, got {given}")
    return float(given)


def whole(name: str, given: object, least: int, most: int | None = None) -> int:
    """An int in a range."""
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"expected {name} to be an int, got {type(given).__name__}")
    if given < least or (most is not None and given > most):
        expected = f"{least} or more" if most is None else f"one of {least} to {most}"
        raise ValueError(f"expected {name} to be {expected}, got {given}")
    return given


def ratio(a: float, b: float, what: str) -> float:
    """a / b, once there is something to compare with."""
    if b == 0:
        raise ValueError(f"{what} is zero: there is nothing to compare with")
    return a / b


def computed(what: Tensor) -> Tensor:
    """What a model gave, once it is finite."""
    if not what.isfinite().all():
        raise ValueError(
            "the result is not finite: parameters, step or inputs are not, a deviation is zero, or the family overflows"
        )
    return what


def finite(what: Tensor, norm: str | None) -> Tensor:
    """A result, once it is finite."""
    if not what.isfinite().all():
        raise ValueError(f"the result under norm={norm!r} is not finite: a deviation is zero or the family overflows")
    return what


def tensors(name: str, given: object) -> None:
    """A dict of floating-point tensors with something in it."""
    if not isinstance(given, Mapping):
        raise TypeError(f"expected {name} to be a dict of tensors, got {type(given).__name__}")
    for key, t in given.items():
        if not isinstance(t, Tensor) or not t.dtype.is_floating_point:
            got = t.dtype if isinstance(t, Tensor) else type(t).__name__
            raise TypeError(f"expected {name}[{key!r}] to be a Tensor of a floating-point type, got {got}")
    if not sum(t.numel() for t in given.values()):
        raise ValueError(f"expected {name} to be a dict of tensors, got an empty one")


def alike(name: str, given: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    """Two dicts of tensors with the same keys, shapes and types."""
    tensors("parameters", parameters)
    tensors(name, given)
    if set(given) != set(parameters):
        raise ValueError(f"expected {name} with the keys {sorted(parameters)}, got {sorted(given)}")
    for key, p in parameters.items():
        if given[key].shape != p.shape:
            raise ValueError(f"expected {name}[{key!r}] of shape {tuple(p.shape)}, got {tuple(given[key].shape)}")
        if given[key].dtype != p.dtype:
            raise TypeError(f"expected {name}[{key!r}] of type {p.dtype}, got {given[key].dtype}")


def small_enough(P: int, outputs: int, instead: str, square: bool = True) -> None:
    """Refuses a dense matrix that no one would want, naming the function that never forms it."""
    if max(P * P if square else 0, P * outputs) > MAX_ENTRIES:
        raise ValueError(
            f"a Fisher matrix of {P} parameters over {outputs} outputs exceeds {MAX_ENTRIES} entries; "
            f"use {instead}, which never forms it"
        )
