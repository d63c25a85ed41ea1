"""The op behind `rnn`, `lstm` and `gru`, with its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..engines import reference
from ..engines.checks import check_recurrent, check_tensors
from ..engines.protocol import RecurrentArguments
from ..formula import Recurrence
from ._bind import Arguments, Op, gradients_of_equations, is_transforming


class _Recurrent(Op):
    """[output (T, B, P), *final state]."""

    name = "recurrent"
    arguments = (
        "Tensor input, Tensor[] state, Tensor[] params, Tensor? lengths, Tensor? reset, str recurrence, bool reverse, "
    )
    forward = ""
    backward = "Tensor[] saved, Tensor? grad_output, Tensor?[] grad_state, "

    def engine_arguments(self, flat: Arguments) -> Arguments:
        input, state, params, lengths, reset, recurrence, reverse, *rest = flat
        equations = Recurrence.decode(recurrence)
        return RecurrentArguments(input, state, params, lengths, reset, equations, reverse), *rest

    def schema_arguments(self, args: Arguments) -> Arguments:
        (*tensors, recurrence, reverse), *rest = args
        return *tensors, recurrence.encode(), reverse, *rest

    def fake(self, a: RecurrentArguments) -> list[Tensor]:
        check_tensors(a)
        output = a.input.new_empty(*a.input.shape[:2], a.params[1].shape[1])
        return [output, *(s.new_empty(s.shape) for s in a.state)]

    def equations(self, a: RecurrentArguments) -> list[Tensor]:
        check_recurrent(a)
        return reference.recurrent_equations(a)

    def save(self, ctx: Any, args: Arguments, results: Sequence[Tensor]) -> Sequence[Tensor]:
        input, state, params, lengths, reset, *ctx.rest = args[0]
        ctx.states, ctx.params = len(state), len(params)
        ctx.save_for_backward(lengths, reset, input, *state, *params, *results[1 + len(state) :])
        return results[: 1 + len(state)]

    def gradients(self, ctx: Any, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        lengths, reset, *tensors = ctx.saved_tensors
        n = 1 + ctx.states
        inputs, saved = tensors[: n + ctx.params], tensors[n + ctx.params :]

        def arguments(*tensors: Tensor) -> RecurrentArguments:
            return RecurrentArguments(tensors[0], tensors[1:n], tensors[n:], lengths, reset, *ctx.rest)

        def equations(*tensors: Tensor) -> list[Tensor]:
            return reference.recurrent_equations(arguments(*tensors))

        if torch.is_grad_enabled() or is_transforming():
            d_inputs: list[Tensor | None] = [*gradients_of_equations(equations, inputs, grads)]
        else:
            given = [*tensors, *[g for g in grads if g is not None]]
            d_inputs = [*self.run_backward(given, ctx.backend, (arguments(*inputs), saved, grads[0], grads[1:]))]
        return d_inputs + [None for mask in (lengths, reset) if mask is not None]


RECURRENT = _Recurrent()
