"""How a recurrent layer's gradient grows or shrinks from step to step, and which of its parameters make it grow."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..convert import LayerCall
from ..equations.arguments import NO_CHANGES, RecurrentArguments
from ..equations.dispatch import below_autocast
from ..equations.recurrent import (
    network_of,
    parameters_by_name,
    recurrent_forward,
    scheduled_input,
    starting_states,
)
from ..nn._gains import steady_gain
from ._finding import Finding, Growth
from ._inspected import OF_GAIN, PLACES, in_one_type

GROWS = 10.0
"""The largest growth of a gradient over a batch's length. Over 200 steps of noise, of a random walk and of a constant,
with 10 and 100 inputs and 32 to 256 units, torch's networks, GRUs, LSTMs with recurrent gains of 0.1 to 0.6 and those
with only a norm of the cell reach 1.1 at most. LSTMs with gains of 1 reach 20 to 2,500 on noise. Networks with one norm
of W_ih x + W_hh h, which is small at 10 inputs and 256 units, reach 36 to 3,000,000 on noise."""

STEPS = 400
"""The first steps of a sequence, on which it is measured: with gains of 1 the growth is seen after 100."""

CASES = 8
"""The first cases, on which it is measured. Of an LSTM with gains of 1 on 200 steps of noise, three seeds, 8 cases give
740, 38,000 and 930 times, and 64 cases 8,700, 14,000 and 3,600: enough to tell."""


class Curve(NamedTuple):
    """The logarithm of a gradient's size after it has gone back 0 to L steps, relative to lag 0: (L + 1,)."""

    logs: Tensor

    @property
    def steps(self) -> int:
        """The number of steps that the longest stretch without a cut lets it go back."""
        return len(self.logs) - 1

    @property
    def factor(self) -> float:
        """How many times as large it is after all of them."""
        return _exp(float(self.logs[-1]))

    @property
    def peak(self) -> tuple[float, int]:
        """How many times as large it gets at most, and after how many steps."""
        largest, lag = self.logs.nan_to_num(-math.inf).max(0)
        return _exp(float(largest)), int(lag)


def _exp(log: float) -> float:
    return math.exp(min(log, 700.0))  # a finite number


def curve_of(calls: Sequence[LayerCall], factors: Mapping[str, float] | None = None) -> Curve | None:
    """Measures the gradient by lag in one layer, with some parameters multiplied; None: no gradient goes through it.

    At the last step of every row, and before every cut, a random direction of length 1 is put in as the gradient of h.
    It is carried back, to the state after the first step: what flows into a state of zeros reaches no weight. The size
    is the root mean square over the rows, of those steps that both lags have.
    """
    recurrence = calls[0].arguments.recurrence
    if recurrence.norm == "batch" or recurrence.quantized:
        return None
    stretches = []
    for a in sequences_of(calls):
        params = [
            p * (factors or {}).get(name, 1.0) for name, p in zip(recurrence.parameter_names, a.params, strict=True)
        ]
        stretches += _sizes_by_lag(a._replace(params=params) if factors else a)
    longest = max((len(s) for s in stretches), default=1)
    if longest == 1:
        return None
    logs = torch.stack([torch.nn.functional.pad(s, (0, longest - len(s)), value=math.nan) for s in stretches], 1)
    reached = ~logs[1:].isnan()
    before, after = (torch.where(reached, 2 * part, -math.inf).logsumexp(1) / 2 for part in (logs[:-1], logs[1:]))
    steps = (after - before).nan_to_num(-math.inf, posinf=math.inf, neginf=-math.inf)  # once it is 0 it stays so
    return Curve(torch.cat([steps.new_zeros(1), steps]).cumsum(0))


def sequences_of(calls: Sequence[LayerCall]) -> Iterator[RecurrentArguments]:
    """Yields what a layer was called with as sequences of at most `STEPS` steps in all, of at most `CASES` rows.

    Calls of one step each, as of cells and steppers, are one sequence. A row is cut where its state is 0, and where its
    state has no gradient.
    """
    left, rest = STEPS, list(calls)
    while rest and left > 0:
        a = _first_rows(rest[0].arguments, left)
        number = 1
        if len(rest[0].arguments.input) == 1:
            alike = [call.arguments.input.shape == rest[0].arguments.input.shape for call in rest[:left]]
            number = len(list(itertools.takewhile(bool, alike)))
            a = a._replace(
                input=torch.cat([call.arguments.input[:, :CASES] for call in rest[:number]]).to(a.input.dtype),
                reset=torch.stack([_is_cut(call.arguments) for call in rest[:number]]),
            )
        del rest[:number]
        left -= len(a.input)
        yield a


def _is_cut(a: RecurrentArguments) -> Tensor:
    """Returns before which rows' step no gradient goes further back."""
    h = a.state[0]
    detached = any(p.requires_grad for p in a.params) and not h.requires_grad
    return ((h == 0).all(-1) | detached)[:CASES]


def _first_rows(a: RecurrentArguments, steps: int) -> RecurrentArguments:
    """Returns a padded call with its first steps and rows, without what is drawn, and with no clip in its backward."""
    a, rows = in_one_type(a), slice(CASES)
    return a._replace(
        input=a.input[:steps, rows],
        state=[part[rows] for part in a.state],
        lengths=None if a.lengths is None else a.lengths[rows].clamp(max=steps),
        reset=None if a.reset is None else a.reset[:steps, rows],
        recurrence=replace(a.recurrence, gate_clip=math.inf),
        changes=NO_CHANGES,
    )


@torch.no_grad()
@below_autocast
def _sizes_by_lag(a: RecurrentArguments) -> list[Tensor]:
    """Measures the logarithm of the gradient's size after 0, 1, 2... steps back, for each row between two cuts."""
    if not len(a.input):
        return []
    x, schedule = scheduled_input(a)
    p = parameters_by_name(a.params, a.recurrence, x.dtype)
    before = starting_states(recurrent_forward(a, True)[1 + len(a.state) :], schedule)
    network = network_of(p, a.recurrence)
    activations = network.activations(x @ p["weight_ih"].T, before[0] @ p["weight_hh"].T, before)
    active = torch.ones_like(x[..., 0], dtype=torch.bool) if schedule.active is None else schedule.active[..., 0]
    cut = (before[0] == 0).all(-1)  # also after a cut, which starts from zeros
    g = torch.Generator().manual_seed(0)
    h = torch.randn(before[0].shape[1:], generator=g).to(before[0])
    new = (h / h.norm(dim=-1, keepdim=True), *(torch.zeros_like(part[0]) for part in before[1:]))
    d, log = new, h.new_zeros(len(h))
    logs, counted = [], []
    for t in reversed(range(len(active))):
        step = network.step_backward(t, d, before, activations)
        through = step.dzh @ p["weight_hh"], *[None] * (len(d) - 1)
        pairs = zip(through, step.direct, strict=True)
        back = [sum((part for part in pair if part is not None), torch.zeros(())) for pair in pairs]
        size = torch.cat(back, -1).norm(dim=-1)
        start = cut[t] | ~active[t]  # beyond a row's length nothing has been carried back yet
        lengths = torch.where(start, 1.0, size).clamp_min(1e-30)
        d = tuple(torch.where(start[:, None], n, part / lengths[:, None]) for n, part in zip(new, back, strict=True))
        log = torch.where(start, 0.0, log + size.log())
        logs.append(log)
        counted.append(~start)
    return _stretches(torch.stack(logs, 1).double().cpu(), torch.stack(counted, 1).cpu())


def _stretches(logs: Tensor, counted: Tensor) -> list[Tensor]:
    """Splits what was measured in each row, (B, T) in the order of the way back, where a row starts again."""
    found = []
    for row, counts in zip(logs, counted, strict=True):
        ends = [-1, *(~counts).nonzero().flatten().tolist(), len(row)]
        for first, last in itertools.pairwise(ends):
            if last - first > 1:
                found.append(torch.cat([row.new_zeros(1), row[first + 1 : last]]))
    return found


def findings_over_time(layers: Mapping[str, Sequence[LayerCall]]) -> tuple[list[Growth], list[Finding], float]:
    """Measures every layer and direction, and says for each network whether its gradient grows over time, and why.

    Returns the measurements, the findings, and how many times the layers make a gradient grow together, at least 1.
    """
    growth, findings = list[Growth](), list[Finding]()
    in_series: dict[str, float] = defaultdict(lambda: 1.0)  # the larger of both directions of each layer
    largest: dict[int, list[tuple[float, str, str]]] = defaultdict(list)
    for name, calls in layers.items():
        curve = curve_of(calls)
        if curve is None:
            continue
        growth.append(Growth(name, curve.steps, curve.factor))
        factor, steps = curve.peak
        text = f"over {steps} steps the gradient grows {factor:.3g} times"
        length = _length(calls)
        if length > STEPS:
            text += f", measured on the first {STEPS} of {length}"
        if factor > GROWS and calls[0].arguments.recurrence.gate_clip == math.inf:  # the clip bounds the gradient
            largest[id(calls[0].module)].append((factor, text, name))
            layer = name.removesuffix(" reverse")
            in_series[layer] = max(in_series[layer], factor)
    for grown in largest.values():
        factor, text, name = max(grown)
        others = f" (the most of {len(grown)} layers and directions)" if len(grown) > 1 else ""
        because, fix = _cause(layers[name])
        findings.append(Finding(
            name,
            f"on its way back {text}{others}, {because}",
            factor, GROWS,
            f"{fix} Until then clip the gradients, with torch.nn.utils.clip_grad_norm_.",
        ))  # fmt: skip
    return growth, findings, min(math.prod(in_series.values()), 1e300)


def _length(calls: Sequence[LayerCall]) -> int:
    """Returns the number of steps of the longest call, or of all calls of one step each."""
    longest = max(len(call.arguments.input) for call in calls)
    return len(calls) if longest == 1 else longest


class _Trial(NamedTuple):
    """Another start of a layer, on which the gradient is measured again."""

    name: str  # of the parameter that is another one
    factor: float  # what it is multiplied by
    what: str  # what makes the gradient grow, if this start ends it
    fix: str


def _cause(calls: Sequence[LayerCall]) -> tuple[str, str]:
    """Finds what makes a layer's gradient grow: the first parameter of which another size ends it. Also says how."""
    for trial in _trials(calls[0].arguments):
        curve = curve_of(calls, {trial.name: trial.factor})
        if curve is not None and curve.peak[0] <= GROWS:
            peak = curve.peak[0]
            return f"{trial.what} it would {'not grow' if peak < 1.1 else f'grow {peak:.2g} times'}", trial.fix
    return "by all of its weights and gains together", "Start with smaller weights and gains."


def _trials(a: RecurrentArguments) -> Iterator[_Trial]:
    r = a.recurrence
    sizes = {name: float(p.detach().abs().mean()) for name, p in zip(r.parameter_names, a.params, strict=True)}
    hidden, cell = r.places.hidden.gain or r.places.both.gain, r.places.cell.gain
    steady = steady_gain(r)
    wanted = [(cell, 1.0), (hidden, steady), (hidden, steady / 2), (hidden, steady / 6), (cell, steady / 2)]
    for gain, value in wanted:
        if gain is not None and sizes[gain] > 1.1 * value:
            what = (
                f"because the norm of {PLACES[OF_GAIN[gain]]} has a gain of {sizes[gain]:.3g} ({gain}). At {value:.1g}"
            )
            name = 'gain_init="steady" or ' if gain == "gain_hh" and value == steady else ""
            yield _Trial(
                gain, value / sizes[gain], what, f'Make the network with {name}gain_init={{"{gain}": {value:.1g}}}.'
            )
    if hidden is None:
        for part in (2, 4, 8):
            what = f"because weight_hh is large. At 1/{part} of its size"
            yield _Trial("weight_hh", 1 / part, what, f"Multiply the first weight_hh by 1/{part}.")
