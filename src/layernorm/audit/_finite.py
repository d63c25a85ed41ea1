"""Where numbers that are infinite or NaN begin."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves

from ._finding import Finding
from ._gradients import numbers


def first_not_finite(
    module: torch.nn.Module, batch: Sequence[Any], output: Any, total: Tensor, gradients: Sequence[tuple[str, Tensor]]
) -> Finding:
    """Says where numbers that are not finite begin, of which some were met in the loss, in gradients or in what an
    audit measures: in the parameters, the batch, the output, the loss or the gradients, in the order of a call."""
    loss = float(total.detach())
    parameters = [*module.named_parameters(), *_statistics(module)]
    inputs = list(_inputs(batch))
    for name, tensor in parameters:
        if bad := _count(tensor):
            owner, _, leaf = name.rpartition(".")
            return Finding(
                owner, f"{bad} of the {tensor.numel()} numbers of {leaf} are not finite", bad, 0, "Set it again."
            )
    for name, tensor in inputs:
        if bad := _count(tensor):
            place = (~tensor.isfinite()).nonzero()[0].tolist()
            what = f"{bad} of the {tensor.numel()} numbers of {name} are not finite, the first at {place}"
            return Finding("", what, bad, 0, "Replace them in the inputs.")
    for name, tensor in inputs:
        most, limit = _largest(tensor), _limit(tensor)
        if most > limit:
            what = f"{name} reaches {most:.1e}, and the squares of numbers above {limit:.1e} are infinite"
            return Finding("", what, most, limit, "Scale the inputs, best to a size near 1.")
    sources = f"from inputs up to {_reach(inputs)} and parameters up to {_reach(parameters)}"
    fix = "Bring inputs and weights to a size near 1."
    if bad := sum(_count(leaf) for leaf in tree_leaves(output) if isinstance(leaf, Tensor)):
        return Finding("", f"{bad} numbers of the output are not finite, {sources}", bad, 0, fix)
    if not math.isfinite(loss):
        return Finding(
            "", f"the loss is {loss} of a finite output", loss, 0, "Look at the loss for a log or root of 0."
        )
    names = [name for name, gradient in gradients if _count(gradient)]
    if names:
        what = f"the gradient of {names[0]} is not finite, one of {len(names)} among {len(gradients)}, {sources}"
        return Finding("", f"{what}; the loss is {loss:.1e}", len(names), 0, fix)
    what = f"numbers under a norm, in the plain network or in the first update are beyond their type, {sources}"
    return Finding("", what, math.inf, 0, fix)


def _statistics(module: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields the statistics of batch norms. Other buffers, such as masks, may be infinite."""
    return ((name, b) for name, b in module.named_buffers() if name.rpartition(".")[2].startswith("running_"))


def _inputs(batch: Sequence[Any]) -> Iterator[tuple[str, Tensor]]:
    """Yields the batch's tensors of numbers with the places where they stand."""
    leaves, _ = tree_flatten_with_path(tuple(batch))
    for path, leaf in leaves:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            yield f"batch{keystr(path)}", leaf.detach()


def _count(tensor: Tensor) -> int:
    return int((~numbers(tensor.detach()).isfinite()).sum())


def _largest(tensor: Tensor) -> float:
    return float(tensor.detach().abs().max()) if tensor.numel() else 0.0


def _limit(tensor: Tensor) -> float:
    """Returns the largest number with a finite square, in the type that is computed in."""
    return math.sqrt(torch.finfo(torch.promote_types(tensor.dtype, torch.float32)).max)


def _reach(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Returns the largest of the numbers, and where it stands."""
    most, name = max(((_largest(tensor), name) for name, tensor in tensors), default=(0.0, "none"))
    return f"{most:.1e} ({name})"
