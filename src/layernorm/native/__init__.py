"""The CPU engine: C++ kernels for a whole sequence, and for the norms, in one call.

This file loads the library and hands it pointers; every argument has been checked by then (`functional`).

Letters in shapes: T time steps, B batch, I input size, H hidden size, P projected size (H without projections),
G gates, M rows, N row length; Hp is H rounded up to 16, Z is G*Hp rounded up to 32.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..formula import GATES, Recurrence

# Recurrent in engine.h, field by field.
_RECURRENT = struct.Struct("=16q2d36q")
_POINTERS = 18  # its fields from `output` on
_STATISTICS, _VECTORS = 18, 8
_OUTSIDE_X = 7  # among three weights and eight vectors
# Norm in engine.h, likewise.
_NORM = struct.Struct("=9qd13q")
_TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
_SAVED = ("x", "h", "c", "statistics", "output")


def _load() -> ctypes.CDLL:
    # Installed for development the library lies in site-packages, and this file does not: both are in __path__.
    found = [path for folder in __path__ for path in Path(folder).glob("*layernorm_native.*") if path.suffix == ".so"]
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
    for function in (library.layernorm_norm_forward, library.layernorm_norm_backward):
        function.argtypes = [ctypes.c_char_p]
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


def covers(op: str, device: str, dtype: torch.dtype, recurrence: str | None) -> bool:
    """On the CPU both ops, in float64, float32, bfloat16 and float16, with every formula, but no batch norm."""
    fits = recurrence is None or Recurrence.decode(recurrence).norm != "batch"
    return device == "cpu" and dtype in _TYPES and fits


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


class _Static(NamedTuple):
    """What of a call does not depend on shapes."""

    numbers: tuple[int, ...]  # from `gates` to `projected`
    parameters: tuple[int, ...]  # where among the parameters are the three weights and the eight vectors; -1: nowhere
    saved: tuple[str, ...]
    again: int  # which parameter is added once more to outside_x; -1: none


@cache
def _static(recurrence: Recurrence) -> _Static:
    f, names = recurrence.formula, recurrence.parameter_names
    if recurrence.norm == "batch":
        raise RuntimeError(f"{recurrence.network.lower()}: the native engine has no kernel for batch norm")
    split, over_all = f.gates == "split", f.gates is not None and f.span == "all" and recurrence.network == "GRU"
    span = 2 if over_all else int(f.span == "per_gate")
    norm = 0 if f.gates is None else 2 if recurrence.norm == "rms" else 1
    numbers = (
        GATES[recurrence.network], split, norm, span, {None: 0, "output": 1, "carry": 2}[f.cell],
        recurrence.norm == "rms", f.eps_on == "deviation", recurrence.nonlinearity == "relu", recurrence.projected,
    )  # fmt: skip
    order = ("weight_ih", "weight_hh", "weight_hr", *recurrence.vector_names)
    saved = ["x", "statistics", "output"]
    saved += ["h"] if split or (recurrence.network == "GRU" and not over_all) else []
    saved += ["c"] if recurrence.network == "LSTM" else []
    found = tuple(names.index(name) if name in names else -1 for name in order)
    again = names.index("bias_ih") if f.gates is not None and f.bias_again and "bias_ih" in names else -1
    return _Static(tuple(map(int, numbers)), found, tuple(saved), again)


def _computed(dtype: torch.dtype) -> torch.dtype:
    """The type that is computed in."""
    return dtype if dtype is torch.float64 else torch.float32


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


class _Call:
    """One call's tensors as the kernels take them, and the fields of `Recurrent` up to `reset`."""

    def __init__(
        self,
        input: Tensor,
        state: Sequence[Tensor],
        params: Sequence[Tensor],
        lengths: Tensor | None,
        reset: Tensor | None,
        recurrence: Recurrence,
        reverse: bool,
    ) -> None:
        self.dtype = _computed(input.dtype)
        static, formula = _static(recurrence), recurrence.formula
        x = (input if input.dtype is self.dtype else input.to(self.dtype)).resolve_neg()
        self.T, self.B, self.I = x.shape
        x_t, x_b, step = x.stride()
        if step != 1 and self.I > 1:
            x = x.contiguous()
            x_t, x_b, _ = x.stride()
        units, self.P = params[1].shape
        self.H = units // static.numbers[0]
        self.x = x
        self.copies: list[Tensor] = []  # kept until the kernel has run
        pointers = [self.pointer(p) for p in params]
        pointers.append(0)  # where -1 leads
        given = [pointers[k] for k in static.parameters]
        if static.again >= 0:
            terms = [params[k].to(self.dtype) for k in (static.again, static.parameters[_OUTSIDE_X]) if k >= 0]
            self.copies.append(sum(terms[1:], terms[0]))
            given[_OUTSIDE_X] = self.pointer(self.copies[-1])
        h0, c0 = self.pointer(state[0]), self.pointer(state[1]) if len(state) > 1 else 0
        self.lengths = None if lengths is None else lengths.to(torch.int64).contiguous()
        self.reset = None if reset is None else reset.contiguous()
        self.saved, self.parameters, self.again = static.saved, static.parameters, static.again
        self.fields = (
            self.T, self.B, self.I, self.H, self.P, *static.numbers, reverse, torch.get_num_threads(),
            formula.eps, formula.forget_bias, x.data_ptr(), x_t, x_b, h0, c0, *given,
            _pointer(self.lengths), _pointer(self.reset),
        )  # fmt: skip

    def pointer(self, tensor: Tensor | None) -> int:
        """Of the tensor in the type that is computed in, in order in memory."""
        ready = _as_it_lies(tensor, self.dtype)
        if ready is None:
            return 0
        if ready is not tensor:
            self.copies.append(ready)
        return ready.data_ptr()

    def run(self, function: Any, *pointers: int) -> None:
        packed = _RECURRENT.pack(*self.fields, *pointers, *(0,) * (_POINTERS - len(pointers)))
        if function(packed, self.dtype is torch.float64):
            raise MemoryError(f"layernorm: not enough memory for a call with input {list(self.x.shape)}")


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
    call = _Call(input, state, params, lengths, reset, recurrence, reverse)
    output = call.x.new_empty((call.T, call.B, call.P))
    final = [torch.empty_like(s, dtype=call.dtype, memory_format=torch.contiguous_format) for s in state]
    saved: list[Tensor] = []
    pointers: list[int] = []
    if save:
        saved = recurrent_saved(input, state, params, recurrence)
        kept = dict(zip(call.saved, saved, strict=True))
        pointers = [_pointer(kept.get(name)) for name in _SAVED]
    call.run(_LIBRARY.layernorm_recurrent_forward, output.data_ptr(), *_pair(final), *pointers)
    if call.dtype is input.dtype:
        return [output, *final, *saved]
    return [output.to(input.dtype), *(s.to(input.dtype) for s in final), *saved]


def recurrent_saved(
    input: Tensor, state: Sequence[Tensor], params: Sequence[Tensor], recurrence: Recurrence
) -> list[Tensor]:
    """Empty tensors with the shapes and types of what `recurrent_forward` saves."""
    (T, B, _), (units, P), dtype = input.shape, params[1].shape, _computed(input.dtype)
    return [input.new_empty(T, B, size, dtype=dtype) for size in _saved_sizes(recurrence, units, P)]


def _saved_sizes(recurrence: Recurrence, units: int, P: int) -> list[int]:
    """What each of the saved tensors holds for a row and step."""
    static = _static(recurrence)
    G = static.numbers[0]
    Hp = _up(units // G, 16)
    Z = _up(G * Hp, 32)
    Z += 32 if Z % 512 == 0 else 0
    sizes = {"x": Z, "h": Z if recurrence.formula.gates == "split" else Hp, "c": Hp, "output": P}
    sizes["statistics"] = _STATISTICS
    return [sizes[name] for name in static.saved]


def recurrent_backward(
    input: Tensor,
    state: list[Tensor],
    params: list[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    saved: list[Tensor],
    grad_output: Tensor | None,
    grad_state: Sequence[Tensor | None],
    recurrence: Recurrence,
    reverse: bool,
) -> list[Tensor]:
    """[d input, *d initial state, *d params]; a gradient that is ``None`` is zero."""
    call = _Call(input, state, params, lengths, reset, recurrence, reverse)
    sizes = _saved_sizes(recurrence, *params[1].shape)
    fits = [s.shape == (call.T, call.B, n) and s.dtype is call.dtype for s, n in zip(saved, sizes, strict=True)]
    if not all(fits):  # a hook on saved tensors can do that
        wrong = [(s.dtype, list(s.shape)) for s in saved]
        raise RuntimeError(f"expected saved tensors in {call.dtype} of [T, B] and {sizes}, got {wrong}")
    kept = {name: tensor.contiguous() for name, tensor in zip(call.saved, saved, strict=True)}
    d_output, d_h, d_c = [call.pointer(g) for g in (grad_output, *grad_state, None)][:3]
    results = [torch.empty(t.shape, dtype=call.dtype) for t in (input, *state, *params)]
    d_x, d_state, d_params = results[0], results[1 : 1 + len(state)], results[1 + len(state) :]
    G = params[1].shape[0] // call.H
    d_vectors = torch.empty(_VECTORS, G * call.H, dtype=call.dtype)
    weights, vectors = call.parameters[:3], call.parameters[3:]
    call.run(
        _LIBRARY.layernorm_recurrent_backward, 0, 0, 0,
        *(_pointer(kept.get(name)) for name in _SAVED), d_output, d_h, d_c, d_x.data_ptr(),
        *_pair(d_state), *(0 if k < 0 else d_params[k].data_ptr() for k in weights), d_vectors.data_ptr(),
    )  # fmt: skip
    for k, found in zip(vectors, d_vectors, strict=True):
        if k >= 0:
            d_params[k].copy_(found[: d_params[k].shape[0]])
    if call.again >= 0:
        d_params[call.again] += d_vectors[_OUTSIDE_X - len(weights)]
    if call.dtype is input.dtype:
        return results
    return [r.to(t.dtype) for r, t in zip(results, (input, *state, *params), strict=True)]


def _pair(state: Sequence[Tensor]) -> tuple[int, int]:
    """The pointers of h's part and of c's, if there is one."""
    return state[0].data_ptr(), state[1].data_ptr() if len(state) > 1 else 0


def _rows(tensor: Tensor, M: int, N: int) -> tuple[Tensor, int]:
    """The tensor as M rows of N neighbouring elements, and how far apart these rows are."""
    if tensor.is_contiguous() and not tensor.is_neg():
        return tensor, N
    rows = tensor.resolve_neg().reshape(M, N)
    if N > 1 and rows.stride(1) != 1:
        rows = rows.contiguous()
    return rows, rows.stride(0)


def _parameters(weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor | None, Tensor | None, int]:
    """Gain and bias, contiguous and of one type, and that type's number."""
    one = weight if weight is not None else bias
    if one is None:
        return None, None, 0
    dtype = one.dtype
    if dtype not in _TYPES or (bias is not None and bias.dtype is not dtype):
        dtype = torch.float64
    return _as_it_lies(weight, dtype), _as_it_lies(bias, dtype), _TYPES[dtype]


def _as_it_lies(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The same numbers, of this type and in order in memory; the tensor itself if it is so."""
    if tensor is None or (tensor.dtype is dtype and tensor.is_contiguous() and not tensor.is_neg()):
        return tensor
    return tensor.to(dtype).contiguous().resolve_neg()


def _sizes(input: Tensor, normalized_shape: Sequence[int]) -> tuple[int, int]:
    """M, N"""
    N = normalized_shape[0] if len(normalized_shape) == 1 else math.prod(normalized_shape)
    return (input.numel() // N if N else math.prod(input.shape[: input.dim() - len(normalized_shape)])), N


def normalize_forward(
    input: Tensor,
    residual: Tensor | None,
    normalized_shape: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    norm: str,
    save: bool,
) -> list[Tensor]:
    """[y], with ``residual`` [y, input + residual], and with ``save`` mean and reciprocal deviation."""
    M, N = _sizes(input, normalized_shape)
    x, x_m = _rows(input, M, N)
    gain, shift, parameter_type = _parameters(weight, bias)
    y = torch.empty_like(input, memory_format=torch.contiguous_format)
    results, more, more_m, total = [y], None, 0, 0
    if residual is not None:
        more, more_m = _rows(residual, M, N)
        results.append(torch.empty_like(y))
        total = results[1].data_ptr()
    mean = r = 0
    if save:
        saved = normalize_saved(input, normalized_shape, norm)
        results += saved
        mean, r = 0 if norm == "rms" else saved[0].data_ptr(), saved[-1].data_ptr()
    packed = _NORM.pack(
        M, N, _TYPES[input.dtype], parameter_type, norm == "rms", x_m, more_m, 0, 0, eps,
        x.data_ptr(), 0 if more is None else more.data_ptr(), 0 if gain is None else gain.data_ptr(),
        0 if shift is None else shift.data_ptr(), y.data_ptr(), total, mean, r, 0, 0, 0, 0, 0,
    )  # fmt: skip
    if _LIBRARY.layernorm_norm_forward(packed):
        raise MemoryError(f"layernorm: not enough memory for input {list(input.shape)}")
    return results


def normalize_saved(input: Tensor, normalized_shape: list[int], norm: str) -> list[Tensor]:
    """Empty tensors with the shapes and types of what `normalize_forward` saves."""
    M, _ = _sizes(input, normalized_shape)
    r = input.new_empty(M, dtype=torch.float64)
    return [r] if norm == "rms" else [torch.empty_like(r), r]


def normalize_backward(
    grad: Tensor,
    grad_total: Tensor | None,
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    saved: list[Tensor],
    norm: str,
) -> list[Tensor]:
    """The gradients of what was normalised, of weight and of bias, of those that there are."""
    M, N = _sizes(input, normalized_shape)
    (x, x_m), (dy, dy_m) = _rows(input, M, N), _rows(grad, M, N)
    more, more_m = (None, 0) if grad_total is None else _rows(grad_total, M, N)
    gain, shift, parameter_type = _parameters(weight, bias)
    d_x = torch.empty_like(input, memory_format=torch.contiguous_format)
    d_gain = None if gain is None else torch.empty_like(gain)
    d_bias = None if shift is None else torch.empty_like(shift)
    if any(s.shape != (M,) or s.dtype is not torch.float64 for s in saved):  # a hook on saved tensors can do that
        wrong = [(s.dtype, list(s.shape)) for s in saved]
        raise RuntimeError(f"{norm}_norm: expected saved statistics in float64 of shape [{M}], got {wrong}")
    *mean, r = [s.contiguous() for s in saved]  # rms has no mean
    packed = _NORM.pack(
        M, N, _TYPES[input.dtype], parameter_type, norm == "rms", x_m, 0, dy_m, more_m, 0.0, x.data_ptr(), 0,
        _pointer(gain), 0, 0, 0, mean[0].data_ptr() if mean else 0, r.data_ptr(), dy.data_ptr(), _pointer(more),
        d_x.data_ptr(), _pointer(d_gain), _pointer(d_bias),
    )  # fmt: skip
    if _LIBRARY.layernorm_norm_backward(packed):
        raise MemoryError(f"layernorm: not enough memory for the gradient of input {list(input.shape)}")
    found = [d_x]
    for given, p in ((d_gain, weight), (d_bias, bias)):
        if given is not None and p is not None:
            found.append(given if given.dtype == p.dtype else given.to(p.dtype))
    return found
