"""One layer step by step, for networks that make a step's input of the output before it.

The op for a whole sequence cannot run such a network, and called once a step it would pack all weights and add up all
their gradients in every step. Here both happen once, around the steps:

    parameters -> _Share -> step -> step -> ... -> step

`_Share` gives each step one tensor that stands for all parameters. A step's backward gives it no gradient, but leaves
to the engine what the parameters' gradients are made of. Autograd runs the backward of `_Share` after those of all
steps: there they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import backends, reference
from ..engine import BackwardPass, PreparedLayer, RecurrentArguments
from ..formula import Recurrence
from ._bind import gradients_of_equations, plain, transforming
from ._recurrent import cast_by_autocast, recurrent
from ._recurrent_op import check


class Steps:
    """One layer in one direction, a step a call.

    Args:
        params: in the order of ``parameter_names``. They must not change while the steps are taken.
        recurrence: the equations.
        encoded: ``recurrence.encode()``, which torch.compile could not find by itself.
        watched: the tensors of which ``params`` were made, if they were.
    """

    def __init__(
        self, params: Sequence[Tensor], recurrence: Recurrence, encoded: str, watched: Sequence[Tensor] | None = None
    ) -> None:
        self.recurrence, self.encoded = recurrence, encoded
        watched = (
            [] if torch.compiler.is_compiling() else params if watched is None else watched
        )  # a graph has no versions
        self.watched = [t for t in watched if not t.is_inference()]
        self.versions = [t._version for t in self.watched]
        _, _, self.params = cast_by_autocast(params[0], [], params)
        self.trained = any(p.requires_grad for p in self.params)
        self.shared: Tensor | None = None
        self.layer: PreparedLayer | None = None
        self.passes: dict[int, BackwardPass] = {}
        self.checked: list[tuple[torch.Size, torch.dtype, torch.device]] = []

    def __call__(self, input: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
        """From (B, I) and the state before the step, h (B, P) and in an LSTM c (B, H), to the state after it.

        Raises:
            RuntimeError: a shape, type or device does not fit, or the parameters have been changed.
        """
        self.check_versions()
        input, state, _ = cast_by_autocast(input, state, [])
        if not plain([input, *state]) or not plain(self.params) or transforming():
            return recurrent(input.unsqueeze(0), state, self.params, self.encoded)[1]
        kinds = [(t.shape, t.dtype, t.device) for t in (input, *state)]
        if kinds != self.checked:
            check(RecurrentArguments(input.unsqueeze(0), state, self.params, None, None, self.recurrence, False))
            self.checked = kinds
        if self.layer is None:
            engine = backends.engine(backends.choose("steps", input, self.encoded))
            self.layer = engine.prepare(self.params, self.recurrence)
        if torch.is_grad_enabled() and (self.trained or input.requires_grad or any(s.requires_grad for s in state)):
            if self.shared is None:
                self.shared = _Share.apply(self, *self.params)
            return list(_Step.apply(self, self.shared, input, *state))
        return self.layer.forward(input, state, False)[0]

    def check_versions(self) -> None:
        """That no parameter has been changed in place.

        Raises:
            RuntimeError: one has.
        """
        if [t._version for t in self.watched] != self.versions:
            raise RuntimeError(
                f"{self.recurrence.network.lower()}: the parameters have been changed since the stepper was made; "
                "make a new one with stepper()"
            )

    def backward_pass(self) -> BackwardPass:
        """The one of the backward that autograd runs now."""
        assert self.layer is not None
        assert self.shared is not None
        share = self.shared.grad_fn
        if share is None or not torch._C._will_engine_execute_node(share):  # no parameter's gradient is asked for
            return self.layer.backward_pass()
        task = torch._C._current_graph_task_id()
        if task not in self.passes:
            self.passes[task] = self.layer.backward_pass()
        return self.passes[task]


class _Share(torch.autograd.Function):
    """A tensor that stands for all parameters, side by side, and holds no number; backward, their gradients."""

    @staticmethod
    def forward(ctx: Any, steps: Steps, *params: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.steps = steps
        return params[0].new_empty(()).expand(sum(p.numel() for p in params))

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        steps = ctx.steps
        found = steps.passes.pop(torch._C._current_graph_task_id(), None)
        if found is not None:
            return None, *found.gradients()
        if grad is None:
            return None, *(None for _ in steps.params)
        parts = grad.split([p.numel() for p in steps.params])  # every step was differentiated by plain equations
        return None, *(part.view_as(p) for part, p in zip(parts, steps.params, strict=True))


class _Step(torch.autograd.Function):
    """One step: what stands for the parameters, the input and the state to the state after it."""

    @staticmethod
    def forward(ctx: Any, steps: Steps, shared: Tensor, input: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        assert steps.layer is not None
        after, saved = steps.layer.forward(input, state, True)
        ctx.steps, ctx.n = steps, 1 + len(state)
        ctx.save_for_backward(input, *state, *saved)
        return tuple(after)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        steps, n = ctx.steps, ctx.n
        steps.check_versions()
        input, *rest = ctx.saved_tensors
        state, saved = rest[: n - 1], rest[n - 1 :]
        if torch.is_grad_enabled() or transforming():
            inputs = [input, *state, *steps.params]
            found = gradients_of_equations(_equations(steps.recurrence, n), inputs, grads)
            return None, torch.cat([g.flatten() for g in found[n:]]), *found[:n]
        return None, None, *steps.backward_pass().step(input, state, saved, grads)


def _equations(recurrence: Recurrence, n: int) -> Callable[..., list[Tensor]]:
    """A step as plain equations of its input and state, ``n`` tensors, and its parameters."""

    def equations(*tensors: Tensor) -> list[Tensor]:
        split = (tensors[0].unsqueeze(0), tensors[1:n], tensors[n:])
        return reference.recurrent_equations(RecurrentArguments(*split, None, None, recurrence, False))[1:]

    return equations
