"""How many floating-point operations the recurrent ops take, for `torch.utils.flop_counter`: those of their products.

A counter that sees a call is given the formulas then. To register them at import would import torch's module, and with
it triton, which takes long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


def give_formulas() -> None:
    """Gives the counters that are active the formulas."""
    for mode in _get_current_dispatch_mode_stack():
        registry = getattr(getattr(mode, "counter", None), "flop_registry", None)
        if registry is not None:
            registry.update(_formulas())


def _formulas() -> Mapping[Any, Callable[..., int]]:
    ops = torch.ops.layernorm
    return {ops.recurrent: _forward, ops.recurrent_forward: _forward, ops.recurrent_backward: _backward}


def _forward(input: Tensor, state: Sequence[Tensor], params: Sequence[Tensor], *_: Any, **__: Any) -> int:
    """Counts a multiplication and an addition for each number of a weight, at each step of each row."""
    rows = math.prod(input.shape[:-1])  # of all steps; a packed batch has its own alone
    return 2 * rows * sum(p.numel() for p in params if p.dim() == 2)


def _backward(*args: Any, **keywords: Any) -> int:
    """Counts a product for the gradient of each factor: those of input, state and weights are always computed."""
    return 2 * _forward(*args, **keywords)
