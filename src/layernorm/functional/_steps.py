"""One layer, one step a call, for networks whose output is part of their next input.

The op for a whole sequence cannot run such a network. Called once a step, it would pack all weights and add up all
their gradients in every step. Here both happen once, around the steps:

    parameters -> _StandIn -> step -> step -> ... -> step

`_StandIn` gives each step one tensor that stands for all parameters. A step's backward returns no gradient for it, but
hands the engine what the parameters' gradients are computed from. Autograd runs the backward of `_StandIn` after those
of all steps, and it computes these gradients.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import profiler

from .. import backends
from ..engines.protocol import BackwardPass, PreparedLayer
from ..equations.arguments import NO_CHANGES, RecurrentArguments, StateChanges
from ..equations.checks import check_tensors
from ..equations.recurrent import recurrent_equations
from ..formula import Recurrence
from ._autocast import cast_projected, cast_tensors, type_under_autocast
from ._bind import EAGER_TYPES, any_requires_grad, gradients_of_equations, is_eager, profiler_event
from ._recurrent import recurrent

Signatures = list[tuple[torch.Size, torch.dtype, torch.device]]


class Steps:
    """One layer in one direction, one step a call.

    The first step chooses the engine and prepares the weights.

    Args:
        params: in the order of ``parameter_names``. They must not change while the steps are taken.
        recurrence: the equations.
        autocast: the type that autocast asks for, or None.
    """

    def __init__(self, params: Sequence[Tensor], recurrence: Recurrence, autocast: torch.dtype | None) -> None:
        self.autocast = autocast
        if autocast is not None:  # one type for the states of all types that may come
            self.dtype = autocast if recurrence.network == "RNN" or not params[0].is_cpu else torch.float32
            params = cast_tensors(params, self.dtype)
        self.layer = _Layer(params, recurrence)
        self.eager = all(type(p) in EAGER_TYPES for p in self.layer.params)
        self.trained = any(p.requires_grad for p in self.layer.params)
        self.stand_in: tuple[_BackwardPasses, Tensor] | None = None
        self.checked: Signatures = []

    def __call__(self, input: Tensor, state: Sequence[Tensor], dropout: Tensor | None = None) -> list[Tensor]:
        """Takes a step, from (B, I) and the state before it, h (B, P) and in an LSTM c (B, H), to the state after it.

        ``dropout`` (B, P) is a factor of the h that W_hh reads, in float32 or wider.

        Raises:
            RuntimeError: a shape, type or device does not fit.
        """
        if self.autocast is None:
            return self._in_one_type(input, state, dropout)
        dtype = type_under_autocast(self.layer.recurrence.network, self.autocast, state)
        input, *state = cast_tensors([input, *state], self.dtype)
        after = cast_tensors(self._in_one_type(input, state, dropout), dtype)
        return cast_projected(after[0], after, self.autocast)[1]

    def _in_one_type(self, input: Tensor, state: Sequence[Tensor], dropout: Tensor | None) -> list[Tensor]:
        """Takes a step, with input and state in the type of the parameters."""
        layer = self.layer
        changes = NO_CHANGES if dropout is None else StateChanges(dropout=dropout)
        tensors = [input, *state] if dropout is None else [input, *state, dropout]
        if not self.eager or not is_eager(tensors):
            return recurrent(RecurrentArguments(input.unsqueeze(0), state, layer.params, layer.recurrence, changes))[1]
        signatures = _signatures(tensors)
        if signatures != self.checked:
            check_tensors(RecurrentArguments(input.unsqueeze(0), state, layer.params, layer.recurrence, changes))
            self.checked = signatures
        prepared = layer.prepared or self._prepare(input)
        if profiler._is_profiler_enabled:
            with profiler_event("step", tensors):
                return self._take_step(prepared, signatures, input, state, dropout)
        return self._take_step(prepared, signatures, input, state, dropout)

    def _take_step(
        self,
        prepared: PreparedLayer,
        signatures: Signatures,
        input: Tensor,
        state: Sequence[Tensor],
        dropout: Tensor | None,
    ) -> list[Tensor]:
        if torch.is_grad_enabled() and (self.trained or any_requires_grad([input, *state])):
            return list(_Step.apply(*(self.stand_in or self._stand_in()), signatures, dropout, input, *state))
        return prepared.forward(input, state, dropout, False)[0]

    def _prepare(self, input: Tensor) -> PreparedLayer:
        layer = self.layer
        widths = RecurrentArguments(input[None], (), layer.params, layer.recurrence).widths
        engine = backends.choose("steps", input, layer.recurrence, widths).engine
        with _LOCK:
            if self.layer.prepared is None:
                self.layer.prepared = engine.prepare(self.layer.params, self.layer.recurrence)
            return self.layer.prepared

    def _stand_in(self) -> tuple[_BackwardPasses, Tensor]:
        with _LOCK:
            if self.stand_in is None:
                passes = _BackwardPasses(self.layer)
                self.stand_in = passes, _StandIn.apply(passes, *self.layer.params)
            return self.stand_in


_LOCK = threading.Lock()  # several threads may take the first step


class _Layer:
    """Parameters, equations and prepared weights of a layer.

    They are apart from `Steps` so that the autograd node of `_StandIn`, which `Steps` holds, can refer to them without
    a reference cycle.
    """

    def __init__(self, params: Sequence[Tensor], recurrence: Recurrence) -> None:
        self.params, self.recurrence = params, recurrence
        self.prepared: PreparedLayer | None = None


class _BackwardPasses:
    """The backward passes of the steps of one `_StandIn`, one for each backward that autograd runs."""

    def __init__(self, layer: _Layer) -> None:
        self.layer = layer
        self.by_task: dict[int, BackwardPass] = {}
        self.watched = [p for p in layer.params if not p.is_inference()]  # inference tensors have no versions
        self.versions = [p._version for p in self.watched]

    def check_versions(self) -> None:
        """Checks that no parameter has been changed in place since the steps, as far as torch counts changes.

        Raises:
            RuntimeError: one has.
        """
        if [p._version for p in self.watched] != self.versions:
            raise RuntimeError(
                f"{self.layer.recurrence.network.lower()}: the parameters have been changed since the steps whose "
                "gradient is asked for; take the steps again"
            )

    def current(self, stand_in: Any) -> BackwardPass:
        """Returns the backward pass of the backward that runs now. ``stand_in`` is the node of `_StandIn`."""
        assert self.layer.prepared is not None
        if stand_in is None or not torch._C._will_engine_execute_node(stand_in):  # no parameter needs a gradient
            return self.layer.prepared.backward_pass()
        task = torch._C._current_graph_task_id()
        if task not in self.by_task:
            self.by_task[task] = self.layer.prepared.backward_pass()
            ended = lambda: None  # noqa: E731 - autograd keeps it until this backward has ended, or failed
            weakref.finalize(ended, self.by_task.pop, task, None)
            torch.autograd.Variable._execution_engine.queue_callback(ended)
        return self.by_task[task]


class _StandIn(torch.autograd.Function):
    """Forward: one tensor that stands for all parameters, side by side, and holds no numbers. Backward: their
    gradients."""

    @staticmethod
    def forward(ctx: Any, passes: _BackwardPasses, *params: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.passes = passes
        return params[0].new_empty(()).expand(sum(p.numel() for p in params))

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        params = ctx.passes.layer.params
        backward_pass = ctx.passes.by_task.pop(torch._C._current_graph_task_id(), None)
        sources = []
        if backward_pass is not None:
            sources.append(backward_pass.gradients())
        if grad is not None:  # from the steps that were differentiated by plain equations
            parts = grad.split([p.numel() for p in params])
            sources.append([part.view_as(p) for part, p in zip(parts, params, strict=True)])
        if not sources:
            return None, *(None for _ in params)
        return None, *(sum(terms[1:], terms[0]) for terms in zip(*sources, strict=True))


class _Step(torch.autograd.Function):
    """One step, from the tensor that stands for the parameters, the input and the state to the state after it."""

    @staticmethod
    def forward(
        ctx: Any,
        passes: _BackwardPasses,
        _: Tensor,
        signatures: Signatures,
        dropout: Tensor | None,
        input: Tensor,
        *state: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        assert passes.layer.prepared is not None
        after, saved = passes.layer.prepared.forward(input, state, dropout, True)
        ctx.passes, ctx.checked = passes, signatures
        ctx.save_for_backward(dropout, input, *state, *saved)
        return tuple(after)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        layer = ctx.passes.layer
        ctx.passes.check_versions()
        dropout, input, *rest = ctx.saved_tensors
        n = len(layer.recurrence.state_names)
        state, saved = rest[:n], rest[n:]
        found = _signatures([input, *state, *([] if dropout is None else [dropout])])
        if found != ctx.checked:  # a hook on saved tensors can replace them
            raise RuntimeError(f"expected input, state and dropout of {ctx.checked}, as saved, got {found}")
        if torch.is_grad_enabled() or not is_eager([input, *state]):
            inputs = [input, *state, *layer.params]
            d_inputs = gradients_of_equations(_equations(layer.recurrence, dropout), inputs, grads)
            return None, torch.cat([g.flatten() for g in d_inputs[1 + n :]]), None, None, *d_inputs[: 1 + n]
        backward_pass = ctx.passes.current(ctx.next_functions[0][0])
        return None, None, None, None, *backward_pass.step(input, state, dropout, saved, grads)


def _signatures(tensors: Sequence[Tensor]) -> Signatures:
    """Returns what is checked of each tensor."""
    return [(t.shape, t.dtype, t.device) for t in tensors]


def _equations(recurrence: Recurrence, dropout: Tensor | None) -> Callable[..., list[Tensor]]:
    """Makes a function that takes a step by plain equations, from input, state and parameters."""
    end, changes = 1 + len(recurrence.state_names), StateChanges(dropout=dropout)

    def equations(*tensors: Tensor) -> list[Tensor]:
        split = (tensors[0].unsqueeze(0), tensors[1:end], tensors[end:])
        return recurrent_equations(RecurrentArguments(*split, recurrence, changes))[1:]

    return equations
