"""Comparisons in NumPy's float64, and derivatives by differences."""

import numpy as np
import torch


def tensor(a, grad=False):
    return torch.tensor(np.asarray(a), requires_grad=grad)


def leaves(found):
    """The tensors of nested tuples, lists and dicts."""
    return torch.utils._pytree.tree_leaves(found)


def array(a):
    return np.asarray(a.detach() if isinstance(a, torch.Tensor) else a)


def derivative(value, h):
    """d value(s) / ds at 0, by the central difference of fourth order."""
    return (8 * (value(h) - value(-h)) - (value(2 * h) - value(-2 * h))) / (12 * h)


def close(got, expected, tolerance, floor=0.0):
    """Compares arrays one by one: same shapes, and finite differences relative to the largest magnitude expected.

    Args:
        floor: the least magnitude that a difference is relative to.
    """
    for a, b in zip(map(array, got), map(array, expected), strict=True):
        assert a.shape == b.shape
        assert np.isfinite(a).all()
        scale = max(np.abs(b).max(initial=floor), np.finfo(float).tiny)
        error = np.abs(a - b).max(initial=0.0) / scale
        assert error <= tolerance, f"relative error {error:.3g} > {tolerance:g}"


def close_together(got, expected, tolerance):
    """Compares arrays as one vector: by `close`, relative to the largest magnitude of all."""
    got, expected = ([array(a) for a in part] for part in (got, expected))
    assert [a.shape for a in got] == [b.shape for b in expected]
    close(*([np.concatenate([np.zeros(0), *(a.ravel() for a in part)])] for part in (got, expected)), tolerance)
