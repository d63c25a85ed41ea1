"""How an op is bound to torch: its engine, its fake, its gradient.

An op is a `torch.library` op, which `torch.compile`, `torch.export`, tensor subclasses and dispatch modes see. A call
on plain tensors goes past the dispatcher, straight to the engine: for a small op that is most of the time. Both ways
ask the same engine and have the same backward.

The engine is chosen where an op runs. What one engine saves for the backward no other can read, so the two ops inside
the gradient are told its name. A graph made by `torch.export` holds the op itself, and names no engine.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, is_grad_enabled
from torch._C import (
    _are_functorch_transforms_active,
    _is_torch_function_mode_enabled,
    _is_tracing,
    _len_torch_dispatch_stack,
)
from torch._C._profiler import _RecordFunctionFast
from torch.autograd import forward_ad, profiler
from torch.compiler import is_dynamo_compiling

from .. import backends
from ..formula import Recurrence
from ._flops import give_formulas

Arguments = tuple[Any, ...]
"""An op's arguments as an engine takes them: `NormArguments` or `RecurrentArguments`, and what else it is given."""

R = TypeVar("R", bound=Callable[..., Any])


def constant_in_graph(function: R) -> R:
    """Makes torch.compile call a function once and keep the result; none of its arguments is a tensor.

    `torch.compiler.assume_constant_result` does the same, but imports torch._dynamo, which takes a second.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


new_tuple = tuple.__new__  # makes a named tuple in half of the time that its class takes


class Op(abc.ABC):
    """``layernorm::NAME``, a differentiable op that returns a list of tensors, and the two ops of its gradient.

    Its last argument ``backend`` names an engine or is None: then the op chooses where it runs.
    ``layernorm::NAME_forward`` returns also what is saved. It and ``layernorm::NAME_backward`` must be given the
    engine's name, and call the engine's functions of the same names.

    Attributes:
        name: NAME.
        arguments: the schema of what both directions are given, up to the last comma.
        forward, backward: the schemas of what else each of them is given, likewise.
    """

    name: ClassVar[str]
    arguments: ClassVar[str]
    forward: ClassVar[str]
    backward: ClassVar[str]

    def __init__(self) -> None:
        self._forward, self._backward = f"{self.name}_forward", f"{self.name}_backward"
        forward, backward = f"{self.arguments}{self.forward}", f"{self.arguments}{self.backward}"
        self._saving = _define(
            self._forward,
            f"({forward}str backend)",
            lambda *flat: self._run_engine(flat[-1], self._forward, (*self.engine_arguments(flat[:-1]), True)),
            lambda *flat: self._fake_with_saved(flat[-1], self.engine_arguments(flat[:-1])),
        )
        self._dispatched = _define(
            self.name,
            f"({forward}str? backend)",
            lambda *flat: self._run_chosen(flat[-1], self.engine_arguments(flat[:-1])),
            lambda *flat: self._fake_with_saved(None, self.engine_arguments(flat[:-1])),
        )
        self._dispatched_backward = _define(
            self._backward,
            f"({backward}str backend)",
            lambda *flat: self._run_engine(flat[-1], self._backward, self.engine_arguments(flat[:-1])),
            lambda *flat: list(map(empty_like, self.engine_arguments(flat[:-1])[0].differentiable)),
        )
        torch.library.impl(f"layernorm::{self.name}", "Autograd")(self._with_gradient)

    @abc.abstractmethod
    def engine_arguments(self, flat: Arguments) -> Arguments:
        """Returns an engine's arguments, from those of a schema."""

    @abc.abstractmethod
    def schema_arguments(self, args: Arguments) -> Arguments:
        """Returns the arguments of a schema, from an engine's: the reverse of `engine_arguments`."""

    @abc.abstractmethod
    def fake(self, *args: Any) -> list[Tensor]:
        """Makes empty tensors like the results, for `torch.compile`; checks its arguments."""

    @abc.abstractmethod
    def equations(self, *args: Any) -> list[Tensor]:
        """Computes the results by plain equations, for `torch.func`; checks its arguments."""

    def decomposition(self, *flat: Any) -> list[Tensor]:
        """Computes the results by plain equations, for a graph that is to hold nothing else; the arguments of
        ``layernorm::NAME``."""
        return self.equations(*self.engine_arguments(flat[:-1]))

    @abc.abstractmethod
    def save(self, ctx: Any, args: Arguments, results: Sequence[Tensor]) -> Sequence[Tensor]:
        """Puts what the backward needs into a context, and returns the results without what is saved."""

    @abc.abstractmethod
    def gradients(self, ctx: Any, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Computes the gradients of the tensors among the arguments, in order, from those of the results."""

    def __call__(
        self, tensors: Sequence[Tensor], args: Arguments, recurrence: Recurrence | None = None, profiled: bool = False
    ) -> Sequence[Tensor]:
        """Computes the results, where nothing but autograd needs to know of the call (`is_eager`); ``tensors`` are
        those among ``args``, in order. ``profiled``: the profiler's event for this call is already open."""
        if profiler._is_profiler_enabled and not profiled:
            with profiler_event(self.name, tensors):
                return self(tensors, args, recurrence, True)
        x = tensors[0]
        if x.is_cpu:  # as in `backends.choose`, to save a function call
            backend, engine = backends.choose_for(self.name, backends.CPU, x.dtype, backends.asked_for(), recurrence)
        else:
            backend, engine = backends.choose(self.name, x, recurrence, args[0].widths)
        run = getattr(engine, self._forward)
        if is_grad_enabled() and any_requires_grad(tensors):
            return record(self, run, backend, args, *tensors)
        return run(*args, False)

    def dispatch(self, flat: Arguments) -> Sequence[Tensor]:
        """Computes the results where something else needs to know of the call."""
        _tell_modes()
        if is_transforming():
            return self.equations(*self.engine_arguments(flat))
        return self._dispatched(*flat, backends.asked_for_in_graph())

    def run_backward(self, tensors: Sequence[Tensor], backend: str, args: Arguments) -> Sequence[Tensor]:
        """Computes the gradients by an engine; ``tensors`` are those among ``args``."""
        if not is_eager(tensors):
            _tell_modes()
            return self._dispatched_backward(*self.schema_arguments(args), backend)
        if profiler._is_profiler_enabled:
            with profiler_event(self._backward, tensors):
                return self._run_engine(backend, self._backward, args)
        return self._run_engine(backend, self._backward, args)

    def _with_gradient(self, *given: Any) -> Sequence[Tensor]:
        """Computes the results, and makes autograd record the op where it has to. The dispatcher calls this."""
        flat = given[:-1]
        tensors = [t for arg in flat for t in (arg if type(arg) in (list, tuple) else [arg]) if isinstance(t, Tensor)]
        if is_grad_enabled() and any_requires_grad(tensors):
            args = self.engine_arguments(flat)
            backend = self._choose(args, given[-1])
            run = lambda *_: self._saving(*flat, backend)  # noqa: E731
            return list(_Recorded.apply(self, run, backend, args, *tensors))
        with torch._C._AutoDispatchBelowAutograd():
            return self._dispatched(*given)

    def _choose(self, args: Arguments, backend: str | None) -> str:
        a = args[0]
        return backends.choose(self.name, a.input, getattr(a, "recurrence", None), a.widths, backend).name

    def _run_chosen(self, backend: str | None, args: Arguments) -> Sequence[Tensor]:
        return self._run_engine(self._choose(args, backend), self._forward, (*args, False))

    def _run_engine(self, backend: str, function: str, args: Arguments) -> Sequence[Tensor]:
        return getattr(backends.engine(backend), function)(*args)

    def _fake_with_saved(self, backend: str | None, args: Arguments) -> list[Tensor]:
        """Returns `fake` with what this engine saves. None: nothing is saved."""
        results = self.fake(*args)
        return results if backend is None else [*results, *self._run_engine(backend, f"{self.name}_saved", args[:1])]


def _define(name: str, schema: str, kernel: Callable[..., Sequence[Tensor]], fake: Callable[..., list[Tensor]]) -> Any:
    """Defines an op of torch's, and returns it."""
    torch.library.define(f"layernorm::{name}", f"{schema} -> Tensor[]")
    torch.library.impl(f"layernorm::{name}", "CompositeExplicitAutograd")(kernel)
    torch.library.register_fake(f"layernorm::{name}")(fake)
    return getattr(torch.ops.layernorm, name)


def empty_like(tensor: Tensor) -> Tensor:
    """Returns an empty tensor of the same shape and type, in order in memory."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def profiler_event(name: str, tensors: Sequence[Tensor]) -> AbstractContextManager[None]:
    """Opens an op's row in what a profiler shows, with the shapes of these tensors. The dispatcher writes one for its
    own calls; it is entered only where a profiler runs, because to enter costs a microsecond."""
    return _RecordFunctionFast(f"layernorm::{name}", list(tensors))


def any_requires_grad(tensors: Sequence[Tensor]) -> bool:
    """Says whether autograd records what is done with these tensors, where it is enabled."""
    for t in tensors:  # noqa: SIM110 - `any` takes three times as long
        if t.requires_grad:
            return True
    return False


class _Recorded(torch.autograd.Function):
    """An op with its gradient; the tensors inside ``args`` come once more for autograd to see."""

    @staticmethod
    def forward(
        ctx: Any, op: Op, run: Callable[..., Sequence[Tensor]], backend: str, args: Arguments, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.op, ctx.backend = op, backend
        return tuple(op.save(ctx, args, run(*args, True)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        return None, None, None, None, *ctx.op.gradients(ctx, grads)


# `_Recorded.apply` without a look at `torch.func`'s transforms, which takes a microsecond: they never come here.
record = super(torch.autograd.Function, _Recorded).apply


EAGER_TYPES = frozenset((Tensor, torch.nn.Parameter))


def is_eager(tensors: Sequence[Tensor]) -> bool:
    """Says whether nothing but autograd needs to know of the call: no compiler, tracer, mode, tensor subclass or
    transform of `torch.func`."""
    for t in tensors:
        if type(t) not in EAGER_TYPES:
            _refuse_expanded(t)
            return False
    return not (
        is_dynamo_compiling()
        or _are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or _len_torch_dispatch_stack()
        or _is_torch_function_mode_enabled()
        or _is_tracing()
    )


def _refuse_expanded(tensor: Tensor) -> None:
    """Refuses a weight of torch's per-sample gradients, which know a fixed list of torch's own functions.

    Raises:
        RuntimeError: it is one.
    """
    if type(tensor).__name__ == "ExpandedWeight":
        raise RuntimeError(
            "layernorm: per-sample gradients by ExpandedWeights (torch.nn.utils, Opacus) cannot look into this op; "
            "take torch.func.vmap(torch.func.grad(...))"
        )


def _tell_modes() -> None:
    """Gives modes that count operations the formulas for layernorm's ops."""
    if not is_dynamo_compiling() and _len_torch_dispatch_stack():
        give_formulas()


def autocast_type(tensor: Tensor) -> torch.dtype | None:
    """Returns the type that autocast asks for where this tensor is; ``None`` outside of autocast."""
    device = "cpu" if tensor.is_cpu else tensor.device.type
    if (device == "cpu" or torch.amp.is_autocast_available(device)) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None


def is_transforming() -> bool:
    """Says whether the call runs inside `torch.func.vmap`, ``grad``, ``jvp``... or in forward mode: ops of
    `torch.library` cannot take part in all of these, plain torch operations can."""
    return _are_functorch_transforms_active() or forward_ad._current_level >= 0


def gradients_of_equations(
    equations: Callable[..., list[Tensor]], inputs: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> list[Tensor]:
    """Computes the vector-Jacobian product of plain equations, which can be differentiated itself."""
    results, vjp = torch.func.vjp(equations, *inputs)  # type: ignore[misc]
    return list(vjp([torch.zeros_like(r) if g is None else g for r, g in zip(results, grads, strict=True)]))
