"""Measures the GPU engine against cuDNN and torch on one GPU: first whether it is right, then what users do, then
times.

Each line is printed at once, the most telling first. The script names what it had no time for, and where the engine
failed its own check, so that the plain equations computed. An error ends its section only. With --dry it runs on a CPU
with Triton's interpreter, to try the script: its times say nothing, and bfloat16, which the interpreter multiplies
wrongly, shows the engine's own check at work.

Examples:
    python benchmarks/on_gpu.py
    python benchmarks/on_gpu.py --dry
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

DRY = "--dry" in sys.argv
if DRY:
    os.environ["TRITON_INTERPRET"] = "1"

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import layernorm as ln  # noqa: E402

DEVICE = "cpu" if DRY else "cuda"
BEGIN = time.perf_counter()
SMALL = {"T": 2, "B": 2, "I": 4, "H": 8}
TYPES = {
    "float32": torch.float32,
    "TF32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
SIZES = [(64, 128, 256, 256), (200, 1, 256, 256), (30, 64, 640, 1024), (64, 32, 128, 128), (64, 32, 64, 64)]
"""T, B, I, H."""
NORMS = [(16384, 1024), (4096, 4096), (65536, 256), (256, 65536), (32, 1024)]
Step = Callable[[], Any]


def say(*words: Any) -> None:
    """Prints a line, with the seconds since the start."""
    print(f"[{time.perf_counter() - BEGIN:4.0f} s]", *words, flush=True)


def milliseconds(step: Step, turns: int = 30) -> float:
    """The median time on the device."""
    for _ in range(0 if DRY else 5):
        step()
    if DRY:
        begin = time.perf_counter()
        step()
        return 1e3 * (time.perf_counter() - begin)
    torch.cuda.synchronize()
    found = []
    for _ in range(turns):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end))
    return statistics.median(found)


def in_a_graph(step: Step) -> Step:
    """The step captured by the user."""
    if DRY:
        return step
    for _ in range(3):
        step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def allow_tf32(allowed: bool) -> None:
    """Sets the precision of float32 products, of RNNs and of all others."""
    torch.backends.cudnn.rnn.fp32_precision = "tf32" if allowed else "ieee"
    torch.backends.cuda.matmul.fp32_precision = "tf32" if allowed else "ieee"


def training(module: nn.Module, x: Tensor, grad: Tensor) -> Step:
    """A forward and a backward."""

    def step() -> None:
        x.grad = None
        module.zero_grad(set_to_none=True)
        module(x)[0].backward(grad)

    return step


def inference(module: nn.Module, x: Tensor) -> Step:
    """A forward."""

    @torch.inference_mode()
    def step() -> Tensor:
        return module(x)[0]

    return step


def networks(H: int, I: int, dtype: torch.dtype, name: str) -> tuple[nn.Module, nn.Module]:  # noqa: E741
    """Ours, with the paper's norm and gains that do not explode, and torch's."""
    ours = getattr(ln, name)(I, H, gain_init=0.5).to(DEVICE, dtype)
    return ours, getattr(nn, name)(I, H).to(DEVICE, dtype)


def is_right() -> Iterator[str]:
    """Errors of values and gradients against float64, in roundings of the type that is multiplied; of three calls,
    each padded and packed, which all go back at the end."""
    sizes = [(3, 2, 4, 8)] if DRY else [(21, 5, 24, 96), (21, 33, 64, 256), (40, 128, 256, 256), (20, 64, 640, 1024)]
    for (T, B, I, H), name, kind in [  # noqa: E741
        (size, name, kind) for size in sizes for name in ("LSTM", "GRU", "RNN") for kind in TYPES
    ]:
        allow_tf32(kind == "TF32")
        dtype = TYPES[kind]
        rounding = 2.0**-10 if kind == "TF32" else torch.finfo(dtype).eps
        ours, _ = networks(H, I, dtype, name)
        exact = getattr(ln, name)(I, H, gain_init=0.5, dtype=torch.float64, device=DEVICE)
        exact.load_state_dict(ours.state_dict())
        lengths = [T] * (B - 1) + [1]
        calls, all_errors = [], []
        for _ in range(3):
            x = torch.randn(T, B, I, device=DEVICE).to(dtype).requires_grad_()
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
            calls.append((x, ours(x)[0], ours(packed)[0].data))
        for x, *outputs in calls:
            wide = x.detach().double().requires_grad_()
            packed = nn.utils.rnn.pack_padded_sequence(wide, lengths)
            with ln.backends.use("reference"):
                right = exact(wide)[0], exact(packed)[0].data
            for y, expected in zip(outputs, right, strict=True):
                grad = torch.randn_like(y)
                found = [y, *torch.autograd.grad(y, [x, *ours.parameters()], grad)]
                true = [expected, *torch.autograd.grad(expected, [wide, *exact.parameters()], grad.double())]
                pairs = zip(found, true, strict=True)
                all_errors += [((a - b).abs().max() / (1 + b.abs().max())).detach() for a, b in pairs]
        worst = float(torch.stack(all_errors).max()) / rounding  # nan, if one is
        yield f"right: {name} {kind} {T},{B},{I},{H}: {worst:.1f} roundings"


def nodes() -> Iterator[str]:
    """Microseconds of a step forward, and of cuBLAS's product, in graphs of 64."""
    sizes = [(64, 128, 256, 256), (64, 64, 1024, 1024), (64, 1, 256, 256)]
    for T, B, I, H in [tuple(SMALL.values())] if DRY else sizes:  # noqa: E741
        for kind, dtype in TYPES.items():
            allow_tf32(kind == "TF32")
            ours, _ = networks(H, I, dtype, "LSTM")
            x = torch.randn(T, B, I, device=DEVICE, dtype=dtype)
            short, whole = (milliseconds(in_a_graph(inference(ours, x[:n]))) for n in (T // 2, T))
            w, h = torch.randn(4 * H, H, device=DEVICE, dtype=dtype), torch.randn(B, H, device=DEVICE, dtype=dtype)

            def products(w: Tensor = w, h: Tensor = h) -> None:
                for _ in range(64):
                    torch.mm(h, w.T)

            step, product = (whole - short) / (T - T // 2), milliseconds(in_a_graph(products)) / 64
            yield f"node: {kind} B {B} H {H}: a step {1e3 * step:.2f} us, torch.mm {1e3 * product:.2f} us"


def against_cudnn() -> Iterator[str]:
    """Milliseconds beside cuDNN's plain network as called, and as a graph of the user's."""
    for name in ("LSTM", "GRU", "RNN"):
        for T, B, I, H in [tuple(SMALL.values())] if DRY else SIZES:  # noqa: E741
            for kind, dtype in TYPES.items():
                allow_tf32(kind == "TF32")
                ours, theirs = networks(H, I, dtype, name)
                x = torch.randn(T, B, I, device=DEVICE).to(dtype).requires_grad_()
                grad = torch.randn(T, B, H, device=DEVICE).to(dtype)
                found = [milliseconds(inference(net, x)) for net in (ours, theirs)]
                found += [milliseconds(in_a_graph(inference(theirs, x.detach())))]
                found += [milliseconds(training(net, x, grad)) for net in (ours, theirs)]
                i, ci, gi, t, ct = found
                yield (
                    f"network: {name} {kind} {T},{B},{I},{H}: inference {i:.3f} ms, cuDNN {ci:.3f}, in a graph "
                    f"{gi:.3f} ({i / ci:.2f}, {i / gi:.2f}); training {t:.3f}, cuDNN {ct:.3f} ({t / ct:.2f})"
                )


def forward_and_back(module: nn.Module, x: Tensor, grad: Tensor) -> None:
    module(x).backward(grad)


def norm_ops() -> Iterator[str]:
    """Microseconds of `ln.LayerNorm`, beside torch's and a copy."""
    for M, N in [(4, 64)] if DRY else NORMS:
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(M, N, device=DEVICE, dtype=dtype, requires_grad=True)
            grad = torch.randn_like(x)
            sides = [module(N).to(DEVICE, dtype) for module in (ln.LayerNorm, nn.LayerNorm)]
            forward = [1e3 * milliseconds(functools.partial(m, x)) for m in sides]
            both = [1e3 * milliseconds(functools.partial(forward_and_back, m, x, grad)) for m in sides]
            copy = 1e3 * milliseconds(x.detach().clone)
            yield (
                f"norm: {M} x {N} {str(dtype)[6:]}: forward {forward[0]:.0f} us, torch {forward[1]:.0f}, "
                f"copy {copy:.0f}; with backward {both[0]:.0f}, torch {both[1]:.0f}"
            )


def what_users_do() -> Iterator[str]:
    """Graphs of users, streams, accumulated gradients, torch.compile, memory: each against the plain call."""
    T, B, I, H = SMALL.values() if DRY else (64, 32, 128, 128)  # noqa: E741
    allow_tf32(False)
    ours, theirs = networks(H, I, torch.float32, "LSTM")
    x = torch.randn(T, B, I, device=DEVICE)
    expected = ours(x)[0].detach()

    def error(y: Tensor) -> str:
        return f"an error of {float((y - expected).abs().max()):.1e}"

    if not DRY:
        graph, y = torch.cuda.CUDAGraph(), torch.empty_like(expected)
        with torch.no_grad():
            ours(x)  # without gradients the kernels are others, which nothing may compile in a graph
            with torch.cuda.graph(graph):
                y.copy_(ours(x)[0])
        ours(torch.randn_like(x))
        graph.replay()
        yield f"a user's graph, replayed after another call: {error(y)}"
        streams = [torch.cuda.Stream() for _ in range(2)]
        found = []
        for _ in range(20):
            for stream in streams:
                with torch.cuda.stream(stream):
                    found.append(ours(x)[0].detach())
        torch.cuda.synchronize()
        yield f"40 calls on two streams: {error(max(found, key=lambda y: float((y - expected).abs().max())))}"
    ours.zero_grad()
    grads = []
    for parts in (1, 2):
        ours.zero_grad()
        for part in x.chunk(parts, 1):
            ours(part)[0].square().sum().backward()
        grads.append([p.grad.clone() for p in ours.parameters()])
    worst = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*grads, strict=True))
    yield f"gradients accumulated over two parts: a relative difference of {worst:.1e}"
    if not DRY:
        torch.cuda.reset_peak_memory_stats()
        used = []
        for net in (ours, theirs):
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            net(x)[0].square().sum().backward()
            used.append((torch.cuda.max_memory_allocated() - before) / 2**20)
        yield f"memory of a training step: {used[0]:.1f} MiB, cuDNN {used[1]:.1f}"
    yield f"kept: {ln.backends.graph_cache()}"
    if not DRY:
        compiled = torch.compile(lambda x: ours(x)[0] * 2)
        yield f"torch.compile around it: {error(compiled(x).detach() / 2)}"


SECTIONS = {is_right: 0.45, what_users_do: 0.1, nodes: 0.08, against_cudnn: 0.28, norm_ops: 0.09}
"""Each with its share of the time."""


def failures() -> list[str]:
    """The types and sizes of calls that the engine's own check has found wrong, and why."""
    from layernorm.engines.triton import self_check

    return [f"{dtype} {widths}: {text}" for (_, _, dtype, widths, *_), text in self_check._found.items() if text]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="on a CPU, with Triton's interpreter")
    parser.add_argument("--seconds", type=float, default=480, help="what there is (%(default)s)")
    options = parser.parse_args()
    if not DRY and not torch.cuda.is_available():
        sys.exit("benchmarks/on_gpu.py: there is no GPU of CUDA; --dry tries the script on a CPU")
    say(torch.__version__, "interpreted" if DRY else torch.cuda.get_device_name())
    with ln.backends.use("triton"):
        for section, share in SECTIONS.items():
            until = time.perf_counter() + share * options.seconds
            try:
                for line in section():
                    say(line)
                    if time.perf_counter() > until:
                        say(f"{section.__name__}: its time is over")
                        break
            except Exception:
                say(f"{section.__name__} ended:\n{traceback.format_exc()}")
            say(f"{section.__name__}: the plain equations computed {failures() or 'nothing'} so far")
    say("end")


if __name__ == "__main__":
    main()
