"""One layer's normalisations, looked at: what each of them is given."""

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
    """What the normalisations of one layer in one direction divide by their deviation; arguments as `recurrent`'s."""
    before, given = ([t.detach() for t in tensors] for tensors in (state, params))
    return reference.inspect(RecurrentArguments(input.detach(), before, given, lengths, reset, recurrence, reverse))
