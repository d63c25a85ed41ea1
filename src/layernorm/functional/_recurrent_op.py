"""The op behind `rnn`, `lstm` and `gru`, with its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..equations.arguments import NO_CHANGES, RecurrentArguments, StateChanges
from ..equations.checks import check_lengths, check_recurrent, check_tensors
from ..equations.recurrent import recurrent_equations
from ..formula import Recurrence
from ._bind import Arguments, Op, gradients_of_equations, is_transforming


class _Recurrent(Op):
    """[output (T, B, P), *final state], and the moments that batch norm has found, which have no gradient: mean and
    variance (T, n) of each gain. In a packed call the output is (lines, P)."""

    name = "recurrent"
    arguments = (
        "Tensor input, Tensor[] state, Tensor[] params, Tensor? lengths, Tensor? reset, "
        "Tensor[] restart, Tensor? dropout, Tensor? kept_h, Tensor? kept_c, Tensor? batch_sizes, Tensor[] population, "
        "str recurrence, bool reverse, bool count_padding, "
    )
    forward = ""
    backward = "Tensor[] saved, Tensor? grad_output, Tensor?[] grad_state, "

    def engine_arguments(self, flat: Arguments) -> Arguments:
        input, state, params, lengths, reset, restart, dropout, kept_h, kept_c, batch_sizes, population = flat[:11]
        recurrence, reverse, count_padding = flat[11:14]
        kept = () if kept_h is None and kept_c is None else (kept_h, kept_c)[: len(state)]
        changes = StateChanges(restart, dropout, kept)
        changes = changes if tensors_between(changes) else NO_CHANGES
        equations = Recurrence.decode(recurrence)
        a = RecurrentArguments(
            input, state, params, lengths, reset, equations, reverse, changes, batch_sizes, population, count_padding
        )
        return a, *flat[14:]

    def schema_arguments(self, args: Arguments) -> Arguments:
        a, *rest = args
        own = a.input, a.state, a.params, a.lengths, a.reset, *schema_changes(a.changes)
        return *own, a.batch_sizes, a.population, a.recurrence.encode(), a.reverse, a.count_padding, *rest

    def fake(self, a: RecurrentArguments) -> list[Tensor]:
        check_tensors(a)
        output = a.input.new_empty(*a.lines, a.params[1].shape[1])
        return [output, *(s.new_empty(s.shape) for s in a.state), *a.new_moments()]

    def equations(self, a: RecurrentArguments) -> list[Tensor]:
        check_recurrent(a)
        return recurrent_equations(a)

    def decomposition(self, *flat: Any) -> list[Tensor]:
        (a,) = self.engine_arguments(flat[:-1])
        if a.batch_sizes is not None:
            network = a.recurrence.network
            raise ValueError(f"{network}: a PackedSequence has no plain operations; call the module with lengths=")
        check_tensors(a)
        T = a.input.shape[0]
        if not isinstance(T, int):
            raise ValueError(
                f"{a.recurrence.network.lower()}: plain operations are those of every step, so that the number of "
                f"time steps must be fixed; export the model without a dynamic dimension for it, got T={T}"
            )
        if a.lengths is not None:
            check_lengths(a.lengths, T, in_graph=True)
        return recurrent_equations(a)

    def save(self, ctx: Any, args: Arguments, results: Sequence[Tensor]) -> Sequence[Tensor]:
        a: RecurrentArguments = args[0]
        if a.recurrence.quantized:  # in a graph that was exported, nothing has asked before
            network = a.recurrence.network.lower()
            raise RuntimeError(
                f"{network}: a quantized network is for inference, got a tensor that requires grad; "
                "call it under torch.no_grad()"
            )
        (restart, dropout, kept), n = a.changes, 1 + len(a.state)
        ends = n, n + len(a.params), n + len(a.params) + len(restart), -4 - len(kept) - len(a.population)
        ctx.call = a.recurrence, a.reverse, a.changes is NO_CHANGES, a.count_padding, len(kept), ends
        masks = a.lengths, a.reset, dropout, *kept, a.batch_sizes, *a.population
        ctx.save_for_backward(a.input, *a.state, *a.params, *restart, *results[n:], *masks)
        if a.finds_moments:
            found = 2 * len(a.recurrence.gain_names)
            ctx.mark_non_differentiable(*results[n : n + found])
            n += found
        return results[:n]

    def gradients(self, ctx: Any, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        recurrence, reverse, unchanged, count_padding, shares, (n, m, end, end_of_saved) = ctx.call
        everything = ctx.saved_tensors  # unpacked each time that it is asked for
        lengths, reset, dropout, *others = masks = everything[end_of_saved:]
        kept, sizes, population = others[:shares], others[shares], others[shares + 1 :]
        tensors = everything[:end_of_saved]
        inputs, saved = tensors[:end], tensors[end:]

        def arguments(*tensors: Tensor) -> RecurrentArguments:
            changes = NO_CHANGES if unchanged else StateChanges(tensors[m:], dropout, kept)
            input, state, params = tensors[0], tensors[1:n], tensors[n:m]
            return RecurrentArguments(
                input, state, params, lengths, reset, recurrence, reverse, changes, sizes, population, count_padding
            )

        def equations(*tensors: Tensor) -> list[Tensor]:
            return recurrent_equations(arguments(*tensors))

        if torch.is_grad_enabled() or is_transforming():
            d_inputs: list[Tensor | None] = [*gradients_of_equations(equations, inputs, grads)]
        else:
            given = [*tensors, *[g for g in grads if g is not None]]
            d_inputs = [*self.run_backward(given, ctx.backend, (arguments(*inputs), saved, grads[0], grads[1:n]))]
        if unchanged:
            return d_inputs + [None for mask in masks if mask is not None]
        before, after = ([None for mask in part if mask is not None] for part in (masks[:2], masks[2:]))
        return [*d_inputs[:m], *before, *d_inputs[m:], *after]


def schema_changes(changes: StateChanges) -> Arguments:
    """Returns the changes as the schema has them: `torch.jit.trace` takes no lists in which tensors may be missing."""
    return changes.restart, changes.dropout, *(*changes.kept, None, None)[:2]


def tensors_between(changes: StateChanges) -> list[Tensor]:
    """Returns the tensors of the changes that there are, in order."""
    return [t for t in (*changes.restart, changes.dropout, *changes.kept) if t is not None]


RECURRENT = _Recurrent()
