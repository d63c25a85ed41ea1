"""Where torch's own forward is faster than layernorm's, so that an accelerated module calls it.

The rules are tables of `benchmarks/accelerated.py`, `networks` and `cells`. They look at nothing that changes from
process to process. torch's `RNNCell` is one short operation. The products of its cells are a library's, which does not
pack the weights for one step.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .. import backends
from ..functional._bind import is_eager

TRAINED = 16, 64, 2_048
"""Rows, units, and numbers in the state of a cell from which on torch's is faster in training."""


def faster_rnn_cell(cell: Any, input: Any) -> bool:
    """Says so of an `nn.RNNCell`: it is one operation, which torch's compiler and transforms see through."""
    if not isinstance(input, Tensor) or cell.recurrence.quantized:
        return False
    return torch.compiler.is_compiling() or backends.asked_for() is None


def faster_cell(cell: Any, input: Any) -> bool:
    """Says so of an `nn.LSTMCell` or `nn.GRUCell`."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or type(input) is not Tensor or input.dim() != 2:
        return False
    rows, units = input.shape[0], cell.hidden_size
    if rows < TRAINED[0] or units < TRAINED[1] or rows * units < TRAINED[2]:
        return False
    if _has_slow_products() or not _is_plain(cell, input, cell.parameters()):
        return False
    # in inference layernorm's is faster up to so few rows, for which it packs no weights
    return _trains(cell, input) or (units >= 192 and rows > min(32, units // 10))


RULES = {
    torch.nn.RNNCell: faster_rnn_cell,
    torch.nn.LSTMCell: faster_cell,
    torch.nn.GRUCell: faster_cell,
}
"""For each class of torch's, a function of a module and an input without resets: whether torch's forward is faster."""


def _is_plain(module: Any, input: Tensor, weights: Iterable[Tensor]) -> bool:
    """Says whether a call is of float32 on the CPU, and nothing but autograd needs to know of it."""
    if not input.is_cpu or input.dtype is not torch.float32:
        return False
    if module.recurrence.quantized or backends.asked_for() is not None or torch.is_autocast_enabled("cpu"):
        return False
    return is_eager([input, *weights])


def _trains(module: Any, input: Tensor) -> bool:
    return torch.is_grad_enabled() and (input.requires_grad or any(p.requires_grad for p in module.parameters()))


@functools.cache
def _has_slow_products() -> bool:
    """Says whether torch's library for products uses half of the CPU: MKL has AVX-512 only for Intel's own."""
    found = backends.preferred(backends.Kind("recurrent", backends.CPU, torch.float32)).engine
    has_avx512 = getattr(found, "ISA", None) in ("avx512", "avx512bf16", "amx")
    return has_avx512 and "AMD" in torch.cpu.get_capabilities().get("cpu_name", "")
