"""The CPU engine: C++ kernels for a whole sequence, and for the norms, in one call.

This file loads the library and hands it pointers; every argument has been checked by then (`functional`).

Letters in shapes: T time steps, B batch, I input size, H hidden size, P projected size (H without projections),
G gates, M rows, N row length; Hp is H rounded up to 16, Z is G*Hp rounded up to 32.
"""

from __future__ import annotations

import ctypes
import os
import struct
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..formula import GATES, Recurrence

# Recurrent in engine.h, field by field.
_RECURRENT = struct.Struct("=15q2d35q")
_STATISTICS, _VECTORS = 18, 8


def _load() -> ctypes.CDLL:
    folder = Path(__file__).parent
    found = sorted(path for path in folder.glob("liblayernorm_native.*") if path.suffix in (".so", ".dylib", ".dll"))
    if not found:
        raise ImportError(
            "the package was installed without its C++ library; "
            "install a C++17 compiler and then layernorm again (pip install --force-reinstall --no-deps layernorm)"
        )
    try:
        library = ctypes.CDLL(str(found[0]))
    except OSError as error:
        raise ImportError(f"the C++ library does not load: {error}") from None
    library.layernorm_start.restype = ctypes.c_char_p
    library.layernorm_start.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    for function in (library.layernorm_recurrent_forward, library.layernorm_recurrent_backward):
        function.argtypes = [ctypes.c_char_p, ctypes.c_int]
    return library


def _start(library: ctypes.CDLL) -> str:
    """Hands the library PyTorch's thread pool and chooses the instruction set."""
    asked = os.environ.get("LAYERNORM_ISA")
    chosen = library.layernorm_start(_parallel_for(), asked.encode() if asked else None)
    if chosen is None:
        raise ImportError(f"LAYERNORM_ISA={asked!r}: this library and processor have no such instruction set")
    return chosen.decode()


def _parallel_for() -> ctypes.c_void_p | None:
    """torch_parallel_for of libtorch_cpu (torch/csrc/stable/c/shim.h); without it the engine runs on one thread."""
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll"):
        path = Path(torch.__file__).parent / "lib" / name
        if path.exists():
            return ctypes.cast(ctypes.CDLL(str(path)).torch_parallel_for, ctypes.c_void_p)
    return None


_LIBRARY = _load()
ISA = _start(_LIBRARY)


def covers(op: str, tensor: Tensor, recurrence: str | None) -> bool:
    """Every formula and floating type, on the CPU."""
    return op == "recurrent" and tensor.device.type == "cpu"


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


@cache
def _static(recurrence: Recurrence) -> tuple[tuple[int, ...], dict[str, str]]:
    """What does not depend on shapes: the integers from `gates` to `projected`, and which parameter is which vector."""
    f = recurrence.formula
    split, summed = f.gates == "split", f.gates == "sum"
    norm = 0 if f.gates is None else 2 if recurrence.norm == "rms" else 1
    numbers = (
        GATES[recurrence.network], split, norm, f.span == "per_gate", {None: 0, "output": 1, "carry": 2}[f.cell],
        recurrence.norm == "rms", f.eps_on == "deviation", recurrence.nonlinearity == "relu", recurrence.projected,
    )  # fmt: skip
    vectors = dict.fromkeys(("gain_x", "gain_h", "inside_x", "inside_h", "outside_x", "outside_h"), "")
    if split:
        vectors |= {"gain_x": "gain_ih", "gain_h": "gain_hh"}
    elif summed:
        vectors |= {"gain_x": "gain"}
    inside = f.gates is None or f.bias_inside
    vectors |= {"inside_x" if inside else "outside_x": "bias_ih", "inside_h" if inside else "outside_h": "bias_hh"}
    if f.bias_inside and split:
        vectors |= {"outside_x": "norm_bias_ih", "outside_h": "norm_bias_hh"}
    elif f.bias_inside and summed:
        vectors |= {"outside_x": "norm_bias"}
    vectors |= {"gain_c": "gain_c", "bias_c": "bias_c"}
    return tuple(map(int, numbers)), vectors


def _computed(input: Tensor) -> torch.dtype:
    return torch.promote_types(input.dtype, torch.float32)


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


class _Arguments:
    """One call's tensors in the type that is computed in, contiguous where the kernels need that, and their pointers."""

    def __init__(
        self,
        input: Tensor,
        state: list[Tensor],
        params: list[Tensor],
        lengths: Tensor | None,
        reset: Tensor | None,
        recurrence: Recurrence,
        reverse: bool,
    ) -> None:
        dtype = _computed(input)
        self.type = int(dtype == torch.float64)
        self.x = input.to(dtype)
        if self.x.stride(2) != 1 and self.x.shape[2] > 1:
            self.x = self.x.contiguous()
        self.state = [s.to(dtype).contiguous() for s in state]
        self.params = [p.to(dtype).contiguous() for p in params]
        named = dict(zip(recurrence.parameter_names, self.params, strict=True))
        self.lengths = None if lengths is None else lengths.to(torch.int64).contiguous()
        self.reset = None if reset is None else reset.contiguous()
        self.T, self.B, self.I = input.shape
        self.P = params[1].shape[1]
        self.H = params[1].shape[0] // GATES[recurrence.network]
        numbers, self.vectors = _static(recurrence)
        f = recurrence.formula
        c0 = self.state[1] if len(state) > 1 else None
        self.fields = (
            self.T, self.B, self.I, self.H, self.P, *numbers, int(reverse), f.eps, f.forget_bias,
            self.x.data_ptr(), self.x.stride(0), self.x.stride(1), self.state[0].data_ptr(), _pointer(c0),
            named["weight_ih"].data_ptr(), named["weight_hh"].data_ptr(), _pointer(named.get("weight_hr")),
            *(_pointer(named.get(name)) for name in self.vectors.values()), _pointer(self.lengths),
            _pointer(self.reset),
        )  # fmt: skip


def _call(function: Any, arguments: _Arguments, *more: Tensor | None) -> None:
    packed = _RECURRENT.pack(*arguments.fields, *map(_pointer, more))
    if function(packed, arguments.type):
        raise MemoryError(f"layernorm: not enough memory for a call with input {list(arguments.x.shape)}")


def recurrent_forward(
    input: Tensor,
    state: list[Tensor],
    params: list[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    recurrence: Recurrence,
    reverse: bool,
    save: bool,
) -> list[Tensor]:
    """[output (T, B, P), *final state], and with ``save`` what `recurrent_backward` needs."""
    a = _Arguments(input, state, params, lengths, reset, recurrence, reverse)
    output = a.x.new_empty(a.T, a.B, a.P)
    final = [torch.empty_like(s) for s in a.state]
    saved = recurrent_saved(input, state, params, recurrence) if save else []
    kept = dict(zip(_saved_names(input, recurrence), saved, strict=True)) if save else {}
    output = kept.get("output", output)
    _call(
        _LIBRARY.layernorm_recurrent_forward, a, output, *(final if len(final) > 1 else (*final, None)),
        *(kept.get(name) for name in ("x", "h", "c", "statistics")), *(None,) * 10,
    )  # fmt: skip
    # A result must not be a saved tensor or an argument.
    return [output.to(input.dtype), *(s.to(input.dtype) for s in final), *saved]


def _saved_names(input: Tensor, recurrence: Recurrence) -> list[str]:
    names = ["x", "statistics"]
    if recurrence.formula.gates == "split" or recurrence.network == "GRU":
        names.append("h")
    if recurrence.network == "LSTM":
        names.append("c")
    if _computed(input) != input.dtype:
        names.append("output")
    return names


def recurrent_saved(input: Tensor, state: list[Tensor], params: list[Tensor], recurrence: Recurrence) -> list[Tensor]:
    """Empty tensors with the shapes and types of what `recurrent_forward` saves."""
    G, P = GATES[recurrence.network], params[1].shape[1]
    H = params[1].shape[0] // G
    Hp = _up(H, 16)
    Z = _up(G * Hp, 32)
    Z += 32 if Z % 512 == 0 else 0
    sizes = {"x": Z, "h": Z if recurrence.formula.gates == "split" else Hp, "c": Hp, "output": P}
    sizes["statistics"] = _STATISTICS
    T, B = input.shape[:2]
    return [
        input.new_empty(T, B, sizes[name], dtype=_computed(input)) for name in _saved_names(input, recurrence)
    ]


def recurrent_backward(
    grad_output: Tensor,
    grad_state: list[Tensor],
    input: Tensor,
    state: list[Tensor],
    params: list[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    output: Tensor,
    saved: list[Tensor],
    recurrence: Recurrence,
    reverse: bool,
) -> list[Tensor]:
    """[d input, *d initial state, *d params]."""
    a = _Arguments(input, state, params, lengths, reset, recurrence, reverse)
    dtype = a.x.dtype
    kept = dict(zip(_saved_names(input, recurrence), saved, strict=True))
    output = kept.get("output", output).contiguous()
    grads = [grad_output.to(dtype).contiguous(), *(g.to(dtype).contiguous() for g in grad_state)]
    d_x = a.x.new_empty(a.T, a.B, a.I)
    d_state = [torch.empty_like(s) for s in a.state]
    d_weights = {name: torch.empty_like(p) for name, p in _named(a.params, recurrence) if name.startswith("weight")}
    G = GATES[recurrence.network]
    d_vectors = a.x.new_empty(_VECTORS, G * a.H)
    second = [None] if len(state) == 1 else []
    _call(
        _LIBRARY.layernorm_recurrent_backward, a, output, None, None,
        *(kept.get(name) for name in ("x", "h", "c", "statistics")), *grads, *second, d_x, *d_state, *second,
        *(d_weights.get(name) for name in ("weight_ih", "weight_hh", "weight_hr")), d_vectors,
    )  # fmt: skip
    of_vector = {name: d_vectors[k] for k, name in enumerate(a.vectors.values()) if name}
    found = [d_x, *d_state]
    for name, p in _named(a.params, recurrence):
        found.append(d_weights[name] if name in d_weights else of_vector[name][: p.shape[0]].clone())
    return [g.to(t.dtype) for g, t in zip(found, (input, *state, *params), strict=True)]


def _named(params: list[Tensor], recurrence: Recurrence) -> list[tuple[str, Tensor]]:
    return list(zip(recurrence.parameter_names, params, strict=True))
