"""Section 5.2.2 and the appendix: how the metric depends on the norm of the weights and the scale of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from . import _checks
from ._families import Family, as_family
from ._layers import responses
from ._normalized import fisher_normalized, normalized_glm


class CurvatureRatio(NamedTuple):
    """The Frobenius norms of a unit's Fisher blocks after its weights have grown, divided by those before."""

    diagonal: float  # of F_ii, the block of w_i
    cross: float | None  # of all F_ij, the blocks of w_i and w_j with j != i; None where they are zero
    output_change: float  # relative change of eta: 0 up to rounding


def curvature_ratio(
    weight: Tensor,
    bias: Tensor,
    gain: Tensor,
    inputs: Tensor,
    family: str | Family,
    norm: str,
    scale: float,
    *,
    unit: int = 0,
    eps: float = 0.0,
) -> CurvatureRatio:
    r"""Measures how the curvature along w_i changes when the weights grow and the output stays the same.

    The paper calls the effect implicit early stopping.

    .. math:: \frac{\|F_{ij}(s\,w_i)\|}{\|F_{ij}(w_i)\|}, \qquad
              F_{ij} = E_x\left[\frac{\mathrm{Cov}[y_i, y_j|x]}{\phi^2} \frac{g_i g_j}{\sigma_i \sigma_j}
              \chi_i \chi_j^T\right]

    A block shrinks by a factor of s for each sigma in it that grows. Under batch and weight norm only w_i grows. The
    diagonal block then shrinks to 1/s^2, and the cross blocks to 1/s, which is the paper's "factor of 1/2" at s = 2.
    Under layer and RMS norm a single row would change the output, so that the whole matrix grows, and all blocks of the
    exact Fisher matrix shrink to 1/s^2.

    Args:
        weight, bias, gain, inputs, family: as in `fisher_normalized`.
        norm: ``"batch"``, ``"weight"``, ``"layer"`` or ``"rms"``.
        scale: s > 0.
        unit: i.
        eps: added to the variance. Above 0 the ratios hold only as far as eps is small compared with the variance.

    Returns:
        `CurvatureRatio`.

    Raises:
        ValueError, TypeError: as in `fisher_normalized`.
        ValueError: ``norm`` is None, under which the output changes; there is no such unit; or its gain is zero.

    Source: Ba, Kiros, Hinton 2016, section 5.2.2, "Implicit learning rate reduction through the growth of the weight".
    """
    W, X = _checks.layer(weight, inputs)
    H, I = W.shape  # noqa: E741
    b, g = _checks.tensor("bias", bias, H), _checks.tensor("gain", gain, H)
    scale = _checks.positive("scale", scale)
    if norm is None:
        raise ValueError("expected a norm, got None: without one the output changes with the weights' norm")
    _checks.whole("unit", unit, 0, H - 1)
    grown = W.clone()
    grown[unit if norm in ("batch", "weight") else slice(None)] *= scale
    parameters = {"bias": b, "gain": g}
    eta, eta_grown = (normalized_glm(norm, eps)({"weight": w, **parameters}, X) for w in (W, grown))

    def blocks(w: Tensor) -> tuple[float, float]:
        F = fisher_normalized(w, b, g, X, family, norm, form="exact", eps=eps).reshape(H, I + 2, H, I + 2)
        row = F[unit, :I, :, :I]  # (I, H, I)
        others = [j for j in range(H) if j != unit]
        return float(row[:, unit].norm()), float(row[:, others].norm())

    before, after = blocks(W), blocks(grown)
    diagonal = _checks.ratio(after[0], before[0], f"the curvature of unit {unit}, with its gain,")
    cross = after[1] / before[1] if before[1] > 1e-12 * before[0] else None  # smaller numbers are rounding
    return CurvatureRatio(diagonal, cross, float((eta_grown - eta).norm() / eta.norm()))


class StepAngles(NamedTuple):
    """S steps of gradient descent on a weight matrix."""

    norms: Tensor  # (S, H), of the rows before each step
    angles: Tensor  # (S, H), between a row before and after each step, in radians


def step_angles(
    loss: Callable[[Tensor], Tensor], weight: Tensor, learning_rate: float, steps: int = 1, *, adam: bool = False
) -> StepAngles:
    r"""Measures the angle by which each step of gradient descent, or of Adam, turns each unit's weights.

    .. math:: \angle(w_i, w_i - \lambda \nabla_{w_i} L)

    Where the loss does not depend on the norm of w_i, its gradient is orthogonal to w_i and shrinks as 1/\|w_i\|. Each
    step then makes w_i longer, and the angle is proportional to 1/\|w_i\|^2. Adam divides by the gradient's size, so
    that its angle is proportional to 1/\|w_i\| whatever the loss.

    Args:
        loss: ``loss(weight (H, I)) -> ()``. It runs under `torch.func`.
        weight: ``(H, I)``, the weights to start from.
        learning_rate: lambda > 0.
        steps: the number of steps.
        adam: whether to use Adam, with torch's other defaults, instead of gradient descent.

    Returns:
        `StepAngles`.

    Raises:
        ValueError: a shape does not fit; the learning rate or steps is not above 0; or a unit's weights are, or become,
            zero or not finite.
        TypeError: an argument is not of the type above.

    Source: Ba, Kiros, Hinton 2016, section 5.2.2.
    """
    W = _checks.tensor("weight", weight, "H", "I").detach()
    learning_rate = _checks.positive("learning_rate", learning_rate)
    _checks.whole("steps", steps, 1)
    norms, angles = [], []
    trained = W.clone().requires_grad_()
    optimizer = torch.optim.Adam([trained], learning_rate) if adam else torch.optim.SGD([trained], learning_rate)
    for step in range(steps):
        trained.grad = torch.func.grad(loss)(W)
        optimizer.step()
        after = trained.detach().clone()
        u, v = (t / t.norm(dim=1, keepdim=True) for t in (W, after))
        norms.append(W.norm(dim=1))
        # Kahan's formula: the arc cosine of a scalar product loses all digits of an angle below 1e-8
        angles.append(2 * torch.atan2((u - v).norm(dim=1), (u + v).norm(dim=1)))
        if not angles[-1].isfinite().all():
            unit = int((~angles[-1].isfinite()).nonzero()[0])
            raise ValueError(f"step {step} has no angle for unit {unit}: its weights are zero or not finite")
        W = after
    return StepAngles(torch.stack(norms), torch.stack(angles))


def gain_metric(
    weight: Tensor,
    bias: Tensor,
    gain: Tensor,
    inputs: Tensor,
    family: str | Family,
    norm: str | None,
    delta: Tensor,
    *,
    eps: float = 0.0,
) -> Tensor:
    r"""Computes ds^2 of a step in the magnitude of the incoming weights (appendix, eqs. 32-35).

    .. math:: ds^2 = \tfrac{1}{2} \delta_g^T E_x\left[\frac{\mathrm{Cov}[y|x]}{\phi^2} \odot z z^T\right] \delta_g

    Under a norm the step changes the gains, and ``z_i = (a_i - mu_i) / sigma_i``. Without a norm the model is a
    standard one whose weights are ``gain_i w_i``. The step changes them by ``delta_i w_i / ||w_i||``, and ``z_i`` is
    the summed input divided by the norm of the weights.

    Under batch, layer and RMS norm z does not depend on the scale of the inputs. Without a norm it is proportional to
    that scale, and also under weight norm, whose sigma depends only on the weights.

    Args:
        weight, bias, gain, inputs, family, norm: as in `fisher_normalized`.
        delta: ``(H,)``, the step.
        eps: added to the variance.

    Returns:
        A number in float64.

    Raises:
        ValueError, TypeError: as in `fisher_normalized`.

    Source: Ba, Kiros, Hinton 2016, appendix, "Learning the magnitude of incoming weights".
    """
    W, X = _checks.layer(weight, inputs)
    H = len(W)
    b, g, d = (_checks.tensor(n, t, H) for n, t in (("bias", bias), ("gain", gain), ("delta", delta)))
    _checks.norm_fits(norm, W, X)
    family, eps = as_family(family), _checks.positive("eps", eps, zero=True)
    _checks.deviations(norm, W, X, eps)
    if norm is None:
        standard = g[:, None] * W
        z, eta = X @ (standard / standard.norm(dim=1, keepdim=True)).T, X @ standard.T + b
    else:
        z = responses(W, X, norm, eps).z
        eta = z * g + b
    step = z * d
    per_case = torch.einsum("bi,bij,bj->b", step, family.covariance(eta), step)
    return _checks.finite(per_case.mean() / (2 * family.phi**2), norm)


def gain_metric_by_scale(
    weight: Tensor,
    bias: Tensor,
    gain: Tensor,
    inputs: Tensor,
    family: str | Family,
    delta: Tensor,
    scales: Sequence[float] = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3),
) -> dict[str | None, Tensor]:
    """Computes `gain_metric` under every norm, and without one, at several scales of the inputs.

    Args:
        weight, bias, gain, inputs, family, delta: as in `gain_metric`. Take a Gaussian family, whose covariance does
            not depend on the outputs. With another family a model without a norm saturates, or overflows, which is an
            error.
        scales: factors of the inputs, each > 0.

    Returns:
        A dict from each norm to ds^2 at the scales, ``(len(scales),)``.

    Raises:
        ValueError, TypeError: as in `gain_metric`; also if there is no scale, or one is not above 0.

    Source: Ba, Kiros, Hinton 2016, appendix, eqs. 32-35.
    """
    scales = [_checks.positive("scales", scale) for scale in scales]
    if not scales:
        raise ValueError("expected scales to be numbers, got none")
    _, X = _checks.layer(weight, inputs)
    return {
        norm: torch.stack([gain_metric(weight, bias, gain, scale * X, family, norm, delta) for scale in scales])
        for norm in _checks.NORMS
    }
