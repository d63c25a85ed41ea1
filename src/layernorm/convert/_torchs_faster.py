"""Where torch's own LSTM is faster than ours, so that an accelerated one calls it: oneDNN's kernels on AVX-512.

The rule is a table of `benchmarks/accelerated.py grid`. It looks at nothing that changes from process to process. On
AVX2, with more threads, and for every other network and kind of call ours is the faster one.
"""

from __future__ import annotations

import functools
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


def torchs_is_faster(lstm: Any, input: Any) -> bool:
    """Says whether an `nn.LSTM` in float32 takes less time than ours over a batch without lengths and resets."""
    if type(input) is not Tensor or input.dim() != 3 or not input.is_cpu or input.dtype is not torch.float32:
        return False
    rows, lines, units = input.shape[0 if lstm.batch_first else 1], input.shape[0] * input.shape[1], lstm.hidden_size
    if (rows < LEAST_ROWS and units < LARGE) or (lines < LEAST_LINES and lines * units < LEAST_NUMBERS):
        return False
    if torch.get_num_threads() > 1 or lstm.proj_size or lstm.recurrence.quantized:
        return False
    tensors = [input, *lstm._flat_weights]
    plain = is_eager(tensors) and not torch.is_autocast_enabled("cpu") and backends.asked_for() is None
    if not (plain and _is_onednns() and torch.backends.mkldnn.enabled):
        return False
    trains = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    return not trains or lines * units < MOST_TRAINED or units >= LARGE


@functools.cache
def _is_onednns() -> bool:
    """Says whether torch has oneDNN, and ours is the CPU engine with a set of AVX-512."""
    found = backends.preferred(backends.Kind("recurrent", backends.CPU, torch.float32)).engine
    return getattr(found, "ISA", None) in SETS and torch.backends.mkldnn.is_available()
