"""The time of an engine, forward and backward, relative to torch's own op or network without layer norm."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from .. import backends, functional, nn
from .comparison import Row

NETWORK = {"cpu": (32, 16, 128), "cuda": (64, 64, 512)}
"""T, B, and I = H."""
NORM = {"cpu": (1024, 1024), "cuda": (16384, 1024)}
"""M, N."""
ROUNDS, LEAST, ENOUGH = 5, 5e-3, 0.5
"""The number of turns; the least seconds of a turn; the seconds after which no turn begins."""


def relative_time(row: Row) -> float | None:
    """Divides the engine's time by torch's: minima over rounds in which both take turns.

    None: torch has no such op. Networks have the paper's formula and no projections. On a GPU both compute float32 in
    float32, not in TF32.
    """
    torch.backends.cudnn.allow_tf32 = False
    ours, theirs = _norm(row) if row.op.endswith("_norm") else _network(row)
    try:
        theirs()
    except RuntimeError:
        return None
    with backends.use(row.engine):
        ours()
    best = [math.inf, math.inf]
    repeats = [1 + int(LEAST / seconds) for seconds in _both(row, ours, theirs, [1, 1])]
    start = time.perf_counter()
    for _ in range(ROUNDS):
        if time.perf_counter() - start > ENOUGH and max(best) < math.inf:
            break
        best = list(map(min, best, _both(row, ours, theirs, repeats)))
    return best[0] / best[1]


def _both(row: Row, ours: Callable[[], object], theirs: Callable[[], object], repeats: list[int]) -> list[float]:
    with backends.use(row.engine):
        mine = _seconds(ours, repeats[0], row.device)
    return [mine, _seconds(theirs, repeats[1], row.device)]


def _seconds(run: Callable[[], object], repeats: int, device: str) -> float:
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    synchronize()
    return (time.perf_counter() - start) / repeats


def _norm(row: Row) -> tuple[Callable[[], object], Callable[[], object]]:
    M, N = NORM[row.device]
    x, weight, dy = (torch.randn(s, device=row.device, dtype=row.dtype) for s in ((M, N), (N,), (M, N)))
    leaves = [x.requires_grad_(), weight.requires_grad_()]

    def run(op: Callable[..., Tensor]) -> object:
        return torch.autograd.grad(op(x, (N,), weight, eps=1e-5), leaves, dy)

    mine, torchs = getattr(functional, row.op), getattr(torch.nn.functional, row.op)
    return lambda: run(mine), lambda: run(torchs)


def _network(row: Row) -> tuple[Callable[[], object], Callable[[], object]]:
    T, B, H = NETWORK[row.device]
    x, dy = (torch.randn(T, B, H, device=row.device, dtype=row.dtype) for _ in range(2))
    x.requires_grad_()
    mine, torchs = (getattr(where, row.op)(H, H, device=row.device, dtype=row.dtype) for where in (nn, torch.nn))

    def run(module: torch.nn.Module) -> object:
        return torch.autograd.grad(module(x)[0], [x, *module.parameters()], dy)

    return lambda: run(mine), lambda: run(torchs)
