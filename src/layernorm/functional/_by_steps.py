"""A whole sequence, one step after the other in Python: for changes of the state between steps, which no engine makes.

Each step runs on the engine that covers it, with the layer's weights prepared once (`Steps`). A GRU with recurrent
dropout is different: W_hh reads h with dropout, but the step also carries h on without it. Only the plain equations
have that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..engines import reference
from ..engines.checks import check_recurrent
from ..engines.dispatch import below_autocast
from ..engines.protocol import RecurrentArguments
from ..engines.schedule import StateChanges, make_schedule, reorder_steps, stack_output, walk
from ..formula import Recurrence
from ._recurrent import cast_by_autocast
from ._steps import Steps


def recurrent_by_steps(
    input: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    recurrence: Recurrence,
    encoded: str,
    changes: StateChanges,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """Computes `recurrent` with the changes of ``changes``: output and final state.

    ``encoded`` is ``recurrence.encode()``.
    """
    input, state, params = cast_by_autocast(input, state, params)
    a = RecurrentArguments(input, state, params, lengths, reset, recurrence, reverse)
    check_recurrent(a)
    by_equations = changes.dropout is not None and recurrence.network == "GRU"
    output, *final = reference.equations_with_changes(a, changes) if by_equations else _take_steps(a, encoded, changes)
    return output, final


@below_autocast
def _take_steps(a: RecurrentArguments, encoded: str, changes: StateChanges) -> list[Tensor]:
    """Returns [output, *final state], computed in float32 or wider and rounded at the end."""
    compute_type = torch.promote_types(a.input.dtype, torch.float32)
    T, schedule = a.input.shape[0], make_schedule(a.input.shape[0], a.lengths, a.reset, a.reverse)
    x = reorder_steps(a.input.to(compute_type), a.lengths, a.reverse)
    steps = (x if schedule.active is None else torch.where(schedule.active, x, 0.0)).unbind()
    take_step = Steps([p.to(compute_type) for p in a.params], a.recurrence, encoded)
    initial = tuple(s.to(compute_type) for s in a.state)
    states = walk(lambda t, old: tuple(take_step(steps[t], old, changes.dropout)), initial, T, schedule, changes)
    output = stack_output(states, schedule, a.lengths, a.reverse)
    return [tensor.to(a.input.dtype) for tensor in (output, *states[-1])]
