"""KL divergence and Fisher matrix of any model of natural parameters (eqs. 8 and 9), dense and matrix-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from . import _checks
from ._families import Family, as_family

Parameters = Mapping[str, Tensor]
Model = Callable[[dict[str, Tensor], Tensor], Tensor]
"""``model(parameters, inputs) -> eta (B, H)``, a family's natural parameters for each case. It may couple the cases, as
batch norm does. It runs under `torch.func`, so that it must not write in place."""

_DRAWN_ENTRIES = 2**20  # drawn at a time: 8 MiB in float64, which fits into a core's cache


def kl(model: Model, parameters: Parameters, delta: Parameters, inputs: Tensor, family: str | Family) -> Tensor:
    r"""Computes the KL divergence between the outputs of a model before and after a step of its parameters, eq. 8.

    .. math:: D(\theta \,\|\, \theta + \delta) = E_x[\mathrm{KL}(P(y|x;\theta) \,\|\, P(y|x;\theta + \delta))]

    Args:
        model: ``model(parameters, inputs) -> eta (B, H)``, the natural parameters of the outputs of B cases.
        parameters: a dict of tensors. The computation is in their type; take float64.
        delta: the step, with the same keys, shapes and types.
        inputs: the model's input. The expectation is the mean over its cases.
        family: a name of `FAMILIES`, or a `Family`.

    Returns:
        A number. It differs from `quadratic_form` by terms of third order in delta.

    Raises:
        ValueError: there is no such family; delta does not fit parameters; eta is not a matrix or is empty; or the
            result is not finite.
        TypeError: parameters or delta is not a dict of floating-point tensors, or their types differ.

    Source: Ba, Kiros, Hinton 2016, eq. 8.
    """
    _checks.alike("delta", delta, parameters)
    moved = {key: p + delta[key] for key, p in parameters.items()}
    return _checks.computed(as_family(family).kl(_eta(model, parameters, inputs), _eta(model, moved, inputs)).mean())


def quadratic_form(
    model: Model, parameters: Parameters, delta: Parameters, inputs: Tensor, family: str | Family
) -> Tensor:
    r"""Computes ds^2 of a step, eq. 9, without forming the Fisher matrix.

    .. math:: ds^2 = \tfrac{1}{2} \delta^T F(\theta) \delta
              = \tfrac{1}{2} E_x[(J\delta)^T \frac{\mathrm{Cov}[y|x]}{\phi^2} (J\delta)], \quad J = d\eta/d\theta

    Arguments and errors are those of `kl`.

    Returns:
        A number.

    Source: Ba, Kiros, Hinton 2016, eq. 9.
    """
    _checks.alike("delta", delta, parameters)
    family = as_family(family)
    eta, change = torch.func.jvp(lambda p: _eta(model, p, inputs), (dict(parameters),), (dict(delta),))[:2]
    return _checks.computed(torch.einsum("bi,bij,bj->b", change, precision(family, eta), change).mean() / 2)


def fisher_vector_product(
    model: Model, parameters: Parameters, vector: Parameters, inputs: Tensor, family: str | Family
) -> dict[str, Tensor]:
    r"""Computes the Fisher matrix times a vector, without forming the matrix.

    .. math:: F v = E_x[J^T \frac{\mathrm{Cov}[y|x]}{\phi^2} J v]

    It takes one forward-mode and one reverse-mode pass. Arguments and errors are those of `kl`, with ``vector`` instead
    of ``delta``.

    Returns:
        The product, a dict with the keys and shapes of ``parameters``.

    Source: eq. 9; Schraudolph, "Fast curvature matrix-vector products", 2002.
    """
    _checks.alike("vector", vector, parameters)
    family = as_family(family)

    def eta_of(p: Parameters) -> Tensor:
        return _eta(model, p, inputs)

    eta, change = torch.func.jvp(eta_of, (dict(parameters),), (dict(vector),))[:2]
    pulled = torch.einsum("bij,bj->bi", precision(family, eta), change) / len(eta)
    backward = torch.func.vjp(eta_of, dict(parameters))[1]
    product: dict[str, Tensor] = backward(pulled)[0]
    return {key: _checks.computed(part) for key, part in product.items()}


def fisher(model: Model, parameters: Parameters, inputs: Tensor, family: str | Family) -> Tensor:
    r"""Computes the Fisher information matrix, eq. 9, from autograd's Jacobian and the family's covariance in closed
    form.

    .. math:: F = E_{x,y}[\nabla \log p \; \nabla \log p^T] = E_x[J^T \frac{\mathrm{Cov}[y|x]}{\phi^2} J]

    Args:
        model, parameters, inputs, family: as in `kl`.

    Returns:
        ``(P, P)``, where P counts the numbers of all parameters, in the dict's order, each parameter flattened.

    Raises:
        ValueError: as in `kl`, or the matrix is too large. Then use `fisher_vector_product`, which never forms it.
        TypeError: as in `kl`.

    Source: Ba, Kiros, Hinton 2016, eq. 9.
    """
    eta, J = jacobian_of(model, parameters, inputs)
    return _checks.computed(torch.einsum("bip,bij,bjq->pq", J, precision(as_family(family), eta), J) / len(eta))


def fisher_hessian(model: Model, parameters: Parameters, inputs: Tensor, family: str | Family) -> Tensor:
    r"""Computes the Fisher matrix as the expected negative Hessian of the log-likelihood.

    .. math:: F = -E_{x,y}[\nabla^2 \log p(y \mid x; \theta)]

    The log-likelihood is linear in y, so that the expectation of its Hessian is the Hessian at y = E[y|x]. Both
    derivatives are autograd's. Arguments, result and errors are those of `fisher`.

    Source: Ba, Kiros, Hinton 2016, section 5.2.
    """
    family = as_family(family)
    _checks.tensors("parameters", parameters)
    eta = _eta(model, parameters, inputs)
    flat, unflatten = _flat(parameters)
    _checks.small_enough(len(flat), eta.numel(), "fisher_vector_product")
    y = family.mean(eta).detach()

    def negative(p: Tensor) -> Tensor:
        return -family.log_likelihood(_eta(model, unflatten(p), inputs), y).mean()

    return _checks.computed(torch.func.hessian(negative)(flat))


class MonteCarlo(NamedTuple):
    """Means over draws of y, with their standard errors over the draws for the given inputs."""

    fisher: Tensor  # (P, P)
    fisher_error: Tensor  # (P, P)
    score: Tensor  # (P,), 0 in expectation
    score_error: Tensor  # (P,)


def fisher_monte_carlo(
    model: Model,
    parameters: Parameters,
    inputs: Tensor,
    family: str | Family,
    samples: int = 1000,
    generator: torch.Generator | None = None,
) -> MonteCarlo:
    r"""Computes the Fisher matrix and the mean score from sampled outputs and autograd's scores.

    .. math:: F \approx \frac{1}{S B} \sum_{s, x} u u^T, \qquad u = \nabla_\theta \log p(y_s \mid x; \theta)

    Args:
        model, parameters, inputs, family: as in `kl`.
        samples: S, the number of draws of y for each case, two or more.
        generator: draws them.

    Returns:
        `MonteCarlo`: the means and their standard errors.

    Raises:
        ValueError: as in `fisher`, or there are fewer than two samples.
        TypeError: as in `kl`, or samples is no int.

    Source: Ba, Kiros, Hinton 2016, eq. 9.
    """
    _checks.whole("samples", samples, 2)
    family = as_family(family)
    eta, J = (_checks.computed(part) for part in jacobian_of(model, parameters, inputs))
    P = J.shape[-1]
    sums = [J.new_zeros(n) for n in ((P, P), (P, P), (P,), (P,))]
    at_once = max(1, _DRAWN_ENTRIES // max(P * P, J.numel()))
    for start in range(0, samples, at_once):
        etas = eta.expand(min(at_once, samples - start), *eta.shape)
        y = family.sample(etas, generator)
        slope = torch.func.grad(lambda e, y=y: family.log_likelihood(e, y).sum())(etas)
        u = torch.einsum("sbi,bip->sbp", slope, J)
        outer, score = u.mT @ u / len(eta), u.mean(1)
        for total, value in zip(sums, (outer, outer.square(), score, score.square()), strict=True):
            total += value.sum(0)
    F, F2, s, s2 = (_checks.computed(total / samples) for total in sums)

    def error(mean: Tensor, square: Tensor) -> Tensor:
        return ((square - mean.square()).clamp_min(0) / (samples - 1)).sqrt()

    return MonteCarlo(F, error(F, F2), s, error(s, s2))


def fisher_glm(weight: Tensor, bias: Tensor, inputs: Tensor, family: str | Family) -> Tensor:
    r"""Computes the Fisher matrix of a generalised linear model in closed form, eq. 12.

    .. math:: F = E_x\left[\frac{\mathrm{Cov}[y|x]}{\phi^2} \otimes
              \begin{pmatrix} x x^T & x \\ x^T & 1 \end{pmatrix}\right], \qquad \eta = W x + b

    Args:
        weight: ``(H, I)``.
        bias: ``(H,)``.
        inputs: ``(B, I)``.
        family: a name of `FAMILIES`, or a `Family`.

    Returns:
        ``(H (I+1), H (I+1))`` in float64, in the order vec([W, b]^T): w_1, b_1, w_2, b_2, ...

    Raises:
        ValueError: a shape does not fit, there is no such family, or the matrix is too large.
        TypeError: an argument is not a floating-point tensor.

    Source: Ba, Kiros, Hinton 2016, eq. 12.
    """
    W, X = _checks.layer(weight, inputs)
    b = _checks.tensor("bias", bias, W.shape[0])
    H, P = len(W), W.numel() + len(b)
    _checks.small_enough(P, H * len(X), "fisher_vector_product")
    x1 = torch.cat([X, X.new_ones(len(X), 1)], 1)
    per_case = precision(as_family(family), X @ W.T + b)
    return _checks.computed(torch.einsum("bij,bk,bl->ikjl", per_case, x1, x1).reshape(P, P) / len(X))


def precision(family: Family, eta: Tensor) -> Tensor:
    """Computes Cov[y|x] / phi^2, (B, H, H)."""
    return family.covariance(eta) / family.phi**2


def _eta(model: Model, parameters: Parameters, inputs: Tensor) -> Tensor:
    eta = model(dict(parameters), inputs)
    if not isinstance(eta, Tensor) or eta.dim() != 2 or not eta.numel():
        given = tuple(eta.shape) if isinstance(eta, Tensor) else type(eta).__name__
        raise ValueError(f"expected model to give natural parameters of shape (B, H), not empty, got {given}")
    return eta


def _flat(parameters: Parameters) -> tuple[Tensor, Callable[[Tensor], dict[str, Tensor]]]:
    """Flattens the parameters into one vector, and the way back."""
    sizes, items = [p.numel() for p in parameters.values()], list(parameters.items())

    def unflatten(flat: Tensor) -> dict[str, Tensor]:
        return {key: part.reshape(p.shape) for (key, p), part in zip(items, flat.split(sizes), strict=True)}

    return torch.cat([p.detach().reshape(-1) for p in parameters.values()]), unflatten


def jacobian_of(model: Model, parameters: Parameters, inputs: Tensor, square: bool = True) -> tuple[Tensor, Tensor]:
    """Computes eta (B, H) and its derivatives (B, H, P).

    Raises:
        ValueError: the derivatives, or with ``square`` a matrix (P, P), would be too large.
    """
    _checks.tensors("parameters", parameters)
    eta = _eta(model, parameters, inputs).detach()
    flat, unflatten = _flat(parameters)
    _checks.small_enough(len(flat), eta.numel(), "fisher_vector_product", square)
    return eta, torch.func.jacrev(lambda p: _eta(model, unflatten(p), inputs))(flat)
