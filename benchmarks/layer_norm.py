"""The layer norm op against torch's, forward and backward, by type and shape.

    python benchmarks/layer_norm.py --threads 1 2 --json layer_norm.json

Both sides take turns in one process; printed are the minima over the rounds in microseconds, how many times as fast as
`torch.nn.functional.layer_norm` ours is, and the time of `clone()`, which reads and writes the bytes of the forward.
Before they are timed, both are compared with float64: the largest error, in units of the type's rounding.

With ``--device cuda`` the norm ops are measured on a GPU: see layer_norm_gpu.py.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import layer_norm_gpu
import layernorm as ln
import timing

SHAPES = [(1, 64), (1, 1024), (32, 64), (32, 256), (32, 1024), (256, 768), (64, 4096), (2048, 1024), (8192, 4096)]
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def errors(x: Tensor, gain: Tensor, bias: Tensor, d: Tensor) -> dict[str, tuple[float, float]]:
    """Largest error of y and of dx, in roundings of the largest value, of torch and of ours."""

    def both(call: Any, *tensors: Tensor) -> list[Tensor]:
        leaves = [t.detach().clone().requires_grad_() for t in tensors[:3]]
        y = call(leaves[0], x.shape[-1:], leaves[1], leaves[2])
        return [y.detach(), torch.autograd.grad(y, leaves[0], tensors[3])[0]]

    exact = both(F.layer_norm, *(t.double() for t in (x, gain, bias, d)))
    found = {}
    for name, call in (("torch", F.layer_norm), ("layernorm", ln.functional.layer_norm)):
        roundings = []
        for a, e in zip(both(call, x, gain, bias, d), exact, strict=True):
            unit = torch.finfo(x.dtype).eps / 2 * float(e.abs().max())
            roundings.append(float((a.double() - e).abs().max()) / unit)
        found[name] = (roundings[0], roundings[1])
    return found


def measure(dtype: torch.dtype, shape: tuple[int, int], rounds: int) -> dict[str, Any]:
    M, N = shape
    x, d = (torch.randn(M, N) * 3 + 2).to(dtype), torch.randn(M, N).to(dtype)
    gain, bias = torch.rand(N).to(dtype) + 0.5, torch.randn(N).to(dtype)
    calls = {"torch": F.layer_norm, "layernorm": ln.functional.layer_norm}
    found = {"errors": errors(x, gain, bias, d)} if M * N < 5_000_000 else {}
    runs: dict[str, Any] = {name: lambda call=call: call(x, (N,), gain, bias) for name, call in calls.items()}
    found["forward"] = timing.minima({**runs, "clone": x.clone}, rounds)
    leaves = [t.clone().requires_grad_() for t in (x, gain, bias)]
    outputs = {name: call(leaves[0], (N,), *leaves[1:]) for name, call in calls.items()}
    runs = {name: lambda y=y: torch.autograd.grad(y, leaves, d, retain_graph=True) for name, y in outputs.items()}
    found["backward"] = timing.minima(runs, rounds)
    return found


def main() -> int:
    if timing.device() == "cuda":
        return layer_norm_gpu.main()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[timing.device_option()]
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="processor threads, one table each")
    parser.add_argument("--types", nargs="+", choices=list(TYPES), default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=9, help="turns of each side (default: 9)")
    parser.add_argument("--json", metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    torch.manual_seed(0)
    print(timing.environment())
    rows = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        for name in options.types:
            print(f"\n{name}, {threads} thread(s): microseconds (times as fast as torch); errors of y/dx in roundings")
            print(
                f"{'M, N':<12}{'clone':>10}{'forward: torch':>17}{'ours':>17}{'backward: torch':>17}{'ours':>17}",
                end="",
            )
            print("   errors: torch, ours")
            for shape in SHAPES:
                found = measure(TYPES[name], shape, options.rounds)
                line = f"{shape[0]}, {shape[1]}".ljust(12) + f"{found['forward']['clone'] * 1e6:10.1f}"
                for mode in ("forward", "backward"):
                    torchs, ours = found[mode]["torch"], found[mode]["layernorm"]
                    cell = f"{ours * 1e6:.1f} ({torchs / ours:.2f}x)"
                    line += f"{torchs * 1e6:17.1f}{cell:>17}"
                if "errors" in found:
                    line += "   " + ", ".join("{:.1f}/{:.1f}".format(*pair) for pair in found["errors"].values())
                print(line, flush=True)
                rows.append({"threads": threads, "type": name, "shape": shape, **found})
    timing.save(options.json, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
