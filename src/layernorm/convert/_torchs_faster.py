"""Where torch's own forward is faster than ours, so that an accelerated module calls it.

The rules are tables of `benchmarks/accelerated.py`, `networks` and `grid`. They look at nothing that changes from
process to process. torch's LSTM is oneDNN's, whose kernels are fast on AVX-512; its `RNNCell` is one short operation;
and its cells leave the products of many rows to a library.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .. import backends
from ..functional._bind import is_eager

SETS = ("avx512", "avx512bf16", "amx")
LEAST_ROWS, LEAST_LINES, LEAST_NUMBERS = 32, 1024, 100_000
"""With fewer rows, or fewer steps of all rows and states of them, what a call costs by itself counts: less in ours."""

MOST_TRAINED = 400_000
"""With more numbers in all states training does not fit into the caches any more, and our memory is the faster."""

LARGE = 1024
"""From so many units on torch's is faster with fewer rows, too, and in training of any length."""

LEAST_TRAINED_IN_A_CELL, LEAST_IN_A_CELL = 16_384, (64, 256)
"""Numbers in the state of a cell from which on torch's is faster in training; rows and units in inference."""


def faster_rnn_cell(cell: Any, input: Any) -> bool:
    """Says so of an `nn.RNNCell`: it is one operation, which torch's compiler and transforms see through."""
    return (torch.compiler.is_compiling() or backends.asked_for() is None) and not cell.recurrence.quantized


def faster_cell(cell: Any, input: Any) -> bool:
    """Says so of an `nn.LSTMCell` or `nn.GRUCell`."""
    if type(input) is not Tensor or input.dim() != 2:
        return False
    rows, units = input.shape[0], cell.hidden_size
    if rows * units < LEAST_TRAINED_IN_A_CELL or not _is_plain(cell, input, cell.parameters()):
        return False
    return _trains(cell, input) or (rows >= LEAST_IN_A_CELL[0] and units >= LEAST_IN_A_CELL[1] and _has_avx512())


def faster_lstm(lstm: Any, input: Any) -> bool:
    """Says so of an `nn.LSTM` by its sizes, its mode and the processor; with more threads ours is the faster."""
    if type(input) is not Tensor or input.dim() != 3:
        return False
    rows, lines, units = input.shape[0 if lstm.batch_first else 1], input.shape[0] * input.shape[1], lstm.hidden_size
    if (rows < LEAST_ROWS and units < LARGE) or (lines < LEAST_LINES and lines * units < LEAST_NUMBERS):
        return False
    if torch.get_num_threads() > 1 or lstm.proj_size or not _is_plain(lstm, input, lstm._flat_weights):
        return False
    if not (_has_avx512() and _has_onednn()):
        return False
    return not _trains(lstm, input) or lines * units < MOST_TRAINED or units >= LARGE


RULES = {
    torch.nn.LSTM: faster_lstm,
    torch.nn.RNNCell: faster_rnn_cell,
    torch.nn.LSTMCell: faster_cell,
    torch.nn.GRUCell: faster_cell,
}
"""For a class of torch's: whether its forward takes less time than ours, of a module and an input without lengths and
resets."""


def _is_plain(module: Any, input: Tensor, weights: Iterable[Tensor]) -> bool:
    """Says whether a call is of float32 on the CPU, and nothing but autograd needs to know of it."""
    if torch.compiler.is_compiling() or not input.is_cpu or input.dtype is not torch.float32:
        return False
    if module.recurrence.quantized or backends.asked_for() is not None or torch.is_autocast_enabled("cpu"):
        return False
    return is_eager([input, *weights])


def _trains(module: Any, input: Tensor) -> bool:
    return torch.is_grad_enabled() and (input.requires_grad or any(p.requires_grad for p in module.parameters()))


@functools.cache
def _has_avx512() -> bool:
    """Says whether ours is the CPU engine with a set of AVX-512."""
    found = backends.preferred(backends.Kind("recurrent", backends.CPU, torch.float32)).engine
    return getattr(found, "ISA", None) in SETS


def _has_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)
