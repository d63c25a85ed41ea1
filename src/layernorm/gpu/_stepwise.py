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
from ._layer import Backward, Forward, LayerTensors, Saved, Vectors
from ._norms import _column_sum
from ._spans import share


@functools.cache
def _constants(recurrence: Recurrence) -> dict[str, Any]:
    """What a step's kernels are compiled for."""
    f = recurrence.formula
    form = _steps.SPLIT
    if f.gates == "sum":
        form = _steps.SUM_OVER_ALL if recurrence.reset_multiplies == "sum" else _steps.SUM
    constants: dict[str, Any] = {
        "LAYER": recurrence.norm == "layer", "DEVIATION": f.eps_on == "deviation", "SHARE": share(recurrence),
        "FORM": form.value,
    }  # fmt: skip
    if recurrence.network == "LSTM":
        constants["CARRY"] = f.cell == "carry"
    if recurrence.network == "RNN":
        constants["RELU"] = recurrence.nonlinearity == "relu"
    return constants


def _programs(layer: LayerTensors) -> int:
    return max(1, triton.cdiv(layer.B, _launch.step(layer.H).rows))


def _launch_step(kernel: Any, layer: LayerTensors, *arguments: Any) -> None:
    """By rows."""
    f = layer.recurrence.formula
    numbers = [f.eps] if layer.recurrence.network == "RNN" else [f.eps, f.forget_bias]
    constants, tile = _constants(layer.recurrence), _launch.step(layer.H).arguments
    kernel[(_programs(layer),)](*arguments, layer.B, layer.H, *numbers, **constants, **tile)


def _launch_projection(kernel: Any, layer: LayerTensors, *arguments: Any) -> None:
    tile = _launch.step(layer.P)
    kernel[(triton.cdiv(layer.B, tile.rows),)](*arguments, layer.B, layer.P, **tile.arguments)


def _cut(layer: LayerTensors, t: int) -> Tensor | None:
    """That of step t; there is none after the last."""
    return None if layer.masks.cut is None or t == layer.T else layer.masks.cut[t]


class _Run(NamedTuple):
    """What the steps of the forward fill. Of h, W_hh h and c there is room for every step, or only for the next."""

    output: Tensor  # (T, B, P)
    h: Tensor  # (B, P) float32, in the end the final state
    hs: Tensor  # (.., B, P), before each step, with its cut
    zh: Tensor  # (.., B, G*H)
    cs: Tensor | None = None  # LSTM: (.., B, H) float32, the initial c and after each step
    m: Tensor | None = None  # (B, H), what is projected


def _lstm_forward(layer: LayerTensors, run: _Run, t: int, zx: Tensor, zh: Tensor, after: Tensor) -> None:
    assert run.cs is not None
    cs = run.cs[t % len(run.cs)], run.cs[(t + 1) % len(run.cs)]
    lengths, cut = layer.masks.lengths, _cut(layer, t + 1)
    state = (run.output[t], run.h, after)
    masks = (lengths, _cut(layer, t), cut)
    _launch_step(_steps.lstm_forward, layer, zx, zh, layer.vectors, *cs, run.m, *state, *masks, t)
    if run.m is not None and layer.W_hr is not None:
        projected = torch.mm(run.m, layer.W_hr.t())
        _launch_projection(_steps.projection_forward, layer, projected, *state, lengths, cut, t)


def _gru_forward(layer: LayerTensors, run: _Run, t: int, zx: Tensor, zh: Tensor, after: Tensor) -> None:
    masks = (layer.masks.lengths, _cut(layer, t), _cut(layer, t + 1))
    _launch_step(_steps.gru_forward, layer, zx, zh, layer.vectors, run.output[t], run.h, after, *masks, t)


def _rnn_forward(layer: LayerTensors, run: _Run, t: int, zx: Tensor, zh: Tensor, after: Tensor) -> None:
    masks = (layer.masks.lengths, _cut(layer, t + 1))
    _launch_step(_steps.rnn_forward, layer, zx, zh, layer.vectors, run.output[t], run.h, after, *masks, t)


_FORWARD = {"LSTM": _lstm_forward, "GRU": _gru_forward, "RNN": _rnn_forward}


def forward(layer: LayerTensors, zx: Tensor, save: bool) -> Forward:
    T, B, P = layer.T, layer.B, layer.P
    slots = T + 1 if save else 2
    hs = zx.new_empty(slots, B, P)
    hs[0] = layer.before_first(layer.h0)
    run = _Run(zx.new_empty(T, B, P), layer.h0.clone(), hs, zx.new_empty(T if save else 1, B, layer.units))
    if layer.c0 is not None:
        cs = zx.new_empty(slots, B, layer.H, dtype=torch.float32)
        cs[0] = layer.c0
        run = run._replace(cs=cs, m=None if layer.W_hr is None else zx.new_empty(B, layer.H))
    step = _FORWARD[layer.recurrence.network]
    for t in range(T if B else 0):
        zh = run.zh[t % len(run.zh)]
        torch.mm(hs[t % slots], layer.W_hh.t(), out=zh)
        step(layer, run, t, zx[t], zh, hs[(t + 1) % slots])
    final = [run.h] if run.cs is None else [run.h, run.cs[T % slots].clone()]
    return Forward(run.output, final, Saved(zx, run.zh, hs[:T], run.cs) if save else None)


class _Back(NamedTuple):
    """What the steps of the backward go through; as `_steps` names it."""

    dy: Tensor
    through: Tensor
    direct: Tensor
    dc: Tensor | None
    dzx: Tensor
    dzh: Tensor
    d: Vectors
    dh: Tensor | None  # with projections, of all steps: the gradient of h (T, B, P),
    m: Tensor | None  # and what is projected (T, B, H)


def _lstm_backward(layer: LayerTensors, saved: Saved, back: _Back, t: int) -> None:
    assert saved.cs is not None
    lengths, cut_before, cut = layer.masks.lengths, _cut(layer, t), _cut(layer, t + 1)
    dm = m = None
    if layer.W_hr is not None and back.dh is not None and back.m is not None:
        arriving = (back.through, back.direct, back.dy[t], back.dh[t])
        _launch_projection(_steps.projection_backward, layer, *arriving, lengths, cut, t)
        dm, m = torch.mm(back.dh[t], layer.W_hr), back.m[t]
    _launch_step(
        _steps.lstm_backward, layer, saved.zx[t], saved.zh[t], layer.vectors, saved.cs[t], back.through, back.direct,
        back.dy[t], dm, m, back.dc, lengths, cut_before, cut, back.dzx[t], back.dzh[t], back.d, t,
    )  # fmt: skip


def _gru_backward(layer: LayerTensors, saved: Saved, back: _Back, t: int) -> None:
    _launch_step(
        _steps.gru_backward, layer, saved.zx[t], saved.zh[t], layer.vectors, saved.hs[t], back.through, back.direct,
        back.dy[t], layer.masks.lengths, _cut(layer, t + 1), back.dzx[t], back.dzh[t], back.d, t,
    )  # fmt: skip


def _rnn_backward(layer: LayerTensors, saved: Saved, back: _Back, t: int) -> None:
    _launch_step(
        _steps.rnn_backward, layer, saved.zx[t], saved.zh[t], layer.vectors, back.through, back.direct, back.dy[t],
        layer.masks.lengths, _cut(layer, t + 1), back.dzx[t], back.dzh[t], back.d, t,
    )  # fmt: skip


_BACKWARD: dict[str, Callable[[LayerTensors, Saved, _Back, int], None]] = {
    "LSTM": _lstm_backward, "GRU": _gru_backward, "RNN": _rnn_backward,
}  # fmt: skip


def backward(layer: LayerTensors, saved: Saved, dy: Tensor, arriving: tuple[Tensor, Tensor | None]) -> Backward:
    T, B, zx = layer.T, layer.B, saved.zx
    dh, dc = arriving
    sums = torch.zeros(_programs(layer), len(Vectors._fields), layer.units, dtype=torch.float32, device=zx.device)
    parts = (None if v is None else part for v, part in zip(layer.vectors, sums.unbind(1), strict=True))
    projected = layer.W_hr is not None
    back = _Back(
        dy=dy, through=dy.new_zeros(B, layer.P), direct=dh.clone(), dc=None if dc is None else dc.clone(),
        dzx=torch.empty_like(zx), dzh=torch.empty_like(zx), d=Vectors(*parts),
        dh=torch.empty_like(dy) if projected else None, m=dy.new_empty(T, B, layer.H) if projected else None,
    )  # fmt: skip
    for t in reversed(range(T if B else 0)):
        _BACKWARD[layer.recurrence.network](layer, saved, back, t)
        torch.mm(back.dzh[t], layer.W_hh, out=back.through)
    d_vectors = Vectors(*_added(sums).unbind())
    if layer.recurrence.formula.gates == "sum":  # the kernels add up one of the two biases that follow its norm
        d_vectors = d_vectors._replace(outside_h=d_vectors.outside_x)
    d_state = [layer.before_first(s) for s in (back.through.float() + back.direct, back.dc) if s is not None]
    d_weight_hr = None
    if back.dh is not None and back.m is not None:
        d_weight_hr = torch.mm(back.dh.flatten(0, 1).t(), back.m.flatten(0, 1))
    return Backward(back.dzx, back.dzh, d_state, d_vectors, d_weight_hr)


def _added(sums: Tensor) -> Tensor:
    """(programs, 8, G*H) -> (8, G*H)"""
    total, columns = torch.empty_like(sums[0]), sums[0].numel()
    _column_sum[(triton.cdiv(columns, _launch.COLUMN_SUM.columns),)](
        sums, total, len(sums), columns, **_launch.COLUMN_SUM.arguments
    )
    return total
