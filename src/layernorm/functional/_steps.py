"""One layer step by step, for networks that make a step's input of the output before it.

The op for a whole sequence cannot run such a network, and called once a step it would pack all weights and add up all
their gradients in every step. Here both happen once, around the steps:

    parameters -> _Share -> step -> step -> ... -> step

Each step takes the parameters from `_Share`. Its backward gives them no gradient, but leaves to the engine what their
gradients are made of. Autograd runs the backward of `_Share` after those of all steps: there they are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import backends, reference
from ..engine import BackwardPass, PreparedLayer, RecurrentArguments
from ..formula import Recurrence
from ._bind import gradients_of_equations, plain, transforming, wants_gradient
from ._recurrent import cast_by_autocast, recurrent
from ._recurrent_op import check


class Steps:
    """One layer in one direction, a step a call.

    Args:
        params: in the order of ``parameter_names``. They must not change while the steps are taken.
        recurrence: the equations, encoded.
        watched: the tensors of which ``params`` were made, if they were.
    """

    def __init__(self, params: Sequence[Tensor], recurrence: str, watched: Sequence[Tensor] | None = None) -> None:
        self.recurrence, self.encoded = Recurrence.decode(recurrence), recurrence
        self.watched = [t for t in (params if watched is None else watched) if not t.is_inference()]
        self.versions = [t._version for t in self.watched]
        _, _, self.params = cast_by_autocast(params[0], [], params)
        self.shared: tuple[Tensor, ...] | None = None
        self.layer: PreparedLayer | None = None
        self.passes: dict[int, BackwardPass] = {}

    def __call__(self, input: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
        """From (B, I) and the state before the step, h (B, P) and in an LSTM c (B, H), to the state after it.

        Raises:
            RuntimeError: a shape, type or device does not fit, or the parameters have been changed.
        """
        if [t._version for t in self.watched] != self.versions:
            raise RuntimeError(
                f"{self.recurrence.network.lower()}: the parameters have been changed since the stepper was made; "
                "make a new one with stepper()"
            )
        input, state, _ = cast_by_autocast(input, state, [])
        if not plain([input, *state, *self.params]) or transforming():
            return recurrent(input.unsqueeze(0), state, self.params, self.encoded)[1]
        a = RecurrentArguments(input.unsqueeze(0), state, self.params, None, None, self.recurrence, False)
        check(a)
        layer = self._prepared(input)
        if wants_gradient([input, *state, *self.params]):
            if self.shared is None:
                self.shared = _Share.apply(self, *self.params)
            return list(_Step.apply(self, 1 + len(state), input, *state, *self.shared))
        return layer.forward(input, state, False)[0]

    def _prepared(self, input: Tensor) -> PreparedLayer:
        if self.layer is None:
            engine = backends.engine(backends.choose("steps", input, self.encoded))
            self.layer = engine.prepare(self.params, self.recurrence)
        return self.layer

    def backward_pass(self) -> BackwardPass:
        """The one of the backward that autograd runs now."""
        assert self.layer is not None
        assert self.shared is not None
        share = self.shared[0].grad_fn
        assert share is not None
        if not torch._C._will_engine_execute_node(share):  # no parameter's gradient is asked for
            return self.layer.backward_pass()
        task = torch._C._current_graph_task_id()
        if task not in self.passes:
            self.passes[task] = self.layer.backward_pass()
        return self.passes[task]


class _Share(torch.autograd.Function):
    """The parameters for all steps; backward, their gradients from all steps."""

    @staticmethod
    def forward(ctx: Any, steps: Steps, *params: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.steps = steps
        return tuple(p.detach() for p in params)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        found = ctx.steps.passes.pop(torch._C._current_graph_task_id(), None)
        if found is None:  # every step was differentiated by plain equations
            return None, *grads
        own = found.gradients()
        return None, *(o if g is None else o + g for o, g in zip(own, grads, strict=True))


class _Step(torch.autograd.Function):
    """One step: input, state and the parameters from `_Share` to the state after it."""

    @staticmethod
    def forward(ctx: Any, steps: Steps, n: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.steps, ctx.n = steps, n
        assert steps.layer is not None
        after, saved = steps.layer.forward(tensors[0], tensors[1:n], True)
        ctx.save_for_backward(*tensors, *saved)
        ctx.given = len(tensors)
        return tuple(after)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        steps, n = ctx.steps, ctx.n
        tensors, saved = ctx.saved_tensors[: ctx.given], ctx.saved_tensors[ctx.given :]
        if torch.is_grad_enabled() or transforming():
            return None, None, *gradients_of_equations(_equations(steps.recurrence, n), tensors, grads)
        found = steps.backward_pass().step(tensors[0], tensors[1:n], saved, grads)
        return None, None, *found, *(None,) * (len(tensors) - n)


def _equations(recurrence: Recurrence, n: int) -> Any:
    """A step as plain equations of its ``n`` tensors that are no parameters, and its parameters."""

    def equations(*tensors: Tensor) -> list[Tensor]:
        split = (tensors[0].unsqueeze(0), tensors[1:n], tensors[n:])
        return reference.recurrent_equations(RecurrentArguments(*split, None, None, recurrence, False))[1:]

    return equations
