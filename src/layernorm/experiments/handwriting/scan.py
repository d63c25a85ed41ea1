"""The lowest layer of the synthesis network, whose input at a point is what its window read at the point before.

No call for a whole sequence can do that. As a loop over `layernorm.LSTMCell` it is the most expensive part of the
network: every step makes, and adds up, a gradient of all weights. Here a loop of few plain operations has its backward
derived by hand, in which what does not wait for the step after is computed for all points at once: the input's share
of the summed inputs, the window's derivatives by its place, and every gradient of a parameter, each one product.
`Synthesis.step` is the same in its plain form, and the tests compare the two.

Letters in shapes: T points, B batch, U characters, H units, K window components, A characters of the alphabet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import layernorm as ln


class Cell(NamedTuple):
    """The parameters of an LSTM cell, the normalisations' gains and biases `None` without one."""

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor
    gain_ih: Tensor | None
    gain_hh: Tensor | None
    gain_c: Tensor | None
    bias_c: Tensor | None
    eps: float
    centred: bool

    @staticmethod
    def of(module: ln.LSTMCell) -> Cell:
        """Those of a cell with `formula="paper"`."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "gain_ih", "gain_hh", "gain_c", "bias_c")
        found: dict[str, Any] = {name: getattr(module, name, None) for name in names}
        return Cell(**found, eps=module.eps, centred=module.norm == "layer")


def window_step(p: Tensor, kappa: Tensor, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One step of the soft window.

    Args:
        p: `(B, 3K)`, logarithms of alpha, beta and the way of kappa.
        kappa: `(B, K)`, at the point before.
        codes: `(B, U, A)`.

    Returns:
        phi `(B, U + 1)`, of the characters u = 1..U and of the place after the last; the reading w `(B, A)`; kappa.
    """
    alpha, beta, way = p.exp().chunk(3, 1)
    kappa = kappa + way
    u = torch.arange(1, codes.shape[1] + 2, dtype=p.dtype, device=p.device)
    bells = torch.exp(-beta[:, :, None] * (kappa[:, :, None] - u).square())
    phi = torch.einsum("bk,bku->bu", alpha, bells)
    return phi, torch.einsum("bu,bua->ba", phi[:, :-1], codes), kappa


def scan(
    cell: Cell, window_weight: Tensor, window_bias: Tensor, points: Tensor, codes: Tensor, limit: float
) -> tuple[Tensor, Tensor]:
    """Runs the lowest LSTM and its window over a sequence.

    Args:
        cell: its parameters; its input is a point and the reading before it, 3 + A numbers.
        window_weight, window_bias: `(3K, H)`, `(3K,)`.
        points: `(T, B, 3)`; no gradient reaches them.
        codes: `(B, U, A)`.
        limit: to which derivatives by the reading, as the LSTM's input, are cut.

    Returns:
        h `(T, B, H)` and the reading w `(T, B, A)`.
    """
    *tensors, eps, centred = cell
    with torch.autocast(points.device.type, enabled=False):
        return _Scan.apply(points, codes, limit, eps, centred, window_weight, window_bias, *tensors)


class _Norm:
    """Layer normalisation, or root mean square's if not centred, over the last dimension, and its derivative."""

    def __init__(self, eps: float, centred: bool) -> None:
        self.eps, self.centred = eps, centred

    def __call__(self, z: Tensor, gain: Tensor, bias: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The normalised vectors, and their means and reciprocal deviations."""
        if self.centred:
            y, mean, r = torch.native_layer_norm(z, z.shape[-1:], gain, bias, self.eps)
            return y, (mean, r)
        r = torch.rsqrt(z.square().mean(-1, keepdim=True) + self.eps)
        return torch.addcmul(bias, z * r, gain), (torch.zeros_like(r), r)

    def backward(self, d_y: Tensor, z: Tensor, gain: Tensor, statistics: tuple[Tensor, Tensor]) -> Tensor:
        """The derivative by z."""
        mean, r = statistics
        if self.centred:
            op = torch.ops.aten.native_layer_norm_backward
            return op(d_y, z, z.shape[-1:], mean, r, gain, None, [True, False, False])[0]
        d_x, x = d_y * gain, z * r
        return r * (d_x - x * (d_x * x).mean(-1, keepdim=True))

    def of_gain(self, d_y: Tensor, z: Tensor, gain: Tensor, statistics: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        """The derivative by the gain, from all points' `(T, B, N)` at once."""
        mean, r = (torch.stack(column) for column in zip(*statistics, strict=True))
        if self.centred:
            op = torch.ops.aten.native_layer_norm_backward
            return op(d_y, z, z.shape[-1:], mean, r, gain, None, [False, True, False])[1]
        return (z * r).mul_(d_y).sum((0, 1))


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        points: Tensor,
        codes: Tensor,
        limit: float,
        eps: float,
        centred: bool,
        window_weight: Tensor,
        window_bias: Tensor,
        *parameters: Any,
    ) -> tuple[Tensor, Tensor]:
        weight_ih, weight_hh, bias_ih, bias_hh, gain_ih, gain_hh, gain_c, bias_c = parameters
        T, B, _ = points.shape
        H, A, K = weight_hh.shape[1], codes.shape[2], window_bias.shape[0] // 3
        new = points.new_empty
        norm = None if gain_ih is None else _Norm(eps, centred)
        # a step reads rows of these and writes others: the rows are taken once, an index costs as much as an operation
        zi, zh, gates = new(T, B, 4 * H), new(T, B, 4 * H), new(T, B, 4 * H)
        c_all, h_all, tanh_c = points.new_zeros(T + 1, B, H), points.new_zeros(T + 1, B, H), new(T, B, H)
        w_all, kappa_all = points.new_zeros(T + 1, B, A), points.new_zeros(T + 1, B, K)
        p_all = new(T, B, 3 * K)
        statistics: list[tuple[Any, Any, Any]] = []  # mean and reciprocal deviation of zi, zh and c
        torch.matmul(points, weight_ih[:, :3].t(), out=zi)
        if norm is None:
            zi += bias_ih + bias_hh
        # a product of 8 rows with a transposed matrix takes twice as long
        from_w, from_h, to_window = (weight.t().contiguous() for weight in (weight_ih[:, 3:], weight_hh, window_weight))
        places = torch.arange(1, codes.shape[1] + 1, dtype=points.dtype, device=points.device)
        rows = zip(
            zi.unbind(), zh.unbind(), gates.unbind(), c_all.unbind()[1:], h_all.unbind()[1:], tanh_c.unbind(),
            w_all.unbind()[1:], kappa_all.unbind()[1:], p_all.unbind(), strict=True,
        )  # fmt: skip
        h, c, w, kappa = h_all[0], c_all[0], w_all[0], kappa_all[0]
        for zi_t, zh_t, gates_t, c_t, h_t, tanh_c_t, w_t, kappa_t, p_t in rows:
            zi_t.addmm_(w, from_w)
            if norm is None:
                z = torch.addmm(zi_t, h, from_h)
            else:
                torch.mm(h, from_h, out=zh_t)
                z, of_i = norm(zi_t, gain_ih, bias_ih)
                z_h, of_h = norm(zh_t, gain_hh, bias_hh)
                z += z_h
            torch.sigmoid(z, out=gates_t)
            i, f, g, o = gates_t.chunk(4, 1)
            torch.tanh(z[:, 2 * H : 3 * H], out=g)
            torch.mul(f, c, out=c_t).addcmul_(i, g)
            if norm is None:
                torch.tanh(c_t, out=tanh_c_t)
            else:
                n, of_c = norm(c_t, gain_c, bias_c)
                torch.tanh(n, out=tanh_c_t)
                statistics.append((of_i, of_h, of_c))
            torch.mul(o, tanh_c_t, out=h_t)
            torch.addmm(window_bias, h_t, to_window, out=p_t)
            alpha, beta, way = p_t.exp().chunk(3, 1)
            torch.add(kappa, way, out=kappa_t)
            bells = (kappa_t[:, :, None] - places).square_().mul_(beta[:, :, None]).neg_().exp_()
            torch.bmm(torch.bmm(alpha[:, None], bells), codes, out=w_t[:, None])
            h, c, w, kappa = h_t, c_t, w_t, kappa_t
        ctx.save_for_backward(
            points, codes, window_weight, zi, zh, gates, c_all, h_all, tanh_c, w_all, kappa_all, p_all, *parameters
        )
        ctx.limit, ctx.norm = limit, norm
        ctx.statistics = statistics
        return h_all[1:], w_all[1:]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_h_all: Tensor, d_w_all: Tensor) -> tuple[Any, ...]:
        points, codes, window_weight, zi, zh, gates, c_all, h_all, tanh_c, w_all, kappa_all, p_all, *parameters = (
            ctx.saved_tensors
        )
        weight_ih, weight_hh, _, _, gain_ih, gain_hh, gain_c, _ = parameters
        norm, limit = ctx.norm, ctx.limit
        (T, B, _), H, K = points.shape, weight_hh.shape[1], window_weight.shape[0] // 3
        by_w, way = _window_derivatives(p_all, kappa_all[1:], codes)
        # derivatives of the gates by their summed inputs, for all points
        i, f, g, o = gates.chunk(4, 2)
        slope = (1 - gates).mul_(gates)
        by_i, by_f, by_g, by_o = slope.chunk(4, 2)
        torch.mul(g, g, out=by_g).neg_().add_(1)
        for derivative, other in ((by_i, g), (by_f, c_all[:-1]), (by_g, i), (by_o, tanh_c)):
            derivative.mul_(other)  # what the gate multiplies
        through = o * (1 - tanh_c.square())
        d_zi, d_zh = torch.empty_like(zi), torch.empty_like(zh)
        d_z_all, d_n_all = torch.empty_like(zi), torch.empty_like(tanh_c)
        d_p_all = torch.empty_like(p_all)
        d_c, d_kappa = points.new_zeros(B, H), points.new_zeros(B, K)
        d_h_back, d_w_back = points.new_zeros(B, H), torch.zeros_like(w_all[0])
        to_w = weight_ih[:, 3:].contiguous()
        per_step = [x.unbind() for x in (d_h_all, d_w_all, by_w, way, slope, through, f, d_z_all, d_p_all)]
        for t in range(T - 1, -1, -1):
            d_h, d_w, by_w_t, way_t, slope_t, through_t, f_t, d_z, d_p = [x[t] for x in per_step]
            inner = torch.bmm(by_w_t, (d_w + d_w_back)[:, :, None])[:, :, 0]  # (B, 3K): p of alpha, p of beta, kappa
            d_kappa = d_kappa + inner[:, 2 * K :]
            d_p[:, : 2 * K] = inner[:, : 2 * K]
            torch.mul(d_kappa, way_t, out=d_p[:, 2 * K :])
            d_h = torch.addmm(d_h + d_h_back, d_p, window_weight)
            d_n = d_h * through_t
            if norm is not None:
                d_n_all[t] = d_n
                of_i, of_h, of_c = ctx.statistics[t]
                d_n = norm.backward(d_n, c_all[t + 1], gain_c, of_c)
            d_c = d_c + d_n
            torch.mul(d_c[:, None], slope_t[:, : 3 * H].view(B, 3, H), out=d_z[:, : 3 * H].view(B, 3, H))
            torch.mul(d_h, slope_t[:, 3 * H :], out=d_z[:, 3 * H :])
            d_c = d_c * f_t
            if norm is None:
                d_h_back = d_z @ weight_hh
                d_w_back = (d_z @ to_w).clamp_(-limit, limit)
            else:
                d_zi[t] = d_zi_t = norm.backward(d_z, zi[t], gain_ih, of_i)
                d_zh[t] = d_zh_t = norm.backward(d_z, zh[t], gain_hh, of_h)
                d_h_back = d_zh_t @ weight_hh
                d_w_back = (d_zi_t @ to_w).clamp_(-limit, limit)
        if norm is None:
            d_zi, d_zh = d_z_all, d_z_all
        rows = T * B
        d_weight_ih = d_zi.view(rows, -1).t() @ torch.cat([points, w_all[:-1]], 2).view(rows, -1)
        d_weight_hh = d_zh.view(rows, -1).t() @ h_all[:-1].view(rows, -1)
        d_window = d_p_all.view(rows, -1).t() @ h_all[1:].view(rows, -1)
        d_bias = d_z_all.sum((0, 1))
        gains: list[Tensor | None] = [None] * 4
        if norm is not None:
            columns = zip((d_z_all, d_z_all, d_n_all), (zi, zh, c_all[1:]), (gain_ih, gain_hh, gain_c), strict=True)
            statistics = zip(*ctx.statistics, strict=True)
            gains = [norm.of_gain(*column, of_all) for column, of_all in zip(columns, statistics, strict=True)]
            gains.append(d_n_all.sum((0, 1)))
        d_window_bias = d_p_all.sum((0, 1))
        return (*[None] * 5, d_window, d_window_bias, d_weight_ih, d_weight_hh, d_bias, d_bias, *gains)


def _window_derivatives(p: Tensor, kappa: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """How w hangs on log alpha, log beta and kappa at each point, `(T, B, 3K, A)`, and the way of kappa `(T, B, K)`."""
    alpha, beta, way = p.exp().chunk(3, 2)
    u = torch.arange(1, codes.shape[1] + 1, dtype=p.dtype, device=p.device)
    apart = kappa[..., None] - u  # (T, B, K, U)
    bells = alpha[..., None] * torch.exp(-beta[..., None] * apart.square())
    slanted = bells * apart * (-beta[..., None])
    by_phi = torch.cat([bells, slanted * apart, 2 * slanted], 2)
    return torch.matmul(by_phi, codes), way
