"""What the benchmarks of recurrent networks run, on either device: a Python loop, the comparison, the two modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

import layernorm as ln

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
TIMES = 4.0  # an error may be so many times that of a Python loop over the equations in the same type


class Loop(nn.Module):
    """The paper's equations as most people write them: a Python loop, `F.layer_norm` in it."""

    def __init__(self, network: str, module: Any, compiled: bool = False) -> None:
        super().__init__()
        self.network, self.module = network, module
        step = getattr(self, network.lower())
        self.step = torch.compile(step, dynamic=False) if compiled else step

    def norm(self, z: Tensor, gain: str, bias: str) -> Tensor:
        p = self.module
        return F.layer_norm(z, z.shape[-1:], getattr(p, gain), getattr(p, bias), 1e-5)

    def lstm(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        z = self.norm(x, "gain_ih_l0", "bias_ih_l0")
        z = z + self.norm(h @ self.module.weight_hh_l0.T, "gain_hh_l0", "bias_hh_l0")
        i, f, g, o = z.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * self.norm(c, "gain_c_l0", "bias_c_l0").tanh(), c

    def gru(self, x: Tensor, h: Tensor) -> tuple[Tensor]:
        p, H, u = self.module, h.shape[-1], h @ self.module.weight_hh_l0.T
        parts = []
        for z, side in ((x, "ih"), (u, "hh")):
            gain, bias = getattr(p, f"gain_{side}_l0"), getattr(p, f"bias_{side}_l0")
            for a, b in ((0, 2 * H), (2 * H, 3 * H)):
                parts.append(F.layer_norm(z[:, a:b], (b - a,), gain[a:b], bias[a:b], 1e-5))
        r, z = (parts[0] + parts[2]).sigmoid().chunk(2, -1)
        n = (parts[1] + r * parts[3]).tanh()
        return (n + z * (h - n),)

    def rnn(self, x: Tensor, h: Tensor) -> tuple[Tensor]:
        p = self.module
        z = F.layer_norm(x + h @ p.weight_hh_l0.T, h.shape[-1:], p.gain_l0, p.bias_ih_l0 + p.bias_hh_l0, 1e-5)
        return (z.tanh(),)

    def forward(self, input: Tensor) -> tuple[Tensor, None]:
        zx = input @ self.module.weight_ih_l0.T
        state = (zx.new_zeros(input.shape[1], self.module.hidden_size),) * (2 if self.network == "LSTM" else 1)
        output = []
        for x in zx.unbind():
            state = self.step(x, *state)
            output.append(state[0])
        return torch.stack(output), None


def numbers(x: Any) -> Tensor:
    """Of a tensor itself, of a packed sequence its data."""
    return x.data if isinstance(x, PackedSequence) else x


def compare(network: str, sides: dict[str, Any], x: Tensor) -> None:
    """Every layer-normalised side against the equations in float64, over the first steps: a layer-normalised LSTM
    spreads a rounding error further at every step. The measure is the error of the Python loop in the type of ``x``."""
    x, module = x[:20], sides["layer norm"]
    with torch.no_grad(), ln.backends.use("reference"):
        exact = module.double()(x.double())[0]
        rounded = Loop(network, module.to(x.dtype))(x)[0]
    unit = max(float((rounded - exact).abs().max()), 1e-6)
    for name, side in sides.items():
        if name == "torch":
            continue
        with torch.no_grad():
            error = float((torch.as_tensor(side(x)[0]) - exact).abs().max())
        if not error < TIMES * unit:
            raise SystemExit(f"{network} {name}: error {error:.1e}, that of a loop in {x.dtype} is {unit:.1e}")


def leaf(x: Any) -> tuple[Any, Tensor]:
    """The input anew, and its numbers, whose gradient is wanted."""
    data = numbers(x).clone().requires_grad_()
    return (data if isinstance(x, Tensor) else PackedSequence(data, *x[1:])), data


def inference(side: Any, x: Any) -> Callable[[], Any]:
    def run() -> Any:
        with torch.no_grad():
            return side(x)

    return run


def training(side: Any, x: Any, d: Tensor) -> Callable[[], Any]:
    given, data = leaf(x)

    def run() -> None:
        torch.autograd.backward(numbers(side(given)[0]), d)
        for t in (data, *side.parameters()):
            t.grad = None

    return run
