"""The reference engine: every op as plain torch equations, and beside it its hand-derived backward in plain torch.

It is the oracle that the kernels are compared with, and the path for whatever no kernel covers: it runs on every
device, for every formula and floating type. The `*_equations` are differentiable to any order.

Letters in shapes: T time steps, B batch, I input size, H hidden size, P projected size (H without projections),
G gates, M rows, N row length.
"""

import torch

from ...formula import Recurrence
from ._cases import BatchMoments as BatchMoments
from ._cases import Moments as Moments
from ._norms import normalize_backward, normalize_equations, normalize_forward, normalize_saved
from ._recurrent import check_cases as check_cases
from ._recurrent import count_cases as count_cases
from ._recurrent import recurrent_backward, recurrent_equations, recurrent_forward, recurrent_saved
from ._recurrent import recurrent_over_cases as recurrent_over_cases
from ._steps import prepare

__all__ = [
    "FORMULA_FIELDS",
    "covers",
    "normalize_backward",
    "normalize_equations",
    "normalize_forward",
    "normalize_saved",
    "prepare",
    "recurrent_backward",
    "recurrent_equations",
    "recurrent_forward",
    "recurrent_saved",
]

FORMULA_FIELDS = frozenset(
    {
        "gates", "span", "cell", "bias_inside", "gate_bias", "cell_bias", "eps", "eps_on", "forget_bias", "biases",
        "bias_again",
    }
)  # fmt: skip


def covers(op: str, device: str, dtype: torch.dtype, recurrence: Recurrence | None) -> bool:
    """Covers every op, everywhere."""
    return True
