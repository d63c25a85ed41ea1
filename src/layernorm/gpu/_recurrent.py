"""One layer in one direction over a whole sequence: the products with the weights, and the steps between them.

The products of all steps with W_ih are one, and so are those that make the gradients of x, W_ih and W_hh. What waits
for the step before is W_hh h, one product a step, and `_steps`' kernel after it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ..formula import GATES, Recurrence
from ..schedule import schedule, turned
from . import _launch, _steps
from ._norms import _column_sum
from ._sites import Sites


class _Equations(NamedTuple):
    """A recurrence as the kernels take it."""

    weights: tuple[int, ...]  # where among the parameters weight_ih, weight_hh, weight_hr are; -1: nowhere
    vectors: tuple[int, ...]  # and the fields of `Sites`
    again: int  # which parameter is added to outside_x once more
    constants: dict[str, Any]


@functools.cache
def _equations(recurrence: Recurrence) -> _Equations:
    f, names = recurrence.formula, recurrence.parameter_names
    found = [
        names.index(name) if name in names else -1
        for name in ("weight_ih", "weight_hh", "weight_hr", *recurrence.vector_names)
    ]
    gru, over_all = recurrence.network == "GRU", f.span == "all"
    form = _steps.SPLIT
    if f.gates == "sum":
        form = _steps.SUM_OVER_ALL if gru and over_all else _steps.SUM
    share = 1 if f.span == "per_gate" else 2 if gru and not over_all else 4
    constants: dict[str, Any] = {
        "LAYER": recurrence.norm == "layer", "DEVIATION": f.eps_on == "deviation", "SHARE": share, "FORM": form.value,
    }  # fmt: skip
    if recurrence.network == "LSTM":
        constants["CARRY"] = f.cell == "carry"
    if recurrence.network == "RNN":
        constants["RELU"] = recurrence.nonlinearity == "relu"
    again = names.index("bias_ih") if f.gates is not None and f.bias_again and "bias_ih" in names else -1
    return _Equations(tuple(found[:3]), tuple(found[3:]), again, constants)


def _single(tensor: Tensor) -> Tensor:
    """In float32, as it lies in memory for a kernel."""
    return tensor.float().resolve_neg().contiguous()


class _Call:
    """One call's tensors in the order of the steps, its sizes, and how its kernels are launched."""

    def __init__(
        self,
        input: Tensor,
        state: Sequence[Tensor],
        params: Sequence[Tensor],
        lengths: Tensor | None,
        reset: Tensor | None,
        recurrence: Recurrence,
        reverse: bool,
    ) -> None:
        self.recurrence, self.reverse, self.given_lengths = recurrence, reverse, lengths
        self.equations = _equations(recurrence)
        weights = [params[k].resolve_neg() for k in self.equations.weights if k >= 0]
        self.W_ih, self.W_hh = weights[:2]
        self.W_hr = weights[2] if len(weights) > 2 else None
        (self.T, self.B, self.I), (units, self.P) = input.shape, self.W_hh.shape
        self.H = units // GATES[recurrence.network]
        plan = schedule(self.T, lengths, reset, reverse)
        x = self.turned(input.resolve_neg())
        self.x = (x if plan.active is None else torch.where(plan.active, x, 0.0)).reshape(self.T * self.B, self.I)
        self.cut = None if plan.cut is None else plan.cut.squeeze(-1).to(torch.uint8).contiguous()
        self.cuts: list[Tensor | None] = [*([None] * self.T if self.cut is None else self.cut.unbind()), None]
        self.lengths = None if lengths is None else lengths.to(torch.int32).contiguous()
        self.state = [_single(s) for s in state]
        vectors = [None if k < 0 else _single(params[k]) for k in self.equations.vectors]
        if (again := self.equations.again) >= 0:
            outside = Sites._fields.index("outside_x")
            terms = [v for v in (vectors[outside], _single(params[again])) if v is not None]
            vectors[outside] = sum(terms[1:], terms[0])
        self.sites = Sites(*vectors)

    def turned(self, sequence: Tensor) -> Tensor:
        """From the order of the input to that of the steps, and back."""
        return turned(sequence, self.given_lengths, self.reverse)

    def cut_before(self, s: Tensor, t: int) -> Tensor:
        """The state before step t, given the one after the step before."""
        cut = self.cuts[t]
        return s.clone() if cut is None else torch.where(cut[:, None] != 0, 0.0, s)

    @property
    def programs(self) -> int:
        """Of a step's kernel."""
        return max(1, triton.cdiv(self.B, _launch.step(self.H).rows))

    def launch(self, kernel: Any, *arguments: Any) -> None:
        """A step's kernel, by rows."""
        f, tile = self.recurrence.formula, _launch.step(self.H)
        numbers = [f.eps] if self.recurrence.network == "RNN" else [f.eps, f.forget_bias]
        kernel[(self.programs,)](
            *arguments, self.B, self.H, *numbers, **self.equations.constants, **tile.arguments
        )  # fmt: skip

    def launch_projection(self, kernel: Any, *arguments: Any) -> None:
        tile = _launch.step(self.P)
        kernel[(triton.cdiv(self.B, tile.rows),)](*arguments, self.B, self.P, **tile.arguments)


class _Run(NamedTuple):
    """What the steps of the forward fill; hs and cs have the states before each step, or only the next one."""

    output: Tensor  # (T, B, P)
    h: Tensor  # (B, P) float32, in the end the final state
    hs: Tensor  # (.., B, P)
    zh: Tensor  # (.., B, G*H)
    c: Tensor | None = None  # LSTM: (B, H) float32
    cs: Tensor | None = None  # (.., B, H) float32


def _lstm_forward(call: _Call, run: _Run, t: int, zx: Tensor, zh: Tensor, after: Tensor, m: Tensor | None) -> None:
    assert run.cs is not None
    before, next_c = run.cs[t % len(run.cs)], run.cs[(t + 1) % len(run.cs)]
    masks = (call.lengths, call.cuts[t + 1])
    call.launch(
        _steps.lstm_forward, zx, zh, call.sites, before, m, run.output[t], run.h, after, run.c, next_c, *masks, t
    )
    if m is not None and call.W_hr is not None:
        projected = torch.mm(m, call.W_hr.t())
        call.launch_projection(_steps.projection_forward, projected, run.output[t], run.h, after, *masks, t)


def _gru_forward(call: _Call, run: _Run, t: int, zx: Tensor, zh: Tensor, after: Tensor, m: Tensor | None) -> None:
    masks = (call.lengths, call.cuts[t], call.cuts[t + 1])
    call.launch(_steps.gru_forward, zx, zh, call.sites, run.output[t], run.h, after, *masks, t)


def _rnn_forward(call: _Call, run: _Run, t: int, zx: Tensor, zh: Tensor, after: Tensor, m: Tensor | None) -> None:
    call.launch(_steps.rnn_forward, zx, zh, call.sites, run.output[t], run.h, after, call.lengths, call.cuts[t + 1], t)


_FORWARD = {"LSTM": _lstm_forward, "GRU": _gru_forward, "RNN": _rnn_forward}


def recurrent_forward(
    input: Tensor,
    state: list[Tensor],
    params: list[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    recurrence: Recurrence,
    reverse: bool,
    save: bool,
) -> list[Tensor]:
    """[output (T, B, P), *final state], and with ``save`` what `recurrent_saved` tells."""
    call = _Call(input, state, params, lengths, reset, recurrence, reverse)
    T, B, P, units = call.T, call.B, call.P, call.W_hh.shape[0]
    zx = torch.mm(call.x, call.W_ih.t()).view(T, B, units)
    states = [call.cut_before(s, 0) for s in call.state]
    slots = T + 1 if save else 2
    hs = input.new_empty(slots, B, P)
    hs[0] = states[0]
    run = _Run(input.new_empty(T, B, P), call.state[0].clone(), hs, input.new_empty(T if save else min(T, 1), B, units))
    if recurrence.network == "LSTM":
        cs = input.new_empty(slots, B, call.H, dtype=torch.float32)
        cs[0] = states[1]
        run = run._replace(c=call.state[1].clone(), cs=cs)
    m = input.new_empty(B, call.H) if call.W_hr is not None else None
    step = _FORWARD[recurrence.network]
    if B:
        with torch.cuda.device_of(input):
            for t in range(T):
                zh = run.zh[t % len(run.zh)]
                torch.mm(hs[t % slots], call.W_hh.t(), out=zh)
                step(call, run, t, zx[t], zh, hs[(t + 1) % slots], m)
    output, final = call.turned(run.output), [s.to(input.dtype) for s in (run.h, run.c) if s is not None]
    if not save:
        return [output, *final]
    return [output, *final, zx, run.zh, hs[:T], *([] if run.cs is None else [run.cs[:T]])]


def recurrent_saved(
    input: Tensor, state: Sequence[Tensor], params: Sequence[Tensor], recurrence: Recurrence
) -> list[Tensor]:
    """Empty tensors with the shapes and types of what `recurrent_forward` saves, in the order of the steps: zx, zh
    (T, B, G*H), h before each step (T, B, P), in an LSTM c before each step, in float32 (T, B, H)."""
    (T, B, _), (units, P) = input.shape, params[1].shape
    saved = [input.new_empty(T, B, size) for size in (units, units, P)]
    if recurrence.network == "LSTM":
        saved.append(input.new_empty(T, B, units // GATES["LSTM"], dtype=torch.float32))
    return saved


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


def _lstm_backward(call: _Call, back: _Back, t: int) -> None:
    assert back.cs is not None
    masks = (call.lengths, call.cuts[t + 1])
    dm = m = None
    if call.W_hr is not None and back.dh is not None and back.m is not None:
        arriving = (back.through, back.direct, back.dy[t], back.dh[t])
        call.launch_projection(_steps.projection_backward, *arriving, *masks, t)
        dm, m = torch.mm(back.dh[t], call.W_hr), back.m[t]
    call.launch(
        _steps.lstm_backward, back.zx[t], back.zh[t], call.sites, back.cs[t], back.through, back.direct, back.dy[t],
        dm, m, back.dc, *masks, back.dzx[t], back.dzh[t], back.d, t,
    )  # fmt: skip


def _gru_backward(call: _Call, back: _Back, t: int) -> None:
    call.launch(
        _steps.gru_backward, back.zx[t], back.zh[t], call.sites, back.hs[t], back.through, back.direct, back.dy[t],
        call.lengths, call.cuts[t + 1], back.dzx[t], back.dzh[t], back.d, t,
    )  # fmt: skip


def _rnn_backward(call: _Call, back: _Back, t: int) -> None:
    call.launch(
        _steps.rnn_backward, back.zx[t], back.zh[t], call.sites, back.through, back.direct, back.dy[t],
        call.lengths, call.cuts[t + 1], back.dzx[t], back.dzh[t], back.d, t,
    )  # fmt: skip


_BACKWARD: dict[str, Callable[[_Call, _Back, int], None]] = {
    "LSTM": _lstm_backward, "GRU": _gru_backward, "RNN": _rnn_backward,
}  # fmt: skip


def recurrent_backward(
    input: Tensor,
    state: list[Tensor],
    params: list[Tensor],
    lengths: Tensor | None,
    reset: Tensor | None,
    saved: list[Tensor],
    grad_output: Tensor | None,
    grad_state: Sequence[Tensor | None],
    recurrence: Recurrence,
    reverse: bool,
) -> list[Tensor]:
    """[d input, *d initial state, *d params]; a gradient that is ``None`` is zero."""
    like = recurrent_saved(input, state, params, recurrence)
    if [(s.shape, s.dtype) for s in saved] != [(s.shape, s.dtype) for s in like]:  # a hook on saved tensors can do that
        expected, wrong = ([(s.dtype, list(s.shape)) for s in tensors] for tensors in (like, saved))
        raise RuntimeError(f"{recurrence.network.lower()}: expected saved tensors {expected}, got {wrong}")
    call = _Call(input, state, params, lengths, reset, recurrence, reverse)
    T, B, P, H, units = call.T, call.B, call.P, call.H, call.W_hh.shape[0]
    zx, zh, hs, *cs = (s.resolve_neg().contiguous() for s in saved)
    dy = input.new_zeros(T, B, P) if grad_output is None else call.turned(grad_output).resolve_neg().contiguous()
    arriving = [torch.zeros_like(s) if g is None else _single(g) for s, g in zip(call.state, grad_state, strict=True)]
    direct, *dc = (a.clone() for a in arriving)
    sums = torch.zeros(call.programs, len(Sites._fields), units, dtype=torch.float32, device=input.device)
    projected = call.W_hr is not None
    back = _Back(
        dy=dy, through=input.new_zeros(B, P), direct=direct, dc=dc[0] if dc else None, zx=zx, zh=zh, hs=hs,
        cs=cs[0] if cs else None, dzx=torch.empty_like(zx), dzh=torch.empty_like(zh),
        d=Sites(*(None if s is None else part for s, part in zip(call.sites, sums.unbind(1), strict=True))),
        dh=torch.empty_like(dy) if projected else None, m=input.new_empty(T, B, H) if projected else None,
    )  # fmt: skip
    step = _BACKWARD[recurrence.network]
    if B:
        with torch.cuda.device_of(input):
            for t in reversed(range(T)):
                step(call, back, t)
                torch.mm(back.dzh[t], call.W_hh, out=back.through)
    return _gradients(call, back, input, state, params, sums)


def _gradients(
    call: _Call, back: _Back, input: Tensor, state: list[Tensor], params: list[Tensor], sums: Tensor
) -> list[Tensor]:
    """What is left when every step is taken: single products over all of them, and the programs' sums."""
    dzx, dzh = back.dzx.flatten(0, 1), back.dzh.flatten(0, 1)
    d_x = call.turned(torch.mm(dzx, call.W_ih).view(call.T, call.B, call.I))
    d_state = [call.cut_before(s, 0) for s in (back.through.float() + back.direct, back.dc) if s is not None]
    total = _added(sums)
    if call.recurrence.formula.gates == "sum":  # whose normalisation has both biases
        total[Sites._fields.index("outside_h")] = total[Sites._fields.index("outside_x")]
    found: dict[int, Tensor] = {
        call.equations.weights[0]: torch.mm(dzx.t(), call.x),
        call.equations.weights[1]: torch.mm(dzh.t(), back.hs.flatten(0, 1)),
    }
    if back.dh is not None and back.m is not None:
        found[call.equations.weights[2]] = torch.mm(back.dh.flatten(0, 1).t(), back.m.flatten(0, 1))
    for k, part in zip(call.equations.vectors, total, strict=True):
        if k >= 0:
            found[k] = part[: params[k].shape[0]]
    if (again := call.equations.again) >= 0:
        found[again] = found[again] + total[Sites._fields.index("outside_x")]
    d_params = [found[k] for k in range(len(params))]
    return [
        d.to(t.dtype).contiguous() for d, t in zip((d_x, *d_state, *d_params), (input, *state, *params), strict=True)
    ]


def _added(sums: Tensor) -> Tensor:
    """(programs, 8, G*H) -> (8, G*H)"""
    total, columns = torch.empty_like(sums[0]), sums[0].numel()
    with torch.cuda.device_of(sums):
        _column_sum[(triton.cdiv(columns, _launch.COLUMN_SUM.columns),)](
            sums, total, len(sums), columns, **_launch.COLUMN_SUM.arguments
        )
    return total
