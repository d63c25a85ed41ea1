"""`layer_norm` and `rms_norm`: torch's arguments, checked; the engine chosen; the gradient bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import backends, reference
from ._bind import Op, gradients_of_equations, transforming


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    r"""Layer normalisation, eq. 3: each training case by its own mean and deviation.

    .. math:: y = \frac{x - \mathrm{mean}(x)}{\sqrt{\mathrm{var}(x) + \epsilon}} \cdot gain + bias

    Statistics and the sums of the gain's and bias's gradients are kept in float32 or wider; a constant row gives
    exactly the bias.

    Args:
        input: ``(*, *normalized_shape)``, any floating type.
        normalized_shape: the last dimensions, over which mean and biased variance are taken.
        weight: the gain, of shape ``normalized_shape``; of ``input``'s type or a wider one.
        bias: likewise.
        eps: added to the variance.

    Returns:
        Tensor like ``input``.

    Raises:
        RuntimeError: a shape, dtype or device does not fit.
        TypeError: an argument is not of the Python type above.

    Source: Ba, Kiros, Hinton, "Layer Normalization", 2016, arXiv:1607.06450.
    """
    return _normalize(input, normalized_shape, weight, bias, float(eps), "layer")


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    r"""RMS normalisation: layer normalisation without re-centring.

    .. math:: y = \frac{x}{\sqrt{\mathrm{mean}(x^2) + \epsilon}} \cdot gain

    Args:
        input: ``(*, *normalized_shape)``, any floating type.
        normalized_shape: the last dimensions, over which the mean square is taken.
        weight: the gain, of shape ``normalized_shape``.
        eps: added to the mean square; ``None``: ``torch.finfo(input.dtype).eps``, as `torch.nn.functional.rms_norm`.

    Returns:
        Tensor like ``input``.

    Raises:
        RuntimeError: a shape, dtype or device does not fit.
        TypeError: an argument is not of the Python type above.

    Source: Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv:1910.07467.
    """
    return _normalize(input, normalized_shape, weight, None, eps, "rms")


def _normalize(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
    norm: str,
) -> Tensor:
    for name, tensor in (("input", input), ("weight", weight), ("bias", bias)):
        like_a_tensor = hasattr(tensor, "__torch_function__")  # torch.fx traces with what is none
        if not like_a_tensor and (tensor is not None or name == "input"):
            raise TypeError(f"{norm}_norm: expected {name} to be a Tensor, got {type(tensor).__name__}")
    if not isinstance(normalized_shape, Sequence) or isinstance(normalized_shape, str):
        given = type(normalized_shape).__name__
        raise TypeError(f"{norm}_norm: expected normalized_shape to be a tuple of ints, got {given}")
    if eps is None:
        eps = torch.finfo(input.dtype).eps if input.dtype.is_floating_point else 0.0
    shape, eps = list(normalized_shape), float(eps)
    if transforming():
        _check(input, shape, weight, bias, norm)
        return reference.normalize_equations(input, shape, weight, bias, eps, norm)
    backend = backends.choose("normalize", input)
    tensors = [t for t in (input, weight, bias) if t is not None]
    return _NORMALIZE(1, tensors, input, shape, weight, bias, eps, norm, backend)[0]


def _check(input: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, norm: str) -> None:
    op = f"{norm}_norm"
    if not input.dtype.is_floating_point:
        raise RuntimeError(f"{op}: expected input of a floating-point type, got {input.dtype}")
    if not normalized_shape or list(input.shape[input.dim() - len(normalized_shape) :]) != list(normalized_shape):
        expected = ", ".join(["*", *map(str, normalized_shape)])
        raise RuntimeError(
            f"{op}: given normalized_shape={list(normalized_shape)}, expected input of shape [{expected}], "
            f"got {list(input.shape)}"
        )
    for name, p in (("weight", weight), ("bias", bias)):
        if p is None:
            continue
        if list(p.shape) != list(normalized_shape):
            raise RuntimeError(f"{op}: expected {name} of shape {list(normalized_shape)}, got {list(p.shape)}")
        if not p.dtype.is_floating_point:
            raise RuntimeError(f"{op}: expected {name} of a floating-point type, got {p.dtype}")
        if p.device != input.device:
            raise RuntimeError(f"{op}: expected {name} on {input.device}, where input is, got {p.device}")


def _kernel(
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    norm: str,
    backend: str,
) -> list[Tensor]:
    _check(input, normalized_shape, weight, bias, norm)
    return backends.engine(backend).normalize_forward(input, normalized_shape, weight, bias, eps, norm)


def _fake(
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    norm: str,
    backend: str,
) -> list[Tensor]:
    _check(input, normalized_shape, weight, bias, norm)
    saved = backends.engine(backend).normalize_saved(input, normalized_shape, norm)
    return [torch.empty_like(input, memory_format=torch.contiguous_format), *saved]


def _backward_kernel(*args: Any) -> list[Tensor]:
    return backends.engine(args[-1]).normalize_backward(*args[:-1])


def _backward_fake(
    grad: Tensor, input: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, *rest: Any
) -> list[Tensor]:
    have = [t for t in (input, weight, bias) if t is not None]
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in have]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    input, ctx.normalized_shape, weight, bias, ctx.eps, ctx.norm, ctx.backend = inputs
    ctx.save_for_backward(input, weight, bias, *output[1:])


def _backward(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    input, weight, bias, *saved = ctx.saved_tensors

    def present(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """(input, weight, bias) from those of them that there are."""
        rest = iter(tensors)
        return tuple(None if t is None else next(rest) for t in (input, weight, bias))

    def equations(*tensors: Tensor) -> list[Tensor]:
        x, w, b = present(tensors)
        return [reference.normalize_equations(x, ctx.normalized_shape, w, b, ctx.eps, ctx.norm)]

    if grads[0] is None:
        return (None,) * 7
    if torch.is_grad_enabled() or transforming():
        found = gradients_of_equations(equations, [t for t in (input, weight, bias) if t is not None], grads[:1])
    else:
        found = _NORMALIZE_BACKWARD(
            3, [grads[0], input, *saved], grads[0], input, ctx.normalized_shape, weight, bias, saved, ctx.norm, ctx.backend
        )
    dx, dw, db = present(found)
    return dx, None, dw, db, None, None, None


_NORMALIZE = Op(
    "normalize",
    "(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps, str norm, str backend)",
    _kernel,
    _fake,
    _setup_context,
    _backward,
)
_NORMALIZE_BACKWARD = Op(
    "normalize_backward",
    "(Tensor grad, Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, Tensor[] saved, str norm,"
    " str backend)",
    _backward_kernel,
    _backward_fake,
)
