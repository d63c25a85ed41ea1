"""What one step in a call costs: cells, and the LSTM over a sequence of one step, beside torch's without layer norm.

    python benchmarks/single_steps.py [--threads 1] [--batches 1 8 64 128] [--units 64 256 512]
        [--networks LSTMCell ...] [--rounds 9] [--clock processor] [--quick] [--json FILE]

Both sides take turns; printed are the minima in microseconds and the ratio to torch. Inference is a call under
`torch.no_grad`; training is the call and the gradients of input, state and parameters. Before a row is timed, our
float32 gradients are compared with those of the same module in float64.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import layernorm as ln
import timing
from timing import environment, geometric_mean, minima, save

NETWORKS = ("LSTMCell", "GRUCell", "RNNCell", "LSTM")
TIMED_FOR = 1e-3  # seconds a turn: short turns are seldom interrupted


def given(network: str, B: int, H: int) -> list[Tensor]:
    """Input and state, of a network with the time in front."""
    shape = (B, H) if network.endswith("Cell") else (1, B, H)
    return [torch.randn(shape, requires_grad=True) for _ in range(3 if "LSTM" in network else 2)]


def called(module: nn.Module, tensors: list[Tensor]) -> Tensor:
    """The output of a call."""
    x, *state = tensors
    found = module(x, tuple(state) if len(state) > 1 else state[0])
    return found[0] if isinstance(found, tuple) else found


def training(module: nn.Module, tensors: list[Tensor]) -> Callable[[], Any]:
    """A call and its gradients."""
    wanted, weights = [*tensors, *module.parameters()], torch.ones_like(tensors[1])
    return lambda: torch.autograd.grad(called(module, tensors), wanted, weights)


def inference(module: nn.Module, tensors: list[Tensor]) -> Callable[[], Any]:
    def run() -> Tensor:
        with torch.no_grad():
            return called(module, tensors)

    return run


def check(network: str, module: nn.Module, tensors: list[Tensor]) -> None:
    """That output and gradients are those of the module in float64."""
    H = tensors[0].shape[-1]
    exact = getattr(ln, network)(H, H, dtype=torch.float64)
    exact.load_state_dict(module.state_dict())
    wide = [t.detach().double().requires_grad_() for t in tensors]
    found = [called(module, tensors), *training(module, tensors)()]
    expected = [called(exact, wide), *training(exact, wide)()]
    for a, b in zip(found, expected, strict=True):
        error = float((a - b).detach().abs().max() / (1e-6 + b.detach().abs().max()))
        assert error < 1e-4, f"{network}: off by {error:.1e}"  # 2,000 roundings: sums over 128 rows and 512 units


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="processor threads (default: 1)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64, 128], help="rows in a call")
    parser.add_argument("--units", type=int, nargs="+", default=[64, 256, 512], help="hidden units, and inputs")
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS)
    parser.add_argument("--rounds", type=int, default=9, help="turns of each side (default: 9)")
    parser.add_argument(
        "--clock", choices=list(timing.CLOCKS), default="wall", help="processor: on a busy machine, with one thread"
    )
    parser.add_argument("--quick", action="store_true", help="one row a network, 2 rounds")
    parser.add_argument("--json", metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    if options.quick:
        options.batches, options.units, options.rounds = [1], [64], 2
    timing.clock = timing.CLOCKS[options.clock]
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"{options.threads} thread(s), {environment()}")
    print(f"{'':10}{'B, H':<10}{'inference: torch':>18}{'ours':>18}{'training: torch':>18}{'ours':>18}")
    rows: list[dict[str, Any]] = []
    for network in options.networks:
        for H in options.units:
            for B in options.batches:
                sides = {"torch": getattr(nn, network)(H, H), "layer norm": getattr(ln, network)(H, H)}
                tensors = given(network, B, H)
                check(network, sides["layer norm"], tensors)
                line = f"{network:<10}{f'{B}, {H}':<10}"
                for mode, of in (("inference", inference), ("training", training)):
                    runs = {name: of(module, tensors) for name, module in sides.items()}
                    best = minima(runs, options.rounds, TIMED_FOR)
                    ratio = best["layer norm"] / best["torch"]
                    line += f"{1e6 * best['torch']:>18.1f}{f'''{1e6 * best['layer norm']:.1f} ({ratio:.2f})''':>18}"
                    rows.append({"network": network, "B": B, "H": H, "mode": mode, "ratio": ratio, **best})
                print(line, flush=True)
    for mode in ("inference", "training"):
        ratios = [row["ratio"] for row in rows if row["mode"] == mode]
        print(f"{mode}: geometric mean {geometric_mean(ratios):.2f}, largest {max(ratios):.2f}")
    save(options.json, rows)


if __name__ == "__main__":
    main()
