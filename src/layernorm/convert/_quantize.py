"""`quantize`: a copy of a model whose recurrent networks have int8 weights, for inference."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.parametrize import type_before_parametrizations as own_class

from ..formula import QUANTIZED
from ..nn._normalised import check_module
from ..nn._recurrent import Recurrent

Model = TypeVar("Model", bound=torch.nn.Module)

MOST = (2**31 - 1) // 127**2
"""So many products of two int8 numbers have a sum that fits into 32 bits."""


WORTHWHILE = 150_000
"""A layer whose two weight matrices have this many numbers together gains from int8 (docs/performance/int8.md)."""


@torch.no_grad()
def quantize(model: Model, *, filter_fn: Callable[[torch.nn.Module, str], bool] | None = None) -> Model:
    r"""Copies a model so that its large `RNN`, `LSTM` and `GRU` compute with int8 weights, for one sequence at a time.

    .. math:: (W x)_j \approx s_j\, s \sum_k \mathrm{round}(W_{jk} / s_j)\, \mathrm{round}(x_k / s), \quad
        s_j = \max_k |W_{jk}| / 127, \quad s = \max_k |x_k| / 127

    ``W`` is ``weight_ih`` and ``weight_hh``, ``x`` the input and the state ``h`` of one case at one step. The sums are
    whole numbers, and exact. What is rounded away from :math:`(W x)_j` is at most
    :math:`\frac{s}{2} \sum_k |W_{jk}| + \frac{s_j}{2} (\sum_k |x_k| + \frac{s}{2} n)`, with n numbers in x. Gains,
    biases, the projection ``weight_hr``, the normalisations and the state ``c`` stay as they are. A row whose numbers
    are all below 1.5e-36 (in float64 2.8e-306) counts as zeros.

    A small network is slower in int8, or not faster, so it stays as it is. A network is small if ``weight_ih`` and
    ``weight_hh`` of a layer and direction have fewer than 150,000 numbers together, in the mean over layers and
    directions. With an input size equal to the hidden size that is an LSTM of up to 136 units, a GRU of up to 158, an
    RNN of up to 273. ``filter_fn`` makes another choice. The ``repr`` of a network with int8 weights has
    ``dtype=torch.int8``.

    The weights become int8 buffers. Their scales ``weight_ih_scale_l0``... are also buffers, so the copy has a state
    dict of its own, a quarter as large. Scales are in float32 or wider, also in a network of 16 bits. To load a state
    dict, quantize a new model and call ``load_state_dict``. The copy takes what the original takes in evaluation, but
    it has no ``stepper``. Cells and other modules stay as they are.

    A network with int8 weights has no gradient. A call raises a RuntimeError in training mode, or where a tensor
    requires grad.

    Args:
        model: any network, or one of layernorm's itself. It is not changed. Weights that a parametrization
            computes, as under weight norm, also become int8.
        filter_fn: ``(module, name) -> bool`` says whether the weights of a network become int8. It is called with
            every `RNN`, `LSTM` and `GRU` of layernorm, and its name in ``model``. By default the weights of large
            networks do.

    Returns:
        The copy. If it has no int8 weights, a warning says so.

    Raises:
        TypeError: ``model`` is no module, or ``filter_fn`` is no function.
        ValueError: a network whose weights are to become int8 has batch norm or no inputs; its weights are computed
            (pruning), parametrized and in training, or int8 already; or it is too large for sums of 32 bits, with more
            than 133,144 inputs or units.

    Example::

        fast = ln.quantize(model.eval())
        all_int8 = ln.quantize(model.eval(), filter_fn=lambda module, name: True)
    """
    check_module("quantize", model, "model")
    if not (filter_fn is None or callable(filter_fn)):
        raise TypeError(f"quantize: filter_fn must be a function (module, name) -> bool, got {filter_fn!r:.60}")
    networks = {name: part for name, part in model.named_modules() if isinstance(part, Recurrent)}
    chosen = [name for name, part in networks.items() if (filter_fn or _is_large)(part, name)]
    for name in chosen:
        _check(name or "the model", networks[name])
    copied = copy.deepcopy(model)
    for name in chosen:
        _quantize(cast("Recurrent[Any]", copied.get_submodule(name)))
    if not chosen:
        warnings.warn(f"quantize: {_why_none(model, networks, filter_fn is not None)}", stacklevel=3)  # past no_grad
    return copied


def _numbers(network: Recurrent[Any]) -> int:
    """Returns how many numbers the weight matrices of a layer and direction have, in the mean."""
    sizes = [getattr(network, name + suffix).numel() for name in QUANTIZED for suffix in network._suffixes]
    return sum(sizes) // len(network._suffixes)


def _is_large(module: torch.nn.Module, name: str) -> bool:
    return _numbers(cast("Recurrent[Any]", module)) >= WORTHWHILE


def _why_none(model: torch.nn.Module, networks: Mapping[str, Recurrent[Any]], filtered: bool) -> str:
    """Says why no network of a model has become int8."""
    where = type(model).__name__
    if not networks:
        return f"no RNN, LSTM or GRU of layernorm in {where}; layernorm.accelerate(model) makes torch's into such"
    if filtered:
        return f"filter_fn chose none of the networks in {where}: {', '.join(map(repr, networks))}"
    name, largest = max(networks.items(), key=lambda item: _numbers(item[1]))
    return (
        f"every network in {where} stays as it is, because int8 is not faster below {WORTHWHILE:,} numbers in the "
        f"weight matrices of a layer; {name or 'the model'}, {type(largest).__name__}({largest.input_size}, "
        f"{largest.hidden_size}), has {_numbers(largest):,}. filter_fn=lambda module, name: True makes all int8"
    )


def _check(name: str, network: Recurrent[Any]) -> None:
    """Raises an error where a network has no form with int8 weights."""
    weights = [weight + suffix for weight in QUANTIZED for suffix in network._suffixes]
    reasons = {
        "is quantized already": network.recurrence.quantized,
        "has batch norm": network.norm == "batch",
        "has computed weights (pruning makes such); make them parameters first": not all(
            weight in network._parameters or is_parametrized(network, weight) for weight in weights
        ),
        "is in training and has parametrized weights, which it may draw; call eval() first": network._may_be_drawn,
        "has input_size=0": network.input_size == 0,
        f"has more than {MOST} inputs or units": max(*network._input_sizes, network.hidden_size) > MOST,
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"quantize: cannot copy {name}: the {type(network).__name__} {reason}")


def _quantize(network: Recurrent[Any]) -> None:
    """Replaces a network's weights, in place."""
    if is_parametrized(network):  # `remove_parametrizations` would change the original, whose class the copy has
        computed = {name: getattr(network, name) for name in cast(torch.nn.ModuleDict, network.parametrizations)}
        original = own_class(network)
        del network.parametrizations
        network.__class__ = original
        for name, value in computed.items():
            network.register_buffer(name, value)
    for suffix in network._suffixes:
        for name in QUANTIZED:
            whole, scale = round_rows(getattr(network, name + suffix))
            delattr(network, name + suffix)
            network.register_buffer(name + suffix, whole)
            network.register_buffer(f"{name}_scale{suffix}", scale)
    network.requires_grad_(False)
    network._set_equations(replace(network.recurrence, quantized=True), network.norm)
    if isinstance(network, torch.nn.RNNBase):  # an accelerated one, whose list would keep the weights
        network._init_flat_weights()


def round_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a matrix in int8, and the scale of each row, in float32 or wider. It is not finite if a number of the row
    is not."""
    weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
    scale = weight.abs().amax(1) / 127
    divided = torch.where(scale >= torch.finfo(scale.dtype).tiny, 1 / scale, 0.0)[:, None] * weight
    return divided.round().clamp(-127, 127).nan_to_num(0).to(torch.int8), scale
