"""`decompositions`: layernorm's ops as plain PyTorch operations, in a program of `torch.export`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..functional._norms import NORMALIZE
from ..functional._recurrent import RECURRENT


def decompositions() -> dict[Any, Callable[..., list[Tensor]]]:
    """Returns each op with its equations in plain PyTorch operations, for `ExportedProgram.run_decompositions`.

    The program that it returns has no op of layernorm's: it runs in processes without layernorm, and AOTInductor and
    ExecuTorch compile it. The equations are those of `layernorm.equations`. A recurrent network becomes the operations
    of every step, so the sequence length is fixed at export. `LayerNorm` and `RMSNorm` compute in float64 and round
    once at the end.

    With only this table all other ops stay as they are. For PyTorch's smaller set of ops, Core ATen, add it to
    PyTorch's own table, as in the second example.

    Returns:
        A function for ``layernorm::recurrent``, and one for ``layernorm::normalize``. The first raises a ValueError
        where the number of time steps is not fixed.

    Example::

        program = torch.export.export(model.eval(), args).run_decompositions(ln.decompositions())

        core = torch.export.default_decompositions()
        core.update(ln.decompositions())
        program = torch.export.export(model.eval(), args).run_decompositions(core)
    """
    return {
        torch.ops.layernorm.normalize.default: NORMALIZE.decomposition,
        torch.ops.layernorm.recurrent.default: RECURRENT.decomposition,
    }
