"""The norm ops on a GPU against clone(), torch's own and the compiled one, forward and backward.

    python benchmarks/layer_norm.py --device cuda --json layer_norm_gpu.json
    python benchmarks/layer_norm.py --device cuda --ops rms_norm add_layer_norm --types bfloat16 --peers torch

Every (M, N) tensor has 256 MiB, M following from N. Printed is the bandwidth in percent of clone()'s, by the bytes that
the op cannot do without, s being the size of a number (minimum and median over the rounds, L2 cold, launches hidden:
timing_gpu.py):

    clone       2 M N s                       reads x, writes y
    layer_norm  forward  2 M N s + 2 N s      reads x, gain, bias, writes y
                backward 3 M N s + 4 N s      reads x, dy, gain, writes dx and the gradients of gain and bias
    rms_norm    the same without the bias
    add_layer_norm  forward and backward 4 M N s: reads x, residual, writes y, x + residual; reads dy, the gradient of
                the sum, the sum, writes dx, which is the residual's gradient, too

`ahead` is how many times as fast ours is as the faster of its peers; a * marks a row in which launches were not hidden.
`compile` is torch.compile of torch's own op, the backward that of its autograd graph. Before any is timed, y, dx and
the gradients of gain and bias are compared with torch's op in float64: a wrong result of ours is not timed.

Then, for calls of a few rows, the microseconds on the GPU alone, and those of a call among many in a row, which is what
launching it takes.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch._functorch.config
from torch import Tensor
from torch.nn import functional as F

import layernorm as ln
import timing
import timing_gpu

LENGTHS = [256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]
BYTES = 256 * 2**20
FEW = [(1, 1024), (32, 1024), (1024, 1024)]
GOALS = [("forward", 256, 512, 90), ("forward", 1024, 16384, 95), ("backward", 1024, 8192, 88)]  # percent of clone()'s
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MODES = ("forward", "backward")


class Op(NamedTuple):
    """Ours and torch's, of ``rows`` tensors (M, N) and then ``parameters`` tensors (N,); both return a tuple."""

    ours: Callable[..., tuple[Tensor, ...]]
    torchs: Callable[..., tuple[Tensor, ...]]
    rows: int
    parameters: int

    def bytes(self, mode: str, M: int, N: int, size: int) -> int:
        rows, parameters = (2 * self.rows, 1) if mode == "forward" else (self.rows + 2, 2)
        return (rows * M * N + parameters * self.parameters * N) * size


def _add_layer_norm(x: Tensor, residual: Tensor, gain: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return F.layer_norm(total, x.shape[-1:], gain, bias), total


OPS = {
    "layer_norm": Op(
        lambda x, gain, bias: (ln.functional.layer_norm(x, x.shape[-1:], gain, bias),),
        lambda x, gain, bias: (F.layer_norm(x, x.shape[-1:], gain, bias),),
        rows=1,
        parameters=2,
    ),
    "rms_norm": Op(
        lambda x, gain: (ln.functional.rms_norm(x, x.shape[-1:], gain, 1e-5),),
        lambda x, gain: (F.rms_norm(x, x.shape[-1:], gain, 1e-5),),
        rows=1,
        parameters=1,
    ),
    "add_layer_norm": Op(
        lambda x, residual, gain, bias: ln.functional.add_layer_norm(x, residual, x.shape[-1:], gain, bias),
        _add_layer_norm,
        rows=2,
        parameters=2,
    ),
}


def errors(call: Callable[..., Any], exact: Sequence[Tensor], tensors: Sequence[Tensor], d: Any) -> list[float]:
    """The largest error of each result and gradient, in roundings of its largest value."""
    found = results(call, tensors, d)
    unit = torch.finfo(tensors[0].dtype).eps / 2
    return [float((a - e).abs().max() / (unit * e.abs().max())) for a, e in zip(found, exact, strict=True)]


def results(call: Callable[..., Any], tensors: Sequence[Tensor], d: Any) -> list[Tensor]:
    """What the call returns, and the gradients of what it is given."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    y = call(*leaves)
    return [*(t.detach() for t in y), *torch.autograd.grad(y, leaves, d)]


def check(op: Op, sides: dict[str, Any], tensors: list[Tensor], d: list[Tensor]) -> dict[str, list[float]]:
    """The errors of every side; ours have to be roundings, those of gain and bias also of a sum over M rows."""
    exact = results(op.torchs, [t.double() for t in tensors], [t.double() for t in d])
    found = {name: errors(call, exact, tensors, d) for name, call in sides.items()}
    single, unit = 2.0**-24, torch.finfo(tensors[0].dtype).eps / 2
    for k, error in enumerate(found["ours"]):
        terms = len(tensors[0]) if k >= len(exact) - op.parameters else 1
        if not error * unit <= 3 * unit + 16 * math.sqrt(terms) * single:
            raise SystemExit(f"result {k} is wrong by {error:.1f} roundings; all: {found}")
    return found


def measure(op: Op, dtype: torch.dtype, shape: tuple[int, int], peers: Sequence[str], rounds: int) -> dict[str, Any]:
    """Errors, and `timing_gpu.Times` of ``clone`` and of each ``(side) forward`` and ``(side) backward``; for a few
    rows also the seconds of a call among many."""
    M, N = shape

    def draw(*size: int) -> Tensor:
        return torch.randn(size, dtype=dtype, device=timing_gpu.GPU)

    tensors = [*(draw(M, N) * 3 + 2 for _ in range(op.rows)), *(draw(N) for _ in range(op.parameters))]
    d = [draw(M, N) for _ in range(op.rows)]
    sides = {"ours": op.ours, "torch": op.torchs}
    if "compile" in peers:
        torch._dynamo.reset()
        sides["compile"] = torch.compile(op.torchs, dynamic=False)
    found: dict[str, Any] = {"errors": check(op, sides, tensors, d)}
    runs: dict[str, Callable[[], Any]] = {"clone": tensors[0].clone}
    runs |= {f"{name} forward": torch.no_grad()(functools.partial(call, *tensors)) for name, call in sides.items()}
    leaves = [t.detach().requires_grad_() for t in tensors]
    for name, call in sides.items():
        runs[f"{name} backward"] = functools.partial(torch.autograd.grad, call(*leaves), leaves, d, retain_graph=True)
    found["seconds"] = timing_gpu.times(runs, rounds)
    if shape in FEW:
        found["call"] = timing.minima(runs, rounds)
        torch.cuda.synchronize()
    return found


def cells(texts: Iterable[str]) -> str:
    return "".join(f"{text:>8}" for text in texts)


def heading(columns: Sequence[str]) -> str:
    """Over the columns of both modes."""
    return "".join(f"{mode:>{8 * len(columns)}}" for mode in MODES)


def line(op: Op, size: int, shape: tuple[int, int], sides: Sequence[str], seconds: dict[str, Any], which: str) -> str:
    M, N = shape
    clone = 2 * M * N * size / seconds["clone"][which]
    text = f"{N:>5} {which[:3]}{clone / 1e9:>6.0f}"
    for mode in MODES:
        took = {name: seconds[f"{name} {mode}"][which] for name in sides}
        for name in sides:
            text += f"{100 * op.bytes(mode, M, N, size) / took[name] / clone:>8.1f}"
        text += f"{min(took[name] for name in sides if name != 'ours') / took['ours']:>7.2f}x"
    return text + ("*" if any(found["hidden"] < 1 for found in seconds.values()) else "")


def table(rows: timing_gpu.Rows, name: str, type_: str, peers: Sequence[str], rounds: int) -> None:
    op, dtype, sides = OPS[name], TYPES[type_], ("ours", *peers)
    size = dtype.itemsize
    backend = ln.backends.choose("normalize", torch.empty(1, dtype=dtype, device=timing_gpu.GPU))
    print(f"\n{name}, {type_}, {BYTES / 2**20:.0f} MiB a tensor, ours on {backend!r}: clone in GB/s, others in % of it")
    columns = [*sides, "ahead"]
    print(f"{' ' * 15}{heading(columns)}\n{'N':>5} {'':3}{'clone':>6}{2 * cells(columns)}", flush=True)

    def row(shape: tuple[int, int]) -> list[dict[str, Any]]:
        about = {"op": name, "type": type_, "shape": shape, "backend": backend}
        return [{**about, **measure(op, dtype, shape, peers, rounds)}]

    large = [(max(1, BYTES // (N * size)), N) for N in LENGTHS]
    done: list[dict[str, Any]] = []
    for shape in large:
        for found in rows.measure(f"{name} {type_} {shape}", functools.partial(row, shape)):
            for which in ("minimum", "median"):
                print(line(op, size, shape, sides, found["seconds"], which), flush=True)
            done.append(found)
    if name == "layer_norm":
        goals(op, size, sides, done)
    few(rows, sides, [(shape, functools.partial(row, shape)) for shape in FEW], f"{name} {type_}")
    rows.save()


def goals(op: Op, size: int, sides: Sequence[str], done: Sequence[dict[str, Any]]) -> None:
    """The lowest share of clone()'s bandwidth among the lengths of each goal, and where ours is not ahead (minima)."""

    def best(found: dict[str, Any], name: str) -> float:
        return found["seconds"][name]["minimum"]

    for mode, least, most, percent in GOALS:
        shares = []
        for found in done:
            M, N = found["shape"]
            if least <= N <= most:
                clone = 2 * M * N * size / best(found, "clone")
                shares.append(100 * op.bytes(mode, M, N, size) / best(found, f"ours {mode}") / clone)
        if shares:
            print(f"{mode}, N {least} to {most}: at least {min(shares):.1f} % of clone(); the goal is {percent} %")
    for mode in MODES:
        behind = [
            f"{found['shape'][1]} ({name})"
            for found in done
            for name in sides[1:]
            if best(found, f"ours {mode}") > best(found, f"{name} {mode}")
        ]
        print(f"{mode}, behind a peer at: {', '.join(behind) or 'none'} of {len(done)} lengths")


def few(rows: timing_gpu.Rows, sides: Sequence[str], shapes: Sequence[Any], what: str) -> None:
    print(f"{what}, few rows: microseconds on the GPU, and of a call among many")
    print(f"{' ' * 24}{heading(sides)}\n{'M, N':<11}{'':5}{'clone':>8}{2 * cells(sides)}", flush=True)
    names = ["clone", *(f"{side} {mode}" for mode in MODES for side in sides)]
    for shape, row in shapes:
        for found in rows.measure(f"{what} {shape}", row):
            on_gpu = [found["seconds"][name]["minimum"] for name in names]
            called = [found["call"][name] for name in names]
            for label, values in (("GPU", on_gpu), ("call", called)):
                print(
                    f"{', '.join(map(str, shape)):<11}{label:<5}{cells(f'{1e6 * v:.1f}' for v in values)}", flush=True
                )


def main() -> int:
    os.environ.setdefault("LAYERNORM_GPU", "1")  # what is measured here is asked for
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[timing.device_option()]
    )
    parser.add_argument("--ops", nargs="+", choices=list(OPS), default=["layer_norm"])
    parser.add_argument("--types", nargs="+", choices=list(TYPES), default=["float32", "bfloat16"])
    parser.add_argument("--peers", nargs="+", choices=["torch", "compile"], default=["torch", "compile"])
    parser.add_argument("--rounds", type=int, default=25, help="turns of each side (default: 25)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after so many, begin no further row")
    parser.add_argument("--json", metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    timing_gpu.need_gpu()
    torch.manual_seed(0)
    torch._functorch.config.donated_buffer = False  # a compiled graph whose backward is to run more than once
    rows = timing_gpu.Rows(options.seconds, options.json)
    for name in options.ops:
        for type_ in options.types:
            table(rows, name, type_, options.peers, options.rounds)
    return rows.close()
