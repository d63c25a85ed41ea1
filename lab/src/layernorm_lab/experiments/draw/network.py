r"""DRAW: a network that reads an image in glimpses and draws it on a canvas (Gregor et al. 2015, arXiv:1502.04623).

With the image x, the canvas c, the two LSTMs' outputs h_enc and h_dec, all zero at t = 0, and t = 1..T glimpses:

    x^_t    = x - sigmoid(c_{t-1})
    r_t     = read(x, x^_t, h_dec_{t-1})
    h_enc_t = LSTM([r_t, h_dec_{t-1}])
    z_t     ~ N(mu_t, sigma_t^2),   mu_t and log sigma_t linear in h_enc_t
    h_dec_t = LSTM(z_t)
    c_t     = c_{t-1} + write(h_dec_t)

The bound on -log p(x), in nats, is its reconstruction part plus its KL part:

    -log p(x | sigmoid(c_T)) + sum_t 1/2 sum_d (mu^2 + sigma^2 - log sigma^2 - 1)

Reading and writing go through a grid of N x N Gaussian filters. Five numbers linear in h_dec place it: g~x, g~y, log
s2, log d~ and log gamma. With i = 1..N and the pixels a = 1..A along a side

    g = (A + 1) / 2 (g~ + 1),   d = (A - 1) / (N - 1) d~,   mu_i = g + (i - N/2 - 1/2) d
    F[i, a] = exp(-(a - mu_i)^2 / (2 s2)) / sum_a' exp(-(a' - mu_i)^2 / (2 s2))
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layernorm.nn import LSTMCell

from ...data.binarized_mnist import SIDE
from ...protocol import go_on
from ...train.batches import INIT, derive_seed
from .config import Config

BOUNDED = 20.0
"""The logarithms of the attention's parameters are clipped to +-20, so that no exponential overflows."""


class Grids(NamedTuple):
    """Where a network looks and draws at one glimpse.

    Attributes:
        filters: `[B, 2, R + N, A]`: along x, then along y, the rows of the reading filterbank, then of the writing one.
            Each row sums to 1. The quotient above is computed as a softmax, in which the exponentials cannot all
            underflow, so that a filter outside the image has all its weight on the nearest pixel.
        intensity: `[B, 2]`: gamma of the reading, 1 / gamma of the writing.
        patch: `[B, N, N]`: the patch to write, rows along y.
    """

    filters: Tensor
    intensity: Tensor
    patch: Tensor


class Parts(NamedTuple):
    """The two parts of the bound for each case, `[B]`, in nats."""

    kl: Tensor
    reconstruction: Tensor


class Drawing(NamedTuple):
    """How some images were drawn: `canvas` `[T, B, A, A]`, sigmoid(c_t), the probability that a pixel is 1; `window`
    `[T, B, 4]`, the write grid's g_x and g_y in pixels from 1, its side (N - 1) d and its s in pixels."""

    canvas: Tensor
    window: Tensor


class Attention(nn.Module):
    """From h_dec to the grids of one glimpse.

    One linear map gives all parameters of both grids. Its rows are repeated and scaled (`rows`) once for each batch, so
    that a glimpse needs one product, one exponential and one softmax for the four filterbanks.

    Args:
        hidden: size of h_dec.
        read, write: R and N, filters along a side.
        side: A, pixels along a side.
    """

    order: Tensor
    scale: Tensor
    shift: Tensor
    offsets: Tensor
    pixels: Tensor

    def __init__(self, hidden: int, read: int, write: int, side: int) -> None:
        super().__init__()
        self.sizes, self.side = (read, write), side
        self.linear = nn.Linear(hidden, 10 + write * write)  # five numbers to read, five to write, what is written
        counts = torch.tensor(self.sizes)
        owner = torch.repeat_interleave(torch.arange(2), counts)  # whose a row of `filters` is
        one = 5 * owner
        order = torch.cat([one, one + 1, one + 2, one + 3, torch.tensor([4, 9]), torch.arange(10, 10 + write * write)])
        scale, shift = torch.ones(len(order)), torch.zeros(len(order))
        rows = len(owner)
        half = (side + 1) / 2
        scale[: 2 * rows] = shift[: 2 * rows] = half  # g
        scale[2 * rows : 3 * rows] = -1  # log of 1 / s2
        scale[4 * rows + 1] = -1  # log of 1 / gamma
        offsets = [(i - n / 2 - 0.5) * (side - 1) / (n - 1) for n in self.sizes for i in range(1, n + 1)]
        self.register_buffer("order", order, persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("shift", shift, persistent=False)
        self.register_buffer("offsets", torch.tensor(offsets), persistent=False)
        self.register_buffer("pixels", torch.arange(1.0, side + 1), persistent=False)

    def rows(self) -> tuple[Tensor, Tensor]:
        """Spreads the linear map's weight and bias with a row for each row of the filterbanks, in the form for
        `forward`."""
        weight = self.linear.weight.index_select(0, self.order) * self.scale.unsqueeze(1)
        return weight, torch.addcmul(self.shift, self.linear.bias.index_select(0, self.order), self.scale)

    def forward(self, h: Tensor, rows: tuple[Tensor, Tensor]) -> Grids:
        """Computes the grids for h_dec `[B, H]`."""
        n = sum(self.sizes)
        numbers = F.linear(h, *rows)
        centre, logs, patch = numbers.split([2 * n, 2 * n + 2, numbers.shape[1] - 4 * n - 2], 1)
        positive = logs.clamp(-BOUNDED, BOUNDED).exp()
        sharpness, stride, intensity = positive.split([n, n, 2], 1)
        mu = torch.addcmul(centre.view(-1, 2, n), stride.unsqueeze(1), self.offsets)
        distance = (self.pixels - mu.unsqueeze(3)).square()
        filters = (distance * (-0.5 * sharpness).view(-1, 1, n, 1)).softmax(3)
        return Grids(filters, intensity, patch.view(-1, self.sizes[1], self.sizes[1]))

    def window(self, h: Tensor) -> Tensor:
        """Returns the write grid's place for h_dec `[..., H]`, as `Drawing.window`."""
        gx, gy, log_s2, log_d, _ = self.linear(h)[..., 5:10].unbind(-1)
        half = (self.side + 1) / 2
        return torch.stack([half * (gx + 1), half * (gy + 1), (self.side - 1) * log_d.exp(), log_s2.mul(0.5).exp()], -1)


def read_glimpse(grids: Grids, count: int, x: Tensor, drawn: Tensor) -> Tensor:
    """Reads a glimpse `[B, 2 count^2]`: gamma [F_y x F_x^T, F_y x^ F_x^T] with x^ = x - drawn, both `[B, A, A]`, rows
    along y. The first `count` rows of the grids read. Reading is linear, so the second is the first less that of
    `drawn`."""
    along_x, along_y = grids.filters[:, 0, :count], grids.filters[:, 1, :count]
    lines = torch.cat([torch.bmm(along_y, x), torch.bmm(along_y, drawn)], 1)
    seen, covered = (torch.bmm(lines, along_x.mT).flatten(1) * grids.intensity[:, :1]).chunk(2, 1)
    return torch.cat([seen, seen - covered], 1)


def write_patch(grids: Grids, count: int, canvas: Tensor) -> Tensor:
    """Writes the patch on the canvas `[B, A, A]`: c + 1/gamma F_y^T W F_x. The last `count` rows of the grids write."""
    along_x, along_y = grids.filters[:, 0, -count:], grids.filters[:, 1, -count:]
    columns = torch.bmm(grids.patch * grids.intensity[:, 1:, None], along_x)
    return torch.baddbmm(canvas, along_y.mT, columns)


class DRAW(nn.Module):
    """The network.

    Args:
        norm: "layer" or "rms" for the cells on their way to h (eqs. 29-31), "weight" for the weights, or None.
        hidden: units of each LSTM.
        latent: size of z.
        read_size, write_size: filters along a side of the grids.
        side: pixels along a side of the images.
    """

    def __init__(self, norm: str | None, hidden: int, latent: int, read_size: int, write_size: int, side: int) -> None:
        super().__init__()
        self.read_size, self.write_size, self.side = read_size, write_size, side
        self.encoder = LSTMCell(2 * read_size**2 + hidden, hidden, norm=norm, formula="cell")
        self.decoder = LSTMCell(latent, hidden, norm=norm, formula="cell")
        self.posterior = nn.Linear(hidden, 2 * latent)  # mu, log sigma
        self.attention = Attention(hidden, read_size, write_size, side)

    def forward(self, images: Tensor, noise: Tensor) -> Parts:
        """Computes the bound's parts.

        Args:
            images: `[B, A^2]`, 0 or 1.
            noise: `[T, B, L]`, standard normal: z = mu + sigma noise.
        """
        x = images.view(-1, self.side, self.side)
        canvas = torch.zeros_like(x)
        encoder, decoder, grids, rows = self._start(x)
        encode, decode = self.encoder.stepper(), self.decoder.stepper()
        statistics = []
        for step in noise.unbind():
            glimpse = read_glimpse(grids, self.read_size, x, canvas.sigmoid())
            encoder = encode(torch.cat([glimpse, decoder[0]], 1), encoder)
            statistics.append(self.posterior(encoder[0]))
            mu, log_sigma = statistics[-1].chunk(2, 1)
            decoder = decode(torch.addcmul(mu, log_sigma.exp(), step), decoder)
            grids = self.attention(decoder[0], rows)
            canvas = write_patch(grids, self.write_size, canvas)
        wide = torch.stack(statistics).to(x.dtype)  # under autocast they are bfloat16
        return Parts(kl(wide), reconstruction(canvas, x))

    @torch.no_grad()
    def draw(self, noise: Tensor) -> Drawing:
        """Draws images from the prior: z_t = noise_t, standard normal, `[T, B, L]`."""
        canvas = noise.new_zeros(noise.shape[1], self.side, self.side)
        _, decoder, _, rows = self._start(canvas)
        decode = self.decoder.stepper()
        canvases, windows = [], []
        for step in noise.unbind():
            go_on()
            decoder = decode(step, decoder)
            canvas = write_patch(self.attention(decoder[0], rows), self.write_size, canvas)
            canvases.append(canvas.sigmoid())
            windows.append(self.attention.window(decoder[0]))
        return Drawing(torch.stack(canvases), torch.stack(windows))

    def _start(self, x: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Grids, tuple[Tensor, Tensor]]:
        """Returns the initial states of the LSTMs, which are zero, their grids, and the attention's rows."""
        zero = x.new_zeros(len(x), self.encoder.hidden_size)
        rows = self.attention.rows()
        return (zero, zero), (zero, zero), self.attention(zero, rows), rows


def kl(statistics: Tensor) -> Tensor:
    """Computes sum_t KL(N(mu_t, sigma_t^2) || N(0, 1)) in nats `[B]`, for mu and log sigma side by side, `[T, B, 2
    L]`."""
    mu, log_sigma = statistics.chunk(2, 2)
    # all terms of the sum are >= 0, and expm1 keeps the digits of the small ones
    return 0.5 * (mu.square() + torch.expm1(2 * log_sigma) - 2 * log_sigma).sum((0, 2))


def reconstruction(canvas: Tensor, x: Tensor) -> Tensor:
    """Computes -log p(x | sigmoid(c)) of Bernoulli pixels, in nats `[B]`; both `[B, A, A]`."""
    return F.binary_cross_entropy_with_logits(canvas, x, reduction="none").sum((1, 2))


def build_draw(config: Config) -> DRAW:
    """Builds the network with its initial weights. One seed gives the same weights whatever the norm.

    `initial="torch"`: torch's own weights, or N(0, deviation^2) where a deviation is given, and biases of 0.
    `"source"`: each linear map has weights and biases from U(+-1/sqrt(inputs)), as in the authors' cell.
    """
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(config.seed, INIT))
        model = DRAW(
            None if config.norm == "none" else config.norm,
            config.hidden, config.latent, config.read_size, config.write_size, SIDE,
        )  # fmt: skip
        for name, parameter in model.named_parameters():
            kind = name.rpartition(".")[2]
            if kind.startswith("weight") or kind == "original1":  # original1 is weight norm's direction
                if config.deviation:
                    nn.init.normal_(parameter, 0, config.deviation)
            elif kind.startswith("bias"):
                nn.init.zeros_(parameter)
        if config.initial == "source":
            _draw_source(model)
        for name, gain in model.named_parameters():
            if name.endswith("original0"):  # original0 is its gain: the length of the direction
                direction = model.get_parameter(f"{name[:-1]}1")
                gain.data.copy_(direction.detach().norm(dim=1, keepdim=True))
    return model


def _draw_source(model: nn.Module) -> None:
    """Draws the weights and biases of each linear map from U(+-1/sqrt(its inputs))."""
    for name, weight in model.named_parameters():
        if weight.dim() == 2 and not name.endswith("original0"):
            linear = name.replace("parametrizations.", "").removesuffix(".original1")
            for parameter in (weight, model.get_parameter(linear.replace("weight", "bias"))):
                nn.init.uniform_(parameter, -(weight.shape[1] ** -0.5), weight.shape[1] ** -0.5)
