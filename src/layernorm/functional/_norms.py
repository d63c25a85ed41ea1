"""`layer_norm` and `rms_norm`, also after a residual sum: arguments gathered, engine chosen, gradient bound."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from ..equations.arguments import NormArguments
from ..equations.checks import check_dense, check_norm
from ..equations.norms import normalize_equations
from ._bind import Arguments, Op, empty_like, gradients_of_equations, is_eager, is_transforming, new_tuple


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    r"""Normalises each training case by its own mean and deviation: layer normalisation, eq. 3.

    .. math:: y = \frac{x - \mathrm{mean}(x)}{\sqrt{\mathrm{var}(x) + \epsilon}} \cdot gain + bias

    The statistics are kept in float32 or wider, and so are the sums in the gradients of gain and bias. A constant row
    gives exactly the bias.

    Args:
        input: ``(*, *normalized_shape)``, any floating type.
        normalized_shape: the last dimensions, over which mean and biased variance are taken.
        weight: the gain, of shape ``normalized_shape``, of ``input``'s type or a wider one. ``None``: 1.
        bias: a tensor like ``weight``. ``None``: 0.
        eps: a number that is added to the variance.

    Returns:
        A tensor like ``input``.

    Raises:
        RuntimeError: a shape, dtype or device does not fit.
        TypeError: an argument is not of the Python type above.

    Source: Ba, Kiros, Hinton, "Layer Normalization", 2016, arXiv:1607.06450.
    """
    if has_torch_function_variadic(input, weight, bias):
        return handle_torch_function(layer_norm, (input, weight, bias), input, normalized_shape, weight, bias, eps)
    return _normalize(input, None, normalized_shape, weight, bias, eps, "layer")[0]


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    r"""Normalises each training case by its own root mean square: layer normalisation without re-centring.

    .. math:: y = \frac{x}{\sqrt{\mathrm{mean}(x^2) + \epsilon}} \cdot gain

    Args:
        input: ``(*, *normalized_shape)``, any floating type.
        normalized_shape: the last dimensions, over which the mean square is taken.
        weight: the gain, of shape ``normalized_shape``. ``None``: 1.
        eps: a number that is added to the mean square. ``None``: the machine epsilon of the type that is computed in,
            as in `torch.nn.functional.rms_norm`: 2^-52 in float64, and 2^-23 otherwise, as 16-bit types are computed
            in float32.

    Returns:
        A tensor like ``input``.

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
    r"""Computes the residual sum of a pre-norm network and its layer normalisation, in one sweep over memory.

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
    y, total = _normalize(input, residual, normalized_shape, weight, bias, eps, "layer")
    return y, total


def add_rms_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Computes the residual sum of a pre-norm network and its RMS normalisation, in one sweep over memory.

    Arguments, results and errors are as in `add_layer_norm`, without the bias; ``eps`` is as in `rms_norm`.
    """
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
    """Returns [y], or with a residual [y, input + residual]."""
    if type(normalized_shape) is not tuple:
        if not isinstance(normalized_shape, Sequence) or isinstance(normalized_shape, str):
            given_type = type(normalized_shape).__name__
            raise TypeError(f"{norm}_norm: expected normalized_shape to be a tuple of ints, got {given_type}")
        normalized_shape = tuple(normalized_shape)  # the caller's own list may change before the backward
    for size in normalized_shape:
        if type(size) is not int:
            normalized_shape = tuple([_as_integer(size, norm) for size in normalized_shape])
            break
    if type(eps) is not float:
        eps = _as_float(eps, input, norm)
    arguments = (input, normalized_shape, weight, bias, eps, norm)
    tensors = [input]  # then those that there are
    if weight is not None:
        tensors.append(weight)
    if bias is not None:
        tensors.append(bias)
    if residual is not None:
        tensors.append(residual)
    if is_eager(tensors):
        return NORMALIZE(tensors, (new_tuple(NormArguments, arguments), residual))
    for name, tensor in (("input", input), ("residual", residual), ("weight", weight), ("bias", bias)):
        if not isinstance(tensor, Tensor) and (tensor is not None or name == "input"):
            raise TypeError(f"{norm}_norm: expected {name} to be a Tensor, got {type(tensor).__name__}")
        if tensor is not None:
            check_dense(f"{norm}_norm", name, tensor)
    return NORMALIZE.dispatch((*arguments, residual))


def _as_integer(size: Any, norm: str) -> Any:
    """Returns a size as the integer that it is. A compiler's, which is known later, stays as it is."""
    try:
        return size if isinstance(size, torch.SymInt) else operator.index(size)
    except TypeError:
        given_type = type(size).__name__
        raise TypeError(
            f"{norm}_norm: expected normalized_shape to be a tuple of ints, got one of {given_type}"
        ) from None


def _as_float(eps: Any, input: Any, norm: str) -> float:
    """Returns eps as the number that it is; RMS norm's None is the rounding of the type that is computed in."""
    if eps is None and norm == "rms":
        is_double = isinstance(input, Tensor) and input.dtype == torch.float64
        return torch.finfo(torch.float64 if is_double else torch.float32).eps
    try:
        return float(eps)
    except (TypeError, ValueError):
        raise TypeError(f"{norm}_norm: expected eps to be a number, got {type(eps).__name__}") from None


class _Normalize(Op):
    """[y], with a residual [y, input + residual]."""

    name = "normalize"
    arguments = "Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps, str norm, "
    forward = "Tensor? residual, "
    backward = "Tensor[] saved, Tensor grad, Tensor? grad_total, "

    def engine_arguments(self, flat: Arguments) -> Arguments:
        input, normalized_shape, weight, bias, eps, norm, *rest = flat
        return NormArguments(input, tuple(normalized_shape), weight, bias, eps, norm), *rest

    def schema_arguments(self, args: Arguments) -> Arguments:
        return *args[0], *args[1:]

    def fake(self, a: NormArguments, residual: Tensor | None) -> list[Tensor]:
        check_norm(a, residual)
        return [empty_like(t) for t in (a.input, residual) if t is not None]

    def equations(self, a: NormArguments, residual: Tensor | None) -> list[Tensor]:
        check_norm(a, residual)
        if residual is None:
            return [normalize_equations(a)]
        total = a.input + residual
        return [normalize_equations(a._replace(input=total)), total]

    def save(self, ctx: Any, args: Arguments, results: Sequence[Tensor]) -> Sequence[Tensor]:
        (input, normalized_shape, weight, bias, eps, norm), residual = args
        count = 1 if residual is None else 2
        ctx.description = normalized_shape, eps, norm, residual is not None
        ctx.save_for_backward(input if residual is None else results[1], weight, bias, *results[count:])
        return results[:count]

    def gradients(self, ctx: Any, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        total, weight, bias, *saved = ctx.saved_tensors
        normalized_shape, eps, norm, has_residual = ctx.description
        grad, grad_total = grads if has_residual else (grads[0], None)
        a = new_tuple(NormArguments, (total, normalized_shape, weight, bias, eps, norm))
        d_inputs: Sequence[Tensor | None]
        if grad is None:
            d_inputs = [grad_total, *[None for t in (weight, bias) if t is not None]]
        elif torch.is_grad_enabled() or is_transforming():
            dx, *rest = _gradients_by_equations(a, grad)
            d_inputs = [dx if grad_total is None else dx + grad_total, *rest]
        else:
            tensors = [total, *saved, grad]
            if weight is not None:
                tensors.append(weight)
            if bias is not None:
                tensors.append(bias)
            if grad_total is not None:
                tensors.append(grad_total)
            d_inputs = self.run_backward(tensors, ctx.backend, (a, saved, grad, grad_total))
        return [*d_inputs, d_inputs[0]] if has_residual else d_inputs


def _gradients_by_equations(a: NormArguments, grad: Tensor) -> list[Tensor]:
    """Computes the gradients by plain equations, which can be differentiated themselves."""

    def equations(*tensors: Tensor) -> list[Tensor]:
        x, *rest = tensors
        weight = None if a.weight is None else rest.pop(0)
        bias = None if a.bias is None else rest.pop(0)
        return [normalize_equations(a._replace(input=x, weight=weight, bias=bias))]

    return gradients_of_equations(equations, a.differentiable, [grad])


NORMALIZE = _Normalize()
