"""How a network starts beside the one with the plain equations: its vectors, and the optimiser's first step."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..convert import LayerOf, layer_name, match, named_networks, plain_divisors, plain_equations, put_back
from ..nn._normalised import Normalised
from ._finding import Finding
from ._gradients import owner_of
from ._inspected import OF_GAIN, PLACES
from ._trial import replaced, steady_gains

Optimizers = Sequence[torch.optim.Optimizer]

UNLIKE = 4.0
"""The largest ratio, either way, between a gain and the size of its vector in the plain network."""

LEAP = 3.0
"""The largest ratio between the first updates of a weight, with the norms and in the plain network. Above it a learning
rate that suits the plain network is as if raised by as much."""

LARGE = 0.1
"""The part of a weight's length from which on its first update is large. Less does no harm, whatever the ratio."""


def findings_of_start(
    module: torch.nn.Module, batch: Sequence[Any], loss: Callable[[Any], Tensor], optimizers: Optimizers
) -> Iterator[Finding]:
    """Says where the networks start otherwise than the plain ones, and whether the learning rate suits them anyway."""
    networks = named_networks(module)
    if not networks:
        return
    given = set(_rates(optimizers))
    for name, network in networks.items():
        trained = [(key, p in given) for key, p in network.named_parameters() if p.requires_grad]
        left = [key for key, is_given in trained if not is_given]
        if 0 < len(left) < len(trained):
            yield Finding(
                name,
                f"the optimizer does not have {', '.join(left)}, which stay as they are",
                len(left), 0,
                "Make the optimizer after layernorm.convert, or give it these with optimizer.add_param_group.",
            )  # fmt: skip
    sizes = list(start_sizes(module, networks, batch))
    if not all(math.isfinite(size.plain) for size in sizes):
        yield Finding("", "the plain network's numbers are not finite", math.inf, UNLIKE, "")
        return
    apart = [size for size in sizes if max(size.gain, size.plain) > UNLIKE * min(size.gain, size.plain)]
    if apart:
        most = max(apart, key=lambda size: abs(math.log(size.gain or 1e-30) - math.log(size.plain)))
        ratio = most.gain / most.plain
        others = f", the farthest of {len(apart)} vectors in {len(sizes)}" if len(apart) > 1 else ""
        yield Finding(
            most.layer,
            f"{PLACES[OF_GAIN[most.gain_name]]} is {ratio:.3g} times as large as in the plain network (its gain is "
            f"{most.gain:.3g}, its deviation there {most.plain:.3g}){others}",
            ratio, UNLIKE,
            "A learning rate that was found for the plain network need not suit this one: try others. With Adam try up "
            "to 4 times the learning rate, and gains set with ln.match(module, *batch), with which the networks start "
            "alike.",
        )  # fmt: skip
    steps = first_steps(module, batch, loss, optimizers)
    if not all(math.isfinite(step.change) and math.isfinite(step.plain) for step in steps):
        yield Finding("", "the first update is not finite", math.inf, LEAP, "")
        return
    leaps = _leaps(steps)
    if leaps:
        ratio, step = max(leaps)
        yield Finding(
            owner_of(step.name),
            f"at the learning rate {step.rate:g} the first update changes {step.name} by {step.change:.2g} of its "
            f"length, {ratio:.3g} times as much as in the plain network",
            ratio, LEAP,
            _fix_of_leap(module, batch, loss, optimizers),
        )  # fmt: skip


def _leaps(steps: Sequence[Step]) -> list[tuple[float, Step]]:
    return [(s.change / s.plain, s) for s in steps if s.plain > 0 and s.change > max(LEAP * s.plain, LARGE)]


def _fix_of_leap(
    module: torch.nn.Module, batch: Sequence[Any], loss: Callable[[Any], Tensor], optimizers: Optimizers
) -> str:
    """Says how large the first update is from other starts, at the same learning rate."""
    starts = {
        'with the gains of a new network with gain_init="steady"': steady_gains(module),
        "with gains set by ln.match(module, *batch)": _matched_gains(module, batch),
    }
    ratios = {}
    for text, gains in starts.items():
        if gains:
            with replaced(module, gains):
                leaps = _leaps(first_steps(module, batch, loss, optimizers))
            ratios[text] = max(leaps)[0] if leaps else 1.0
    if min(ratios.values(), default=math.inf) > LEAP:
        return "Clip the gradients, or take Adam, whose first update does not depend on their size."
    found = " ".join(
        f"It is {f'{ratio:.3g} times' if ratio > 1 else 'not larger than'} the plain network's {text}."
        for text, ratio in ratios.items()
    )
    return f"The start is the cause, not the learning rate. {found}"


def _matched_gains(module: torch.nn.Module, batch: Sequence[Any]) -> dict[Tensor, Tensor]:
    """Makes the gains that `match` would set; none if it cannot."""
    parameters = [(name, p) for network in named_networks(module).values() for name, p in network.named_parameters()]
    made: dict[Tensor, Tensor] = {
        p: torch.nn.Parameter(p.detach().clone(), p.requires_grad) for name, p in parameters if "gain" in name
    }
    with replaced(module, made), contextlib.suppress(ValueError):
        match(module, *batch)
        return made
    return {}


def _rates(optimizers: Optimizers) -> dict[Tensor, float]:
    """Returns the learning rate of each parameter that the optimisers have."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return {p: float(group["lr"]) for group in groups for p in group["params"]}


class Size(NamedTuple):
    """The size of a normalised vector, and the one that it has in the plain network."""

    layer: str  # `layer_name`
    gain_name: str
    gain: float
    plain: float


def start_sizes(module: torch.nn.Module, networks: dict[str, Normalised], inputs: Sequence[Any]) -> Iterator[Size]:
    """Yields the size of every normalised vector: its gain, and the mean of what its norm would divide by without it.

    Vectors that never have a deviation in the plain network are left out.
    """
    sums = plain_divisors(module, networks.values(), inputs, {})
    for name, network in networks.items():
        for suffix in network._suffixes:
            for (gain_name, *units), (total, number) in sums.get(LayerOf(network, suffix), {}).items():
                gain = getattr(network, gain_name + suffix).detach()[slice(*units)]
                if number.all():
                    mean = float((total / number).mean())
                    yield Size(layer_name(name, network, suffix), gain_name, float(gain.abs().mean()), mean)


class Step(NamedTuple):
    """How much the first update changes a weight, as a part of the weight's length."""

    name: str
    rate: float
    change: float
    plain: float  # in the plain network


def first_steps(
    module: torch.nn.Module, batch: Sequence[Any], loss: Callable[[Any], Tensor], optimizers: Optimizers
) -> list[Step]:
    """Makes the first update of every matrix, with the norms and with the plain equations, and undoes it."""
    rates = _rates(optimizers)
    changes = _changes(module, batch, loss, optimizers)
    with plain_equations(named_networks(module).values()):
        plain = _changes(module, batch, loss, optimizers)
    return [
        Step(name, rates[p], changes[name], plain[name]) for name, p in module.named_parameters() if name in changes
    ]


def _changes(
    module: torch.nn.Module, batch: Sequence[Any], loss: Callable[[Any], Tensor], optimizers: Optimizers
) -> dict[str, float]:
    """Makes one update, measures how far each matrix goes, relative to its own length, and takes the update back.

    A matrix of zeros has no length, and is left out.
    """
    updated = {p: p.detach().clone() for p in _rates(optimizers)}
    grads = {p: p.grad for p in (*updated, *module.parameters())}
    trained = [p for p in grads if p.requires_grad]

    @torch.enable_grad()
    def closure() -> Any:
        for p in grads:
            p.grad = None
        total = loss(module(*batch))
        total.backward(inputs=trained)  # nothing else, such as a parameter of the loss, gets a gradient
        return total

    counted = tuple(p for p in updated if not p.is_inference())
    try:
        with torch.autograd._unsafe_preserve_version_counter(counted), contextlib.ExitStack() as stack:
            stack.callback(_put_numbers_back, updated)
            for optimizer in optimizers:
                stack.enter_context(_state_put_back(optimizer))
            stack.enter_context(put_back(module))
            _take_steps(optimizers, closure)
            matrices = [(name, p, updated[p]) for name, p in module.named_parameters() if p in updated and p.dim() > 1]
            return {name: float((p.detach() - old).norm() / old.norm()) for name, p, old in matrices if old.any()}
    finally:
        for p, grad in grads.items():
            p.grad = grad


def _take_steps(optimizers: Optimizers, closure: Callable[[], Any]) -> None:
    """Takes one step of each optimiser, all with the gradients from before the first of these steps."""
    own = [_needs_closure(optimizer) for optimizer in optimizers]
    if not all(own):  # with a closure the gradients would be computed after the optimiser's hooks, which may clip them
        closure()
    for optimizer, needs_closure in zip(optimizers, own, strict=True):
        if needs_closure:
            optimizer.step(closure)
        else:
            optimizer.step()


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    argument = inspect.signature(optimizer.step).parameters.get("closure")
    return argument is not None and argument.default is inspect.Parameter.empty


@torch.no_grad()
def _put_numbers_back(before: Mapping[Tensor, Tensor]) -> None:
    for p, old in before.items():
        p.copy_(old)


@contextlib.contextmanager
def _state_put_back(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Gives an optimiser copies of its state inside the ``with``, and then puts back all that it keeps.

    Among that is the mark by which a scheduler knows that a step was taken.
    """
    attributes, state = dict(vars(optimizer)), dict(optimizer.state)
    groups = [dict(group) for group in optimizer.param_groups]
    try:
        optimizer.state.update({p: copy.deepcopy(of_parameter) for p, of_parameter in state.items()})
        yield
    finally:
        vars(optimizer).clear()
        vars(optimizer).update(attributes)
        optimizer.state.clear()
        optimizer.state.update(state)
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            group.update(values)
