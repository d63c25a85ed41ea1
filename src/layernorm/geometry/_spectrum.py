"""Deep networks: the Fisher matrix's block for each neuron, and its largest eigenvalue without forming it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from . import _checks
from ._families import Family, as_family
from ._fisher import Model, Parameters, jacobian_of, precision

Product = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def neuron_blocks(model: Model, parameters: Parameters, inputs: Tensor, family: str | Family, name: str) -> Tensor:
    r"""Computes the diagonal blocks of a layer's Fisher matrix, one for the incoming weights of each neuron.

    .. math:: F_{ii} = E_x\left[\frac{\partial \eta}{\partial w_i}^T \frac{\mathrm{Cov}[y|x]}{\phi^2}
              \frac{\partial \eta}{\partial w_i}\right]

    Args:
        model, parameters, inputs, family: as in `kl`. For a `torch.nn.Module` they are
            ``lambda p, x: torch.func.functional_call(module, p, (x,))`` and ``dict(module.named_parameters())``.
        name: the name of the layer's weight in ``parameters``, ``(H, ...)``.

    Returns:
        ``(H, N, N)``, where N is the number of weights of a neuron.

    Raises:
        ValueError: as in `kl`; there is no such parameter, or it has no dimension; or the blocks are too large.
        TypeError: as in `kl`.

    Source: Ba, Kiros, Hinton 2016, section 5.2.2.
    """
    _checks.tensors("parameters", parameters)
    if not isinstance(name, str) or name not in parameters or parameters[name].dim() == 0:
        known = [key for key, p in parameters.items() if p.dim()]
        raise ValueError(f"expected name to be one of {known}, got {name!r}")
    rest = {key: p.detach() for key, p in parameters.items() if key != name}
    eta, J = jacobian_of(lambda p, x: model({**rest, **p}, x), {name: parameters[name]}, inputs, square=False)
    H = len(parameters[name])
    N = J.shape[-1] // H
    if H * N * N > _checks.MAX_ENTRIES:
        raise ValueError(f"{H} blocks of {N} by {N} exceed {_checks.MAX_ENTRIES} entries; use power_iteration")
    J = J.unflatten(-1, (H, N))
    return _checks.computed(torch.einsum("bkhn,bkl,blhm->hnm", J, precision(as_family(family), eta), J) / len(eta))


class Eigenpair(NamedTuple):
    """The result of power iteration. An eigenvalue of the matrix lies within ``residual`` of ``value``."""

    value: float
    vector: dict[str, Tensor]  # v, of norm 1
    residual: float  # ||F v - value v||
    iterations: int


def power_iteration(
    product: Product,
    parameters: Parameters,
    *,
    iterations: int = 1000,
    tolerance: float = 1e-8,
    generator: torch.Generator | None = None,
) -> Eigenpair:
    r"""Finds the eigenvalue of largest magnitude of a symmetric matrix that is known by its products with vectors.

    .. math:: v \leftarrow F v / \|F v\|, \qquad value = v^T F v

    Args:
        product: ``product(v) -> F v`` on dicts like ``parameters``, such as `fisher_vector_product` or the product with
            a Hessian.
        parameters: a dict of tensors. The vectors have its keys, shapes and types.
        iterations: the largest number of products. ``residual`` tells whether they were enough.
        tolerance: the iteration ends once ``residual <= tolerance * |value|``.
        generator: draws the vector to start from.

    Returns:
        `Eigenpair`.

    Raises:
        ValueError: iterations or tolerance is not above 0; the parameters are empty; or a product is not finite or has
            other keys or shapes.
        TypeError: an argument, or a product, is not of the type above.

    Source: von Mises, Pollaczek-Geiringer 1929.
    """
    _checks.whole("iterations", iterations, 1)
    tolerance = _checks.positive("tolerance", tolerance)
    _checks.tensors("parameters", parameters)
    v = _unit({
        key: torch.randn(p.shape, generator=generator, dtype=p.dtype, device=p.device) for key, p in parameters.items()
    })  # fmt: skip
    for count in range(1, iterations + 1):
        Fv = product(v)
        _checks.alike("product(v)", Fv, parameters)
        value = sum(float((Fv[key] * v[key]).sum()) for key in v)
        residual = _length({key: Fv[key] - value * v[key] for key in v})
        if not residual < float("inf"):
            raise ValueError("expected product(v) to be finite, got NaN or infinity in it")
        if residual <= tolerance * abs(value) or count == iterations:
            break
        v = _unit(Fv)
    return Eigenpair(value, v, residual, count)


def _length(v: Parameters) -> float:
    return sum(float(t.square().sum()) for t in v.values()) ** 0.5


def _unit(v: Parameters) -> dict[str, Tensor]:
    norm = _length(v)
    return {key: t / norm for key, t in v.items()}
