"""How an op becomes a `torch.library` op: its kernel, its fake, its gradient.

Every op takes the engine's name as its last argument ``backend``, so that the choice is made once, where the op is
called, and its backward runs on the same engine.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def define(
    name: str,
    schema: str,
    kernel: Callable[..., list[Tensor]],
    fake: Callable[..., list[Tensor]],
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
) -> None:
    """Registers ``layernorm::name``, an op that returns a list of tensors.

    Args:
        kernel: runs it on the engine that its last argument names.
        fake: empty tensors of the right shapes, for `torch.compile` and `torch.export`.
        setup_context, backward: its gradient, as `torch.library.register_autograd` takes them.
    """
    name = f"layernorm::{name}"
    torch.library.define(name, f"{schema} -> Tensor[]")
    torch.library.impl(name, "CompositeExplicitAutograd")(functools.partial(_untracked, kernel))
    torch.library.register_fake(name)(fake)
    if backward is not None:
        torch.library.register_autograd(name, backward, setup_context=setup_context)


def _untracked(kernel: Callable[..., list[Tensor]], *args: Any) -> list[Tensor]:
    """Runs a kernel as torch runs its own, without the record of what is a view of what: an output that ends in a
    reshape or a stack would count as a view, and autograd refuses to change one of several such outputs in place."""
    with torch._C._ExcludeDispatchKeyGuard(_VIEWS):
        return below_autocast(kernel, *args)


_VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


def autocast_type(device: str) -> torch.dtype | None:
    """The type that autocast asks for on this kind of device; ``None`` outside of autocast."""
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None


def below_autocast(function: Callable[..., Any], input: Tensor, *args: Any) -> Any:
    """Calls it without autocast, which would take the products inside the plain equations for the user's own."""
    device = input.device.type
    if autocast_type(device) is None:
        return function(input, *args)
    with torch.autocast(device, enabled=False):
        return function(input, *args)


def transforming() -> bool:
    """Whether the call runs inside `torch.func.vmap`, ``grad``, ``jvp``...: ops of `torch.library` cannot take part in
    all of these, plain torch operations can."""
    return torch._C._are_functorch_transforms_active()


def gradients_of_equations(
    equations: Callable[..., list[Tensor]], inputs: Sequence[Tensor], grads: Sequence[Tensor]
) -> list[Tensor]:
    """The vector-Jacobian product of plain equations: differentiable itself, so it serves higher derivatives."""
    vjp = torch.func.vjp(equations, *inputs)[1]
    return list(vjp(list(grads)))
