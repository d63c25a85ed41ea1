"""The GPU engine: Triton kernels for the norm ops and the recurrent networks, NVIDIA first.

Every argument has been checked by the time it comes here (`functional`). Under ``TRITON_INTERPRET=1``, set before
Triton is imported, the same kernels run on the CPU, slowly: that is how they are tested where there is no GPU, and
`backends` takes them there only when asked by name.

Letters in shapes: T time steps, B batch, I input size, H hidden size, P projected size (H without projections),
G gates, M rows, N row length, R rows of partial sums.
"""

from __future__ import annotations

import math

import torch

try:
    import triton
except ImportError:
    raise ImportError("triton is not installed (pip install triton; it comes with PyTorch's CUDA builds)") from None

INTERPRETED = bool(triton.knobs.runtime.interpret)
if not INTERPRETED:
    if not torch.cuda.is_available():
        raise ImportError("PyTorch finds no CUDA device")
    if torch.version.hip:
        raise ImportError("the kernels are for NVIDIA's GPUs, and have not been tried on AMD's")
    _oldest = min(map(torch.cuda.get_device_capability, range(torch.cuda.device_count())), default=(8, 0))
    if _oldest < (8, 0):  # bfloat16 and TF32
        raise ImportError(f"needs GPUs of compute capability 8.0 or newer, found {_oldest[0]}.{_oldest[1]}")

from ..formula import Recurrence  # noqa: E402
from ._norms import normalize_backward as normalize_backward  # noqa: E402
from ._norms import normalize_forward as normalize_forward  # noqa: E402
from ._norms import normalize_saved as normalize_saved  # noqa: E402
from ._recurrent import recurrent_backward as recurrent_backward  # noqa: E402
from ._recurrent import recurrent_forward as recurrent_forward  # noqa: E402
from ._recurrent import recurrent_saved as recurrent_saved  # noqa: E402

ISA = f"Triton {triton.__version__}" + (", interpreted on the CPU" if INTERPRETED else "")  # for `layernorm doctor`
FORMULA_FIELDS = frozenset(
    {
        "gates", "span", "cell", "bias_inside", "gate_bias", "cell_bias", "eps", "eps_on", "forget_bias", "biases",
        "bias_again",
    }
)  # fmt: skip
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def covers(op: str, device: str, dtype: torch.dtype, recurrence: Recurrence | None) -> bool:
    """The norms and whole sequences, no steps one by one, in float32, bfloat16 and float16, but no batch norm and no
    derivatives that are cut; on the GPU, under the interpreter on the CPU."""
    if op == "steps" or (recurrence is not None and (recurrence.norm == "batch" or recurrence.gate_clip < math.inf)):
        return False
    return device == ("cpu" if INTERPRETED else "cuda") and dtype in _TYPES
