"""How an op is bound to torch: its kernel, its fake, its gradient.

An op is a `torch.library` op, which `torch.compile`, `torch.export`, tensor subclasses and dispatch modes see. A call
on plain tensors goes past the dispatcher, straight to the kernel: for a small op that is most of the time. Both ways
run the same kernel and the same backward.

Every op takes the engine's name as its last argument ``backend``, so that the choice is made once, where the op is
called, and its backward runs on the same engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch._C._profiler import _RecordFunctionFast
from torch.autograd import forward_ad, profiler


class Op:
    """``layernorm::name``, an op that returns a list of tensors: results, then what its backward needs.

    Args:
        kernel: runs it on the engine that its last argument names; checks its arguments first.
        fake: empty tensors of the right shapes, for `torch.compile` and `torch.export`.
        setup_context, backward: its gradient, as `torch.library.register_autograd` takes them.
        unchecked: the kernel for the calls of our own backward, whose arguments need hardly any check.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        kernel: Callable[..., list[Tensor]],
        fake: Callable[..., list[Tensor]],
        setup_context: Callable[..., None] | None = None,
        backward: Callable[..., Any] | None = None,
        unchecked: Callable[..., list[Tensor]] | None = None,
    ) -> None:
        self.kernel, self.setup_context, self.backward = unchecked or kernel, setup_context, backward
        self.name = name
        torch.library.define(f"layernorm::{name}", f"{schema} -> Tensor[]")
        torch.library.impl(f"layernorm::{name}", "CompositeExplicitAutograd")(kernel)
        torch.library.register_fake(f"layernorm::{name}")(fake)
        if backward is not None:
            torch.library.register_autograd(f"layernorm::{name}", backward, setup_context=setup_context)
        self.dispatched = getattr(torch.ops.layernorm, name)

    def __call__(self, results: int, tensors: Sequence[Tensor], differentiable: bool, *args: Any) -> Sequence[Tensor]:
        """The first so many of what the op returns; ``tensors`` are those among ``args``, in order;
        ``differentiable``: whether autograd has to know of the call (`wants_gradient`)."""
        if not plain(tensors):
            return self.dispatched(*args)[:results]
        if profiler._is_profiler_enabled:
            with event(self.name, tensors):
                return self._direct(results, tensors, differentiable, args)
        return self._direct(results, tensors, differentiable, args)

    def _direct(
        self, results: int, tensors: Sequence[Tensor], differentiable: bool, args: tuple[Any, ...]
    ) -> Sequence[Tensor]:
        if differentiable:
            return _Direct.apply(self, results, args, *tensors)
        return self.kernel(*args)[:results]


def event(name: str, tensors: Sequence[Tensor]) -> AbstractContextManager[None]:
    """An op's row in what a profiler shows, with the shapes of these tensors. The dispatcher writes one for its own
    calls; it is entered only where a profiler runs, because to enter costs a microsecond."""
    return _RecordFunctionFast(f"layernorm::{name}", list(tensors))


def wants_gradient(tensors: Sequence[Tensor]) -> bool:
    """Whether autograd records what is done with these tensors."""
    if torch.is_grad_enabled():
        for t in tensors:
            if t.requires_grad:
                return True
    return False


class _Direct(torch.autograd.Function):
    """An op's gradient without the dispatcher; the tensors inside ``args`` come once more for autograd to see."""

    @staticmethod
    def forward(ctx: Any, op: Op, results: int, args: tuple[Any, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        found = op.kernel(*args)
        ctx.op, ctx.extra, ctx.kinds = op, len(found) - results, [type(arg) for arg in args]
        op.setup_context(ctx, args, found)  # type: ignore[misc]
        return tuple(found[:results])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        found = ctx.op.backward(ctx, [*grads, *(None,) * ctx.extra])
        flat: list[Tensor | None] = [None, None, None]
        for kind, grad in zip(ctx.kinds, found):  # noqa: B905 - equally long
            if kind in _PLAIN:
                flat.append(grad)
            elif type(grad) is list:  # of a list of tensors; of other lists None
                flat += grad
        return tuple(flat)


_PLAIN = (Tensor, torch.nn.Parameter)


def plain(tensors: Sequence[Tensor]) -> bool:
    """Whether nothing but autograd needs to know of the call: no compiler, tracer, mode or tensor subclass."""
    for t in tensors:
        if type(t) not in _PLAIN:
            return False
    return not (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._is_torch_function_mode_enabled()
        or torch._C._get_tracing_state() is not None
    )


def autocast_type(device: str) -> torch.dtype | None:
    """The type that autocast asks for on this kind of device; ``None`` outside of autocast."""
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None


def transforming() -> bool:
    """Whether the call runs inside `torch.func.vmap`, ``grad``, ``jvp``... or in forward mode: ops of `torch.library`
    cannot take part in all of these, plain torch operations can."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def of_all_cases(tensor: Tensor) -> Tensor:
    """The tensor without what `torch.func` wraps around it: under ``vmap`` of all cases, whose values can be asked."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def gradients_of_equations(
    equations: Callable[..., list[Tensor]], inputs: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> list[Tensor]:
    """The vector-Jacobian product of plain equations: differentiable itself, so it serves higher derivatives."""
    results, vjp = torch.func.vjp(equations, *inputs)  # type: ignore[misc]
    return list(vjp([torch.zeros_like(r) if g is None else g for r, g in zip(results, grads, strict=True)]))
