"""Other tensors instead of a module's own, to measure what another start would give."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..convert import named_networks
from ..nn._gains import steady_gain


@contextlib.contextmanager
def replaced(module: torch.nn.Module, tensors: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Lets a module use other tensors instead of some of its parameters and buffers inside the ``with``.

    No tensor is written to, so that a backward whose forward came before stays valid.
    """
    kept: list[dict[str, Any]] = [of for part in module.modules() for of in (part._parameters, part._buffers)]
    places = [(of, name, t) for of in kept for name, t in of.items() if t is not None and t in tensors]
    try:
        for of, name, t in places:
            of[name] = tensors[t]
        yield
    finally:
        for of, name, t in places:
            of[name] = t


def steady_gains(module: torch.nn.Module) -> dict[Tensor, Tensor]:
    """Makes gains of the start ``"steady"`` for those recurrent ones in a module that are larger. It may have none."""
    made: dict[Tensor, Tensor] = {}
    for network in named_networks(module).values():
        steady = steady_gain(network.recurrence)
        for name, p in network.named_parameters(recurse=False):
            if name.startswith("gain_hh") and float(p.detach().abs().mean()) > 1.1 * steady:
                made[p] = torch.nn.Parameter(torch.full_like(p, steady), p.requires_grad)
    return made
