"""Graves' synthesis network: three LSTMs with skips, a soft window on the text, a mixture density of the next point.

Letters in shapes: T points, B batch, U characters, H units, K window components, M mixture components.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layernorm import nn as networks

from ...data.iam import ALPHABET
from ...report.arms import GAINED
from ...train.batches import INIT, derive_seed
from .config import Config
from .window import read_window, window_step

OUTPUT_LIMIT, LSTM_LIMIT = 100.0, 10.0
"""The limits for clipping the gradients of a sequence's loss: at the network's outputs, and inside each LSTM."""


class State(NamedTuple):
    """The state between two points: h and c of the LSTMs, the window's place kappa `(B, K)` and reading w `(B, 57)`."""

    first: tuple[Tensor, Tensor]
    second: tuple[Tensor, Tensor]
    third: tuple[Tensor, Tensor]
    kappa: Tensor
    reading: Tensor


class Synthesis(nn.Module):
    r"""The network.

    .. math::
        h^1_t &= \mathrm{LSTM}_1([x_t, w_{t-1}]) \qquad
        (\hat\alpha, \hat\beta, \hat\kappa)_t = W h^1_t + b \\
        \alpha &= e^{\hat\alpha},\ \beta = e^{\hat\beta},\ \kappa_t = \kappa_{t-1} + e^{\hat\kappa_t},\quad
        \phi(t, u) = \sum_k \alpha^k_t e^{-\beta^k_t (\kappa^k_t - u)^2},\quad w_t = \sum_u \phi(t, u)\, c_u \\
        h^2_t &= \mathrm{LSTM}_2([x_t, w_t, h^1_t]),\quad h^3_t = \mathrm{LSTM}_3([x_t, w_t, h^2_t]),\quad
        \hat y_t = W [h^1_t, h^2_t, h^3_t] + b

    Args:
        norm: the norm of the LSTMs, `None`, "layer", "rms" or "weight", as in `layernorm.LSTM` with `formula="paper"`.
            One normalisation is over the 4H summed inputs from x, w and the layer below together, one over those from
            h.
        units: H.
        mixtures, components: M and K.
        pace: the number of characters by which each window component moves at a point before training.
        alpha: the alpha of each window component before training. With 0.06 the reading w is about as large as a point.
            With 1 the point would be small beside w in their common normalisation.
        gain_init: the initial gain of layer and RMS norm, or the start, as `layernorm.LSTM` takes it.
        gate_clip, input_clip, output_clip: the limits for clipping the gradients with respect to the summed inputs of
            the LSTMs' gates, to the LSTMs' inputs, and to the outputs.

    Source: Graves, "Generating Sequences With Recurrent Neural Networks", 2013, arXiv:1308.0850, section 5.
    """

    def __init__(
        self,
        norm: str | None,
        units: int,
        mixtures: int,
        components: int = 10,
        pace: float = 0.05,
        alpha: float = 0.06,
        gain_init: float | Literal["steady"] | None = None,
        gate_clip: float = math.inf,
        input_clip: float = math.inf,
        output_clip: float = math.inf,
    ) -> None:
        super().__init__()
        characters = len(ALPHABET)
        self.components, self.input_clip, self.output_clip = components, input_clip, output_clip
        kind: dict[str, Any] = {"norm": norm, "gain_init": gain_init, "gate_clip": gate_clip}
        self.lstm1 = networks.LSTMCell(3 + characters, units, **kind)
        self.lstm2 = networks.LSTM(3 + characters + units, units, **kind)
        self.lstm3 = networks.LSTM(3 + characters + units, units, **kind)
        self.window = nn.Linear(units, 3 * components)
        self.output = nn.Linear(3 * units, 1 + 6 * mixtures)
        nn.init.constant_(self.window.bias[:components], math.log(alpha))
        nn.init.constant_(self.window.bias[2 * components :], math.log(pace))

    def forward(self, points: Tensor, text: Tensor, characters: Tensor) -> Tensor:
        """Computes the outputs `(T, B, 121)`, for `mixture.log_density`, for the point that follows each of the points
        `(T, B, 3)`, by the codes of the text `(B, U)`. Codes after the `characters` `(B,)` of each text have no weight.
        """
        codes = one_hot(text, characters, points.dtype)
        h1, reading = self.lowest(points, codes)
        h2, _ = self.lstm2(clipped(torch.cat([points, reading, h1], 2), self.input_clip))
        h3, _ = self.lstm3(clipped(torch.cat([points, reading, h2], 2), self.input_clip))
        return clipped(self.output(torch.cat([h1, h2, h3], 2)), self.output_clip)

    def lowest(self, points: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Runs the lowest LSTM and its window, whose previous reading is in its input, over points `(T, B, 3)` and the
        codes `(B, U, 57)` of `one_hot`. Returns h `(T, B, H)` and the reading w `(T, B, 57)`."""
        hx = None
        places = torch.arange(1, codes.shape[1] + 1, dtype=points.dtype, device=points.device)
        reading = points.new_zeros(points.shape[1], codes.shape[2])
        kappa = points.new_zeros(points.shape[1], self.components)
        h, readings = [], []
        with torch.autocast(points.device.type, enabled=False):  # kappa adds up over the points
            step = self.lstm1.stepper()
            for point in points.unbind():
                hx = step(clipped(torch.cat([point, reading], 1), self.input_clip), hx)
                reading, kappa = read_window(self.window(hx[0]), kappa, codes, places)
                h.append(hx[0])
                readings.append(reading)
        return torch.stack(h), torch.stack(readings)

    def start(self, batch: int) -> State:
        """Computes the state before the first point: zeros."""
        like = self.output.bias
        h = like.new_zeros(batch, self.lstm1.hidden_size)
        long = h[None]
        reading = like.new_zeros(batch, len(ALPHABET))
        return State((h, h), (long, long), (long, long), like.new_zeros(batch, self.components), reading)

    def step(self, point: Tensor, codes: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """Computes one point `(B, 3)` by the equations above, with the codes `(B, U, 57)` of `one_hot`. Returns the
        output for the next point `(B, 121)`, `phi` `(B, U + 1)`, and the new state."""
        first = self.lstm1(torch.cat([point, state.reading], 1), state.first)
        phi, reading, kappa = window_step(self.window(first[0]), state.kappa, codes)
        h2, second = self.lstm2(torch.cat([point, reading, first[0]], 1)[None], state.second)
        h3, third = self.lstm3(torch.cat([point, reading, h2[0]], 1)[None], state.third)
        y = self.output(torch.cat([first[0], h2[0], h3[0]], 1))
        return y, phi, State(first, second, third, kappa, reading)


def one_hot(text: Tensor, characters: Tensor, dtype: torch.dtype) -> Tensor:
    """Codes `(B, U)` as rows `(B, U, 57)`, zero beyond each text's end."""
    inside = torch.arange(text.shape[1], device=text.device) < characters[:, None]
    return F.one_hot(text.long(), len(ALPHABET)).to(dtype) * inside[:, :, None]


def clipped(tensor: Tensor, limit: float) -> Tensor:
    """Returns the same tensor, each element of whose gradient is clipped in the backward pass to +-limit."""
    if tensor.requires_grad and limit < math.inf:
        tensor.register_hook(lambda grad: grad.clamp(-limit, limit))
    return tensor


def build_synthesis(config: Config, processes: int = 1) -> Synthesis:
    """Builds the network. One seed gives the same weights and biases whatever the norm. Under weight norm the
    directions are the same.

    The LSTMs' biases start from U(-1/sqrt(H), 1/sqrt(H)), as torch draws them. At the first step x, w, h and c are all
    0. With biases of 0 layer norm would divide by sqrt(eps) there, and the first gradient would be thousands of times
    too large. The limits for gradients are for the loss of a batch of `batch_size` lines: its mean, times the number of
    `processes` that share the lines, as `DistributedDataParallel` averages their gradients.
    """
    share = processes / config.batch_size
    limit = LSTM_LIMIT * share
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(config.seed, INIT))
        model = Synthesis(
            None if config.norm == "none" else config.norm,
            config.units,
            config.mixtures,
            gain_init=config.gain_init if config.norm in GAINED else None,
            gate_clip=limit if config.clip == "gates" else math.inf,
            input_clip=limit if config.clip == "inputs" else math.inf,
            output_clip=OUTPUT_LIMIT * share,
        )
        bound = 1 / math.sqrt(config.units)
        for name, parameter in model.named_parameters():
            kind = name.partition(".")[2]
            if kind.startswith(("bias_ih", "bias_hh")):
                nn.init.uniform_(parameter, -bound, bound)
            if kind.startswith("bias_ih"):
                parameter.data.chunk(4)[1].add_(config.forget_bias)  # gates i, f, g, o
    return model
