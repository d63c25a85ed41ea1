"""The nonlinearities of the gates, in float32; arguments are cut off where the result no longer changes."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x))"""
    return 1.0 / (1.0 + tl.exp(tl.where(x < -80.0, 80.0, -x)))


@triton.jit
def tanh(x):
    """Within a few roundings of itself everywhere: near 0, where 1 - 2 / (exp(2x) + 1) cancels, by the odd polynomial
    of Cephes (Moshier, tanhf.c)."""
    size = tl.abs(x)
    large = 1.0 - 2.0 / (tl.exp(tl.where(size > 20.0, 40.0, 2.0 * size)) + 1.0)
    s = x * x
    small = -5.70498872745e-3 * s + 2.06390887954e-2
    small = small * s - 5.37397155531e-2
    small = small * s + 1.33314422036e-1
    small = small * s - 3.33332819422e-1
    return tl.where(size < 0.625, x + x * s * small, tl.where(x < 0.0, -large, large))
