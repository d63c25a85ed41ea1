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
        *own, restart, dropout, kept_h, kept_c, sizes, population, recurrence, reverse, count_padding = flat[:14]
        input, state, params, lengths, reset = own
        kept = () if kept_h is None and kept_c is None else (kept_h, kept_c)[: len(state)]
        changes = StateChanges(restart, dropout, kept)
        changes = changes if tensors_between(changes) else NO_CHANGES
        kind = Recurrence.decode(recurrence), reverse, changes, sizes, population, count_padding
        return RecurrentArguments(input, state, params, lengths, reset, *kind), *flat[14:]

    def schema_arguments(self, args: Arguments) -> Arguments:
        (*tensors, recurrence, reverse, changes, batch_sizes, population, count_padding), *rest = args
        masks = *schema_changes(changes), batch_sizes, population
        return *tensors, *masks, recurrence.encode(), reverse, count_padding, *rest

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
        input, state, params, lengths, reset, recurrence, reverse, changes, sizes, population, count_padding = args[0]
        (restart, dropout, kept), n = changes, 1 + len(state)
        ends = n, n + len(params), n + len(params) + len(restart), -4 - len(kept) - len(population)
        ctx.call = recurrence, reverse, changes is NO_CHANGES, count_padding, len(kept), ends
        masks = lengths, reset, dropout, *kept, sizes, *population
        ctx.save_for_backward(input, *state, *params, *restart, *results[n:], *masks)
        if args[0].finds_moments:
            found = 2 * len(recurrence.gain_names)
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
            own = tensors[0], tensors[1:n], tensors[n:m]
            kind: Arguments = recurrence, reverse, changes, sizes, population, count_padding
            return RecurrentArguments(*own, lengths, reset, *kind)

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
