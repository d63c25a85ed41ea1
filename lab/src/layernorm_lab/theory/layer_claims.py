"""The claims on one layer, measured."""

from __future__ import annotations

import torch
from torch import Tensor

from layernorm.geometry import (
    CASE_RECENTRING,
    FAMILIES,
    INVARIANT_BELOW,
    Family,
    Model,
    block_form_gap,
    curvature_ratio,
    fisher,
    fisher_glm,
    fisher_hessian,
    fisher_monte_carlo,
    fisher_normalized,
    gain_metric,
    gain_metric_by_scale,
    invariance,
    invariance_table,
    kl,
    normalized,
    normalized_glm,
    standard_layer,
)

from .measured import DEVIATIONS, GAP_SLOPE, NORMS, ROUNDING, SLOPE, SPECTRAL_GAP, Data, Measured, Series, slope

_WORDS = {True: "invariant", False: "no", None: "-"}


def table_1(seed: int, data: Data) -> Measured:
    """Measures Table 1 on a fixed layer, as `layernorm invariance` measures it."""
    verdicts = invariance_table()
    listed = [v for v in verdicts if v.paper is not None]
    right = sum(not v.differs for v in listed)
    shifted = invariance("layer", CASE_RECENTRING)
    return Measured(
        right == len(listed) and shifted > INVARIANT_BELOW,
        f"{right} of the {len(listed)} verdicts are the paper's. Re-centring a single case, which Table 1 "
        "does not list, "
        f"moves layer norm's output by {shifted:.2g} of its size: no norm here is invariant to it",
        "Table 1: relative change of the output",
        {"norm": "", "change": "", "residual": ".0e", "measured": "", "paper": ""},
        [(v.norm or "none", v.transform, v.residual, v.measured, _WORDS[v.paper]) for v in verdicts],
        [],
        f"Invariant: below {INVARIANT_BELOW:g}. RMS norm and none are not in the paper's table.",
    )


def _layer(seed: int, units: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draws weight (H, 3), bias, gain (H,), inputs (6, 3). The summed inputs have a variance of about one, so that the
    rates of Poisson outputs stay moderate."""
    W, X, gain, bias = standard_layer(units, inputs=3, cases=6, seed=seed)
    return W / 3**0.5, bias / 2, gain, X


def _stacked(norm: str | None) -> Model:
    """Makes the GLM with theta (H, I+1), and the normalised one with (H, I+2): rows w_i, b_i and g_i."""
    model, extra = normalized_glm(norm), 2 if norm else 1

    def stacked(parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        theta = parameters["theta"]
        w, rest = theta[:, :-extra], theta[:, -extra:]
        named = {"weight": w, "bias": rest[:, 0]}
        return model({**named, "gain": rest[:, 1]} if norm else named, inputs)

    return stacked


def _theta(W: Tensor, bias: Tensor, gain: Tensor, norm: str | None) -> Tensor:
    return torch.cat([W, bias[:, None], *([gain[:, None]] if norm else [])], 1)


def quadratic(seed: int, data: Data) -> Measured:
    """Measures the ratio of KL to ds^2 for steps in eight directions, of four lengths."""
    W, bias, gain, X = _layer(seed)
    sizes, rows, series, orders = (1e-1, 1e-2, 1e-3, 1e-4), [], [], []
    lengths, g = torch.tensor(sizes, dtype=torch.float64), torch.Generator().manual_seed(seed)
    for name in FAMILIES:
        for norm in NORMS:
            model, theta = _stacked(norm), _theta(W, bias, gain, norm)
            matrix = fisher(model, {"theta": theta}, X, name)
            off = torch.zeros(len(sizes), dtype=torch.float64)
            for _ in range(8):
                d = torch.randn(theta.shape, generator=g, dtype=torch.float64)
                d /= d.norm()
                ds2 = d.flatten() @ matrix @ d.flatten() / 2
                divergences = torch.stack([kl(model, {"theta": theta}, {"theta": s * d}, X, name) for s in sizes])
                off += (divergences / (lengths.square() * ds2) - 1).square() / 8
            off = off.sqrt()
            exact = bool(off[0] < ROUNDING)  # the longest step: rounding is largest for the shorter ones
            order = float((off[-2] / off[-1]).log10())
            if not exact:
                orders.append(order)
                series.append(Series(name, norm or "none", list(sizes), off.tolist()))
            rows.append((name, norm or "none", *off.tolist(), "exact" if exact else order))
    exact_rows = [row[:2] for row in rows if row[-1] == "exact"]
    return Measured(
        all(abs(order - 1) < SLOPE for order in orders) and exact_rows == [("gaussian", "none")],
        f"the ratio of KL to ds^2 goes to 1 with the order {min(orders):.2f} to {max(orders):.2f} of the "
        "step's length; "
        "for the Gaussian without a norm KL is ds^2 up to rounding",
        "KL against its quadratic form",
        {"family": "", "norm": "", **{f"{s:.0e}": ".1e" for s in sizes}, "order": ".2f"},
        rows,
        series,
        "|KL / ds^2 - 1| for steps of these lengths, root mean square over eight directions; order: of the last two.",
    )


def _precision(family: Family, eta: Tensor) -> Tensor:
    """Computes Cov[y|x] / phi^2, (B, H, H)."""
    return family.covariance(eta) / family.phi**2


def _closed(W: Tensor, bias: Tensor, gain: Tensor, X: Tensor, family: Family, norm: str | None) -> Tensor:
    """Computes the Fisher matrix in closed form: eq. 12, eq. 13, or with all d eta_i / d w_j (layer and RMS norm)."""
    if norm is None:
        return fisher_glm(W, bias, X, family)
    if norm in ("batch", "weight"):
        return fisher_normalized(W, bias, gain, X, family, norm)
    H, a, z = len(W), X @ W.T, normalized(W, X, norm)
    sigma = (a.var(1, correction=0, keepdim=True) if norm == "layer" else a.square().mean(1, keepdim=True)).sqrt()
    one = torch.eye(H, dtype=torch.float64).expand(len(X), H, H)
    factor = one - (1 / H if norm == "layer" else 0) - z[:, :, None] * z[:, None, :] / H
    by_weight = ((gain / sigma)[..., None] * factor)[..., None] * X[:, None, None, :]
    J = torch.cat([by_weight, one[..., None], (one * z[..., None])[..., None]], -1).flatten(2)
    return torch.einsum("bip,bij,bjq->pq", J, _precision(family, z * gain + bias), J) / len(X)


def three_ways(seed: int, data: Data) -> Measured:
    """Compares closed form, autograd, expected Hessian and Monte Carlo, for each family and norm."""
    W, bias, gain, X = _layer(seed)
    rows: list[tuple[str | float, ...]] = []
    for name, family in FAMILIES.items():
        for norm in NORMS:
            model, theta = _stacked(norm), {"theta": _theta(W, bias, gain, norm)}
            matrix = fisher(model, theta, X, family)
            size = float(matrix.abs().max())
            closed = float((_closed(W, bias, gain, X, family, norm) - matrix).abs().max()) / size
            hessian = float((fisher_hessian(model, theta, X, family) - matrix).abs().max()) / size
            drawn = fisher_monte_carlo(model, theta, X, family, 4000, torch.Generator().manual_seed(seed))
            off = (drawn.fisher - matrix).abs()
            rows.append((
                name, norm or "none", closed, hessian, float(off.max()) / size,
                _deviations(off, drawn.fisher_error), _deviations(drawn.score.abs(), drawn.score_error),
            ))  # fmt: skip
    exact = max(float(value) for row in rows for value in row[2:4])
    drawn_off, score_off = (max(float(row[i]) for row in rows) for i in (5, 6))
    return Measured(
        exact < ROUNDING and max(drawn_off, score_off) < DEVIATIONS,
        f"closed form, autograd and expected Hessian agree to {exact:.0e} of the largest entry; 4000 draws "
        "for a case lie "
        f"within {drawn_off:.1f} standard errors of them, and their mean score within {score_off:.1f} of 0",
        "The Fisher matrix, three ways",
        {"family": "", "norm": "", "closed": ".0e", "Hessian": ".0e", "drawn": ".0e", "F, s.e.": ".1f",
         "score, s.e.": ".1f"},
        rows,
        [],
        "Largest differences from autograd's matrix over its largest entry: the closed form, the expected negative "
        "Hessian, 4000 draws for a case. s.e.: the largest deviation of the draws, and of their mean score from 0, in "
        "standard errors.",
    )  # fmt: skip


def _deviations(off: Tensor, error: Tensor) -> float:
    """Computes the largest deviation in standard errors, where an entry varies at all."""
    varies = error > 1e-12 * error.max()
    return float((off[varies] / error[varies]).max())


def blocks(seed: int, data: Data) -> Measured:
    """Measures the relative distance between eq. 13's blocks and the exact matrix, against the layer's width."""
    widths, rows, series = (4, 16, 64), [], []
    spectral: list[float] = []  # of Gaussian and Bernoulli outputs, where they stay
    falls: list[float] = []  # their exponents for the others
    for name in FAMILIES:
        for norm in NORMS:
            layers = [[_layer(4 * seed + i, H) for i in range(4)] for H in widths]
            gaps = [sum(block_form_gap(*layer, name, norm) for layer in at) / len(at) for at in layers]
            largest = [
                sum(block_form_gap(*layer, name, norm, spectral=True) for layer in at) / len(at) for at in layers
            ]
            exact = max(gaps) < ROUNDING
            exponents = (
                ("exact", "exact") if exact else (round(slope(widths, gaps), 2), round(slope(widths, largest), 2))
            )
            rows.append((name, norm or "none", *gaps, exponents[0], *largest, exponents[1]))
            if not exact:
                if name in ("gaussian", "bernoulli"):
                    spectral += largest
                else:
                    falls.append(float(exponents[1]))
                series.append(Series(name, norm or "none", [float(H) for H in widths], gaps))
    shared = [row for row in rows if row[1] in ("layer", "rms")]
    slopes, first = [row[5] for row in shared], [row[2] for row in shared]
    flat = _unseen(seed, widths[-1])
    return Measured(
        all(isinstance(exponent, float) and GAP_SLOPE[0] < exponent < GAP_SLOPE[1] for exponent in slopes)
        and all((row[-1] == "exact") != (row in shared) for row in rows)
        and min(spectral) > SPECTRAL_GAP
        and GAP_SLOPE[0] < sum(falls) / len(falls) < GAP_SLOPE[1]
        and max(flat["exact"]) < ROUNDING < SPECTRAL_GAP / 100 < min(flat["blocks"]),
        f"exact under batch norm, weight norm and none; under layer and RMS norm off by {min(first):.2f} to "
        f"{max(first):.2f} of the matrix at H = 4 in the Frobenius norm, falling as H to the power {min(slopes)} to "
        f"{max(slopes)}; in the spectral norm off by {min(spectral):.2f} to {max(spectral):.2f} for Gaussian and "
        f"Bernoulli outputs at every width, and falling as H to the power {min(falls)} to {max(falls)} for Poisson and "
        f"categorical ones. Along W and 1 gamma^T, where layer norm's curvature is 0, the blocks give "
        f"{flat['blocks'][0]:.3f} and {flat['blocks'][1]:.3f} of the largest eigenvalue at H = {widths[-1]}",
        "Eq. 13's blocks against the exact matrix",
        {"family": "", "norm": "", **{f"H = {H}": ".1e" for H in widths}, "exponent": ".2f",
         **{f"2-norm, {H}": ".1e" for H in widths}, "its exp.": ".2f"},
        rows,
        series,
        "||F_blocks - F|| / ||F||, the mean over four layers: Frobenius norms, then largest eigenvalues (2-norm).",
    )  # fmt: skip


def _unseen(seed: int, units: int) -> dict[str, list[float]]:
    """Computes v^T F v / ||v||^2 over the exact F's largest eigenvalue, for both forms of F.

    The directions v are W and 1 gamma^T, which do not change layer norm's output.
    """
    W, bias, gain, X = _layer(seed, units)
    gamma = torch.randn(W.shape[1], generator=torch.Generator().manual_seed(seed), dtype=W.dtype)
    along = [torch.cat([v, v.new_zeros(units, 2)], 1).flatten() for v in (W, gamma.expand_as(W))]
    exact = fisher_normalized(W, bias, gain, X, "gaussian", "layer", form="exact")
    blocks = fisher_normalized(W, bias, gain, X, "gaussian", "layer")
    top = float(torch.linalg.eigvalsh(exact)[-1])
    forms = {"exact": exact, "blocks": blocks}
    return {name: [float(v @ F @ v / (v @ v)) / top for v in along] for name, F in forms.items()}


def curvature(seed: int, data: Data) -> Measured:
    """Measures the Fisher blocks of a unit against the norm of its weights, under layer and RMS norm of the whole
    matrix."""
    W, bias, gain, X = _layer(seed)
    scales, series, right = (1.0, 2.0, 4.0, 8.0, 16.0), [], []
    rows: list[tuple[str | float, ...]] = []
    for norm in ("batch", "weight", "layer", "rms"):
        ratios = [curvature_ratio(W, bias, gain, X, "categorical", norm, s) for s in scales]
        diagonal, cross = ([getattr(ratio, which) for ratio in ratios] for which in ("diagonal", "cross"))
        whole = norm in ("layer", "rms")
        own = fisher_normalized(W, bias, gain, X, "categorical", norm, form="exact")
        direction = torch.cat([W, torch.zeros(4, 2)], 1)
        if not whole:
            direction[1:] = 0.0
        along = float((own @ direction.flatten()).norm() / (own.norm() * direction.norm()))
        slopes = slope(scales, diagonal), slope(scales, cross)
        moved = max(ratio.output_change for ratio in ratios)
        right.append(
            abs(slopes[0] + 2) < ROUNDING
            and abs(slopes[1] + (2 if whole else 1)) < ROUNDING
            and max(along, moved) < ROUNDING
        )
        rows.append(("W" if whole else "w_i", norm, diagonal[1], cross[1], *slopes, along, moved))
        series.append(Series("diagonal block F_ii", norm, list(scales), diagonal))
        series.append(Series("cross blocks F_ij", norm, list(scales), cross))
    alone = {norm: invariance(norm, "weight vector re-scaling", W, X, delta=2.0) for norm in ("layer", "rms")}
    apart = torch.block_diag(*[torch.ones(X.shape[1] + 2, X.shape[1] + 2, dtype=W.dtype)] * 4)  # 1 in the blocks F_ii
    independent = [fisher_normalized(W, bias, gain, X, "gaussian", norm) for norm in ("batch", "weight")]
    between = max(float((F * (1 - apart)).norm() / F.norm()) for F in independent)
    return Measured(
        all(right) and min(alone.values()) > 0.01 and between < ROUNDING,
        f"the cross blocks F_ij of independent outputs, the paper's, are {between:.0e} of the matrix under batch and "
        f"weight norm; at twice the norm F_ii falls to {rows[0][2]:.3g}, and F_ij, where outputs are dependent, to "
        f"{rows[0][3]:.3g}; under layer and RMS norm both fall "
        f"to {rows[2][2]:.3g} with the whole matrix; there a single w_i at twice its "
        "norm moves "
        f"the output by {alone['layer']:.2g} (layer) and {alone['rms']:.2g} (RMS) of its size",
        "Curvature against the norm of the weights",
        {"grows": "", "norm": "", "F_ii, x2": ".4f", "F_ij, x2": ".4f", "exp. F_ii": ".4f", "exp. F_ij": ".4f",
         "along": ".0e", "output": ".0e"},
        rows,
        series,
        "Frobenius norms of a unit's blocks over those before, at twice the norm, and exponents over 1 to 16 times it "
        "(categorical outputs, so that there are cross blocks). along: ||F v|| / ||F|| ||v|| in the direction v that "
        "grows. output: how far it moves.",
    )  # fmt: skip


SCALES = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
EQUATIONS = {"batch": "32", "layer": "33", "rms": "-", "weight": "34", None: "35"}


def gains(seed: int, data: Data) -> Measured:
    """Measures ds^2 along the gains, at seven scales of the inputs."""
    W, bias, gain, X = _layer(seed)
    metrics = gain_metric_by_scale(W, bias, gain, X, "gaussian", torch.ones(4), SCALES)
    rows, series = [], []
    for norm, equation in EQUATIONS.items():
        values = metrics[norm].tolist()
        grows = norm in ("weight", None)
        shown = [values[SCALES.index(scale)] for scale in (1e-3, 1.0, 1e3)]
        rows.append(("2" if grows else "0", norm or "none", equation, *shown, slope(SCALES, values)))
        series.append(Series("ds^2 along the gains", norm or "none", list(SCALES), values))
    slopes = {str(row[1]): float(row[-1]) for row in rows}
    # eqs. 34 and 35 are equal where the weights of the standard model contain the gains of the normalised one
    same = float((metrics["weight"] / metrics[None] - 1).abs().max())
    return Measured(
        all(abs(float(row[-1]) - float(row[0])) < ROUNDING for row in rows) and same < ROUNDING,
        "ds^2 grows with the inputs' scale to the power: "
        + ", ".join(f"{norm} {abs(exponent):.2f}" for norm, exponent in slopes.items())
        + f"; weight norm's is the standard GLM's to {same:.0e}",
        "ds^2 along the gains against the scale of the inputs",
        {"stated": "", "norm": "", "eq.": "", "1e-3": ".3g", "1": ".3g", "1e3": ".3g", "exponent": ".4f"},
        rows,
        series,
        "A step of 1 in every gain, Gaussian outputs, inputs at these scales; exponent: fitted over all "
        "seven from 1e-3 "
        "to 1e3.",
    )


def prediction(seed: int, data: Data) -> Measured:
    """Compares eq. 32, which lacks the normalised summed inputs, over ds^2."""
    W, bias, gain, X = _layer(seed)
    eta = normalized_glm("batch")({"weight": W, "bias": bias, "gain": gain}, X)

    def both(family: Family, delta: Tensor) -> tuple[float, float]:
        """Returns ds^2, and what eq. 32 gives for it."""
        printed = torch.einsum("i,bij,j->b", delta, _precision(family, eta), delta).mean() / 2
        return float(gain_metric(W, bias, gain, X, family, "batch", delta)), round(float(printed), 12) + 0.0

    rows: list[tuple[str, str, float, float, float]] = []
    for name, family in FAMILIES.items():
        exact, printed = both(family, torch.ones(4, dtype=torch.float64))
        rows.append((name, "batch", exact, printed, round(printed / exact, 12) + 0.0))
    steps = torch.randn(1000, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    random = sorted(printed / exact for exact, printed in (both(FAMILIES["categorical"], step) for step in steps))
    ratios = {row[0]: row[-1] for row in rows}
    others = [abs(ratio - 1) for name, ratio in ratios.items() if name != "gaussian"]
    return Measured(
        abs(ratios["gaussian"] - 1) < ROUNDING and min(others) > 1e-3,
        "eq. 32 over ds^2: "
        + ", ".join(f"{name} {ratio:.3g}" for name, ratio in ratios.items())
        + " (the same step in every gain, a special one; for the middle half of 1,000 random steps "
        f"{random[250]:.2g} to {random[750]:.2g})",
        "Eq. 32 against ds^2 under batch norm",
        {"family": "", "norm": "", "ds^2": ".4g", "eq. 32": ".4g", "ratio": ".4g"},
        rows,
        [],
        "A step of 1 in every gain. A categorical's covariance sends that step, and no other direction, to 0 in eq. "
        "32.",
    )
