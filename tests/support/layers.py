"""One layer for `layernorm.geometry`: the norms, the families, and a problem in float64."""

import torch

from layernorm import geometry as geo

NORMS = ["batch", "weight", "layer", "rms", None]
FAMILIES = {**geo.FAMILIES, "wide gaussian": geo.gaussian(variance=2.5)}
ROUNDING = {"rtol": 1e-11, "atol": 1e-13}  # float64, sums of a few hundred terms of size one


def problem(H=4, I=3, B=6, seed=0):  # noqa: E741
    """weight, bias, gain, inputs"""
    g = torch.Generator().manual_seed(seed)
    W, b, gain, X = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((H, I), (H,), (H,), (B, I)))
    return W, b / 2, 1 + gain / 4, X + 0.3
