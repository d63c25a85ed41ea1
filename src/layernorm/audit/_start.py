"""How a network starts beside the one with the plain equations: its vectors, and the optimiser's first step."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..convert import LayerOf, layer_name, plain_divisors, plain_equations, put_back
from ..nn._normalised import Normalised


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
                gain = network.get_parameter(gain_name + suffix).detach()[slice(*units)]
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
    module: torch.nn.Module,
    networks: dict[str, Normalised],
    inputs: Sequence[Any],
    loss: Callable[[Any], Tensor],
    optimizer: torch.optim.Optimizer,
) -> list[Step]:
    """Makes the first update of every matrix, with the norms and with the plain equations, and undoes it."""
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    changes = _changes(module, inputs, loss, optimizer)
    with plain_equations(networks.values()):
        plain = _changes(module, inputs, loss, optimizer)
    named = module.named_parameters()
    return [Step(name, float(rates[id(p)]), changes[name], plain[name]) for name, p in named if name in changes]


def _changes(
    module: torch.nn.Module, inputs: Sequence[Any], loss: Callable[[Any], Tensor], optimizer: torch.optim.Optimizer
) -> dict[str, float]:
    """Makes one update, measures how far each matrix goes, relative to its own length, and takes the update back.

    A matrix of zeros has no length, and is left out.
    """
    updated = {p: p.detach().clone() for group in optimizer.param_groups for p in group["params"]}
    grads = {p: p.grad for p in (*updated, *module.parameters())}
    state = dict(optimizer.state)
    groups = [dict(group) for group in optimizer.param_groups]

    @torch.enable_grad()
    def closure() -> Any:
        for p in grads:
            p.grad = None
        total = loss(module(*inputs))
        total.backward()
        return total

    try:
        optimizer.state.update({p: copy.deepcopy(of_parameter) for p, of_parameter in state.items()})
        with put_back(module), torch.inference_mode(False):
            argument = inspect.signature(optimizer.step).parameters.get("closure")
            if argument is not None and argument.default is inspect.Parameter.empty:
                optimizer.step(closure)
            else:  # with a closure the gradients would be computed after the optimiser's hooks, which may clip them
                closure()
                optimizer.step()
        matrices = [(name, p, updated[p]) for name, p in module.named_parameters() if p in updated and p.dim() > 1]
        return {name: float((p.detach() - old).norm() / old.norm()) for name, p, old in matrices if old.any()}
    finally:
        with torch.no_grad():
            for p, before in updated.items():
                p.copy_(before)
        for p, grad in grads.items():
            p.grad = grad
        optimizer.state.clear()
        optimizer.state.update(state)
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            group.update(values)
