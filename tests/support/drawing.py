"""Numbers that are drawn."""

import torch


def normal(*shape, seed=0):
    """Normal numbers in float64, the same ones for a seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
