"""The GPU engine: a step of a recurrent layer is two launches, by Triton.

It runs where there is a GPU of CUDA and Triton, which PyTorch's builds for CUDA bring along, and for its tests on a CPU
with Triton's interpreter (TRITON_INTERPRET=1). It is not chosen by itself: no GPU has run it yet.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

try:
    import triton as triton
except ImportError as error:
    raise ImportError(f"it needs Triton, which PyTorch's builds for CUDA bring along: {error}") from error

from ...equations import FORMULA_FIELDS as FORMULA_FIELDS
from ...equations import recurrent as equations
from ...equations.arguments import RecurrentArguments
from ...equations.recurrent import recurrent_saved as recurrent_saved
from ...equations.steps import SteppedLayer
from ...formula import GATES, Recurrence
from ..protocol import YES, Kind, PreparedLayer, Support
from ._lanes import is_captured
from ._lanes import lanes as graph_cache  # noqa: F401
from ._norms import normalize_backward as normalize_backward
from ._norms import normalize_forward as normalize_forward
from ._norms import normalize_saved as normalize_saved
from ._self_check import self_check
from ._steps import FEW, TYPES, Arithmetic, TritonLayer

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
MOST_UNITS = 2048
if DEVICE == "cuda" and not torch.cuda.is_available():
    raise ImportError("there is no GPU of CUDA; TRITON_INTERPRET=1 runs it on the CPU, for its tests")
if DEVICE == "cuda" and torch.version.hip:
    raise ImportError("it is for CUDA, and this PyTorch is for ROCm, whose Triton has no products of three TF32")


def recurrent_forward(a: RecurrentArguments, save: bool) -> list[Tensor]:
    """Returns [output, *final state], and with ``save`` the state before each step."""
    with torch.cuda.device_of(a.input):
        return (_recurrent_forward if _computes(a) else equations.recurrent_forward)(a, save)


def recurrent_backward(
    a: RecurrentArguments, saved: Sequence[Tensor], grad_output: Tensor | None, grad_state: Sequence[Tensor | None]
) -> list[Tensor]:
    """Returns [d input, *d initial state, *d params, *d restart]; a gradient that is ``None`` is zero."""
    with torch.cuda.device_of(a.input):
        backward = _recurrent_backward if _computes(a) else equations.recurrent_backward
        return backward(a, saved, grad_output, grad_state)


def _computes(a: RecurrentArguments) -> bool:
    if a.batch_sizes is not None and is_captured(a.device):  # they would be copied from the CPU's memory at each replay
        return False
    by = Arithmetic(a.input.dtype, a.device)
    return self_check.passes(a, (_recurrent_forward, _recurrent_backward), by.precision, by.rounding)


def _recurrent_forward(a: RecurrentArguments, save: bool) -> list[Tensor]:
    by = Arithmetic(a.input.dtype, a.device)
    return equations.recurrent_forward(a, save, by.take_steps, by.multiply)


def _recurrent_backward(
    a: RecurrentArguments, saved: Sequence[Tensor], grad_output: Tensor | None, grad_state: Sequence[Tensor | None]
) -> list[Tensor]:
    by = Arithmetic(a.input.dtype, a.device)
    return equations.recurrent_backward(a, saved, grad_output, grad_state, by.take_steps_back, by.multiply)


def prepare(params: Sequence[Tensor], recurrence: Recurrence) -> PreparedLayer:
    """Makes a layer for steps one by one; by plain equations where the kernels are wrong about its kind."""
    p = dict(zip(recurrence.parameter_names, params, strict=True))
    units, size = p["weight_hh"].shape
    sizes = (size, units // GATES[recurrence.network])[: len(recurrence.state_names)]

    def call(rows: int) -> RecurrentArguments:
        state = [params[0].new_zeros(rows, n) for n in sizes]
        return RecurrentArguments(params[0].new_zeros(1, rows, p["weight_ih"].shape[1]), state, params, recurrence)

    with torch.cuda.device_of(params[0]):
        computes = all(_computes(call(rows)) for rows in (1, FEW + 1))  # its steps may have either
        return (TritonLayer if computes else SteppedLayer)(params, recurrence)


def supports(kind: Kind) -> Support:
    """Supports recurrent layers over sequences in float32 and 16 bits, but for int8 weights and batch norm."""
    r = kind.recurrence
    if kind.device.type != DEVICE:
        return Support(False, f"tensors on {kind.device}")
    if kind.dtype not in TYPES:
        return Support(False, f"{kind.dtype}")
    if r is not None and (r.quantized or r.norm == "batch"):
        return Support(False, "int8 weights" if r.quantized else "norm='batch'")
    wide = kind.widths[1:2] > (MOST_UNITS,)
    return Support(False, f"more than {MOST_UNITS} units") if wide else YES


def is_worth_it(kind: Kind) -> Support:
    return Support(False, "torch's networks are cuDNN's there, and no GPU has run it yet")
