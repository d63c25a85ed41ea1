"""What is handed to the compiler, and how often: every kind of call once, for all numbers of rows."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

CHUNK = 8
"""How many steps are compiled together."""

_NUMBER = itertools.count()


def chunks(T: int) -> list[slice]:
    """Cuts T steps into chunks, and what is left into single steps, so that no T is compiled again."""
    whole = T - T % CHUNK
    return [slice(t, t + CHUNK) for t in range(0, whole, CHUNK)] + [slice(t, t + 1) for t in range(whole, T)]


def through_compiler(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function, to be compiled in its first call. Where torch cannot do that as a whole, it raises.

    On a GPU Inductor joins sums over rows with sums over columns in a kernel that adds in float32, and then fails to
    compile it for float64 (seen with PyTorch 2.11; 2.13 has the same code). Without that kernel it makes two.
    """
    joined = "triton.mix_order_reduction"
    known = joined in torch._inductor.list_options()  # a later PyTorch may have none of this name
    return torch.compile(function, fullgraph=True, dynamic=False, options={joined: False} if known else {})


def compiled(function: Callable[..., Any], fixed: Hashable, *key: Hashable) -> Callable[..., Any]:
    """Returns ``function(fixed, parameters, *tensors)``, compiled for the calls that have this key.

    A key has every size but the number of rows, and whether that is 1, for which torch compiles by itself. Rows are
    the last dimension but one of every tensor, and of a vector the only one. For each number of threads torch also
    compiles again.
    """
    return _compiled(function, fixed, torch.get_num_threads(), *key)


@functools.cache  # without a bound: torch itself never frees what it has compiled
def _compiled(function: Callable[..., Any], fixed: Hashable, *key: Hashable) -> Callable[..., Any]:
    """Makes what `compiled` returns.

    torch counts how often it has compiled a function by the function's code, and refuses after 8 times. So every key
    has code of its own. It always runs under the same switches, because for others torch compiles again: gradients,
    inference mode and torch's own compiled code set them in different ways.
    """

    def call(*given: Any) -> Any:
        return function(fixed, *given)

    code = call.__code__.replace(co_name=f"{function.__name__}_{next(_NUMBER)}")
    run = through_compiler(FunctionType(code, globals(), code.co_name, None, call.__closure__))
    first = True

    def below_autograd(parameters: Any, *tensors: Any) -> Any:
        nonlocal first
        parameters, tensors = tree_map_only(Tensor, _as_in_memory, (parameters, tensors))
        if first:
            tensors = tree_map_only(Tensor, _of_any_rows, tensors)
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            results = run(parameters, *tensors)
        first = False
        return results

    return below_autograd


def _as_in_memory(tensor: Tensor) -> Tensor:
    """Returns a tensor whose numbers are those in its memory: Inductor's code knows no negative bit, nor torch's zeros
    that have no memory."""
    if tensor._is_zerotensor():
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return tensor.resolve_neg()


def _of_any_rows(tensor: Tensor) -> Tensor:
    """Copies a tensor and tells torch that the number of its rows varies.

    It is a copy because torch would compile a step in the middle of a sequence again: its storage offset is not 0.
    """
    copy = tensor.clone()
    torch._dynamo.maybe_mark_dynamic(copy, max(copy.dim() - 2, 0))
    return copy
