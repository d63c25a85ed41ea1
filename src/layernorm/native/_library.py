"""The C++ library: found, loaded, given PyTorch's threads, its instruction set chosen."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import torch


def _find() -> Path:
    # Installed for development the library lies in site-packages, and this file does not; the package's path has both.
    folders = sys.modules[__name__.rpartition(".")[0]].__path__
    found = [path for folder in folders for path in Path(folder).glob("*layernorm_native.*") if path.suffix == ".so"]
    if not found:
        raise ImportError(
            "the package was installed without its C++ library; "
            "install a C++17 compiler and then layernorm again "
            "(pip install --force-reinstall --no-deps . in its checkout)"
        )
    return found[0]


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"the C++ library does not load: {error}") from None
    library.layernorm_start.restype = ctypes.c_char_p
    library.layernorm_start.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    call, type_number, place = ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p
    for name, *arguments in (
        ("recurrent_forward", call, type_number),
        ("recurrent_backward", call, type_number),
        ("recurrent_saved", call, place),
        ("recurrent_vectors", call, type_number),
        ("recurrent_totals", call),
        ("prepare_forward", call, type_number, place),
        ("prepare_backward", call, type_number, place),
        ("norm_forward", call),
        ("norm_backward", call),
    ):
        getattr(library, f"layernorm_{name}").argtypes = arguments
    for name in ("recurrent_totals", "prepare_forward", "prepare_backward"):
        getattr(library, f"layernorm_{name}").restype = ctypes.c_int64
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


LIBRARY = _load(_find())
ISA = _start(LIBRARY)
