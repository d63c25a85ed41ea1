"""The claims on training and on deep networks, measured."""

from __future__ import annotations

import time

import torch
from torch import Tensor
from torch.nn import functional as F

from layernorm.geometry import (
    FAMILIES,
    Model,
    fisher,
    fisher_vector_product,
    neuron_blocks,
    normalized,
    normalized_glm,
    power_iteration,
    step_angles,
)

from .measured import EIGENVALUE, NORMS, ROUNDING, SLOPE, Data, Measured, Series, slope

STARTS = (1.0, 2.0, 4.0, 8.0)
STEPS, LEARNING_RATE = 60, 0.5
ADAM_RATE = 1e-3  # torch's default


def training(seed: int, data: Data) -> Measured:
    """Measures gradient descent on digits: one normalised layer of ten units, from weights of several norms."""
    X, cases = data.images.to(torch.float64), len(data.labels)
    y = F.one_hot(data.labels, 10).to(X)
    W = torch.randn(10, X.shape[1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    W /= W.norm(dim=1, keepdim=True)
    fixed = {"bias": W.new_zeros(10)}
    rows: list[tuple[str | float, ...]] = []
    series, slopes, adams, grown = [], {}, {}, []
    steps = [float(step) for step in range(1, STEPS + 1)]
    for norm in NORMS:
        model, first, by_adam = normalized_glm(norm), [], []

        def loss(weight: Tensor, model: Model = model) -> Tensor:
            return -FAMILIES["categorical"].log_likelihood(model({"weight": weight, **fixed}, X), y).mean()

        for start in STARTS:
            descent = step_angles(loss, start * W, LEARNING_RATE, STEPS)
            angles, norms = descent.angles.square().mean(1).sqrt(), descent.norms.square().mean(1).sqrt()
            first.append(float(angles[0]))
            by_adam.append(float(step_angles(loss, start * W, ADAM_RATE, adam=True).angles.square().mean().sqrt()))
            lengths = descent.norms if norm in ("batch", "weight") else norms
            always = bool((lengths.diff(dim=0) > 0).all())
            if norm:
                grown.append(always)
            total = float(angles.sum())
            rows.append((f"{start:g}", norm or "none", first[-1], by_adam[-1], total, float(norms[-1] / norms[0]),
                         "every step" if always else "not always"))  # fmt: skip
            if norm == "rms":  # its lines nearly coincide with layer norm's
                continue
            for what, values in (("angle of a step, rad", angles), ("norm, over the first", norms / norms[0])):
                series.append(Series(f"{norm or 'none'}: {what}", f"start {start:g}x", steps, values.tolist()))
        slopes[norm or "none"], adams[norm or "none"] = slope(STARTS, first), slope(STARTS, by_adam)
    rows.sort(key=lambda row: float(row[0]))
    normed = [slopes[norm] for norm in NORMS if norm]
    of_descent, of_adam = (
        ", ".join(f"{norm} {power:.2f}" for norm, power in powers.items()) for powers in (slopes, adams)
    )
    return Measured(
        all(abs(power + 2) < SLOPE for power in normed) and slopes["none"] > -1 - SLOPE and all(grown)
        and all(abs(power + 1) < SLOPE for power in adams.values()),
        f"the angle of the first step falls as the norm to the power: {of_descent}; under every norm the weights grew "
        f"with {'every' if all(grown) else 'not every'} step. Under Adam, with which the paper trains, the powers are: "
        f"{of_adam}",
        "Gradient descent from weights of several norms",
        {"start": "", "norm": "", "first angle": ".1e", "Adam's": ".1e", "sum of angles": ".1e", "growth": ".5f",
         "grew with": ""},
        rows,
        series,
        f"{cases} of scikit-learn's digits through one layer of ten units and a softmax; {STEPS} full-batch steps of "
        f"size {LEARNING_RATE:g}. Angles in radians, root mean square over units; growth: of the norm, last "
        "over first. Adam's: the angle of its first step, "
        f"of size {ADAM_RATE:g}.",
    )  # fmt: skip


def deep(seed: int, data: Data) -> Measured:
    """Measures a network of 6-5-4 units with a norm between: neuron blocks and power iteration against the dense
    matrix."""
    g = torch.Generator().manual_seed(seed)
    shapes = {"first": (5, 6), "second": (4, 5)}
    parameters = {k: torch.randn(s, generator=g, dtype=torch.float64) / s[1] ** 0.5 for k, s in shapes.items()}
    X = torch.randn(8, 6, generator=g, dtype=torch.float64)
    rows: list[tuple[str | float, ...]] = []
    apart = []
    for name in FAMILIES:
        for norm in NORMS:

            def model(p: dict[str, Tensor], x: Tensor, norm: str | None = norm) -> Tensor:
                return normalized(p["first"], x, norm).tanh() @ p["second"].T

            dense = fisher(model, parameters, X, name)
            values = torch.linalg.eigvalsh(dense)

            def product(v: dict[str, Tensor], model: Model = model, name: str = name) -> dict[str, Tensor]:
                return fisher_vector_product(model, parameters, v, X, name)

            top_pair = power_iteration(product, parameters, iterations=100_000, generator=g)  # two may be nearly equal
            parts = [block for key in shapes for block in neuron_blocks(model, parameters, X, name, key)]
            diagonal = torch.block_diag(*parts)
            keep = torch.block_diag(*(torch.ones_like(part) for part in parts))
            off = float((diagonal - dense * keep).abs().max() / dense.abs().max())
            left_out = float((dense - diagonal).norm() / dense.norm())
            apart.append(left_out)
            top = float(values[-1])
            error = abs(top_pair.value / top - 1)
            rows.append((name, norm or "none", top, error, top_pair.iterations, off, left_out))
    worst, block = (max(float(row[i]) for row in rows) for i in (3, 5))
    return Measured(
        worst < EIGENVALUE and block < ROUNDING,
        f"neuron blocks are the dense matrix's to {block:.0e}, power iteration finds its largest eigenvalue "
        f"to {worst:.0e}; "
        f"between the blocks lie {min(apart):.2f} to {max(apart):.2f} of the matrix",
        "Neuron blocks and power iteration against the dense matrix",
        {"family": "", "norm": "", "eigenvalue": ".4g", "off": ".0e", "iterations": "", "blocks": ".0e",
         "between": ".2f"},
        rows,
        [],
        "A network of 6-5-4 units, the hidden ones normalised. eigenvalue: the dense matrix's largest; off: power "
        "iteration's relative difference; blocks: the neuron blocks' largest; between: ||F - blocks|| / ||F||.",
    )  # fmt: skip


def spectrum(seed: int, data: Data) -> Measured:
    """Measures the largest eigenvalue of each layer of the network of experiment 6.6, the digits enlarged to 28 x 28
    pixels."""
    images = data.images[:64].reshape(-1, 1, 8, 8).to(torch.float64)
    X = F.interpolate(images, size=28, mode="bilinear").flatten(1)
    sizes = (784, 1000, 1000, 10)
    g = torch.Generator().manual_seed(seed)
    W = {
        f"weight {i}": torch.randn(sizes[i], sizes[i - 1], generator=g, dtype=torch.float64) / sizes[i - 1] ** 0.5
        for i in range(1, 4)
    }
    rows: list[tuple[str | float, ...]] = []
    began = time.perf_counter()
    for norm in (None, "layer"):

        def model(p: dict[str, Tensor], x: Tensor, norm: str | None = norm) -> Tensor:
            for i in (1, 2):
                x = normalized(p[f"weight {i}"], x, norm).relu()
            return x @ p["weight 3"].T

        for key in W:
            start = time.perf_counter()
            rest = {other: weight for other, weight in W.items() if other != key}

            def product(
                v: dict[str, Tensor], model: Model = model, key: str = key, rest: dict[str, Tensor] = rest
            ) -> dict[str, Tensor]:
                one = {key: W[key]}
                return fisher_vector_product(lambda p, x: model({**rest, **p}, x), one, v, X, "categorical")

            top = power_iteration(product, {key: W[key]}, tolerance=1e-4, generator=g)
            rows.append((
                key, norm or "none", f"{W[key].numel():,}", top.value, top.residual / top.value, top.iterations,
                time.perf_counter() - start,
            ))  # fmt: skip
    seconds = time.perf_counter() - began
    return Measured(
        max(float(row[4]) for row in rows) <= 1e-4,
        f"three layers, without a norm and with layer norm, in {seconds:.1f} s",
        "The largest eigenvalue of each layer's Fisher matrix",
        {
            "layer": "",
            "norm": "",
            "parameters": "",
            "eigenvalue": ".4g",
            "residual": ".0e",
            "iterations": "",
            "s": ".1f",
        },
        rows,
        [],
        "784-1000-1000-10 units with ReLU, categorical outputs, 64 cases; residual: ||F v - lambda v|| / lambda.",
    )
