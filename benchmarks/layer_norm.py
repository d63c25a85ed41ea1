"""Times the layer norm op against torch's, forward and backward, by type and shape.

    python benchmarks/layer_norm.py --threads 1 2 --json layer_norm.json
    python benchmarks/layer_norm.py --threads 1 2 --residual --types float32 bfloat16
    python benchmarks/layer_norm.py --small
    python benchmarks/layer_norm.py --quick

Both sides take turns in one process. The script prints the minima over the rounds in microseconds, how many times as
fast layernorm's op is as `torch.nn.functional.layer_norm`, and the time of `clone()`, which reads and writes the bytes
of the forward. Rows come in three kinds: small calls, rows in the caches, rows out of them. Before they are timed, both
are compared with float64: the largest error, in units of the type's rounding.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import layernorm as ln
import timing

LENGTHS = [64, 256, 768, 1024, 4096, 8192]
SHAPES = {
    "small calls": [(1, 64), (1, 1024), (32, 64), (32, 256), (32, 1024)],
    "in the caches": [(2**18 // N, N) for N in LENGTHS],
    "out of the caches": [(2**24 // N, N) for N in LENGTHS],
}
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


Call = Callable[..., tuple[Tensor, ...]]
"""From x, the residual, gain and bias to y, with a residual also to the sum."""


def calls(N: int, residual: bool) -> dict[str, Call]:
    """Both sides."""
    if not residual:
        return {
            "torch": lambda x, _, *affine: (F.layer_norm(x, (N,), *affine),),
            "layernorm": lambda x, _, *affine: (ln.functional.layer_norm(x, (N,), *affine),),
        }

    def torchs(x: Tensor, added: Tensor, *affine: Tensor) -> tuple[Tensor, ...]:
        total = x + added
        return F.layer_norm(total, (N,), *affine), total

    def ours(x: Tensor, added: Tensor, *affine: Tensor) -> tuple[Tensor, ...]:
        return ln.functional.add_layer_norm(x, added, (N,), *affine)

    return {"torch": torchs, "layernorm": ours}


def errors(given: list[Tensor], d: Tensor, residual: bool) -> dict[str, tuple[float, float]]:
    """Returns the largest error of y and of dx, in roundings of the largest value, of torch and of layernorm."""
    sides = calls(d.shape[1], residual)

    def both(call: Call, *tensors: Tensor) -> list[Tensor]:
        leaves = [t.detach().clone().requires_grad_() for t in tensors[:-1]]
        y = call(*leaves)[0]
        return [y.detach(), torch.autograd.grad(y, leaves[0], tensors[-1])[0]]

    exact = both(sides["torch"], *(t.double() for t in (*given, d)))
    found = {}
    for name, call in sides.items():
        roundings = []
        for a, e in zip(both(call, *given, d), exact, strict=True):
            unit = torch.finfo(d.dtype).eps / 2 * float(e.abs().max())
            roundings.append(float((a.double() - e).abs().max()) / unit)
        found[name] = (roundings[0], roundings[1])
    return found


def measure(dtype: torch.dtype, shape: tuple[int, int], residual: bool, rounds: int) -> dict[str, Any]:
    M, N = shape
    x, added, d = (torch.randn(M, N) * 3 + 2).to(dtype), torch.randn(M, N).to(dtype), torch.randn(M, N).to(dtype)
    given = [x, added, torch.rand(N).to(dtype) + 0.5, torch.randn(N).to(dtype)]
    found = {"errors": errors(given, d, residual)} if M * N < 5_000_000 else {}
    sides = calls(N, residual)
    runs: dict[str, Any] = {name: lambda call=call: call(*given) for name, call in sides.items()}
    found["forward"] = timing.minima({**runs, "clone": x.clone}, rounds)
    leaves = [t.clone().requires_grad_() for t in given]
    wanted = leaves if residual else [leaves[0], *leaves[2:]]

    def training(call: Call) -> Callable[[], object]:
        return lambda: torch.autograd.grad(call(*leaves), wanted, [d, d] if residual else [d])

    found["training"] = timing.minima({name: training(call) for name, call in sides.items()}, rounds)
    return found


class Nothing(torch.autograd.Function):
    """An op with a gradient that costs only Python's part: it saves three tensors and hands them on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, gain, bias)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        _, gain, bias = ctx.saved_tensors
        return grads[0], gain, bias


def small(N: int, rounds: int) -> None:
    """One row: a call without gradients, one that autograd records, and one with its backward."""
    x, gain, bias, d = torch.randn(1, N), torch.ones(N), torch.zeros(N), torch.randn(1, N)
    leaves = [t.clone().requires_grad_() for t in (x, gain, bias)]
    calls: dict[str, Callable[..., Tensor]] = {
        "torch.nn.functional.layer_norm": lambda x, *affine: F.layer_norm(x, (N,), *affine),
        "layernorm.functional.layer_norm": lambda x, *affine: ln.functional.layer_norm(x, (N,), *affine),
        "an autograd.Function that does nothing": Nothing.apply,
    }
    plain = timing.minima({name: lambda call=call: call(x, gain, bias) for name, call in calls.items()}, rounds)
    recorded = timing.minima({name: lambda call=call: call(*leaves) for name, call in calls.items()}, rounds)
    training = timing.minima(
        {name: lambda call=call: torch.autograd.grad(call(*leaves), leaves, d) for name, call in calls.items()}, rounds
    )
    print(f"\n{f'one row of {N}, microseconds':<42}{'no gradient':>12}{'recorded':>10}{'with backward':>15}")
    for name in calls:
        print(f"{name:<42}{plain[name] * 1e6:12.1f}{recorded[name] * 1e6:10.1f}{training[name] * 1e6:15.1f}")


def keep_results() -> None:
    """Has glibc keep freed memory of up to 32 MB, its own limit.

    Else it gives some of it back to the kernel, depending on where it lies. Fresh pages then make up to half of a call
    in the caches, on either side by chance.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not in other C libraries
    if mallopt is not None:
        mallopt(-1, 256 << 20)  # M_TRIM_THRESHOLD
        mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD


def title(name: str, threads: int, residual: bool) -> None:
    what = "residual sum and layer norm" if residual else "layer norm"
    print(f"\n{what}, {name}, {threads} thread(s): microseconds (times as fast as torch); errors in roundings")
    print("M, N              clone   forward: torch        layernorm", end="")
    print("   with backward: torch        layernorm   errors of y/dx: torch, layernorm")


def line(shape: tuple[int, int], found: dict[str, Any]) -> str:
    text = f"{shape[0]}, {shape[1]}".ljust(14) + f"{found['forward']['clone'] * 1e6:9.1f}"
    for mode, width in (("forward", 17), ("training", 23)):
        torchs, ours = found[mode]["torch"], found[mode]["layernorm"]
        cell = f"{ours * 1e6:.1f} ({torchs / ours:.2f}x)"
        text += f"{torchs * 1e6:{width}.1f}{cell:>17}"
    if "errors" in found:
        text += "   " + ", ".join("{:.1f}/{:.1f}".format(*pair) for pair in found["errors"].values())
    return text


def main() -> None:
    parser = timing.parser(__doc__)
    parser.add_argument(
        "--types",
        nargs="+",
        choices=list(TYPES),
        default=["float32", "bfloat16", "float16"],
        help="one table each (default: all but float64)",
    )
    parser.add_argument("--residual", action="store_true", help="the sum with a residual and its layer norm")
    parser.add_argument("--small", action="store_true", help="what a call of one row costs, most of it in Python")
    parser.add_argument("--quick", action="store_true", help="only rows in the caches, 3 rounds")
    options = parser.parse_args()
    if options.small and options.json:
        parser.error("--small prints lines, and has no figures for --json")
    keep_results()
    rounds, kinds = (3, ["in the caches"]) if options.quick else (options.rounds, list(SHAPES))
    rows: list[dict[str, Any]] = []
    for threads in timing.tables(options):
        if options.small:
            small(64, rounds)
            continue
        for name in options.types:
            title(name, threads, options.residual)
            for kind in kinds:
                print(kind)
                for shape in SHAPES[kind]:
                    found = measure(TYPES[name], shape, options.residual, rounds)
                    print(line(shape, found), flush=True)
                    about = {"threads": threads, "type": name, "residual": options.residual}
                    rows.append({**about, "kind": kind, "shape": shape, **found})
    timing.save(options.json, rows)


if __name__ == "__main__":
    main()
