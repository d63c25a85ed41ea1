"""A sequence step by step: one product with W_hh and one kernel of `_steps` each. It takes every formula."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ..formula import Recurrence
from . import _launch, _steps
from ._call import OUTSIDE_H, OUTSIDE_X, Backward, Call, Forward
from ._norms import _column_sum
from ._sites import Sites
from ._spans import share


@functools.cache
def _constants(recurrence: Recurrence) -> dict[str, Any]:
    """What a step's kernels are compiled for."""
    f = recurrence.formula
    form = _steps.SPLIT
    if f.gates == "sum":
        form = _steps.SUM_OVER_ALL if recurrence.network == "GRU" and f.span == "all" else _steps.SUM
    constants: dict[str, Any] = {
        "LAYER": recurrence.norm == "layer", "DEVIATION": f.eps_on == "deviation", "SHARE": share(recurrence),
        "FORM": form.value,
    }  # fmt: skip
    if recurrence.network == "LSTM":
        constants["CARRY"] = f.cell == "carry"
    if recurrence.network == "RNN":
        constants["RELU"] = recurrence.nonlinearity == "relu"
    return constants


def _programs(call: Call) -> int:
    return max(1, triton.cdiv(call.B, _launch.step(call.H).rows))


def _launch_step(kernel: Any, call: Call, *arguments: Any) -> None:
    """By rows."""
    f = call.recurrence.formula
    numbers = [f.eps] if call.recurrence.network == "RNN" else [f.eps, f.forget_bias]
    constants, tile = _constants(call.recurrence), _launch.step(call.H).arguments
    kernel[(_programs(call),)](*arguments, call.B, call.H, *numbers, **constants, **tile)


def _launch_projection(kernel: Any, call: Call, *arguments: Any) -> None:
    tile = _launch.step(call.P)
    kernel[(triton.cdiv(call.B, tile.rows),)](*arguments, call.B, call.P, **tile.arguments)


def _cut(call: Call, t: int) -> Tensor | None:
    """That of step t; there is none after the last."""
    return None if call.cut is None or t == call.T else call.cut[t]


class _Run(NamedTuple):
    """What the steps of the forward fill. Of h, W_hh h and c there is room for every step, or only for the next."""

    output: Tensor  # (T, B, P)
    h: Tensor  # (B, P) float32, in the end the final state
    hs: Tensor  # (.., B, P), before each step, with its cut
    zh: Tensor  # (.., B, G*H)
    cs: Tensor | None = None  # LSTM: (.., B, H) float32, the initial c and after each step
    m: Tensor | None = None  # (B, H), what is projected


def _lstm_forward(call: Call, run: _Run, t: int, zx: Tensor, zh: Tensor, after: Tensor) -> None:
    assert run.cs is not None
    cs = run.cs[t % len(run.cs)], run.cs[(t + 1) % len(run.cs)]
    cut_before, cut = _cut(call, t), _cut(call, t + 1)
    state = (run.output[t], run.h, after)
    _launch_step(_steps.lstm_forward, call, zx, zh, call.sites, *cs, run.m, *state, call.lengths, cut_before, cut, t)
    if run.m is not None and call.W_hr is not None:
        projected = torch.mm(run.m, call.W_hr.t())
        _launch_projection(_steps.projection_forward, call, projected, *state, call.lengths, cut, t)


def _gru_forward(call: Call, run: _Run, t: int, zx: Tensor, zh: Tensor, after: Tensor) -> None:
    masks = (call.lengths, _cut(call, t), _cut(call, t + 1))
    _launch_step(_steps.gru_forward, call, zx, zh, call.sites, run.output[t], run.h, after, *masks, t)


def _rnn_forward(call: Call, run: _Run, t: int, zx: Tensor, zh: Tensor, after: Tensor) -> None:
    _launch_step(
        _steps.rnn_forward, call, zx, zh, call.sites, run.output[t], run.h, after, call.lengths, _cut(call, t + 1), t
    )


_FORWARD = {"LSTM": _lstm_forward, "GRU": _gru_forward, "RNN": _rnn_forward}


def forward(call: Call, zx: Tensor, save: bool) -> Forward:
    T, B, P = call.T, call.B, call.P
    slots = T + 1 if save else 2
    hs = zx.new_empty(slots, B, P)
    hs[0] = call.before_first(call.state[0])
    run = _Run(zx.new_empty(T, B, P), call.state[0].clone(), hs, zx.new_empty(T if save else 1, B, call.units))
    if call.recurrence.network == "LSTM":
        cs = zx.new_empty(slots, B, call.H, dtype=torch.float32)
        cs[0] = call.state[1]
        run = run._replace(cs=cs, m=None if call.W_hr is None else zx.new_empty(B, call.H))
    step = _FORWARD[call.recurrence.network]
    for t in range(T if B else 0):
        zh = run.zh[t % len(run.zh)]
        torch.mm(hs[t % slots], call.W_hh.t(), out=zh)
        step(call, run, t, zx[t], zh, hs[(t + 1) % slots])
    cells = [] if run.cs is None else [run.cs]
    return Forward(
        run.output, [run.h, *(cs[T % slots].clone() for cs in cells)], [zx, run.zh, hs[:T], *cells] if save else []
    )


class _Back(NamedTuple):
    """What the steps of the backward go through; as `_steps` names it."""

    dy: Tensor
    through: Tensor
    direct: Tensor
    dc: Tensor | None
    zx: Tensor
    zh: Tensor
    hs: Tensor
    cs: Tensor | None
    dzx: Tensor
    dzh: Tensor
    d: Sites
    dh: Tensor | None  # with projections, of all steps: the gradient of h (T, B, P),
    m: Tensor | None  # and what is projected (T, B, H)


def _lstm_backward(call: Call, back: _Back, t: int) -> None:
    assert back.cs is not None
    cut = _cut(call, t + 1)
    dm = m = None
    if call.W_hr is not None and back.dh is not None and back.m is not None:
        arriving = (back.through, back.direct, back.dy[t], back.dh[t])
        _launch_projection(_steps.projection_backward, call, *arriving, call.lengths, cut, t)
        dm, m = torch.mm(back.dh[t], call.W_hr), back.m[t]
    _launch_step(
        _steps.lstm_backward, call, back.zx[t], back.zh[t], call.sites, back.cs[t], back.through, back.direct,
        back.dy[t], dm, m, back.dc, call.lengths, _cut(call, t), cut, back.dzx[t], back.dzh[t], back.d, t,
    )  # fmt: skip


def _gru_backward(call: Call, back: _Back, t: int) -> None:
    _launch_step(
        _steps.gru_backward, call, back.zx[t], back.zh[t], call.sites, back.hs[t], back.through, back.direct,
        back.dy[t], call.lengths, _cut(call, t + 1), back.dzx[t], back.dzh[t], back.d, t,
    )  # fmt: skip


def _rnn_backward(call: Call, back: _Back, t: int) -> None:
    _launch_step(
        _steps.rnn_backward, call, back.zx[t], back.zh[t], call.sites, back.through, back.direct, back.dy[t],
        call.lengths, _cut(call, t + 1), back.dzx[t], back.dzh[t], back.d, t,
    )  # fmt: skip


_BACKWARD: dict[str, Callable[[Call, _Back, int], None]] = {
    "LSTM": _lstm_backward, "GRU": _gru_backward, "RNN": _rnn_backward,
}  # fmt: skip


def backward(call: Call, saved: list[Tensor], dy: Tensor, arriving: list[Tensor]) -> Backward:
    """``arriving``: the gradients of the final state, which become those of the initial one."""
    T, B, network = call.T, call.B, call.recurrence.network
    zx, zh, hs, *cs = saved
    direct, *dc = (a.clone() for a in arriving)
    sums = torch.zeros(_programs(call), len(Sites._fields), call.units, dtype=torch.float32, device=zx.device)
    projected = call.W_hr is not None
    back = _Back(
        dy=dy, through=dy.new_zeros(B, call.P), direct=direct,
        dc=dc[0] if dc else None, zx=zx, zh=zh, hs=hs, cs=cs[0] if cs else None,
        dzx=torch.empty_like(zx), dzh=torch.empty_like(zh),
        d=Sites(*(None if s is None else part for s, part in zip(call.sites, sums.unbind(1), strict=True))),
        dh=torch.empty_like(dy) if projected else None, m=dy.new_empty(T, B, call.H) if projected else None,
    )  # fmt: skip
    for t in reversed(range(T if B else 0)):
        _BACKWARD[network](call, back, t)
        torch.mm(back.dzh[t], call.W_hh, out=back.through)
    total = _added(sums)
    if call.recurrence.formula.gates == "sum":  # whose normalisation has both biases
        total[OUTSIDE_H] = total[OUTSIDE_X]
    d_state = [call.before_first(s) for s in (back.through.float() + back.direct, back.dc) if s is not None]
    d_weight_hr = None
    if back.dh is not None and back.m is not None:
        d_weight_hr = torch.mm(back.dh.flatten(0, 1).t(), back.m.flatten(0, 1))
    return Backward(back.dzx, back.dzh, d_state, Sites(*total.unbind()), d_weight_hr)


def _added(sums: Tensor) -> Tensor:
    """(programs, 8, G*H) -> (8, G*H)"""
    total, columns = torch.empty_like(sums[0]), sums[0].numel()
    _column_sum[(triton.cdiv(columns, _launch.COLUMN_SUM.columns),)](
        sums, total, len(sums), columns, **_launch.COLUMN_SUM.arguments
    )
    return total
