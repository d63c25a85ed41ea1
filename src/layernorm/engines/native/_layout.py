"""A call as the library takes it: the structures `Recurrent` and `Norm` of engine.h, and the numbers of its types."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch

from ...equations.checks import NO_STEPS
from ...formula import GATES, Recurrence

TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
INTEGER, NUMBER, POINTER = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
VECTORS = 8
PLACES = 3
"""What batch norm normalises: W x or the sum of both streams, U h, c."""


def _fields(ctype: type, names: str) -> Iterator[tuple[str, type]]:
    return ((name, ctype) for name in names.split())


class Recurrent(ctypes.Structure):
    """A recurrent call."""

    _fields_ = (
        *_fields(INTEGER, "T B I H P gates split norm together cell rms deviation relu projected reverse"),
        *_fields(INTEGER, "one_share threads batch_norm rounded lines inside"),
        *_fields(NUMBER, "eps forget_bias gate_clip"),
        *_fields(POINTER, "x"),
        *_fields(INTEGER, "x_t x_b"),
        *_fields(POINTER, "h0 c0 w_ih w_hh w_hr scale_ih scale_hh"),
        *_fields(POINTER, "gain_x gain_h inside_x inside_h outside_x outside_h gain_c bias_c"),
        *_fields(POINTER, "lengths batch_sizes reset restart_h restart_c dropout kept_h kept_c"),
        *_fields(POINTER * PLACES, "mean var"),
        *_fields(POINTER, "output h_n c_n"),
        *_fields(POINTER, "saved_x saved_h saved_c saved_kept saved_statistics saved_output"),
        *_fields(POINTER, "d_output d_h_n d_c_n d_x d_h0 d_c0 d_w_ih d_w_hh d_w_hr d_restart_h d_restart_c"),
        *_fields(POINTER * VECTORS, "d_vectors"),
        *_fields(POINTER, "prepared"),
        *_fields(INTEGER, "prepares"),
        *_fields(POINTER, "d_zx d_zh m totals"),
    )


class Norm(ctypes.Structure):
    """A call of a norm op."""

    _fields_ = (
        *_fields(INTEGER, "M N parameter_type rms x_m residual_m d_y_m d_total_m"),
        *_fields(NUMBER, "eps"),
        *_fields(POINTER, "x residual gain bias y total mean r d_y d_total d_x d_gain d_bias"),
    )


_NORMS = {None: 0, "sum": 1, "hidden": 2, "split": 3}
"""`Recurrent::norm` of engine.h by a formula's ``gates``."""

WEIGHTS = ("w_ih", "w_hh", "w_hr")
PARAMETERS = (*WEIGHTS, "gain_x", "gain_h", "inside_x", "inside_h", "outside_x", "outside_h", "gain_c", "bias_c")
"""The fields of a layer's parameters, in the order of `term_indices`."""


def field_offset(structure: type[ctypes.Structure], name: str) -> int:
    """Returns where in a structure a field begins, in bytes."""
    return int(getattr(structure, name).offset)


def layout() -> list[int]:
    """Returns the sizes of both structures and where some fields begin, for `layernorm_fits` of library.cpp."""
    fields = {Recurrent: ("eps", "x", "h0", "output", "d_vectors", "totals"), Norm: ("eps", "x", "d_bias")}
    return [n for s, names in fields.items() for n in (ctypes.sizeof(s), *(field_offset(s, name) for name in names))]


def compute_type(dtype: torch.dtype) -> torch.dtype:
    """Returns the type that a recurrent network is computed in, but for its products."""
    return dtype if dtype is torch.float64 else torch.float32


def transfer_type(dtype: torch.dtype) -> torch.dtype:
    """Returns the type in which input, state, weights and results of a recurrent network go to and from the library."""
    return torch.float32 if dtype is torch.float16 else dtype


def recurrent_call(
    recurrence: Recurrence, reverse: bool = False, batch_norm: int = 0, **sizes: int | None
) -> Recurrent:
    """Makes a call without its tensors. ``batch_norm``: said at `Recurrent` in engine.h; ``sizes``: those known."""
    r, f = recurrence, recurrence.formula
    if r.norm == "batch" and not batch_norm:
        raise RuntimeError(NO_STEPS)
    first, last = r.spans[0]
    inside_x, inside_h = r.vectors[2:4]  # of which parameters they are the sums
    return Recurrent(
        gates=GATES[r.network], split=f.gates in ("split", "hidden"), norm=_NORMS[f.gates],
        together=last - first, cell={None: 0, "output": 1, "carry": 2}[f.cell], rms=r.norm == "rms",
        deviation=f.eps_on == "deviation", relu=r.nonlinearity == "relu", projected=r.projected, reverse=reverse,
        batch_norm=batch_norm, rounded=r.bfloat16_products, inside=bool(inside_x) + 2 * bool(inside_h),
        eps=f.eps, forget_bias=f.forget_bias, gate_clip=r.gate_clip, **sizes,
    )  # fmt: skip
