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
from torch import Tensor, is_grad_enabled
from torch._C import (
    _are_functorch_transforms_active,
    _functorch,
    _get_tracing_state,
    _is_torch_function_mode_enabled,
    _len_torch_dispatch_stack,
)
from torch._C._profiler import _RecordFunctionFast
from torch.autograd import forward_ad, profiler
from torch.compiler import is_compiling

from .. import backends
from ..engines.protocol import Run

Arguments = tuple[Any, ...]
"""An op's, in the order of its schema but for the engine's name."""


class Part:
    """``layernorm::name``, one of the two ops that a gradient is made of; its last argument names the engine.

    Args:
        plan: from the engine's name and the arguments to the engine's plan for calls of this kind, or None.
        kernel: for calls without a plan; from the same to a list of tensors. It checks its arguments.
        fake: empty tensors of the right shapes, for `torch.compile`.
        unchecked: the kernel for the calls of our own backward, whose arguments need hardly any check.
    """

    def __init__(
        self,
        name: str,
        arguments: str,
        plan: Callable[..., Run | None],
        kernel: Callable[..., list[Tensor]],
        fake: Callable[..., list[Tensor]],
        unchecked: Callable[..., list[Tensor]] | None = None,
    ) -> None:
        self.name, self.plan = name, plan
        self.kernel = unchecked or kernel
        checked = lambda *given: kernel(given[-1], given[:-1])  # noqa: E731
        self.dispatched = _defined(name, f"({arguments}, str backend)", checked, lambda *given: fake(given[:-1]))

    def __call__(self, tensors: Sequence[Tensor], backend: str, args: Arguments) -> Sequence[Tensor]:
        """``tensors``: those among ``args``, as a plan takes them."""
        if not plain(tensors):
            return self.dispatched(*args, backend)
        if profiler._is_profiler_enabled:
            with event(self.name, tensors):
                return self._direct(tensors, backend, args)
        return self._direct(tensors, backend, args)

    def _direct(self, tensors: Sequence[Tensor], backend: str, args: Arguments) -> Sequence[Tensor]:
        run = self.plan(backend, args)
        found = None if run is None else run(*tensors)
        return self.kernel(backend, args) if found is None else found


class Op:
    """``layernorm::name``, a differentiable op that returns a list of tensors.

    Its last argument ``backend`` names an engine or is None: then the op chooses where it runs.

    Args:
        choose: the engine's name, from its arguments and ``backend``.
        plan: from whether to save and its arguments to the engine's name and the engine's plan for calls of this kind,
            or None.
        kernel: for calls without a plan; from whether to save, the engine's name and its arguments to the results and
            what is saved for the backward. It checks its arguments.
        fake: empty tensors of the right shapes, from the engine's name, None where nothing is saved, and its arguments.
        equations: the results by plain equations, for `torch.func`.
        save: puts what the backward needs into a context and returns the results; from the context, its arguments,
            and the results with what is saved.
        backward: from the context, which has ``backend``, too, and the results' gradients to those of the tensors among
            the arguments, in order.
    """

    def __init__(
        self,
        name: str,
        arguments: str,
        choose: Callable[..., str],
        plan: Callable[..., tuple[str, Run | None]],
        kernel: Callable[..., list[Tensor]],
        fake: Callable[..., list[Tensor]],
        equations: Callable[..., list[Tensor]],
        save: Callable[..., Sequence[Tensor]],
        backward: Callable[..., Sequence[Any]],
    ) -> None:
        self.name, self.choose, self.plan, self.kernel = name, choose, plan, kernel
        self.equations, self.save, self.backward = equations, save, backward
        self.saving = _defined(
            f"{name}_forward",
            f"({arguments}, str backend)",
            lambda *given: kernel(True, given[-1], given[:-1]),
            lambda *given: fake(given[-1], given[:-1]),
        )
        self.dispatched = _defined(
            name,
            f"({arguments}, str? backend)",
            lambda *given: kernel(False, choose(given[:-1], given[-1]), given[:-1]),
            lambda *given: fake(None, given[:-1]),
        )
        torch.library.impl(f"layernorm::{name}", "Autograd")(self._with_gradient)

    def __call__(self, tensors: Sequence[Tensor], args: Arguments) -> Sequence[Tensor]:
        """The results, where nothing but autograd needs to know of the call (`plain`); ``tensors`` are those among
        ``args``, in order."""
        if profiler._is_profiler_enabled:
            with event(self.name, tensors):
                return self._direct(tensors, args)
        return self._direct(tensors, args)

    def elsewhere(self, args: Arguments) -> Sequence[Tensor]:
        """The results where something else needs to know of it."""
        if transforming():
            return self.equations(args)
        return self.dispatched(*args, backends.asked_for_in_graph())

    def _direct(self, tensors: Sequence[Tensor], args: Arguments) -> Sequence[Tensor]:
        save = wants_gradient(tensors)
        backend, run = self.plan(save, args)
        if save:
            return _record(self, run, backend, args, *tensors)
        found = None if run is None else run(*tensors)
        return self.kernel(False, backend, args) if found is None else found

    def _with_gradient(self, *given: Any) -> list[Tensor]:
        """What the dispatcher calls where autograd may have to record the op."""
        args = given[:-1]
        tensors = [t for arg in args for t in (arg if type(arg) in (list, tuple) else [arg]) if isinstance(t, Tensor)]
        if wants_gradient(tensors):
            backend = self.choose(args, given[-1])
            run = lambda *_: self.saving(*args, backend)  # noqa: E731
            return list(_Recorded.apply(self, run, backend, args, *tensors))
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
    if is_grad_enabled():
        for t in tensors:
            if t.requires_grad:
                return True
    return False


class _Recorded(torch.autograd.Function):
    """An op with its gradient; the tensors inside ``args`` come once more for autograd to see."""

    @staticmethod
    def forward(
        ctx: Any, op: Op, run: Run | None, backend: str, args: Arguments, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        found = None if run is None else run(*tensors)
        if found is None:
            found = op.kernel(True, backend, args)
        ctx.op, ctx.backend = op, backend
        return tuple(op.save(ctx, args, found))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        return None, None, None, None, *ctx.op.backward(ctx, grads)


# `_Recorded.apply` without a look at `torch.func`'s transforms, which takes a microsecond: they never come here.
_record = super(torch.autograd.Function, _Recorded).apply


_PLAIN = (Tensor, torch.nn.Parameter)


def plain(tensors: Sequence[Tensor]) -> bool:
    """Whether nothing but autograd needs to know of the call: no compiler, tracer, mode, tensor subclass or transform
    of `torch.func`."""
    for t in tensors:
        if type(t) not in _PLAIN:
            return False
    return not (
        is_compiling()
        or _are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or _len_torch_dispatch_stack()
        or _is_torch_function_mode_enabled()
        or _get_tracing_state() is not None
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
    return _are_functorch_transforms_active() or forward_ad._current_level >= 0


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
