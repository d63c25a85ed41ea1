"""How an op is bound to torch: its kernel, its fake, its gradient.

An op is a `torch.library` op, which `torch.compile`, `torch.export`, tensor subclasses and dispatch modes see. A call on
plain tensors goes past the dispatcher, straight to the kernel: for a small op that is most of the time. Both ways run the
same kernel and the same backward.

Every op takes the engine's name as its last argument ``backend``, so that the choice is made once, where the op is
called, and its backward runs on the same engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


class Op:
    """``layernorm::name``, an op that returns a list of tensors: results, then what its backward needs.

    Args:
        kernel: runs it on the engine that its last argument names.
        fake: empty tensors of the right shapes, for `torch.compile` and `torch.export`.
        setup_context, backward: its gradient, as `torch.library.register_autograd` takes them.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        kernel: Callable[..., list[Tensor]],
        fake: Callable[..., list[Tensor]],
        setup_context: Callable[..., None] | None = None,
        backward: Callable[..., Any] | None = None,
    ) -> None:
        self.kernel, self.setup_context, self.backward = kernel, setup_context, backward
        torch.library.define(f"layernorm::{name}", f"{schema} -> Tensor[]")
        torch.library.impl(f"layernorm::{name}", "CompositeExplicitAutograd")(kernel)
        torch.library.register_fake(f"layernorm::{name}")(fake)
        if backward is not None:
            torch.library.register_autograd(f"layernorm::{name}", backward, setup_context=setup_context)
        self.dispatched = getattr(torch.ops.layernorm, name)

    def __call__(self, results: int, tensors: Sequence[Tensor], *args: Any) -> Sequence[Tensor]:
        """The first so many of what the op returns; ``tensors`` are those among ``args``, in order."""
        if not _plain(tensors):
            return self.dispatched(*args)[:results]
        if self.backward is not None and torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return _Direct.apply(self, results, args, *tensors)
        return self.kernel(*args)[:results]


class _Direct(torch.autograd.Function):
    """An op's gradient without the dispatcher; the tensors inside ``args`` come once more for autograd to see."""

    @staticmethod
    def forward(ctx: Any, op: Op, results: int, args: tuple[Any, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        found = op.kernel(*args)
        ctx.op, ctx.extra = op, len(found) - results
        ctx.layout = ["many" if _is_tensors(arg) else "one" if isinstance(arg, Tensor) else "none" for arg in args]
        op.setup_context(ctx, args, found)  # type: ignore[misc]
        return tuple(found[:results])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        found = ctx.op.backward(ctx, [*grads, *(None,) * ctx.extra])
        flat: list[Tensor | None] = []
        for kind, grad in zip(ctx.layout, found, strict=True):
            flat += grad if kind == "many" else [grad] if kind == "one" else []
        return (None, None, None, *flat)


def _is_tensors(arg: Any) -> bool:
    return isinstance(arg, list) and bool(arg) and isinstance(arg[0], Tensor)


def _plain(tensors: Sequence[Tensor]) -> bool:
    """Whether nothing but autograd needs to know of the call: no compiler, tracer, mode or tensor subclass."""
    return (
        not torch.compiler.is_compiling()
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch._C._is_torch_function_mode_enabled()
        and torch._C._get_tracing_state() is None
        and all(type(t) in _PLAIN for t in tensors)
    )


_PLAIN = (Tensor, torch.nn.Parameter)


def autocast_type(device: str) -> torch.dtype | None:
    """The type that autocast asks for on this kind of device; ``None`` outside of autocast."""
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None


def transforming() -> bool:
    """Whether the call runs inside `torch.func.vmap`, ``grad``, ``jvp``... or in forward mode: ops of `torch.library`
    cannot take part in all of these, plain torch operations can."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def gradients_of_equations(
    equations: Callable[..., list[Tensor]], inputs: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> list[Tensor]:
    """The vector-Jacobian product of plain equations: differentiable itself, so it serves higher derivatives."""
    results, vjp = torch.func.vjp(equations, *inputs)
    return list(vjp([torch.zeros_like(r) if g is None else g for r, g in zip(results, grads, strict=True)]))
