"""How torch's operations run inside layernorm's ops: without autocast, and without view tracking."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def below_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a function run without autocast, which would otherwise cast the matrix products inside it."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        device = args[0].device.type  # type: ignore[attr-defined]
        if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
            return function(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            return function(*args, **kwargs)

    return run


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a function run as torch runs its own kernels: without autocast, and without the tracking of views.

    With it, an output that ends in a reshape or a stack would count as a view, and autograd refuses to change one of
    several such outputs in place.
    """
    function = below_autocast(function)

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch._C._ExcludeDispatchKeyGuard(_VIEWS):
            return function(*args, **kwargs)

    return run


_VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
