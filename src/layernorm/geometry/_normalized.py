"""The normalised generalised linear model and its Fisher matrix, eqs. 13 and 14: the paper's block form, and exact."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _checks
from ._families import Family, as_family
from ._fisher import Model, fisher, precision
from ._layers import normalized, responses


def normalized_glm(norm: str | None, eps: float = 0.0) -> Model:
    r"""Makes the normalised generalised linear model, as a function for `kl`, `fisher` and the others.

    .. math:: \eta_i = \frac{g_i}{\sigma_i} (a_i - \mu_i) + b_i, \qquad a_i = w_i^T x

    Args:
        norm: ``"batch"``, ``"weight"``, ``"layer"``, ``"rms"`` or None (``g_i a_i + b_i``).
        eps: added to the variance.

    Returns:
        ``model({"weight": (H, I), "bias": (H,), "gain": (H,)}, inputs (B, I)) -> eta (B, H)``. Without ``"gain"`` in
        the dict the gain is 1.

    Raises:
        ValueError: there is no such norm, or eps is negative.

    Source: Ba, Kiros, Hinton 2016, eq. 13.
    """
    _checks.known_norm(norm)
    eps = _checks.positive("eps", eps, zero=True)

    def model(parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        z = normalized(parameters["weight"], inputs, norm, eps)
        return (z * parameters["gain"] if "gain" in parameters else z) + parameters["bias"]

    return model


def fisher_normalized(
    weight: Tensor,
    bias: Tensor,
    gain: Tensor,
    inputs: Tensor,
    family: str | Family,
    norm: str | None,
    *,
    form: str = "blocks",
    eps: float = 0.0,
) -> Tensor:
    r"""Computes the Fisher matrix of a normalised generalised linear model, eqs. 13 and 14.

    .. math::
        F_{ij} = E_x\left[\frac{\mathrm{Cov}[y_i, y_j | x]}{\phi^2} u_i u_j^T\right], \qquad
        u_i = \begin{pmatrix} \frac{g_i}{\sigma_i} \chi_i \\ 1 \\ \frac{a_i - \mu_i}{\sigma_i} \end{pmatrix}, \qquad
        \chi_i = x - \frac{\partial \mu_i}{\partial w_i} - \frac{a_i - \mu_i}{\sigma_i}
        \frac{\partial \sigma_i}{\partial w_i}

    Under layer and RMS norm all units share mu and sigma, so that eta_i depends on every w_j. The paper's blocks keep
    only d eta_i / d w_i; the exact matrix has all derivatives. Under batch and weight norm the two matrices are equal.

    Args:
        weight: ``(H, I)``.
        bias, gain: ``(H,)``.
        inputs: ``(B, I)``.
        family: a name of `FAMILIES`, or a `Family`.
        norm: ``"batch"``, ``"weight"``, ``"layer"``, ``"rms"`` or None.
        form: ``"blocks"``, the paper's form, in closed form, or ``"exact"``, by autograd.
        eps: added to the variance.

    Returns:
        ``(H (I+2), H (I+2))`` in float64, in the order w_1, b_1, g_1, w_2, b_2, g_2, ...

    Raises:
        ValueError: a shape does not fit; there is no such family, norm or form; the matrix is too large or not finite;
            or with eps 0 a sigma is zero up to rounding, because all units, or under batch norm all cases, are alike.
        TypeError: an argument is not a floating-point tensor.

    Source: Ba, Kiros, Hinton 2016, eqs. 13 and 14. One print of eq. 13 has mu_i in two places where mu_j is meant.
    """
    W, X = _checks.layer(weight, inputs)
    H, I = W.shape  # noqa: E741
    b, g = _checks.tensor("bias", bias, H), _checks.tensor("gain", gain, H)
    _checks.norm_fits(norm, W, X)
    eps = _checks.positive("eps", eps, zero=True)
    _checks.small_enough(H * (I + 2), H * len(X), "fisher_vector_product with normalized_glm")
    _checks.deviations(norm, W, X, eps)
    if form == "blocks":
        return _checks.finite(_blocks(W, b, g, X, as_family(family), norm, eps), norm)
    if form != "exact":
        raise ValueError(f"expected form to be 'blocks' or 'exact', got {form!r}")
    model = normalized_glm(norm, eps)

    def stacked(parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        w, b, g = parameters["theta"].split((I, 1, 1), 1)
        return model({"weight": w, "bias": b[:, 0], "gain": g[:, 0]}, inputs)

    theta = torch.cat([W, b[:, None], g[:, None]], 1)
    return _checks.finite(fisher(stacked, {"theta": theta}, X, family), norm)


def _blocks(W: Tensor, b: Tensor, g: Tensor, X: Tensor, family: Family, norm: str | None, eps: float) -> Tensor:
    z, sigma, chi = responses(W, X, norm, eps)
    u = torch.cat([(g / sigma)[..., None] * chi, torch.ones_like(z)[..., None], z[..., None]], -1)  # (B, H, I+2)
    P = u[0].numel()
    return torch.einsum("bij,bik,bjl->ikjl", precision(family, z * g + b), u, u).reshape(P, P) / len(X)


def block_form_gap(
    weight: Tensor,
    bias: Tensor,
    gain: Tensor,
    inputs: Tensor,
    family: str | Family,
    norm: str | None,
    *,
    eps: float = 0.0,
    spectral: bool = False,
) -> float:
    r"""Computes the relative distance between the paper's block form and the exact Fisher matrix.

    .. math:: \|F_{blocks} - F\| / \|F\|

    It is 0 up to rounding under batch norm, weight norm and none, but not under layer and RMS norm. There the distance
    in the Frobenius norm falls as the layer grows wider, and the distance in the spectral norm does not.

    Args:
        weight, bias, gain, inputs, family, norm, eps: as in `fisher_normalized`.
        spectral: whether to take the spectral norm (the largest eigenvalue) instead of the Frobenius norm.

    Returns:
        The relative distance.

    Raises:
        ValueError, TypeError: as in `fisher_normalized`.

    Source: this library; Ba, Kiros, Hinton 2016, eq. 13.
    """
    blocks = fisher_normalized(weight, bias, gain, inputs, family, norm, eps=eps)
    exact = fisher_normalized(weight, bias, gain, inputs, family, norm, form="exact", eps=eps)
    gap, whole = (
        float(torch.linalg.eigvalsh(m).abs().max() if spectral else m.norm()) for m in (blocks - exact, exact)
    )
    return _checks.ratio(gap, whole, "the Fisher matrix")
