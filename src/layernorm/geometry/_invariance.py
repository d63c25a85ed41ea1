"""Table 1: the changes of weights and data to which a normalised layer's output is invariant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from . import _checks
from ._layers import normalized, standard_layer

Change = Callable[[Tensor, Tensor, float, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Transform:
    """A change of a layer's weight (H, I) and inputs (B, I).

    Args:
        name: as in Table 1.
        equation: the change, as text.
        apply: ``apply(weight, inputs, delta, shift) -> (weight, inputs)`` after the change, where ``delta`` is a number
            and ``shift`` is ``(I,)``.
    """

    name: str
    equation: str
    apply: Change


def _first_row(M: Tensor, row: Tensor) -> Tensor:
    return torch.cat([row[None], M[1:]])


TRANSFORMS: dict[str, Transform] = {
    t.name: t
    for t in (
        Transform("weight matrix re-scaling", "W' = delta W", lambda W, X, delta, shift: (delta * W, X)),
        Transform(
            "weight matrix re-centring", "W' = delta W + 1 shift^T",
            lambda W, X, delta, shift: (delta * W + shift, X),
        ),
        Transform(
            "weight vector re-scaling", "w_1' = delta w_1",
            lambda W, X, delta, shift: (_first_row(W, delta * W[0]), X),
        ),
        Transform("dataset re-scaling", "x' = delta x, every case", lambda W, X, delta, shift: (W, delta * X)),
        Transform("dataset re-centring", "x' = x + shift, every case", lambda W, X, delta, shift: (W, X + shift)),
        Transform(
            "single case re-scaling", "x_1' = delta x_1",
            lambda W, X, delta, shift: (W, _first_row(X, delta * X[0])),
        ),
    )
}  # fmt: skip

CASE_RECENTRING = Transform(
    "single case re-centring", "x_1' = x_1 + shift", lambda W, X, delta, shift: (W, _first_row(X, X[0] + shift))
)
"""Not in Table 1. No norm here is invariant to it: it moves a_i by w_i^T shift, which differs from unit to unit."""

PAPER: dict[str, tuple[bool, ...]] = {
    # in the order of TRANSFORMS
    "batch": (True, False, True, True, True, False),
    "weight": (True, False, True, False, False, False),
    "layer": (True, True, False, True, False, True),
}

# Rounding in float64 moves an invariant output by about 1e-15 of its size, and by 1e-14 where a re-centring cancels. A
# real change is of the output's own size. A change between the two limits is neither: it agrees with no verdict.
INVARIANT_BELOW, CHANGED_ABOVE = 1e-9, 1e-3

WORDS = {True: "invariant", False: "no", None: "-"}
"""A verdict in words; None: there is none."""


def invariance(
    norm: str | None,
    transform: str | Transform,
    weight: Tensor | None = None,
    inputs: Tensor | None = None,
    *,
    gain: Tensor | None = None,
    bias: Tensor | None = None,
    bias_inside: Tensor | None = None,
    delta: float = 3.0,
    shift: Tensor | None = None,
    eps: float = 0.0,
) -> float:
    r"""Measures how far a change of weights or data moves a normalised layer's output (section 5.1).

    .. math:: \frac{\|y' - y\|}{\|y\|}, \qquad y_i = \frac{g_i}{\sigma_i} (a_i - \mu_i) + b_i, \quad a = W x

    ``y'`` is computed with the statistics of the changed weights and data. Batch norm takes those of the changed batch.
    The two norms run over all cases and units. A layer is invariant where the result is 0 up to rounding.

    Args:
        norm: ``"batch"``, ``"weight"``, ``"layer"``, ``"rms"`` or None.
        transform: a name of `TRANSFORMS`, or a `Transform`.
        weight, inputs: ``(H, I)`` and ``(B, I)``. None for both: 6 units, 5 inputs and 8 cases, drawn with a fixed
            seed.
        gain, bias: ``(H,)``. None: 1 and 0, or with the default weight numbers drawn with the fixed seed.
        bias_inside: ``(H,)``, added to ``a`` before the norm. None: 0. With it layer, RMS and weight norm are no longer
            invariant to changes that scale ``a`` without scaling the bias. Batch norm stays so, as it subtracts the
            bias with the mean.
        delta: the scale, > 0. A negative scale would change the sign of the output under every norm.
        shift: ``(I,)``. None: 1, 2, ..., I.
        eps: added to the variance. Above 0, invariance to re-scaling holds only as far as eps is small compared with
            the variance.

    Returns:
        The relative change of the output.

    Raises:
        ValueError: there is no such norm or transform; a shape does not fit; the output is zero or not finite; or with
            eps 0 a sigma is zero up to rounding, because all units, or under batch norm all cases, are alike.
        TypeError: an argument is not of the type above.

    Source: Ba, Kiros, Hinton 2016, section 5.1 and Table 1.
    """
    if (weight is None) != (inputs is None):
        raise ValueError("expected weight and inputs, or neither of them")
    if weight is None or inputs is None:
        weight, inputs, default_gain, default_bias = standard_layer(units=6, inputs=5, cases=8, seed=0)
        gain, bias = default_gain if gain is None else gain, default_bias if bias is None else bias
    W, X = _checks.layer(weight, inputs)
    H, I = W.shape  # noqa: E741
    g = W.new_ones(H) if gain is None else _checks.tensor("gain", gain, H)
    b = W.new_zeros(H) if bias is None else _checks.tensor("bias", bias, H)
    inside = None if bias_inside is None else _checks.tensor("bias_inside", bias_inside, H)
    shift = torch.arange(1.0, I + 1).to(W) if shift is None else _checks.tensor("shift", shift, I)
    delta, eps = _checks.positive("delta", delta), _checks.positive("eps", eps, zero=True)

    def output(W: Tensor, X: Tensor) -> Tensor:
        _checks.norm_fits(norm, W, X)
        _checks.deviations(norm, W, X, eps, inside)
        y = normalized(W, X, norm, eps, inside) * g + b
        if not y.isfinite().all():
            raise ValueError(f"the output under norm={norm!r} is not finite: delta, shift, gain or bias is too large")
        return y

    y = output(W, X)
    change = output(*_as_transform(transform).apply(W, X, delta, shift)) - y
    return _checks.ratio(float(change.norm()), float(y.norm()), "the output, of gain and bias,")


def _as_transform(transform: str | Transform) -> Transform:
    if isinstance(transform, Transform):
        return transform
    if not isinstance(transform, str) or transform not in TRANSFORMS:
        raise ValueError(f"expected transform to be a Transform or one of {', '.join(TRANSFORMS)}, got {transform!r}")
    return TRANSFORMS[transform]


@dataclass(frozen=True)
class Verdict:
    """A field of Table 1: what was measured, and what the paper says.

    Args:
        norm, transform: the row and the column.
        residual: the relative change of the output (`invariance`).
        paper: the paper's verdict, whether the output is invariant. None for a norm that Table 1 does not list.
    """

    norm: str | None
    transform: str
    residual: float
    paper: bool | None

    @property
    def invariant(self) -> bool:
        """Whether the output was invariant up to rounding."""
        return self.residual < INVARIANT_BELOW

    @property
    def measured(self) -> str:
        """The measured verdict in words: invariant; no; or neither, between the two limits."""
        return WORDS[self.invariant] if self.invariant or self.residual > CHANGED_ABOVE else "neither"

    @property
    def differs(self) -> bool:
        """Whether the measurement does not confirm the paper's verdict."""
        if self.paper is None:
            return False
        return not (self.invariant if self.paper else self.residual > CHANGED_ABOVE)


def invariance_table(eps: float = 0.0) -> list[Verdict]:
    """Measures Table 1: batch, weight and layer norm with the paper's verdicts, then RMS norm and no norm.

    Args:
        eps: as in `invariance`. With the library's 1e-5 no re-scaling is exact, and verdicts differ from the paper's.

    Returns:
        30 verdicts: five norms with the six `TRANSFORMS` each.

    Raises:
        ValueError: eps is negative.

    Source: Ba, Kiros, Hinton 2016, Table 1.
    """
    return [
        Verdict(norm, name, invariance(norm, name, eps=eps), PAPER[norm][i] if norm in PAPER else None)
        for norm in _checks.NORMS
        for i, name in enumerate(TRANSFORMS)
    ]


def invariance_text(verdicts: list[Verdict]) -> str:
    """Writes the table as text of 80 columns: each relative change, with the measured verdict and the paper's."""
    lines = [f"{'norm':8}{'transform':25}{'relative change':>16}  {'measured':11}{'paper'}"]
    for v in verdicts:
        row = f"{v.norm or 'none':8}{v.transform:25}{v.residual:16.1e}  {v.measured:11}{WORDS[v.paper]:9}"
        lines.append(row.rstrip() + (" DIFFERS" if v.differs else ""))
    return "\n".join(lines)
