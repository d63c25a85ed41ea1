"""The CPU engine: C++ kernels for a whole sequence, for steps one by one, and for the norms, in one call each.

The Python files load the library and hand it pointers. A call of a known kind has a plan, by which its tensors are
looked at in C (`planned.cpp`). Where there is none, or a tensor is not as planned, the arguments are checked in Python,
which explains what does not fit, and brought into order.

Letters in shapes: T time steps, B batch, I input size, H hidden size, P projected size (H without projections),
G gates, M rows, N row length; Hp is H rounded up to 16, Z is G*Hp rounded up to 32, and 32 more where it would be
a multiple of 512.
"""

from __future__ import annotations

from ..protocol import YES, Kind, Support
from ._layout import TYPES
from ._library import ISA as ISA
from ._norms import normalize_backward as normalize_backward
from ._norms import normalize_forward as normalize_forward
from ._norms import normalize_saved as normalize_saved
from ._recurrent import recurrent_backward as recurrent_backward
from ._recurrent import recurrent_forward as recurrent_forward
from ._recurrent import recurrent_saved as recurrent_saved
from ._steps import prepare as prepare

FORMULA_FIELDS = frozenset(
    {
        "gates", "span", "cell", "bias_inside", "gate_bias", "cell_bias", "eps", "eps_on", "forget_bias", "biases",
        "bias_again",
    }
)  # fmt: skip


def supports(kind: Kind) -> Support:
    """Supports every op on the CPU in float64, float32, bfloat16 and float16."""
    if kind.device.type != "cpu":
        return Support(False, f"tensors on {kind.device}")
    return YES if kind.dtype in TYPES else Support(False, f"{kind.dtype}")


def is_worth_it(kind: Kind) -> Support:
    return YES
