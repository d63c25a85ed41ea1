"""How torch's operations run inside an op of ours: without what torch adds to a user's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def below_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Runs it without autocast, which would take the products inside for the user's own."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        device = args[0].device.type  # type: ignore[attr-defined]
        if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
            return function(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            return function(*args, **kwargs)

    return run


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Runs it as torch runs its own kernels, also without the record of what is a view of what: an output that ends in
    a reshape or a stack would count as a view, and autograd refuses to change one of several such outputs in place."""
    function = below_autocast(function)

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch._C._ExcludeDispatchKeyGuard(_VIEWS):
            return function(*args, **kwargs)

    return run


_VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
