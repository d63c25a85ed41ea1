"""What the normalisations of a layer would divide by, if its network computed the plain equations."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..equations.arguments import RecurrentArguments, StateChanges
from ..equations.batch_norm import moments
from ..equations.dispatch import below_autocast
from ..equations.network import Network
from ..equations.norms import centre, reciprocal_deviation
from ..equations.recurrent import network_of, parameters_by_name, scheduled_input
from ..equations.schedule import State, shares_of_lines, walk
from ..formula import Recurrence

Divisors = dict[tuple[str, int, int], tuple[Tensor, Tensor]]
"""For each normalisation, by its gain's name, its first unit and the last, exclusive: sum and number of what it divides
by. Both are (1,), under batch norm (n,), a number for each unit."""


@torch.no_grad()
@below_autocast
def sum_divisors(a: RecurrentArguments, recurrence: Recurrence) -> Divisors:
    """Sums what each normalisation of a recurrence would divide by, on the states of the plain equations.

    Steps beyond a row's length do not count. Neither do vectors without a deviation, such as W_hh h at the first step.

    Args:
        a: the call of the layer, with ``recurrence.plain`` as its equations.
        recurrence: where the normalisations sit.
    """
    x, schedule = scheduled_input(a)
    p = parameters_by_name(a.params, a.recurrence, x.dtype)
    network, from_input = network_of(p, a.recurrence), x @ p["weight_ih"].T
    biased = network.input_side(from_input)
    before: list[State] = []
    from_hidden: list[Tensor] = []

    def step(t: int, old: State, changes: StateChanges) -> State:
        before.append(old)
        from_hidden.append(changes.apply_dropout(old[0]) @ p["weight_hh"].T)
        return network.step(t, biased[t], from_hidden[t], old)

    walk(step, tuple(s.to(x.dtype) for s in a.state), len(x), schedule, shares_of_lines(a))
    if not before:
        return {}
    states = tuple(torch.stack(part) for part in zip(*before, strict=True))
    active = x.new_ones(x.shape[:2], dtype=torch.bool) if schedule.active is None else schedule.active[..., 0]
    divisors: Divisors = {}
    for gain, z in _vectors(recurrence, network, from_input, torch.stack(from_hidden), states):
        H = a.sizes[3]
        for first, last in [(0, 1)] if gain == recurrence.places.cell.gain else recurrence.spans:
            units = slice(first * H, last * H)
            divisors[gain, units.start, units.stop] = _sum_and_number(z[..., units], active, recurrence)
    return divisors


def _vectors(
    recurrence: Recurrence, plain: Network, zx: Tensor, zh: Tensor, before: State
) -> Iterator[tuple[str, Tensor]]:
    """Yields for each gain what its normalisations are given, (T, B, units), by the plain equations.

    Args:
        recurrence: where the normalisations sit.
        plain: the plain equations of the layer.
        zx, zh: W_ih x and W_hh h, (T, B, G*H).
        before: the states that the steps start from, (T, B, size) each.
    """
    s, (input, hidden, both, cell) = plain.activations(zx, zh, before), recurrence.places
    zx, zh = (z if place.inside is None else z + plain.p[place.inside] for z, place in ((zx, input), (zh, hidden)))
    if input.gain is not None:
        yield input.gain, zx
    if hidden.gain is not None:
        yield hidden.gain, zh
    if both.gain is not None:
        if recurrence.reset_multiplies == "product":
            r_and_z, n = zh.split([zh.shape[-1] // 3 * 2, zh.shape[-1] // 3], -1)
            zh = torch.cat([r_and_z, s.r * n], -1)
        yield both.gain, zx + zh
    if cell.gain is not None:
        yield cell.gain, s.f * before[1] + s.i * s.g


def _sum_and_number(z: Tensor, active: Tensor, recurrence: Recurrence) -> tuple[Tensor, Tensor]:
    """Adds up what one normalisation divides by, and counts it: (T, B, n), (T, B) -> (1,) twice, or (n,) twice."""
    if recurrence.norm == "batch":
        square = moments(z, active[..., None])[1]  # (T, n)
        counted = ((square != 0).any(-1) & (active.sum(-1) >= 2))[:, None].expand_as(square)
    else:
        square = (centre(z) if recurrence.norm == "layer" else z).square().mean(-1).flatten()[:, None]
        counted = active.expand(z.shape[:2]).flatten()[:, None] & (square != 0)
    divisor = reciprocal_deviation(square, recurrence.formula.eps, recurrence.formula.eps_on).reciprocal()
    return torch.where(counted, divisor, 0.0).cpu().sum(0, dtype=torch.float64), counted.sum(0).cpu()
