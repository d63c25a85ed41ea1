"""All steps of a layer by kernels: what the driver of the equations is given.

What is computed of all steps at once stays PyTorch's: the products with W_ih, what the way back needs of the forward,
and the gradients of the parameters. Each step is two launches, a product and the step of every row.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...equations.arguments import StateChanges
from ...equations.network import Network
from ...equations.recurrent import EVERY_ROW, Contribution
from ...equations.schedule import Schedule, State, Steps
from ...equations.sites import GateSaved, Saved
from ...equations.steps import SteppedLayer
from ...formula import GATES, Place, Recurrence
from . import _kernels as kernels
from ._lanes import Lane, lanes

GATES_IN_TILE = {"RNN": 1, "LSTM": 4, "GRU": 4}
"""A power of two."""

FEW = 16
"""Rows of a block of a product; with more rows it has twice as many."""

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


class Arithmetic:
    """How a call in one type multiplies: 16-bit numbers in their type, float32 as `torch.nn.LSTM` does, by TF32 where
    ``torch.backends.cudnn.rnn`` allows it and the GPU has it, otherwise by three products of TF32. Sums are in float32.

    Gradients leave the range of float16, and are multiplied by its weights in TF32, which has all their digits.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        has_tf32 = device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)
        tf32 = has_tf32 and torch.backends.cudnn.rnn.fp32_precision == "tf32"  # type: ignore[attr-defined]
        self.dtype = dtype
        self.precision = "ieee" if dtype is not torch.float32 else "tf32" if tf32 else "tf32x3"
        tf32 = tf32 or torch.backends.cuda.matmul.fp32_precision == "tf32"
        self.rounding = 2.0**-10 if tf32 and dtype is torch.float32 else torch.finfo(dtype).eps
        self._weights: dict[tuple[str, torch.dtype], Tensor] = {}

    def of_product(self, back: bool) -> tuple[torch.dtype, str]:
        """Returns the type of the weights in the product of a step, and its precision."""
        return (torch.float32, "tf32") if back and self.dtype is torch.float16 else (self.dtype, self.precision)

    def weight(self, network: Network, name: str, back: bool) -> Tensor:
        """Returns a weight as the product of a step reads it."""
        key = name, self.of_product(back)[0]
        if key not in self._weights:
            w = network.p[name].detach().to(key[1]).contiguous()
            self._weights[key] = w if w.data_ptr() % 16 == 0 else w.clone()
        return self._weights[key]

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """Multiplies over all steps at once (`Multiply`); all but bfloat16 as ``torch.backends.cuda.matmul`` says."""
        if self.dtype is not torch.bfloat16:
            return a @ b
        a, b = a.to(self.dtype), b.to(self.dtype)
        if not a.is_cuda:
            return a.float() @ b.float()
        return torch.mm(a.flatten(0, -2), b, out_dtype=torch.float32).view(*a.shape[:-1], b.shape[-1])

    def take_steps(
        self, network: Network, zx: Tensor, state: State, schedule: Schedule, changes: StateChanges, save: bool
    ) -> Steps:
        """Takes the steps of a call (`TakeSteps`)."""
        call = _Call(self, network, zx, len(state[0]), schedule, changes, back=False)
        x, r, B, H, P = network.input_side(zx).detach().contiguous(), network.recurrence, call.B, call.H, call.P
        rows = (B,)  # a program each
        after, *before = (x.new_empty(*x.shape[:2], n) for n in ((P, P, H)[: 1 + len(state)] if save else (P,)))
        hidden, both, cell = (_vectors(place, network) for place in r.places[1:])
        tensors = {
            "x": x, "after": after, **dict(zip(("before_h", "before_c"), before, strict=False)), **call.tensors,
            "gain_hidden": hidden.gain, "inside_hidden": hidden.inside, "outside_hidden": hidden.outside,
            "gain_both": both.gain, "outside_both": both.outside, "gain_cell": cell.gain, "outside_cell": cell.outside,
        }  # fmt: skip
        parts, first = parts_of(B, call.units, P), [part.detach().contiguous() for part in state]
        numbers = {"eps": r.formula.eps, "forget_bias": r.formula.forget_bias}
        flags: dict[str, Any] = {
            "HIDDEN": hidden.gain is not None, "INSIDE": hidden.inside is not None,
            "OUTSIDE": hidden.outside is not None, "BOTH": both.gain is not None,
            "OUTSIDE_BOTH": both.outside is not None, "CELL": cell.gain is not None,
            "OUTSIDE_CELL": cell.outside is not None, "PARTS": parts, "SAVE": save,
        }  # fmt: skip
        with call.lane("forward", flags, numbers) as lane:
            h_now, h_read, c_now = (lane.buffer(*given) for given in (("h", B, P), ("h_read", B, P), ("c", B, H)))
            zh, m = lane.buffer("zh", parts, B, call.units), lane.buffer("m", B, H if call.projected else 0)
            given = zh, h_now, c_now, h_read, m, B

            def take_step() -> None:
                call.multiply(lane, "w", h_read, zh)
                lane.launch(kernels.forward_step, rows, *given, **numbers, **flags, **call.step)
                if call.projected:
                    projected = lane.buffer("projected", parts_of(B, P, H), B, P)
                    call.multiply(lane, "w_project", m, projected)
                    lane.launch(
                        kernels.project_step, rows, projected, h_now, h_read, B, PARTS=len(projected), SAVE=save,
                        **call.of_h,
                    )  # fmt: skip

            lane.begin(0, call.T, tensors)
            lane.launch(kernels.start_first, rows, first[0], first[-1], h_now, c_now, h_read, B, **call.start)
            lane.run(call.T, take_step)
            final = tuple(part.clone() for part in (h_now, c_now)[: len(state)])
        return Steps(after, tuple(before), final)

    def take_steps_back(
        self,
        network: Network,
        zx: Tensor,
        zh: Tensor,
        before: State,
        dy: Tensor,
        final: State,
        schedule: Schedule,
        changes: StateChanges,
    ) -> tuple[State, Contribution]:
        """Takes the steps of a call back (`TakeStepsBack`)."""
        call = _Call(self, network, zx, len(final[0]), schedule, changes, back=True)
        s, r, shape = network.activations(zx, zh, before), network.recurrence, zx.shape[:2]
        B, H, P = call.B, call.H, call.P
        rows, gains = (B,), {f"gain_{name}": _gain(place, network) for name, place in call.places}
        da, d_input, d_hidden, dzh = (zx.new_empty(*shape, call.units) for _ in range(4))
        dn, dh = zx.new_empty(*shape, H), zx.new_empty(*shape, P) if call.projected else None
        restart = [zx.new_zeros(part.shape) for part in final[: len(changes.restart)]]
        made = {"da": da, "d_input": d_input, "d_hidden": d_hidden, "dzh": dzh, "dn": dn, "dh": dh}
        made |= dict(zip(("d_restart_h", "d_restart_c"), restart, strict=False))
        parts, numbers = parts_of(B, P, call.units), {"gate_clip": r.gate_clip if r.gate_clip != math.inf else 0.0}
        flags: dict[str, Any] = {
            "SPLIT": r.reset_multiplies == "hidden", "CLIP": r.gate_clip != math.inf,
            **{place.upper(): gains[f"gain_{place}"] is not None for place in ("hidden", "both", "cell")},
        }  # fmt: skip
        tensors = {"dy": dy.contiguous(), **_saved(s, r, before), **gains, **made, **call.tensors}
        with call.lane("backward", flags, numbers) as lane:
            carry = [lane.buffer(name, *part.shape).copy_(part) for name, part in zip(("h", "c"), final, strict=False)]
            dh_parts, dzh_now = lane.buffer("dh", parts, B, P).zero_(), lane.buffer("dzh", B, call.units).zero_()
            dm_parts = lane.buffer("dm", parts_of(B, H, P), B, H) if call.projected else dh_parts
            given = dm_parts, carry[0], carry[-1], dzh_now, B

            def take_step() -> None:
                if call.projected:
                    dh_now = lane.buffer("dh_now", B, P)
                    lane.launch(kernels.project_back, rows, dh_parts, carry[0], dh_now, B, PARTS=parts, **call.of_h)
                    call.multiply(lane, "w_project", dh_now, dm_parts)
                lane.launch(kernels.backward_step, rows, *given, PARTS=len(dm_parts), **numbers, **flags, **call.step)
                call.multiply(lane, "w", dzh_now, dh_parts)

            lane.begin(call.T - 1, call.T, tensors)
            lane.run(call.T, take_step)
            d: State = (changes.apply_dropout(dh_parts.sum(0)) + carry[0], *(part.clone() for part in carry[1:]))
        if schedule.cut is not None:
            cut = schedule.cut[schedule.indices(call.T)[0]]
            restart = [old + torch.where(cut, new, 0.0) for old, new in zip(restart, d, strict=False)]
            d = tuple(torch.where(cut, 0.0, part) for part in d)
        of_rz, of_n = slice(0, 2 * H), slice(2 * H, None)
        steps = {
            "RNN": (da, d_input, dzh),
            "LSTM": (da, d_hidden, dzh, dn, dn if dh is None else dh),
            "GRU": (da[..., of_rz], d_input[..., of_rz], da[..., of_n], d_input[..., of_n], dzh),
        }[r.network]
        if call.over_all:
            steps = (da, d_input, d_hidden, dzh)
        dzx = network.input_backward(s, steps)
        factors = network.factors(schedule.apply_dropout(changes, before[0]), s, steps)
        return d, Contribution(dzx, factors, network.vector_gradients(s, steps, dzx), tuple(restart))


class TritonLayer(SteppedLayer):
    """A layer for steps one by one: `SteppedLayer`, whose steps are launches."""

    def __init__(self, params: Sequence[Tensor], recurrence: Recurrence) -> None:
        super().__init__(params, recurrence)
        self.by = Arithmetic(self.dtype, self.device)

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        return self.by.multiply(a, b)

    def take_step(self, zx: Tensor, state: State, changes: StateChanges) -> State:
        with torch.cuda.device_of(zx):
            return self.by.take_steps(self.network, zx[None], state, EVERY_ROW, changes, save=False).final

    def take_step_back(
        self, zx: Tensor, zh: Tensor, before: State, dy: Tensor, d: State, changes: StateChanges
    ) -> tuple[State, Contribution]:
        with torch.cuda.device_of(zx):
            return self.by.take_steps_back(self.network, zx, zh, before, dy, d, EVERY_ROW, changes)


def parts_of(M: int, N: int, K: int) -> int:
    """Returns into how many parts the K of a product is cut, so that there are about 128 programs with 128 each."""
    tiles = triton.cdiv(M, 32) * triton.cdiv(N, 32)
    return max(1, min(8, 128 // tiles, K // 128))


class _Call:
    """What the launches of one call have in common."""

    def __init__(
        self,
        arithmetic: Arithmetic,
        network: Network,
        zx: Tensor,
        B: int,
        schedule: Schedule,
        changes: StateChanges,
        back: bool,
    ) -> None:
        r, self.back, self.B, self.T = network.recurrence, back, B, len(schedule.indices(len(zx)))
        self.dtype, self.precision = arithmetic.of_product(back)
        names = [("w", "weight_hh"), ("w_project", "weight_hr")]
        weights = {slot: arithmetic.weight(network, name, back) for slot, name in names if name in network.p}
        self.units, self.P = weights["w"].shape
        self.H, self.device, self.projected = self.units // GATES[r.network], zx.device, r.projected
        self.over_all = r.network == "GRU" and len(r.spans) == 1
        self.places = list(zip(("hidden", "both", "cell"), r.places[1:], strict=True))
        masks = _masks(schedule, changes, self.device)
        self.tensors: dict[str, Tensor | None] = {**weights, **masks}
        there = {name.upper(): masks[name] is not None for name in ("active", "cut", "dropout")}
        there |= {"RESTART": bool(changes.restart), "PACKED": schedule.sizes is not None}
        kind = {"RNN": kernels.RNN, "LSTM": kernels.LSTM, "GRU": kernels.GRU}[r.network].value
        spans = {1: kernels.TOGETHER, 2: kernels.TWO}.get(len(r.spans), kernels.EACH).value
        of_row, of_state = (
            {"BLOCK": triton.next_power_of_2(n), "num_warps": _warps(n)} for n in (self.H, max(self.H, self.P))
        )
        between = {name: there[name] for name in ("CUT", "RESTART", "DROPOUT", "PACKED")}
        kept_h, kept_c = (_kind(masks[name], n) for name, n in (("kept_h", self.P), ("kept_c", self.H)))
        self.of_h = {**of_state, **between, "P": self.P, "ACTIVE": there["ACTIVE"], "KEPT_H": kept_h}
        self.start = {**of_state, **between, "NETWORK": kind, "H": self.H, "P": self.P}
        self.step: dict[str, Any] = {
            **of_row, **there, "NETWORK": kind, "H": self.H, "RELU": r.nonlinearity == "relu",
            "OVER_ALL": self.over_all, "PROJECTED": self.projected, "GATES": GATES[r.network], "SPANS": spans,
            "CARRY": r.formula.cell == "carry", "RMS": r.norm == "rms", "DEVIATION": r.formula.eps_on == "deviation",
            "KEPT_H": kept_h, "KEPT_C": kept_c, "GATES_IN_TILE": GATES_IN_TILE[r.network],
        }  # fmt: skip

    def lane(
        self, direction: str, flags: dict[str, Any], numbers: dict[str, float]
    ) -> contextlib.AbstractContextManager[Lane]:
        """Returns the lane of all that the launches of this call in one direction are given, but for the table."""
        constants = (*flags.items(), *numbers.items(), *self.step.items(), self.P)
        key = direction, self.device, self.B, self.dtype, self.precision, constants
        return lanes.get(key, self.device).used()

    def multiply(self, lane: Lane, name: str, a: Tensor, out: Tensor) -> None:
        """Multiplies by W_hh, which counts the step, or by W_hr, or back; ``out`` has the parts of the product."""
        parts, _, N = out.shape
        K, BM, BN, BK = a.shape[1], FEW if self.B <= FEW else 2 * FEW, 32, 64 if self.dtype.itemsize == 2 else 32
        part = triton.cdiv(triton.cdiv(K, parts), BK) * BK
        grid = triton.cdiv(self.B, BM), triton.cdiv(N, BN), parts
        strides = {"W_N": 1, "W_K": N} if self.back else {"W_N": K, "W_K": 1}
        lane.launch(
            kernels.product, grid, a, out, self.B, W_AT=kernels.SLOTS.index(name), K=K, N=N, **strides,
            STEPS_ON=0 if name == "w_project" else -1 if self.back else 1, TYPE=TYPES[self.dtype],
            PRECISION=self.precision, PART=part, BM=BM, BN=BN, BK=BK, num_warps=4, num_stages=4,
        )  # fmt: skip


def _warps(H: int) -> int:
    """A warp for 128 units, at most 8; one program has a row."""
    return 1 if H <= 128 else 4 if H <= 1024 else 8


class _Vectors(NamedTuple):
    """The vectors of one place; without a gain all biases are outside."""

    gain: Tensor | None
    inside: Tensor | None
    outside: Tensor | None


def _vectors(place: Place, network: Network) -> _Vectors:
    gain, p = _gain(place, network), network.p
    inside = None if place.inside is None else p[place.inside].detach().contiguous()
    outside = _sum(p[name].detach() for name in place.outside)
    return _Vectors(gain, inside, outside) if gain is not None else _Vectors(None, None, _sum((inside, outside)))


def _gain(place: Place, network: Network) -> Tensor | None:
    return None if place.gain is None else network.p[place.gain].detach().contiguous()


def _sum(vectors: Iterable[Tensor | None]) -> Tensor | None:
    there = [v for v in vectors if v is not None]
    return None if not there else there[0].contiguous() if len(there) == 1 else torch.stack(there).sum(0)


def _masks(schedule: Schedule, changes: StateChanges, device: torch.device) -> dict[str, Tensor | None]:
    """Returns what happens between steps, by its slot: masks as bytes, and of a packed call the first line and the
    number of rows of each step."""
    active, cut = (None if m is None else m.to(torch.int8).contiguous() for m in schedule[:2])
    first, count = None, None
    if schedule.sizes is not None:
        sizes = torch.tensor(schedule.sizes, dtype=torch.int64, device="cpu")
        both = torch.stack([sizes.cumsum(0) - sizes, sizes])
        both = both.pin_memory() if device.type == "cuda" else both  # or the CPU waits for all that the GPU has to do
        first, count = both.to(device, non_blocking=True)
    restart = [r.float().contiguous() for r in changes.restart]
    shares = [None if k is None else k.contiguous() for k in (*changes.kept, None, None)]
    return {
        "active": active, "cut": cut, "first": first, "count": count,
        "dropout": None if changes.dropout is None else changes.dropout.contiguous(),
        "restart_h": restart[0] if restart else None, "restart_c": restart[1] if len(restart) > 1 else None,
        "kept_h": shares[0], "kept_c": shares[1],
    }  # fmt: skip


def _kind(share: Tensor | None, H: int) -> int:
    """Says whether zoneout has no share, one, or one for each unit; of one unit each line has its own."""
    return 0 if share is None else 2 if share.shape[-1] == H else 1


def _saved(s: Any, r: Recurrence, before: State) -> dict[str, Tensor | None]:
    """Returns what the way back needs of the forward, by its slot."""
    cell = None
    if r.network == "LSTM":
        gates, other, start, cell = torch.cat(s[:4], -1), s.tanh_c, before[1], s.cell
    elif r.network == "GRU":
        gates, other, start = torch.cat(s[:3], -1), s[3], before[0]
    else:
        gates, other, start = s.h, None, None
    blocks: list[tuple[GateSaved, int]] = [(s.gates, GATES[r.network])] if hasattr(s, "gates") else []
    blocks = blocks or [(s.rz_gates, 2), (s.n_gate, 1)]
    hat_hidden, r_hidden = _joined([(block.hidden, gates) for block, gates in blocks])
    hat_both, r_both = _joined([(block.both, gates) for block, gates in blocks])
    hat_cell, r_cell = _joined([(cell, 1)])
    return {
        "gates": gates.contiguous(), "other": None if other is None else other.contiguous(),
        "start": None if start is None else start.contiguous(), "hat_hidden": hat_hidden, "r_hidden": r_hidden,
        "hat_both": hat_both, "r_both": r_both, "hat_cell": hat_cell, "r_cell": r_cell,
    }  # fmt: skip


def _joined(blocks: list[tuple[Saved, int]]) -> tuple[Tensor | None, Tensor | None]:
    """Returns z_hat of all gates, and 1 / deviation for each of them, of what sites of so many gates have saved."""
    hats, deviations = [], []
    for saved, gates in blocks:
        if saved is None:
            return None, None
        z_hat, r = saved
        hats.append(z_hat.flatten(-2))
        deviations.append(r.squeeze(-1).repeat_interleave(gates // r.shape[-2], -1))
    return torch.cat(hats, -1).contiguous(), torch.cat(deviations, -1).contiguous()
