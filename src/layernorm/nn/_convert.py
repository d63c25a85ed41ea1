"""`convert`: torch's recurrent modules inside a network become layernorm's, with their weights."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from ..formula import Formula
from ._gru import GRU, GRUCell
from ._lstm import LSTM, LSTMCell
from ._recurrent import Normalised
from ._rnn import RNN, RNNCell

_TABLE: dict[type[torch.nn.Module], tuple[type[Normalised], tuple[str, ...]]] = {
    # torch's module: ours, and the constructor arguments to read off
    torch.nn.RNN: (RNN, ("num_layers", "nonlinearity", "bias", "batch_first", "dropout", "bidirectional")),
    torch.nn.LSTM: (LSTM, ("num_layers", "bias", "batch_first", "dropout", "bidirectional", "proj_size")),
    torch.nn.GRU: (GRU, ("num_layers", "bias", "batch_first", "dropout", "bidirectional")),
    torch.nn.RNNCell: (RNNCell, ("bias", "nonlinearity")),
    torch.nn.LSTMCell: (LSTMCell, ("bias",)),
    torch.nn.GRUCell: (GRUCell, ("bias",)),
}


def convert(
    module: torch.nn.Module,
    norm: str | None = "layer",
    *,
    formula: str | Formula = "paper",
    eps: float | None = None,
    gain_init: float = 1.0,
) -> torch.nn.Module:
    """Swaps every `torch.nn.RNN`, `LSTM`, `GRU` and their cells inside a module for layernorm's, keeping the weights.

    The parameters that both have are kept as the same objects, so that ties, optimisers and ``requires_grad`` stay
    valid; the gains and the cell's bias are new, on the same device and of the same type. Subclasses of torch's modules
    are left alone: what they add could not be kept.

    Args:
        module: changed in place, unless it is itself one of torch's recurrent modules.
        norm, formula, eps, gain_init: as in `LSTM`.

    Returns:
        The module, or the new one that takes its place.

    Raises:
        ValueError, TypeError: as the constructors do, or a module has what could not be kept: hooks, or weights that
            are computed (`torch.nn.utils.weight_norm`, pruning). Then nothing has been changed.

    Example::

        model = ln.convert(torch.nn.Sequential(torch.nn.LSTM(28, 128)))
    """
    keywords: dict[str, Any] = {"norm": norm, "formula": formula, "eps": eps, "gain_init": gain_init}
    made = {id(old): _converted(old, keywords) for old in module.modules() if type(old) in _TABLE}
    if not made:
        warnings.warn(f"convert: no RNN, LSTM, GRU or cell of torch.nn in {type(module).__name__}", stacklevel=2)
    if id(module) in made:
        return made[id(module)]
    for parent in list(module.modules()):
        for name, child in parent._modules.items():
            if id(child) in made:
                parent._modules[name] = made[id(child)]
    return module


def _converted(old: torch.nn.Module, keywords: dict[str, Any]) -> torch.nn.Module:
    ours, names = _TABLE[type(old)]
    like = next(old.parameters())
    arguments = {name: getattr(old, name) for name in names}
    with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []):
        new = ours(old.input_size, old.hidden_size, **arguments, device=like.device, dtype=like.dtype, **keywords)
    computed = [name for name in new._parameters if name not in old._parameters and hasattr(old, name)]
    hooks = [name.strip("_") for name, registered in vars(old).items() if name.endswith("_hooks") and registered]
    if computed or hooks:
        what = ", ".join(computed + hooks)
        raise ValueError(
            f"convert: cannot keep {what} of {type(old).__name__}; convert first, then add what is not a parameter"
        )
    for name, parameter in old._parameters.items():
        if name in new._parameters:
            new._parameters[name] = parameter
    return new.train(old.training)
