"""How an op is bound to torch: its kernels, its fake, its gradient.

An op is a `torch.library` op, which `torch.compile`, `torch.export`, tensor subclasses and dispatch modes see. A call
on plain tensors goes past the dispatcher, straight to the kernel: for a small op that is most of the time. Both ways
run the same kernel and the same backward.

The engine is chosen where an op runs. What one engine saves for the backward no other can read, so the two ops inside
the gradient are told its name. A graph made by `torch.export` holds the op itself, and names no engine.
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

from .. import backends


class Part:
    """``layernorm::name``, one of the two ops that a gradient is made of; its last argument names the engine.

    Args:
        kernel: checks its arguments and runs the op on that engine; returns a list of tensors.
        fake: empty tensors of the right shapes, for `torch.compile`.
        unchecked: the kernel for the calls of our own backward, whose arguments need hardly any check.
    """

    def __init__(
        self,
        name: str,
        arguments: str,
        kernel: Callable[..., list[Tensor]],
        fake: Callable[..., list[Tensor]],
        unchecked: Callable[..., list[Tensor]] | None = None,
    ) -> None:
        self.name = name
        self.kernel = unchecked or kernel
        self.dispatched = _defined(name, f"({arguments}, str backend)", kernel, fake)

    def __call__(self, tensors: Sequence[Tensor], *args: Any) -> Sequence[Tensor]:
        """``tensors``: those among ``args``."""
        if not plain(tensors):
            return self.dispatched(*args)
        if profiler._is_profiler_enabled:
            with event(self.name, tensors):
                return self.kernel(*args)
        return self.kernel(*args)


class Op:
    """``layernorm::name``, a differentiable op that returns a list of tensors.

    Its last argument ``backend`` names an engine or is None: then the op chooses where it runs.

    Args:
        results: how many tensors it returns, from its arguments.
        choose: the engine's name, from its arguments and ``backend``.
        kernel: from its arguments, whether to save, and the engine's name to the results and what is saved for the
            backward; checks its arguments first.
        fake: empty tensors of the right shapes, from the same.
        setup_context: from a context, the arguments, the engine's name and what the kernel returned.
        backward: from a context and the results' gradients to those of the tensors among the arguments, in order.
    """

    def __init__(
        self,
        name: str,
        arguments: str,
        results: Callable[..., int],
        choose: Callable[..., str],
        kernel: Callable[..., list[Tensor]],
        fake: Callable[..., list[Tensor]],
        setup_context: Callable[..., None],
        backward: Callable[..., Sequence[Any]],
    ) -> None:
        self.name, self.results, self.choose = name, results, choose
        self.setup_context, self.backward = setup_context, backward
        self.kernel = kernel
        self.saving = Part(
            f"{name}_forward",
            arguments,
            lambda *args: kernel(*args[:-1], True, args[-1]),
            lambda *args: fake(*args[:-1], True, args[-1]),
        )
        self.dispatched = _defined(
            name,
            f"({arguments}, str? backend)",
            lambda *args: kernel(*args[:-1], False, choose(*args)),
            lambda *args: fake(*args[:-1], False, None),
        )
        torch.library.impl(f"layernorm::{name}", "Autograd")(self._with_gradient)

    def __call__(self, tensors: Sequence[Tensor], *args: Any) -> Sequence[Tensor]:
        """The results; ``tensors`` are those among ``args``, in order."""
        if not plain(tensors):
            return self.dispatched(*args, backends.asked_for_in_graph())
        if profiler._is_profiler_enabled:
            with event(self.name, tensors):
                return self._direct(tensors, args)
        return self._direct(tensors, args)

    def _direct(self, tensors: Sequence[Tensor], args: tuple[Any, ...]) -> Sequence[Tensor]:
        backend = self.choose(*args, None)
        if wants_gradient(tensors):
            return _record(self, self.saving.kernel, args, backend, *tensors)
        return self.kernel(*args, False, backend)

    def _with_gradient(self, *given: Any) -> list[Tensor]:
        """What the dispatcher calls where autograd may have to record the op."""
        *args, _ = given
        tensors = [t for arg in args for t in (arg if type(arg) in (list, tuple) else [arg]) if isinstance(t, Tensor)]
        if wants_gradient(tensors):
            return list(_Recorded.apply(self, self.saving.dispatched, tuple(args), self.choose(*given), *tensors))
        with torch._C._AutoDispatchBelowAutograd():
            return self.dispatched(*given)


def _defined(name: str, schema: str, kernel: Callable[..., list[Tensor]], fake: Callable[..., list[Tensor]]) -> Any:
    """The op of this name as torch calls it."""
    torch.library.define(f"layernorm::{name}", f"{schema} -> Tensor[]")
    torch.library.impl(f"layernorm::{name}", "CompositeExplicitAutograd")(kernel)
    torch.library.register_fake(f"layernorm::{name}")(fake)
    return getattr(torch.ops.layernorm, name)


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


class _Recorded(torch.autograd.Function):
    """An op with its gradient; the tensors inside ``args`` come once more for autograd to see."""

    @staticmethod
    def forward(
        ctx: Any, op: Op, run: Callable[..., list[Tensor]], args: tuple[Any, ...], backend: str, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        found = run(*args, backend)
        ctx.op = op
        op.setup_context(ctx, args, backend, found)
        return tuple(found[: op.results(*args)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        return None, None, None, None, *ctx.op.backward(ctx, grads)


# `_Recorded.apply` without a look at `torch.func`'s transforms, which takes a microsecond: they never come here.
_record = super(torch.autograd.Function, _Recorded).apply


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


def autocast_type(tensor: Tensor) -> torch.dtype | None:
    """The type that autocast asks for where this tensor is; ``None`` outside of autocast."""
    device = "cpu" if tensor.is_cpu else tensor.device.type
    if (device == "cpu" or torch.amp.is_autocast_available(device)) and torch.is_autocast_enabled(device):
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
