"""What the normalisations of one layer are given, by the plain equations."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..equations.arguments import RecurrentArguments
from ..equations.checks import check_recurrent
from ..equations.dispatch import below_autocast
from ..equations.recurrent import (
    network_of,
    parameters_by_name,
    recurrent_equations,
    recurrent_forward,
    scheduled_input,
    starting_states,
)
from ..equations.schedule import count_rows
from ..equations.sites import GateSaved

PLACES = {"input": "W_ih x", "hidden": "W_hh h", "both": "W_ih x + W_hh h", "cell": "c"}
OF_GAIN = {"gain_ih": "input", "gain_hh": "hidden", "gain": "both", "gain_c": "cell"}


class Vectors(NamedTuple):
    """What one normalisation was given: R vectors a step, under batch norm one for each unit, over the cases."""

    place: str  # of `PLACES`
    deviation: Tensor  # (T, R), without eps
    counted: Tensor  # (T, R) bool: not beyond a row's length, and made of an input or state that is not all 0
    share: Tensor  # (n,), each unit's part of the sum of squares, the largest of the groups; empty under batch norm


class Inspected(NamedTuple):
    """One layer over one sequence, in the order of its steps."""

    vectors: list[Vectors]
    from_input: Tensor  # (T, B, G*H), W_ih x
    from_hidden: Tensor | None  # W_hh h; None under batch norm
    inputs: Tensor  # (I,), mean square of each input times the squared norm of its column of W_ih


def in_one_type(a: RecurrentArguments) -> RecurrentArguments:
    """Returns a call with all tensors in one type, in float32 or wider. Under autocast they may have several."""
    dtype = torch.promote_types(functools.reduce(torch.promote_types, [t.dtype for t in _floating(a)]), torch.float32)
    input, *state = (t.to(dtype) for t in (a.input, *a.state))
    params = [p.to(dtype) if p.is_floating_point() else p for p in a.params]
    return a._replace(input=input, state=state, params=params)


def _floating(a: RecurrentArguments) -> list[Tensor]:
    return [t for t in (a.input, *a.state, *a.params) if t.is_floating_point()]


@torch.no_grad()
@below_autocast
def inspect(a: RecurrentArguments) -> Inspected:
    """Finds the vectors that the normalisations of a layer divide by their deviation, on a sequence."""
    x, schedule = scheduled_input(a)
    p = parameters_by_name(a.params, a.recurrence, x.dtype)
    T, B = x.shape[:2]
    active = x.new_ones(T, B, dtype=torch.bool) if schedule.active is None else schedule.active[..., 0].expand(T, B)
    per_input = x[active].square().mean(0) * p["weight_ih"].square().sum(0)
    from_input = x @ p["weight_ih"].T
    if a.recurrence.norm == "batch":
        return Inspected(_vectors_of_units(a, x), from_input, None, per_input)
    before = starting_states(recurrent_forward(a, True)[1 + len(a.state) :], schedule)
    from_hidden = before[0] @ p["weight_hh"].T
    nothing = {"input": (x == 0).all(-1), "hidden": (before[0] == 0).all(-1)}
    nothing["both"] = nothing["input"] & nothing["hidden"]
    vectors = []
    for place, saved in _saved_by_place(network_of(p, a.recurrence).activations(from_input, from_hidden, before)):
        z_hat, r = saved
        scale = 1 / r.squeeze(-1)  # (T, B, groups)
        eps = a.recurrence.formula.eps
        deviation = (scale**2 - eps).clamp_min(0).sqrt() if a.recurrence.formula.eps_on == "variance" else scale - eps
        counted = active & ~nothing.get(place, torch.zeros_like(active))
        squares = z_hat.square().sum((0, 1))  # (groups, n)
        share = (squares / squares.sum(-1, keepdim=True).clamp_min(1e-30)).amax(0)
        vectors.append(Vectors(place, deviation.flatten(1), counted.repeat_interleave(z_hat.shape[2], 1), share))
    return Inspected(vectors, from_input, from_hidden, per_input)


def _saved_by_place(activations: Any) -> list[tuple[str, tuple[Tensor, Tensor]]]:
    """Returns what the places that normalise saved, of any network's activations; in a GRU r and z are apart from n."""
    of_places: list[tuple[str, Any]] = []
    for field, value in activations._asdict().items():
        if isinstance(value, GateSaved):
            of_places += value._asdict().items()
        elif field == "cell":
            of_places.append((field, value))
    return [(place, saved) for place, saved in of_places if saved is not None]


def _vectors_of_units(a: RecurrentArguments, x: Tensor) -> list[Vectors]:
    """Finds the vectors under batch norm, by the batch's own moments: a vector is a unit over the cases."""
    check_recurrent(a)
    variances = recurrent_equations(a)[1 + len(a.state) :][1::2]
    enough = (count_rows(a._replace(count_padding=False)) >= 2).to(x.device)
    resting = torch.zeros_like(enough)  # the steps before which the state is all 0
    resting[:1] = bool((a.state[0] == 0).all())
    nothing = {"input": (x == 0).flatten(1).all(1), "hidden": resting}
    vectors = []
    for gain, var in zip(a.recurrence.gain_names, variances, strict=True):
        place = OF_GAIN[gain]
        counted = enough & ~nothing.get(place, torch.zeros_like(enough))
        vectors.append(Vectors(place, var.sqrt(), counted[:, None].expand_as(var), var.new_empty(0)))
    return vectors
