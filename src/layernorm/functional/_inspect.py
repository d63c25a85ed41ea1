"""`inspect`: what each normalisation of a layer is given."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .. import reference
from ..engine import RecurrentArguments
from ..formula import Recurrence
from ..reference import PLACES as PLACES
from ..reference import Inspected as Inspected


def inspect(
    input: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    recurrence: Recurrence,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reverse: bool = False,
) -> Inspected:
    """The vectors that the normalisations of one layer in one direction divide by their deviation.

    Args:
        input, state, params, lengths, reset, reverse: as in `recurrent`.
        recurrence: the equations.

    Returns:
        `Inspected`.
    """
    initial, weights = ([t.detach() for t in tensors] for tensors in (state, params))
    return reference.inspect(RecurrentArguments(input.detach(), initial, weights, lengths, reset, recurrence, reverse))
