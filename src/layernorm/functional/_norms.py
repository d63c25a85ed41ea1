"""`layer_norm` and `rms_norm`, alone or after a residual sum: arguments checked, engine chosen, gradient bound."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .. import backends
from ..engines import reference
from ..engines.protocol import NormArguments, NormKind, Run
from ._bind import Arguments, Op, Part, gradients_of_equations, plain, transforming


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    r"""Normalises each training case by its own mean and deviation: layer normalisation, eq. 3.

    .. math:: y = \frac{x - \mathrm{mean}(x)}{\sqrt{\mathrm{var}(x) + \epsilon}} \cdot gain + bias

    Statistics, and the sums that the gradients of gain and bias are, are kept in float32 or wider. A constant row gives
    exactly the bias.

    Args:
        input: ``(*, *normalized_shape)``, any floating type.
        normalized_shape: the last dimensions, over which mean and biased variance are taken.
        weight: the gain, of shape ``normalized_shape``, of ``input``'s type or a wider one. ``None``: 1.
        bias: of the same shape and such a type. ``None``: 0.
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
        weight: the gain, of shape ``normalized_shape``. ``None``: 1.
        eps: added to the mean square. ``None``: ``torch.finfo(input.dtype).eps``, as `torch.nn.functional.rms_norm`.

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
        ``(y, total)``, both like ``input``. ``y`` has the numbers that ``layer_norm(input + residual, ...)`` gives.

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
    if type(normalized_shape) is not tuple:
        if not isinstance(normalized_shape, Sequence) or isinstance(normalized_shape, str):
            given_type = type(normalized_shape).__name__
            raise TypeError(f"{norm}_norm: expected normalized_shape to be a tuple of ints, got {given_type}")
        normalized_shape = tuple(normalized_shape)  # the caller's own list may change before the backward
    for size in normalized_shape:
        if type(size) is not int:
            normalized_shape = tuple([_integer(size, norm) for size in normalized_shape])
            break
    if eps is None:
        floating = isinstance(input, Tensor) and input.dtype.is_floating_point
        eps = torch.finfo(input.dtype).eps if floating else 0.0
    arguments = (input, normalized_shape, weight, bias, float(eps), norm, residual)
    tensors = [input]  # then those that there are
    if weight is not None:
        tensors.append(weight)
    if bias is not None:
        tensors.append(bias)
    if residual is not None:
        tensors.append(residual)
    if plain(tensors):
        return _NORMALIZE(tensors, arguments)
    for name, tensor in (("input", input), ("residual", residual), ("weight", weight), ("bias", bias)):
        if not isinstance(tensor, Tensor) and (tensor is not None or name == "input"):
            raise TypeError(f"{norm}_norm: expected {name} to be a Tensor, got {type(tensor).__name__}")
    return _NORMALIZE.elsewhere(arguments)


def _integer(size: Any, norm: str) -> Any:
    """A size as the integer that it is. A compiler's, which is known later, stays as it is."""
    try:
        return size if isinstance(size, torch.SymInt) else operator.index(size)
    except TypeError:
        given_type = type(size).__name__
        raise TypeError(
            f"{norm}_norm: expected normalized_shape to be a tuple of ints, got one of {given_type}"
        ) from None


def _check(a: NormArguments, residual: Tensor | None) -> None:
    """Everything about shapes, types and devices that an engine relies on, where it has no plan for the call."""
    op, input, shape = f"{a.norm}_norm", a.input, list(a.normalized_shape)
    if not input.dtype.is_floating_point:
        raise RuntimeError(f"{op}: expected input of a floating-point type, got {input.dtype}")
    if not shape or list(input.shape[input.dim() - len(shape) :]) != shape:
        expected = ", ".join(["*", *map(str, shape)])
        raise RuntimeError(
            f"{op}: given normalized_shape={shape}, expected input of shape [{expected}], got {list(input.shape)}"
        )
    if residual is not None:
        for what in ("shape", "dtype", "device"):
            mine, given = getattr(input, what), getattr(residual, what)
            if mine != given:
                mine, given = (list(mine), list(given)) if what == "shape" else (mine, given)
                raise RuntimeError(f"{op}: expected residual of {what} {mine}, as input has, got {given}")
    for name, p in (("weight", a.weight), ("bias", a.bias)):
        if p is None:
            continue
        if list(p.shape) != shape:
            raise RuntimeError(f"{op}: expected {name} of shape {shape}, got {list(p.shape)}")
        if not p.dtype.is_floating_point:
            raise RuntimeError(f"{op}: expected {name} of a floating-point type, got {p.dtype}")
        if p.device != input.device:
            raise RuntimeError(f"{op}: expected {name} on {input.device}, where input is, got {p.device}")


def _equations(arguments: Arguments) -> list[Tensor]:
    *given, residual = arguments
    a = NormArguments(*given)
    _check(a, residual)
    if residual is None:
        return [reference.normalize_equations(a)]
    total = a.input + residual
    return [reference.normalize_equations(a._replace(input=total)), total]


def _plan(save: bool, arguments: Arguments) -> tuple[str, Run | None]:
    input, normalized_shape, weight, bias, eps, norm, residual = arguments
    return _planned(
        backends.asked_for(), "cpu" if input.is_cpu else input.device.type, save, input.dtype, input.shape,
        input.stride(), tuple(normalized_shape), None if weight is None else weight.dtype,
        None if bias is None else bias.dtype, eps, norm, (None if residual is None else residual.stride(),),
    )  # fmt: skip


@functools.lru_cache(4096)
def _planned(asked_for: str | None, device: str, save: bool, *kind: Any) -> tuple[str, Run | None]:
    """The engine for calls of this kind, and its plan for them; ``kind``: `NormKind`."""
    of_calls = NormKind(*kind)
    backend = backends.preferred("normalize", device, of_calls.dtype, asked_for)
    plan = getattr(backends.engine(backend), "normalize_forward_plan", None)
    return backend, plan and plan(of_calls, save)


def _choose(arguments: Arguments, backend: str | None) -> str:
    return backends.choose("normalize", arguments[0], None, backend)


def _kernel(save: bool, backend: str, arguments: Arguments) -> list[Tensor]:
    *given, residual = arguments
    a = NormArguments(*given)
    _check(a, residual)
    return backends.engine(backend).normalize_forward(a, residual, save)


def _fake(backend: str | None, arguments: Arguments) -> list[Tensor]:
    *given, residual = arguments
    a = NormArguments(*given)
    _check(a, residual)
    have = [t for t in (a.input, residual) if t is not None]
    results = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in have]
    return [*results, *(backends.engine(backend).normalize_saved(a) if backend else [])]


def _save(ctx: Any, arguments: Arguments, found: list[Tensor]) -> list[Tensor]:
    input, normalized_shape, weight, bias, eps, norm, residual = arguments
    results = 1 if residual is None else 2
    ctx.description = normalized_shape, eps, norm, residual is not None
    ctx.save_for_backward(input if residual is None else found[1], weight, bias, *found[results:])
    return found[:results]


def _backward(ctx: Any, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    total, weight, bias, *saved = ctx.saved_tensors
    normalized_shape, eps, norm, has_residual = ctx.description
    grad, grad_total = grads if has_residual else (grads[0], None)
    found: Sequence[Tensor | None]
    if grad is None:
        found = [grad_total, *[None for t in (weight, bias) if t is not None]]
    elif torch.is_grad_enabled() or transforming():
        dx, *rest = _differentiated(NormArguments(total, normalized_shape, weight, bias, eps, norm), grad)
        found = [dx if grad_total is None else dx + grad_total, *rest]
    else:
        tensors = [total, *saved, grad]
        if weight is not None:
            tensors.append(weight)
        if grad_total is not None:
            tensors.append(grad_total)
        arguments = (total, normalized_shape, weight, bias, eps, norm, saved, grad, grad_total)
        found = _NORMALIZE_BACKWARD(tensors, ctx.backend, arguments)
    return [*found, found[0]] if has_residual else found


def _backward_plan(backend: str, arguments: Arguments) -> Run | None:
    input, normalized_shape, weight, bias, eps, norm, _, grad, grad_total = arguments
    return _planned_backward(
        backend, input.dtype, input.shape, input.stride(), tuple(normalized_shape),
        None if weight is None else weight.dtype, None if bias is None else bias.dtype, eps, norm,
        (grad.stride(), None if grad_total is None else grad_total.stride()),
    )  # fmt: skip


@functools.lru_cache(4096)
def _planned_backward(backend: str, *kind: Any) -> Run | None:
    """The engine's plan for calls of this kind, `NormKind`."""
    plan = getattr(backends.engine(backend), "normalize_backward_plan", None)
    return plan and plan(NormKind(*kind))


def _backward_kernel(backend: str, arguments: Arguments) -> list[Tensor]:
    *given, saved, grad, grad_total = arguments
    a, engine = NormArguments(*given), backends.engine(backend)
    _check(a, None)  # hooks on saved tensors can put others in their place
    expected = engine.normalize_saved(a)
    if [(t.shape, t.dtype, t.device) for t in saved] != [(t.shape, t.dtype, t.device) for t in expected]:
        wanted, got = (", ".join(f"{t.dtype} {list(t.shape)}" for t in tensors) for tensors in (expected, saved))
        raise RuntimeError(f"{a.norm}_norm: expected saved statistics {wanted}, got {got}")
    _check_gradients(a, grad, grad_total)
    return engine.normalize_backward(a, saved, grad, grad_total)


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


def _backward_fake(arguments: Arguments) -> list[Tensor]:
    input, _, weight, bias, *_ = arguments
    have = [t for t in (input, weight, bias) if t is not None]
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in have]


def _differentiated(a: NormArguments, grad: Tensor) -> list[Tensor]:
    """The gradients by plain equations, which can be differentiated themselves."""

    def equations(*tensors: Tensor) -> list[Tensor]:
        x, w, b = _present(tensors, a.input, a.weight, a.bias)
        return [reference.normalize_equations(a._replace(input=x, weight=w, bias=b))]

    return gradients_of_equations(equations, [t for t in (a.input, a.weight, a.bias) if t is not None], [grad])


def _present(found: Sequence[Tensor], *where: Tensor | None) -> list[Any]:
    """What was found for each of the tensors that there are, None for the others."""
    rest = iter(found)
    return [None if t is None else next(rest) for t in where]


_ARGUMENTS = "Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps, str norm"
_NORMALIZE = Op(
    "normalize",
    f"{_ARGUMENTS}, Tensor? residual",
    _choose,
    _plan,
    _kernel,
    _fake,
    _equations,
    _save,
    _backward,
)
_NORMALIZE_BACKWARD = Part(
    "normalize_backward",
    f"{_ARGUMENTS}, Tensor[] saved, Tensor grad, Tensor? grad_total",
    _backward_plan,
    _backward_kernel,
    _backward_fake,
)
