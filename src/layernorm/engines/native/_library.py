"""The C++ library: found, loaded, given PyTorch's threads, its instruction set chosen."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ._layout import TYPES, Recurrent, layout

SHIMS = (
    "aoti_torch_delete_tensor_object", "aoti_torch_new_uninitialized_tensor", "aoti_torch_get_data_ptr",
    "aoti_torch_get_storage_size", "aoti_torch_get_dim", "aoti_torch_get_sizes", "aoti_torch_get_strides",
    "aoti_torch_get_dtype", "aoti_torch_get_device_type", "aoti_torch_empty_strided",
    "torch_get_num_threads",
)  # fmt: skip
"""PyTorch's C functions that the library calls, in the order of `Torch` in planned.cpp."""


_COMPILER = "Clang (docs/install.md says how)" if sys.platform == "win32" else "a C++17 compiler"
_REINSTALL = "(pip install --force-reinstall --no-deps . in its checkout)"


def _find() -> Path:
    # Installed for development the library lies in site-packages, and this file does not; the package's path has both.
    folders = sys.modules[__name__.rpartition(".")[0]].__path__
    files = (path for folder in folders for path in Path(folder).glob("*layernorm_native.*"))
    paths = [path for path in files if path.suffix == (".dll" if sys.platform == "win32" else ".so")]  # macOS: .so, too
    if not paths:
        raise ImportError(
            "the package was installed without its C++ library; "
            f"install {_COMPILER} and then layernorm again {_REINSTALL}"
        )
    return paths[0]


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"the C++ library does not load: {error}") from None
    numbers = layout()
    fits = getattr(library, "layernorm_fits", None)
    if fits is None or not fits((ctypes.c_int64 * len(numbers))(*numbers), ctypes.c_int64(len(numbers))):
        raise ImportError(
            f"the C++ library and its Python files do not belong together; install layernorm again {_REINSTALL}"
        )
    library.layernorm_start.restype = ctypes.c_char_p
    library.layernorm_start.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.layernorm_sets.restype = ctypes.c_char_p
    library.layernorm_recurrent_saved.argtypes = [ctypes.POINTER(Recurrent), ctypes.c_int, ctypes.c_void_p]
    library.layernorm_recurrent_totals.argtypes = [ctypes.POINTER(Recurrent)]
    library.layernorm_recurrent_totals.restype = ctypes.c_int64
    return library


def _start(library: ctypes.CDLL) -> str:
    """Hands the library PyTorch's thread pool and chooses the instruction set."""
    asked = os.environ.get("LAYERNORM_ISA")
    parallel_for = ctypes.cast(TORCH.torch_parallel_for, ctypes.c_void_p)
    chosen = library.layernorm_start(parallel_for, asked.encode() if asked else None)
    if chosen is None:
        names = library.layernorm_sets().decode().split()
        compiled = ", ".join(names)
        if asked:
            lacks = "this CPU does not run it (`runs` in processor.h)" if asked in names else "it is not compiled"
            raise ImportError(f"LAYERNORM_ISA={asked!r}: {lacks}; the C++ library was compiled for {compiled}")
        raise ImportError(
            f"the C++ library was compiled on another CPU, for {compiled}, which this one does not have; "
            f"install layernorm again here {_REINSTALL}, or with --config-settings=cmake.define.LAYERNORM_SETS=all "
            "for every CPU of this kind"
        )
    return chosen.decode()


def _torch() -> ctypes.CDLL:
    """Loads PyTorch's own library, for its C functions (torch/csrc/stable/c/shim.h)."""
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll"):
        path = Path(torch.__file__).parent / "lib" / name
        if path.exists():
            return ctypes.CDLL(str(path))
    raise ImportError(
        f"the CPU engine needs PyTorch's torch_cpu library, which is not in {Path(torch.__file__).parent}/lib"
    )


def _bind(library: ctypes.CDLL) -> ctypes.c_void_p:
    """Hands the library PyTorch's C functions. Returns what ops of ``layernorm_native`` are registered with."""
    missing = [name for name in SHIMS if not hasattr(TORCH, name)]
    if missing:
        raise ImportError(f"the CPU engine calls {missing[0]}, which PyTorch {torch.__version__} does not have")
    addresses = [ctypes.cast(getattr(TORCH, name), ctypes.c_void_p).value for name in SHIMS]
    library.layernorm_bind(
        (ctypes.c_void_p * len(SHIMS))(*addresses), (ctypes.c_int32 * len(TYPES))(*map(torch_type_number, TYPES))
    )
    handle = ctypes.c_void_p()
    if TORCH.aoti_torch_library_init_impl(b"layernorm_native", b"CPU", b"planned.cpp", 1, ctypes.byref(handle)):
        raise ImportError("PyTorch does not take the CPU engine's ops, layernorm_native")
    return handle


def torch_type_number(dtype: torch.dtype) -> int:
    """Returns PyTorch's own number of a type."""
    return int(getattr(TORCH, f"aoti_torch_dtype_{str(dtype).removeprefix('torch.')}")())


def call_op(given: int, made: int) -> Callable[..., Any]:
    """Returns the op of PyTorch's that runs a plan with so many tensors: see planned.cpp. It takes
    ``(int plan, *tensors given)``, and returns the tensors made, or None in their places."""
    with _LOCK:
        return _call_op(given, made)


@functools.cache
def _call_op(given: int, made: int) -> Callable[..., Any]:
    name = f"call_{given}_{made}"
    tensors = ", ".join(f"Tensor given_{i}" for i in range(given))
    torch.library.define(f"layernorm_native::{name}", f"(int plan, {tensors}) -> ({', '.join(['Tensor'] * made)})")
    torch.library.impl(f"layernorm_native::{name}", "Autograd")(torch.library.fallthrough_kernel)
    function = ctypes.cast(LIBRARY.layernorm_call, ctypes.c_void_p)
    if TORCH.torch_library_impl(_OPS, name.encode(), function, ctypes.c_uint64(VERSION)):
        raise RuntimeError(f"PyTorch does not take the CPU engine's op layernorm_native::{name}")
    return getattr(torch.ops.layernorm_native, name).default._op  # its __call__ takes a microsecond more


def last_status() -> int:
    """Returns the `Status` in planned.cpp of this thread's last call."""
    return int(LIBRARY.layernorm_status())


VERSION = 2 << 56 | 10 << 48
"""Of PyTorch, as its C functions take it: the oldest one that has all of `SHIMS`."""

TORCH = _torch()
LIBRARY = _load(_find())
ISA = _start(LIBRARY)
_OPS = _bind(LIBRARY)
_LOCK = threading.Lock()  # an op can be defined once
