"""How an op becomes a `torch.library` op: its kernel, its fake, its gradient.

Every op takes the engine's name as its last argument ``backend``, so that the choice is made once, where the op is
called, and its backward runs on the same engine.
"""

from __future__ import annotations

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
    torch.library.impl(name, "CompositeExplicitAutograd")(kernel)
    torch.library.register_fake(name)(fake)
    if backward is not None:
        torch.library.register_autograd(name, backward, setup_context=setup_context)


def transforming() -> bool:
    """Whether the call runs inside `torch.func.vmap`, ``grad``, ``jvp``...: ops of `torch.library` cannot take part in
    all of these, plain torch operations can."""
    return torch._C._are_functorch_transforms_active()


def gradients_of_equations(
    equations: Callable[..., list[Tensor]], inputs: Sequence[Tensor], grads: Sequence[Tensor]
) -> list[Tensor]:
    """The vector-Jacobian product of plain equations: itself differentiable, so it serves second and higher derivatives."""
    _, vjp = torch.func.vjp(equations, *inputs)
    return list(vjp(list(grads)))
