"""How an op becomes a `torch.library` op: its kernel, its fake, its gradient, its batching rule.

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

    def batched(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[list[Tensor], list[int]]:
        # The reference engine is made of plain torch operations, which vmap batches by itself.
        outputs = torch.vmap(kernel, in_dims=in_dims, out_dims=0, randomness="error")(*args[:-1], "reference")
        return outputs, [0] * len(outputs)

    torch.library.register_vmap(name, batched)


def gradients_of_equations(
    equations: Callable[..., list[Tensor]], inputs: Sequence[Tensor], grads: Sequence[Tensor]
) -> list[Tensor]:
    """The vector-Jacobian product of plain equations: itself differentiable, so it serves second and higher derivatives."""
    _, vjp = torch.func.vjp(equations, *inputs)
    return list(vjp(list(grads)))
