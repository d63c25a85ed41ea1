"""Layer-normalised recurrent networks on a GPU against cuDNN's without layer norm: one layer, as many inputs as units.

    python benchmarks/recurrent.py --device cuda --seconds 540 --json recurrent_gpu.json
    python benchmarks/recurrent.py --device cuda --types float16 --networks LSTM --kinds plain --hidden 256 512
    python benchmarks/recurrent.py --device cuda --memory

Printed are microseconds a time step, and the ratio to `torch.nn`'s network: inference (one call without gradients) and
training (forward and backward to the input and all parameters); minima over the rounds, of layer norm also the median.
The L2 cache is cold before a call, and launches are hidden; a * marks a time that contains launches (timing_gpu.py).
Before they are timed, output and gradients of layer-normalised networks are compared over 20 steps with the equations
in float64: one with more than four times the error of the Python loop in the same type is not timed.

Types: `float32` without TF32, `tf32` is float32 with torch's two switches for it on. Kinds: `plain` over the whole grid
of T, B and H; `bidirectional`, and `packed` (a PackedSequence, lengths from T down to T / 4), at a few of its shapes.
Peers, for `plain` and T = 64 alone, since a step of theirs takes as long at every T: `loop`, a Python loop over torch's
layer_norm; `compile`, the same with torch.compile over the step.

--memory prints the peak of what a training step allocates, beyond the parameters, the input and the output's gradient.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils._python_dispatch import TorchDispatchMode

import layernorm as ln
import timing
import timing_gpu
from networks import GATES, TIMES, Loop, inference, leaf, numbers, training

STEPS, BATCH, HIDDEN = (64, 512, 1024), (1, 16, 128), (128, 256, 512, 1024)
FEW = [(64, 16, 256), (512, 16, 512), (64, 128, 1024)]  # where kinds other than plain are measured
KINDS = ("plain", "bidirectional", "packed")
TYPES = {  # and whether TF32 is allowed
    "float32": (torch.float32, False),
    "tf32": (torch.float32, True),
    "bfloat16": (torch.bfloat16, False),
    "float16": (torch.float16, False),
}
LEAST = {torch.float32: 2.5e-5, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}  # no error is measured by less
Shape = tuple[int, int, int]


def draw(shape: Shape, dtype: torch.dtype, kind: str) -> Tensor | PackedSequence:
    T, B, I = shape  # noqa: E741
    x = torch.randn(T, B, I, dtype=dtype, device=timing_gpu.GPU)
    return pack_padded_sequence(x, torch.linspace(T, max(1, T // 4), B, device="cpu").long()) if kind == "packed" else x


def modules(network: str, H: int, dtype: torch.dtype, kind: str) -> dict[str, Any]:
    options: dict[str, Any] = {"bidirectional": kind == "bidirectional", "dtype": dtype, "device": timing_gpu.GPU}
    return {name: getattr(library, network)(H, H, **options) for name, library in (("torch", nn), ("layer norm", ln))}


class Calls(TorchDispatchMode):
    """The names of the operations that torch calls."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


def engines(network: str, type_: str, kind: str) -> list[dict[str, Any]]:
    """A row that tells what torch's network and ours run on."""
    dtype = TYPES[type_][0]
    sides, x = modules(network, FEW[0][-1], dtype, kind), draw(FEW[0], dtype, kind)
    with Calls() as calls:
        inference(sides["torch"], x)()
    torchs = "cuDNN" if "aten::_cudnn_rnn" in calls.names else "torch's own cells, not on cuDNN"
    ours = ln.backends.choose("recurrent", numbers(x), sides["layer norm"].recurrence).name
    return [{"network": network, "type": type_, "kind": kind, "torch runs on": torchs, "layer norm runs on": ours}]


def results(side: Any, x: Any, d: Tensor) -> list[Tensor]:
    """The output, and the gradients of the input and of all parameters."""
    given, data = leaf(x)
    y = numbers(side(given)[0])
    return [y.detach(), *torch.autograd.grad(y, [data, *side.parameters()], d)]


def exactly(module: Any, x: Any, d: Tensor) -> list[Tensor]:
    """`results` by the equations in float64."""
    with ln.backends.use("reference"):
        return results(copy.deepcopy(module).double(), x.double(), d.double())


def worst(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest error, relative to the largest value of the same tensor."""
    return max(float((a - e).abs().max() / e.abs().max()) for a, e in zip(found, exact, strict=True))


def check(network: str, sides: dict[str, Any], shape: Shape, dtype: torch.dtype, kind: str) -> dict[str, float]:
    """The `worst` error of every layer-normalised side over few steps, and as ``unit`` that of the Python loop, with
    the same parameters where they are plain. Not that of the reference: it rounds once, at the end, while to round the
    state at every step is no mistake."""
    few = (min(shape[0], 20), *shape[1:])
    plain = (sides if kind == "plain" else modules(network, shape[-1], dtype, "plain"))["layer norm"]
    x = draw(few, dtype, "plain")
    d = torch.randn_like(numbers(x))
    exact = exactly(plain, x, d)
    found = {"unit": max(LEAST[dtype], worst(results(Loop(network, plain), x, d), exact))}
    if kind != "plain":
        x = draw(few, dtype, kind)
        with torch.no_grad():
            d = torch.randn_like(numbers(sides["torch"](x)[0]))
        exact = exactly(sides["layer norm"], x, d)
    for name in [name for name in sides if name != "torch"]:
        found[name] = worst(results(sides[name], x, d), exact)
        if not found[name] <= TIMES * found["unit"]:
            raise SystemExit(f"{name}: error {found[name]:.1e}, that of a Python loop is {found['unit']:.1e}")
    return found


def measure(
    network: str, type_: str, kind: str, shape: Shape, peers: Sequence[str], rounds: int
) -> list[dict[str, Any]]:
    """A row for each mode: `timing_gpu.Times` by side."""
    dtype = TYPES[type_][0]
    sides = modules(network, shape[-1], dtype, kind)
    if kind == "plain" and shape[0] == STEPS[0]:
        torch._dynamo.reset()
        sides |= {peer: Loop(network, sides["layer norm"], compiled=peer == "compile") for peer in peers}
    errors = check(network, sides, shape, dtype, kind)
    x = draw(shape, dtype, kind)
    with torch.no_grad():
        d = torch.randn_like(numbers(sides["torch"](x)[0]))
    runs = {
        "inference": {name: inference(side, x) for name, side in sides.items()},
        "training": {name: training(side, x, d) for name, side in sides.items()},
    }
    about = {"network": network, "type": type_, "kind": kind, "shape": shape, "errors": errors}
    return [{**about, "mode": mode, "seconds": timing_gpu.times(found, rounds)} for mode, found in runs.items()]


def memory(network: str, type_: str, kind: str, shape: Shape) -> list[dict[str, Any]]:
    """A row with the bytes of each side, at the peak of a training step."""
    dtype = TYPES[type_][0]
    x, peaks = draw(shape, dtype, kind), {}
    for name, side in modules(network, shape[-1], dtype, kind).items():
        with torch.no_grad():
            d = torch.randn_like(numbers(side(x)[0]))
        run = training(side, x, d)
        run()  # the libraries' own buffers remain
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        peaks[name] = torch.cuda.max_memory_allocated() - before
    return [{"network": network, "type": type_, "kind": kind, "shape": shape, "mode": "training", "bytes": peaks}]


def time_line(row: dict[str, Any], peers: Sequence[str]) -> str:
    T, seconds = row["shape"][0], row["seconds"]

    def cell(name: str, which: str) -> str:
        if name not in seconds:
            return "-"
        ratio = f" ({seconds[name][which] / seconds['torch'][which]:.2f})" if name != "torch" else ""
        return f"{1e6 * seconds[name][which] / T:.4g}{'*' if seconds[name]['hidden'] < 1 else ''}{ratio}"

    cells = [("layer norm", "minimum"), ("layer norm", "median"), *((peer, "minimum") for peer in peers)]
    start = f"{', '.join(map(str, row['shape'])):<15}{row['mode']:<10}{cell('torch', 'minimum'):>9}"
    return start + "".join(f"{cell(*which):>15}" for which in cells)


def memory_line(row: dict[str, Any]) -> str:
    torchs, ours = (row["bytes"][name] / 2**20 for name in ("torch", "layer norm"))
    cell = f"{ours:.1f} ({ours / torchs:.2f})"
    return f"{', '.join(map(str, row['shape'])):<15}{row['mode']:<10}{torchs:>9.1f}{cell:>15}"


def table(rows: timing_gpu.Rows, network: str, type_: str, kind: str, shapes: Sequence[Shape], options: Any) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = TYPES[type_][1]
    what = f"{network}, {type_}, {kind}"
    known = rows.measure(what, functools.partial(engines, network, type_, kind))
    if not known:
        return
    unit = "peak of a training step in MiB" if options.memory else "microseconds a step"
    print(f"\n{what}: {unit} (ratio to torch.nn.{network} without layer norm)")
    print(f"torch.nn runs on {known[0]['torch runs on']}, layer norm on {known[0]['layer norm runs on']!r}")
    peers = options.peers if kind == "plain" else []
    columns = ["layer norm", *([] if options.memory else ["median", *peers])]
    print(f"{'T, B, H':<15}{'mode':<10}{'torch':>9}" + "".join(f"{name:>15}" for name in columns), flush=True)
    ratios: dict[str, list[float]] = {}
    for shape in shapes:
        if options.memory:
            run = functools.partial(memory, network, type_, kind, shape)
        else:
            run = functools.partial(measure, network, type_, kind, shape, peers, options.rounds)
        for row in rows.measure(f"{what} {shape}", run):
            print(memory_line(row) if options.memory else time_line(row, peers), flush=True)
            values = row["bytes"] if options.memory else {n: t["minimum"] for n, t in row["seconds"].items()}
            ratios.setdefault(row["mode"], []).append(values["layer norm"] / values["torch"])
    for mode, found in ratios.items():
        print(f"{mode}: geometric mean {timing.geometric_mean(found):.2f}, largest {max(found):.2f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[timing.device_option()]
    )
    parser.add_argument("--networks", nargs="+", choices=list(GATES), default=["LSTM", "GRU"])
    parser.add_argument("--types", nargs="+", choices=list(TYPES), default=list(TYPES))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--steps", type=int, nargs="+", choices=STEPS, default=STEPS, help="T (default: all)")
    parser.add_argument("--batch", type=int, nargs="+", choices=BATCH, default=BATCH, help="B (default: all)")
    parser.add_argument("--hidden", type=int, nargs="+", choices=HIDDEN, default=HIDDEN, help="H (default: all)")
    parser.add_argument("--peers", nargs="*", choices=["loop", "compile"], default=["loop"])
    parser.add_argument("--rounds", type=int, default=9, help="turns of each side (default: 9)")
    parser.add_argument("--memory", action="store_true", help="measure the memory peak of training instead of time")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after so many, begin no further row")
    parser.add_argument("--json", metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    timing_gpu.need_gpu()
    torch.manual_seed(0)
    grid = list(itertools.product(options.steps, options.batch, options.hidden))
    rows = timing_gpu.Rows(options.seconds, options.json)
    for type_, network, kind in itertools.product(options.types, options.networks, options.kinds):
        table(rows, network, type_, kind, [s for s in grid if kind == "plain" or s in FEW], options)
        rows.save()
    return rows.close()
