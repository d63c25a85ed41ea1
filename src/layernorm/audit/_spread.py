"""The deviations that norms divide by: those without spread, and a unit that drowns the others."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..nn._norms import LayerNorm, RMSNorm
from ._finding import Finding

HALF = 0.5
"""The part of the vectors at one time step that must have a deviation of at most sqrt(eps). A smaller part comes from
single cases, not from how the network starts."""

SHARE = 0.9
"""The largest share of one input or unit in the sum of squares under a norm. Above it all the others together have less
than a third (sqrt(0.1)) of the norm's output. With ten units or fewer layer norm leaves no unit a larger share."""


class Spread:
    """The deviations under one norm: for each step of all its calls one after another, those of R vectors (R,)."""

    def __init__(self, module: str, place: str, limit: float) -> None:
        self.module, self.place, self.limit = module, place, limit
        self.steps: list[Tensor] = []  # deviations of the vectors that count
        self.shares: list[Tensor] = []

    def findings(self) -> Iterator[Finding]:
        flat = [step for step, d in enumerate(self.steps) if len(d) and float((d <= self.limit).float().mean()) >= HALF]
        if flat:
            deviation = float(self.steps[flat[0]].median())
            where = "" if len(self.steps) == 1 else f" at {len(flat)} of {len(self.steps)} steps, the first {flat[0]},"
            yield Finding(
                self.module,
                f"the deviation of {self.place}{where} is {deviation:.1e}, at most sqrt(eps) = {self.limit:.1e}: the "
                f"norm's output is not normalised, and its gradient is multiplied by up to {_factor(self.limit)}",
                deviation, self.limit,
                "Give what is normalised a larger deviation, by larger weights or inputs before it. Where it is 0, "
                "start the biases other than 0, for example from U(-0.05, 0.05). Or take a smaller eps.",
            )  # fmt: skip
        if self.shares:
            share = torch.stack(self.shares).mean(0)
            most = int(share.argmax())
            if float(share[most]) > SHARE:
                yield Finding(
                    self.module,
                    f"unit {most} of {self.place} has {float(share[most]):.1%} of the sum of squares under the norm, "
                    f"and drowns the other {len(share) - 1}",
                    float(share[most]), SHARE,
                    "Bring it to the others' scale before the norm, or keep it out of it.",
                )  # fmt: skip


Spreads = dict[tuple[str, str, int], Spread]
"""By module, place and number of units, by which a GRU's r and z differ from n in the same place."""


def _factor(limit: float) -> str:
    return f"{1 / limit:.3g}" if limit else "infinity"


@contextlib.contextmanager
def watch_norms(module: torch.nn.Module, spreads: Spreads) -> Iterator[None]:
    """Notes the deviations that torch's and layernorm's feed-forward norms divide by, inside the ``with``."""
    handles = []
    for name, part in module.named_modules():
        for norm_class, rows_of in _ROWS.items():
            if isinstance(part, norm_class):
                handles.append(part.register_forward_pre_hook(_norm_hook(name, rows_of, spreads), with_kwargs=True))
                break
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Rows(NamedTuple):
    """The input of a feed-forward norm as rows, each of which it divides by its own deviation."""

    z: Tensor  # (R, n), centred unless it is an RMS norm's
    share: bool  # whether the columns are units


def _norm_hook(name: str, rows_of: Callable[[Any, Tensor], _Rows], spreads: Spreads) -> Any:
    @torch.no_grad()
    def hook(part: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
        has_residual = type(part).forward in (LayerNorm.forward, RMSNorm.forward)
        total = sum(tensors[1:], tensors[0]) if has_residual else tensors[0]
        total = total.detach().to(torch.promote_types(total.dtype, torch.float32))
        shape = tuple(getattr(part, "normalized_shape", ()))
        if not total.numel() or total.shape[total.dim() - len(shape) :] != shape:
            return  # a subclass that normalises other dimensions, such as LayerNorm2d of torchvision's ConvNeXt
        z, is_share = rows_of(part, total)
        eps = torch.finfo(total.dtype).eps if part.eps is None else part.eps
        spread = spreads.setdefault((name, "", 0), Spread(name, "its input", math.sqrt(eps)))
        spread.steps.append(z.square().mean(1).sqrt())
        if is_share:
            squares = z.square().sum(0)
            spread.shares.append(squares / squares.sum().clamp_min(1e-30))

    return hook


def _centred(z: Tensor) -> Tensor:
    return z - z.mean(1, keepdim=True)


def _cases(part: Any, z: Tensor) -> Tensor:
    """Returns the vectors that a layer or RMS norm normalises, as rows."""
    z = z.flatten(-len(part.normalized_shape))
    return z.reshape(-1, z.shape[-1])


def _by_channel(rows: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], _Rows]:
    """Returns the function to the rows of a batch or instance norm, which in evaluation divides each channel by the
    deviation of the population, if it has one."""

    def rows_of(part: Any, z: Tensor) -> _Rows:
        if part.training or part.running_var is None:
            return _Rows(_centred(rows(part, z)), False)
        return _Rows(part.running_var.to(z).sqrt()[:, None], False)

    return rows_of


_ROWS: dict[type[torch.nn.Module], Callable[[Any, Tensor], _Rows]] = {
    torch.nn.LayerNorm: lambda part, z: _Rows(_centred(_cases(part, z)), True),
    torch.nn.RMSNorm: lambda part, z: _Rows(_cases(part, z), True),
    torch.nn.GroupNorm: lambda part, z: _Rows(_centred(z.reshape(len(z) * part.num_groups, -1)), False),
    torch.nn.modules.instancenorm._InstanceNorm: _by_channel(
        lambda part, z: (z[None] if z.dim() == part._get_no_batch_dim() else z).flatten(2).flatten(0, 1)
    ),
    torch.nn.modules.batchnorm._BatchNorm: _by_channel(lambda part, z: z.transpose(0, 1).flatten(1)),
}
"""For each norm, the function from its input to the rows that it normalises."""
