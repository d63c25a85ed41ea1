"""Batch norm in a recurrent network: a layer that finds moments over the training cases, or is given a population's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import backends
from ..equations import recurrent as equations_of
from ..equations.arguments import NO_CHANGES, RecurrentArguments, StateChanges
from ..equations.batch_norm import BatchMoments as BatchMoments
from ..equations.batch_norm import Moments as Moments
from ..equations.recurrent import check_cases, count_cases
from ..equations.schedule import lines_of, make_schedule, reorder_steps, unpacked
from ..formula import Recurrence
from ._bind import any_requires_grad, autocast_type, gradients_of_equations, is_eager, is_transforming, record
from ._recurrent import cast_by_autocast, cast_projected, type_under_autocast, with_products
from ._recurrent_op import tensors_between


def recurrent_over_cases(
    input: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    equations: Recurrence,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
    population: Mapping[str, Moments] | None = None,
    count_padding: bool = False,
    changes: StateChanges = NO_CHANGES,
    batch_sizes: Tensor | None = None,
) -> tuple[Tensor, list[Tensor], BatchMoments | None]:
    """Computes `recurrent` under batch norm.

    Args:
        population: for each gain the mean and variance (T, n) to normalise by, in any floating type. ``None``: the
            batch's own.
        count_padding: whether a row that has ended counts in the batch's statistics, with the input 0 and its final
            state.

    Returns:
        output, final state, and the batch's statistics, or ``None`` with ``population``.

    Raises:
        ValueError: fewer than two cases to take statistics over.
    """
    autocast = autocast_type(input)
    if autocast is not None:
        dtype = type_under_autocast(equations.network, autocast, state)
        input, state, params, changes = cast_by_autocast(input, state, params, changes, dtype)
    if population is not None:  # a module keeps it in any type, and an engine computes in one
        compute_type = torch.promote_types(input.dtype, torch.float32)
        population = {gain: (mean.to(compute_type), var.to(compute_type)) for gain, (mean, var) in population.items()}
    given = None if population is None else [m for gain in equations.gain_names for m in population[gain]]
    a = RecurrentArguments(input, state, params, lengths, reset, equations, reverse, changes, batch_sizes)
    if batch_sizes is not None and count_padding:  # rows that have ended take steps, too
        times, rows = (index.to(input.device) for index in lines_of(batch_sizes, len(input)))
        a = unpacked(a)
        padded = a.lengths, a.reset, reverse, population, count_padding, a.changes
        output, final, batch = recurrent_over_cases(a.input, state, params, equations, *padded)
        return output[times, rows], final, batch
    if not is_eager(_tensors(a, given)) or backends.choose("recurrent", input).name != "native":
        (output, *final), batch = equations_of.recurrent_over_cases(a, population, count_padding)
        return *((output, final) if autocast is None else cast_projected(output, final, autocast)), batch
    check_cases(a, population is None, count_padding)
    if input.dtype is torch.float32:
        a = a._replace(recurrence=Recurrence.decode(with_products(equations.encode(), autocast)))
    if reverse:  # the kernels count each row's steps as they are taken
        cut = make_schedule(a).cut
        cut = None if cut is None else cut.view(a.lines)
        a = a._replace(input=reorder_steps(input, a), reset=cut, reverse=False)
    output, *results = _CASES(a, given, count_padding)
    n, batch = len(state), None
    if population is None:
        counts = count_cases(a, count_padding)
        batch = BatchMoments(counts, _by_gain(equations, results[n:]))
    output, final = reorder_steps(output, a._replace(reverse=reverse)), [*results[:n]]
    return *((output, final) if autocast is None else cast_projected(output, final, autocast)), batch


def _by_gain(equations: Recurrence, moments: Sequence[Tensor]) -> dict[str, Moments]:
    """Returns mean and variance of each gain, from these in a row."""
    return dict(zip(equations.gain_names, zip(moments[::2], moments[1::2], strict=True), strict=True))


def _tensors(a: RecurrentArguments, population: Sequence[Tensor] | None) -> list[Tensor]:
    """Returns the tensors of a call: first those with gradients."""
    masks = a.lengths, a.reset, a.changes.dropout, *a.changes.kept, a.batch_sizes
    return [*a.differentiable, *(t for t in masks if t is not None), *(population or ())]


class _OverCases:
    """[output (T, B, P), *final state, *moments of each gain that were found], with the gradient of all but these."""

    def __call__(
        self, a: RecurrentArguments, population: Sequence[Tensor] | None, count_padding: bool
    ) -> Sequence[Tensor]:
        engine: Any = backends.engine("native")
        tensors = _tensors(a, population)
        if torch.is_grad_enabled() and any_requires_grad(tensors):
            return record(self, engine.cases_forward, "native", (a, population, count_padding), *tensors)
        results: Sequence[Tensor] = engine.cases_forward(a, population, count_padding, False)
        return results

    def save(self, ctx: Any, args: tuple[Any, ...], results: Sequence[Tensor]) -> Sequence[Tensor]:
        (a, population, count_padding), n = args, 1 + len(args[0].state)
        found = results[n:-1] if population is None else ()
        ctx.mark_non_differentiable(*found)
        ctx.equations, ctx.given, ctx.count_padding = a.recurrence, population is not None, count_padding
        ctx.sizes = n, n + len(a.params), len(a.differentiable), len(a.changes.kept)
        masks = a.lengths, a.reset, a.changes.dropout, *a.changes.kept, a.batch_sizes
        moments = population or found
        ctx.save_for_backward(*a.differentiable, *masks, *moments, results[-1])
        return results[:-1]

    def gradients(self, ctx: Any, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        n, m, end, shares = ctx.sizes
        saved = ctx.saved_tensors
        inputs, masks, saved = saved[:end], saved[end : end + 4 + shares], saved[end + 4 + shares :]
        lengths, reset, dropout, *kept, sizes = masks

        def arguments(*tensors: Tensor) -> RecurrentArguments:
            changes = StateChanges(tensors[m:], dropout, kept)
            changes = changes if tensors_between(changes) else NO_CHANGES
            own = tensors[0], tensors[1:n], tensors[n:m]
            return RecurrentArguments(*own, lengths, reset, ctx.equations, False, changes, sizes)

        def equations(*tensors: Tensor) -> list[Tensor]:
            population = _by_gain(ctx.equations, saved[:-1]) if ctx.given else None
            return equations_of.recurrent_over_cases(arguments(*tensors), population, ctx.count_padding)[0]

        if torch.is_grad_enabled() or is_transforming():
            d_inputs: Sequence[Tensor] = gradients_of_equations(equations, inputs, grads[:n])
        else:
            engine: Any = backends.engine("native")
            kind = ctx.given, ctx.count_padding
            d_inputs = engine.cases_backward(arguments(*inputs), *kind, saved, grads[0], grads[1:n])
        others = [*(t for t in masks if t is not None), *(saved[:-1] if ctx.given else ())]
        return [*d_inputs, *(None for _ in others)]


_CASES = _OverCases()
