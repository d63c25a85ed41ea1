"""Initial values of whole networks, in the manner of `torch.nn.init`: in place, with an underscore."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

import torch

from ..formula import GATES, Network, Recurrence
from ._gru import GRU, GRUCell
from ._lstm import LSTM, LSTMCell
from ._normalised import Normalised, parameter_of

Module = TypeVar("Module", bound=torch.nn.Module)

_NETWORKS: Mapping[type[torch.nn.Module], Network] = {
    **dict.fromkeys((LSTM, LSTMCell, torch.nn.LSTM, torch.nn.LSTMCell), "LSTM"),
    **dict.fromkeys((GRU, GRUCell, torch.nn.GRU, torch.nn.GRUCell), "GRU"),
}


@torch.no_grad()
def chrono_(module: Module, t_max: float) -> Module:
    r"""Draws the biases of the gates so that units forget over all times up to ``t_max`` steps.

    .. math::
        b_f = \log(u), \quad b_i = -\log(u), \quad u \sim U(1, t_{max} - 1)

    Here :math:`b_f` is the bias of the gate that keeps the old state, an LSTM's f and a GRU's z. :math:`b_i` is that of
    an LSTM's input gate. Each unit has its own u: with only this bias it forgets in about 1 + u steps. Where several
    biases are added to a gate, the first gets the value and the others become 0 there, as with the argument
    ``forget_bias`` of layernorm's networks. A formula's constant ``forget_bias`` is subtracted from :math:`b_f`. All
    else stays as it is. The equation is the paper's for an LSTM; a GRU's z takes the place of f.

    Args:
        module: an `LSTM`, `GRU`, `LSTMCell` or `GRUCell`, layernorm's or torch's, with any number of layers. It is
            changed.
        t_max: the longest time over which the data depend on each other, in steps. 2 or more.

    Returns:
        The module.

    Raises:
        TypeError: the module is of another kind.
        ValueError: ``t_max`` is no finite number of 2 or more, no bias is added to the gates, or one is computed, by
            pruning or a parametrization.

    Example::

        lstm = ln.nn.init.chrono_(ln.LSTM(28, 128), t_max=784)

    Source: Tallec, Ollivier, "Can recurrent neural networks warp time?", 2018, arXiv:1804.11188.
    """
    network = next((of for kind, of in _NETWORKS.items() if isinstance(module, kind)), None)
    if network is None:
        kind = f"{type(module).__module__}.{type(module).__name__}"
        raise TypeError(f"chrono_: module must be an LSTM, GRU or a cell of one, got {kind}")
    if not isinstance(t_max, int | float) or isinstance(t_max, bool) or not 2 <= t_max < math.inf:
        raise ValueError(f"chrono_: t_max must be a finite number of 2 or more, got {t_max!r}")
    recurrence = module.recurrence if isinstance(module, Normalised) else Recurrence(network, bias=bool(module.bias))
    if not recurrence.added_biases:
        raise ValueError(f"chrono_: no bias is added to the gates of {module}")
    layers = range(getattr(module, "num_layers", 0))  # a cell has none
    directions = ("", "_reverse") if getattr(module, "bidirectional", False) else ("",)
    suffixes = [f"_l{layer}{direction}" for layer in layers for direction in directions] or [""]
    names = [[name + suffix for name in recurrence.added_biases] for suffix in suffixes]
    for parameters in [[parameter_of(module, name) for name in layer] for layer in names]:
        biases = [parameter.detach().chunk(GATES[network]) for parameter in parameters]
        for i, keep, *_ in biases:  # of an LSTM's i, f, g, o and a GRU's r, z, n
            keep.zero_()
            if network == "LSTM":
                i.zero_()
        i, keep, *_ = biases[0]
        keep.uniform_(1, t_max - 1).log_()
        if network == "LSTM":
            i -= keep
        keep -= recurrence.formula.forget_bias
    return module
