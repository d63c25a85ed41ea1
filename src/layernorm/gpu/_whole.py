"""A sequence in one launch forward and one backward (`_persistent`), where the weights fit the multiprocessors.

After the backward's launch the gradient da of the summed inputs is known for all steps. What is left are normalisations
over rows, the ops of `_norms`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..formula import Formula
from . import _launch, _persistent
from ._call import Backward, Call, Forward
from ._norms import normalize_backward
from ._persistent import Statistics, Vectors
from ._sites import Sites
from ._spans import spans


def launch(call: Call) -> _launch.Persistent | None:
    """How a call is launched; None: it has no equations here, does not fit, or programs run one after the other."""
    if call.x.device.type == "cpu" or not (call.T and call.B and _persistent.covers(call.recurrence)):
        return None
    return _persistent.launch(call.recurrence, call.H, call.B, call.dtype, call.x.device)


def _sum(*terms: Tensor | None) -> Tensor | None:
    there = [t for t in terms if t is not None]
    return sum(there[1:], there[0]) if there else None


def _persistent_call(call: Call, zx: Tensor, chosen: _launch.Persistent) -> _persistent.Call:
    s, gates = call.sites, call.recurrence.formula.gates
    statistics = Statistics() if gates is None else _persistent.statistics(zx, call.recurrence, call.H)
    if gates == "sum":  # what is taken away of zx alone is its mean, and W_hh h has none
        vectors = Vectors(None, None, s.gain_x, _sum(s.outside_x, s.outside_h), s.gain_c, s.bias_c)
        statistics = statistics._replace(r=None)
    else:
        sides = (_sum(s.inside_x, s.outside_x), _sum(s.inside_h, s.outside_h))  # there is one of the two
        vectors = Vectors(s.gain_x, sides[0], s.gain_h, sides[1], s.gain_c, s.bias_c)
    return _persistent.Call(
        call.recurrence, chosen, zx, statistics, call.W_hh, vectors,
        call.state[0], call.state[1] if len(call.state) > 1 else None,
        _persistent.Schedule(call.lengths, call.cut),
    )  # fmt: skip


def forward(call: Call, zx: Tensor, save: bool, chosen: _launch.Persistent) -> Forward:
    output = zx.new_empty(call.T, call.B, call.P) if call.lengths is None else zx.new_zeros(call.T, call.B, call.P)
    kept = _persistent.forward(_persistent_call(call, zx, chosen), output, save)
    final = [s for s in (kept.h, kept.c) if s is not None]
    return Forward(output, final, [s for s in (zx, kept.zh, kept.hs, kept.cs) if s is not None] if save else [])


def backward(
    call: Call, saved: list[Tensor], dy: Tensor, arriving: list[Tensor], chosen: _launch.Persistent
) -> Backward:
    """``arriving``: the gradients of the final state, which become those of the initial one."""
    zx, zh, hs, *cs = saved
    cells = cs[0][1:] if cs else None
    r, formula = call.recurrence, call.recurrence.formula
    before = _persistent_call(call, zx, chosen)
    q, hidden, cell = None, Statistics(), Statistics()
    both = zx.float() + zh.float() if formula.gates == "sum" else zh  # what the hidden side's normalisation is of
    if formula.gates is not None:
        hidden, q = _persistent.through_deviations(both, before)
    if formula.cell is not None and cells is not None:
        cell = _persistent.statistics(cells, replace(r, network="RNN", formula=Formula(eps=formula.eps)), call.H)
    kept = _persistent.Kept(arriving[0], None, zh, hs, cs[0] if cs else None)
    dc = arriving[1] if len(arriving) > 1 else None
    found = _persistent.backward(before, kept, hidden, q, cell, dy, arriving[0], dc)
    del q
    da, gates = found.da.flatten(0, 1), Sites()
    of_hidden, of_input = da[:, : call.units], da
    if r.network == "GRU":  # whose last block is n as the input's side sees it
        of_input = torch.cat([da[:, : 2 * call.H], da[:, 3 * call.H :]], 1)
    if formula.gates is None:
        dzx, dzh = of_input, of_hidden.contiguous()
        gates = Sites(inside_x=_over_rows(dzx), inside_h=_over_rows(dzh))
    else:
        dzh, gain, bias = _normalized(call, of_hidden, both, hidden, "gain_x" if formula.gates == "sum" else "gain_h")
        if formula.gates == "sum":
            dzx, gates = dzh, Sites(gain_x=gain, outside_x=bias, outside_h=bias.clone())
        else:
            gates = Sites(gain_h=gain, outside_h=bias)
            dzx, gain, bias = _normalized(call, of_input, zx, before.statistics, "gain_x")
            gates = gates._replace(gain_x=gain, outside_x=bias)
    if found.dn is not None and cells is not None:
        _, gain, bias = _normalized(call, found.dn.flatten(0, 1), cells, cell, "gain_c")
        gates = gates._replace(gain_c=gain, bias_c=bias)
    d_state = [s for s in (found.h0, found.c0) if s is not None]
    return Backward(dzx.view_as(zx), dzh.view_as(zh), d_state, gates)


def _over_rows(d: Tensor) -> Tensor:
    return d.sum(0, dtype=torch.float32)


def _normalized(call: Call, dy: Tensor, z: Tensor, statistics: Statistics, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Back through a normalisation of all steps: dz (T * B, n), and the gradients of its gain and bias."""
    rows, gain, norm = z.flatten(0, 1), getattr(call.sites, name), call.recurrence.norm
    parts = [(0, call.H)] if name == "gain_c" else spans(call.recurrence, call.H)
    found = []
    for k, (first, last) in enumerate(parts):
        columns = [s[:, k].contiguous() for s in statistics if s is not None]
        vectors = gain[first:last], torch.empty_like(gain[first:last])  # a bias has no value here, only a gradient
        arguments = (dy[:, first:last], None, rows[:, first:last], [last - first], *vectors, columns, norm)
        found.append(normalize_backward(*arguments))
    dz, d_gain, d_bias = (torch.cat(part, -1) if len(part) > 1 else part[0] for part in zip(*found, strict=True))
    return dz.to(call.dtype), d_gain, d_bias
