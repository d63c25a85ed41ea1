"""`match`: gains with which layernorm's networks start as plain ones would, measured on a batch."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.parametrize import type_before_parametrizations as own_class

from ..nn._gains import GainInit, check_gain_init, gains_of
from ..nn._normalised import Normalised, check_module, parameter_of
from ._divisors import Divisors, sum_divisors
from ._watched import LayerCall, layer_name, put_back, watch_calls

_COLUMNS = 80


class MatchedLayer(NamedTuple):
    """The gains that `match` set in one layer and direction."""

    name: str  # of the module and its layer: "encoder", with several layers "encoder, layer 1 reverse"
    gains: dict[str, tuple[float, ...]]  # by name, a number for each normalisation; under batch norm for each unit

    def __str__(self) -> str:
        gains = ", ".join(f"{name} {_range(values)}" for name, values in self.gains.items())
        name = self.name or "the module"
        room = max(_COLUMNS - len(gains) - 2, 1)
        return f"{name if len(name) <= room else '...' + name[3 - room :]}: {gains}"


class Matches(list[MatchedLayer]):
    """What `match` set. As text it has a line for each layer and direction."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    __repr__ = __str__


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def match(module: torch.nn.Module, /, *inputs: Any, gain_init: GainInit = "match", **keywords: Any) -> Matches:
    r"""Sets the gains of layernorm's recurrent networks so that they start as networks without a norm would.

    A norm replaces the size of a vector by its gain, which starts at 1. In a network as torch draws it the summed
    inputs are smaller than that. So the gates, the outputs and the gradients of a network with layer norm have other
    sizes than those of torch's network, and a learning rate that suits the one need not suit the other. `match` gives
    every gain the size that its vectors have without a norm:

    .. math::
        gain = \operatorname{mean}_{t, b} \sqrt{\operatorname{var}(z_{t b}) + \epsilon}

    Here :math:`z_{tb}` is the vector at one of the formula's places, at step t of row b, in a network that computes the
    *plain* equations, without any norm, with the same weights and biases. The root is what the formula's norm divides
    by. For RMS norm it is that of the mean square. For batch norm it is over the training cases, for each unit by
    itself. Each normalisation has one number: in a GRU of the paper there is one for r and z and one for n.

    To find them, the module is called once, ``module(*inputs, **keywords)``, and in this call every network with gains
    computes the plain equations. So what lies behind a network sees the plain network's output. All that the module
    does stays in force: several layers and directions, packed and padded sequences, resets, steppers, zoneout and
    dropout. Steps beyond a row's length do not count. Neither do vectors without a deviation, such as
    :math:`W_{hh} h` at the first step.

    Only the gains change. Other parameters, gradients, buffers, hooks, mode and torch's random state stay as they were.

    Args:
        module: any network. Layernorm's recurrent networks and cells inside it are matched, also where they run by
            ``stepper()``. It runs in the mode that it is in, training or evaluation.
        inputs, keywords: the arguments to call it with. A batch as in training is best.
        gain_init: which gains are set, and to what, as in `LSTM`. A mapping sets the gains that it names, each to a
            number or to ``"match"``, the size that its vectors have; all other gains stay as they are. ``"match"``: all
            gains are matched.

    Returns:
        `Matches`, a list with a `MatchedLayer` for each layer and direction: its name and the gains that were set.
        Printed, it shows one line for each of them.

    Raises:
        TypeError: ``module`` is no module, or has no ``forward``.
        ValueError: there is no network with gains; ``gain_init`` names a gain that a network does not have; a gain is
            computed, by pruning or a parametrization; the call did not run one of them; or what a norm would divide by
            is not finite, or its vectors never had a deviation. Nothing has been changed then.

    Limits: the sizes match in the mean over steps and rows. What a norm removes besides, such as the mean over the
    units, stays removed, so that a trained network computes another function than before. The biases of the norms
    themselves, ``norm_bias_*`` (also with a forget bias in them) and ``bias_c``, have no place in the plain equations.
    Weight norm has no such gains: its network computes the plain equations as it is.

    Example::

        lstm = ln.convert(torch.nn.LSTM(28, 128))
        print(ln.match(lstm, torch.randn(50, 32, 28)))
        print(ln.match(lstm, torch.randn(50, 32, 28), gain_init={"gain_ih": "match", "gain_hh": 0.3}))

    Source: this library.
    """
    check_module("match", module)
    check_gain_init(gain_init)
    return match_networks(module, named_networks(module), inputs, keywords, gain_init)


def named_networks(module: torch.nn.Module) -> dict[str, Normalised]:
    """Returns by name layernorm's networks and cells that have gains."""
    parts = module.named_modules()
    return {name: part for name, part in parts if isinstance(part, Normalised) and part.recurrence.gain_names}


def match_networks(
    module: torch.nn.Module,
    networks: Mapping[str, Normalised],
    inputs: Sequence[Any],
    keywords: Mapping[str, Any],
    gain_init: GainInit = "match",
) -> Matches:
    """Sets the gains of some of the networks in a module."""
    if getattr(module.forward, "__func__", None) is torch.nn.Module.forward:
        raise TypeError(
            f"match: expected a module with a forward to call with the inputs, and {own_class(module).__name__} has "
            "none; set model.forward to the method that your program calls, or take gain_init='match', which needs no "
            "inputs"
        )
    if not networks:
        raise ValueError(
            f"match: {own_class(module).__name__} has no recurrent network of layernorm's with gains; without a norm "
            "and under weight norm there are none, and the network computes the plain equations. torch's networks get "
            "gains by layernorm.convert"
        )
    starts = {network: gains_of(gain_init, network.recurrence, network.norm) for network in networks.values()}
    sums = plain_divisors(module, networks.values(), inputs, keywords)
    matched, gains = Matches(), []
    for name, network in networks.items():
        for suffix in network._suffixes:
            layer = layer_name(name, network, suffix)
            asked = starts[network]
            divisors = sums.get(LayerOf(network, suffix), {})
            means = _means_of(layer or "the module", divisors, [g for g, start in asked.items() if start == "match"])
            numbers: dict[str, tuple[float, ...]] = {}
            for (gain, *units), mean in means.items():
                gains.append((parameter_of(network, gain + suffix).detach()[slice(*units)], mean))
                numbers[gain] = (*numbers.get(gain, ()), *mean.tolist())
            for gain, start in asked.items():
                if start != "match":
                    gains.append((parameter_of(network, gain + suffix).detach(), torch.tensor(start)))
                    numbers[gain] = (float(start),)
            matched.append(MatchedLayer(layer, numbers))
    for parameter, value in gains:
        parameter.copy_(value)
    return matched


class LayerOf(NamedTuple):
    """A layer of a network in one direction."""

    network: Normalised
    suffix: str  # of its parameters


def plain_divisors(
    module: torch.nn.Module, networks: Collection[Normalised], inputs: Sequence[Any], keywords: Mapping[str, Any]
) -> dict[LayerOf, Divisors]:
    """Calls the module, in which the networks compute the plain equations, and sums what their norms would divide by.

    Layers that the call does not run are missing.
    """
    recurrences = {network: network.recurrence for network in networks}
    sums: dict[LayerOf, Divisors] = defaultdict(dict)

    def note(call: LayerCall) -> None:
        if call.module in recurrences:
            of_layer = sums[LayerOf(call.module, call.suffix)]
            for place, (total, number) in sum_divisors(call.arguments, recurrences[call.module]).items():
                before = of_layer.get(place, (0.0, 0))
                of_layer[place] = (before[0] + total, before[1] + number)

    with put_back(module), torch.no_grad(), plain_equations(networks), watch_calls(module, note):
        module(*inputs, **keywords)
    return dict(sums)


def _means_of(layer: str, divisors: Divisors, gains: Collection[str]) -> dict[tuple[str, int, int], Tensor]:
    """Computes what the normalisations of some gains divide by in the mean, and refuses what is no size of a vector."""
    if not divisors:
        raise ValueError(f"match: the call did not run {layer}; no gain has been set")
    means = {place: total / number for place, (total, number) in divisors.items() if place[0] in gains}
    for place, mean in means.items():
        if not divisors[place][1].all():
            raise ValueError(
                f"match: what {place[0]} of {layer} multiplies never had a deviation, because its input or state was "
                "always 0, or it has one unit; give inputs of several steps that are not 0"
            )
        if not mean.isfinite().all():
            raise ValueError(f"match: expected finite sizes at {place[0]} of {layer}, got {mean.tolist()[0]}")
    return means


@contextlib.contextmanager
def plain_equations(networks: Collection[Normalised]) -> Iterator[None]:
    """Makes the networks compute the plain equations inside the ``with``."""
    before = [(network, network.recurrence, network.norm) for network in networks]
    try:
        for network in networks:
            network._set_equations(network.recurrence.plain, None)
        yield
    finally:
        for network, recurrence, norm in before:
            network._set_equations(recurrence, norm)
