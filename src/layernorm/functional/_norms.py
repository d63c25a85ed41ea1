"""`layer_norm` and `rms_norm`, alone or after a residual sum: arguments checked, engine chosen, gradient bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .. import backends, reference
from ..engine import NormArguments
from ._bind import Op, Part, gradients_of_equations, transforming


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
    if has_torch_function_variadic(input, weight, bias):
        return handle_torch_function(layer_norm, (input, weight, bias), input, normalized_shape, weight, bias, eps)
    return _normalize(input, None, normalized_shape, weight, bias, float(eps), "layer")[0]


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
    if has_torch_function_variadic(input, weight):
        return handle_torch_function(rms_norm, (input, weight), input, normalized_shape, weight, eps)
    return _normalize(input, None, normalized_shape, weight, None, eps, "rms")[0]


def add_layer_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    r"""The residual sum of a pre-norm network and its layer normalisation, in one sweep over memory.

    .. math:: total = input + residual, \qquad y = \mathrm{LN}(total)

    Args:
        input: ``(*, *normalized_shape)``, any floating type.
        residual: like ``input``: of its shape, type and device.
        normalized_shape, weight, bias, eps: as in `layer_norm`.

    Returns:
        ``(y, total)``, both like ``input``; the same numbers as ``layer_norm(input + residual, ...)`` gives.

    Raises:
        RuntimeError, TypeError: as in `layer_norm`.
    """
    if has_torch_function_variadic(input, residual, weight, bias):
        return handle_torch_function(
            add_layer_norm, (input, residual, weight, bias), input, residual, normalized_shape, weight, bias, eps
        )
    if residual is None:
        raise TypeError("layer_norm: expected residual to be a Tensor, got NoneType")
    y, total = _normalize(input, residual, normalized_shape, weight, bias, float(eps), "layer")
    return y, total


def add_rms_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> tuple[Tensor, Tensor]:
    r"""The residual sum of a pre-norm network and its RMS normalisation: see `add_layer_norm` and `rms_norm`."""
    if has_torch_function_variadic(input, residual, weight):
        return handle_torch_function(
            add_rms_norm, (input, residual, weight), input, residual, normalized_shape, weight, eps
        )
    if residual is None:
        raise TypeError("rms_norm: expected residual to be a Tensor, got NoneType")
    y, total = _normalize(input, residual, normalized_shape, weight, None, eps, "rms")
    return y, total


def _normalize(
    input: Tensor,
    residual: Tensor | None,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
    norm: str,
) -> Sequence[Tensor]:
    """[y], or with a residual [y, input + residual]."""
    tensors = [input]
    for tensor in (weight, bias, residual):  # as among the op's arguments
        if tensor is not None:
            tensors.append(tensor)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            given = {"input": input, "residual": residual, "weight": weight, "bias": bias}
            name = next(name for name, t in given.items() if t is tensor)
            raise TypeError(f"{norm}_norm: expected {name} to be a Tensor, got {type(tensor).__name__}")
    if type(normalized_shape) is not tuple and (
        not isinstance(normalized_shape, Sequence) or isinstance(normalized_shape, str)
    ):
        given_type = type(normalized_shape).__name__
        raise TypeError(f"{norm}_norm: expected normalized_shape to be a tuple of ints, got {given_type}")
    for size in normalized_shape:
        if isinstance(size, (float, str)):
            given_type = type(size).__name__
            raise TypeError(f"{norm}_norm: expected normalized_shape to be a tuple of ints, got one of {given_type}")
    if eps is None:
        eps = torch.finfo(input.dtype).eps if input.dtype.is_floating_point else 0.0
    shape, eps = list(normalized_shape), float(eps)
    if transforming():
        a = NormArguments(input, shape, weight, bias, eps, norm)
        _check(a, residual)
        total = [] if residual is None else [input + residual]
        return [reference.normalize_equations(a._replace(input=total[0]) if total else a), *total]
    return _NORMALIZE(tensors, input, shape, weight, bias, eps, norm, residual)


def _check(a: NormArguments, residual: Tensor | None) -> None:
    """Everything about shapes, types and devices that an engine relies on."""
    input, normalized_shape, weight, bias = a.input, a.normalized_shape, a.weight, a.bias
    static = residual is None and input.is_cpu and not torch.compiler.is_compiling()
    shape = tuple(normalized_shape)
    if static and shape and input.shape[-len(shape) :] == shape and input.dtype.is_floating_point:
        for p in (weight, bias):
            if p is not None and (p.shape != shape or not p.is_cpu or not p.dtype.is_floating_point):
                break
        else:
            return
    op = f"{a.norm}_norm"
    if not input.dtype.is_floating_point:
        raise RuntimeError(f"{op}: expected input of a floating-point type, got {input.dtype}")
    if not normalized_shape or list(input.shape[input.dim() - len(normalized_shape) :]) != list(normalized_shape):
        expected = ", ".join(["*", *map(str, normalized_shape)])
        raise RuntimeError(
            f"{op}: given normalized_shape={list(normalized_shape)}, expected input of shape [{expected}], "
            f"got {list(input.shape)}"
        )
    if residual is not None:
        for what in ("shape", "dtype", "device"):
            mine, given = getattr(input, what), getattr(residual, what)
            if mine != given:
                mine, given = (list(mine), list(given)) if what == "shape" else (mine, given)
                raise RuntimeError(f"{op}: expected residual of {what} {mine}, as input has, got {given}")
    for name, p in (("weight", weight), ("bias", bias)):
        if p is None:
            continue
        if list(p.shape) != normalized_shape:
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
    residual: Tensor | None,
    save: bool,
    backend: str,
) -> list[Tensor]:
    a = NormArguments(input, normalized_shape, weight, bias, eps, norm)
    _check(a, residual)
    return backends.engine(backend).normalize_forward(a, residual, save)


def _fake(*given: Any) -> list[Tensor]:
    *arguments, residual, save, backend = given
    a = NormArguments(*arguments)
    _check(a, residual)
    have = [t for t in (a.input, residual) if t is not None]
    results = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in have]
    return [*results, *(backends.engine(backend).normalize_saved(a) if save else [])]


def _backward_kernel(*given: Any) -> list[Tensor]:
    *arguments, saved, grad, grad_total, backend = given
    a, engine = NormArguments(*arguments), backends.engine(backend)
    _check(a, None)
    expected = engine.normalize_saved(a)
    alike = list(zip(saved, expected, strict=True))
    if any(t.shape != like.shape or t.dtype != like.dtype or t.device != like.device for t, like in alike):
        found = [f"{t.dtype} {list(t.shape)}" for t, _ in alike]
        raise RuntimeError(f"{a.norm}_norm: expected what the forward saved for {a.sizes[0]} rows, got {found}")
    _check_gradients(a, grad, grad_total)
    return engine.normalize_backward(a, saved, grad, grad_total)


def _unchecked_backward(*given: Any) -> list[Tensor]:
    *arguments, saved, grad, grad_total, backend = given
    a = NormArguments(*arguments)
    _check(a, None)  # hooks on saved tensors can put others in their place
    _check_gradients(a, grad, grad_total)
    return backends.engine(backend).normalize_backward(a, saved, grad, grad_total)


def _check_gradients(a: NormArguments, *grads: Tensor | None) -> None:
    """That gradients are like what was normalised.

    Raises:
        RuntimeError: one is not.
    """
    input = a.input
    shape, dtype, device = input.shape, input.dtype, input.device
    for grad in grads:
        if grad is not None and (grad.shape != shape or grad.dtype is not dtype or grad.device != device):
            raise RuntimeError(
                f"{a.norm}_norm: expected a gradient like input, {dtype} {list(shape)} on {device}, "
                f"got {grad.dtype} {list(grad.shape)} on {grad.device}"
            )


def _backward_fake(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, *rest: Any
) -> list[Tensor]:
    have = [t for t in (input, weight, bias) if t is not None]
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in have]


def _results(*args: Any) -> int:
    return 1 if args[6] is None else 2


def _choose(input: Tensor, *rest: Any) -> str:
    return backends.choose("normalize", input, None, rest[-1])


def _setup_context(ctx: Any, args: tuple[Any, ...], backend: str, output: list[Tensor]) -> None:
    input, ctx.normalized_shape, weight, bias, ctx.eps, ctx.norm, residual = args
    ctx.has_residual, ctx.backend = residual is not None, backend
    ctx.save_for_backward(input if residual is None else output[1], weight, bias, *output[_results(*args) :])


def _backward(ctx: Any, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    total, weight, bias, *saved = ctx.saved_tensors
    have = [t for t in (total, weight, bias) if t is not None]
    grad, grad_total = grads[0], grads[1] if ctx.has_residual else None

    def equations(*tensors: Tensor) -> list[Tensor]:
        x, w, b = _present(tensors, total, weight, bias)
        return [reference.normalize_equations(NormArguments(x, ctx.normalized_shape, w, b, ctx.eps, ctx.norm))]

    found: list[Tensor | None]
    if grad is None:
        found = [grad_total, *[None for _ in have[1:]]]
    elif torch.is_grad_enabled() or transforming():
        dx, *rest = gradients_of_equations(equations, have, [grad])
        found = [dx if grad_total is None else dx + grad_total, *rest]
    else:
        tensors = [t for t in (grad, grad_total, total, *saved) if t is not None]
        arguments = (total, ctx.normalized_shape, weight, bias, ctx.eps, ctx.norm, saved, grad, grad_total, ctx.backend)
        found = list(_NORMALIZE_BACKWARD(tensors, *arguments))
    return [*found, found[0]] if ctx.has_residual else found


def _present(found: Sequence[Tensor], *where: Tensor | None) -> list[Any]:
    """What was found for each of the tensors that there are, None for the others."""
    rest = iter(found)
    return [None if t is None else next(rest) for t in where]


_ARGUMENTS = "Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps, str norm"
_NORMALIZE = Op(
    "normalize",
    f"{_ARGUMENTS}, Tensor? residual",
    _results,
    _choose,
    _kernel,
    _fake,
    _setup_context,
    _backward,
)
_NORMALIZE_BACKWARD = Part(
    "normalize_backward",
    f"{_ARGUMENTS}, Tensor[] saved, Tensor grad, Tensor? grad_total",
    _backward_kernel,
    _backward_fake,
    unchecked=_unchecked_backward,
)
