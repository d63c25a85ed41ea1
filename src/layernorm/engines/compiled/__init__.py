"""The compiled engine: the equations and their backward by hand, some steps at a time, by `torch.compile`.

It runs where torch's compiler, Inductor, does: on GPUs, and on CPUs for its tests. It is never chosen by itself: the
first call of every kind takes seconds.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from ...equations import FORMULA_FIELDS as FORMULA_FIELDS
from ..protocol import YES, Kind, Support
from ._norms import normalize_backward as normalize_backward
from ._norms import normalize_forward as normalize_forward
from ._norms import normalize_saved as normalize_saved
from ._recurrent import prepare as prepare
from ._recurrent import recurrent_backward as recurrent_backward
from ._recurrent import recurrent_forward as recurrent_forward
from ._recurrent import recurrent_saved as recurrent_saved

COMPILER = os.environ.get("CXX", {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++"))
if shutil.which(COMPILER) is None:
    raise ImportError(
        f"torch.compile needs a C++ compiler, and there is no {COMPILER!r}; install one, or name one in the "
        "environment variable CXX"
    )
# Where Python is a framework of macOS, torch looks for its headers elsewhere.
if not Path(sysconfig.get_path("include"), "Python.h").exists() and sys.platform != "darwin":
    raise ImportError(
        f"torch.compile needs Python's headers, and there is no Python.h in {sysconfig.get_path('include')}; "
        "install them (Debian: python3-dev)"
    )


@functools.cache
def compiles_for(device: str) -> bool:
    """Says whether Inductor makes code for a type of device."""
    from torch._inductor.codegen import common

    common.init_backend_registration()
    return common.get_scheduling_for_device(device) is not None


def supports(kind: Kind) -> Support:
    """Supports every op where Inductor makes code, but no int8 weights and no batch norm, whose steps share moments."""
    if not kind.dtype.is_floating_point:
        return Support(False, f"{kind.dtype}")
    if kind.recurrence is not None and kind.recurrence.quantized:
        return Support(False, "int8 weights")
    if kind.recurrence is not None and kind.recurrence.norm == "batch":
        return Support(False, "norm='batch'")
    return YES if compiles_for(kind.device.type) else Support(False, f"tensors on {kind.device}")


def is_worth_it(kind: Kind) -> Support:
    return Support(False, "the first call of every kind takes seconds")
