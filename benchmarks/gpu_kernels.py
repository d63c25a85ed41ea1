"""Compiles the kernels of the GPU engine for GPUs that need not be here, and prints what each needs of a GPU.

It begins with what one call over 64 steps starts on a GPU: torch's operations, and layernorm's kernels, one by one and
as CUDA graphs. Then it prints for each kernel the registers of a thread, the bytes that spill to memory, the shared
memory of a program, and whether it multiplies with tensor cores. It reads them from the code that Triton's own
assembler makes, without a driver. The kernels are those that calls launch.

Examples:
    python benchmarks/gpu_kernels.py
    python benchmarks/gpu_kernels.py --arch 90 --units 1024 --only backward
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import layernorm as ln
from layernorm.engines import reference
from layernorm.equations.arguments import NormArguments, RecurrentArguments
from layernorm.formula import PRESETS, Recurrence

with mock.patch("torch.cuda.is_available", return_value=True):
    from layernorm.engines import triton as engine
    from layernorm.engines.triton import _norms as norms
    from layernorm.engines.triton._lanes import Lane

BIN = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int64: "i64"}
B = 128


class Launch(NamedTuple):
    """What a call launches: a kernel with its arguments."""

    kernel: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]


class Usage(NamedTuple):
    """What a program of a kernel takes of a GPU."""

    registers: int  # of a thread
    spilled: int  # bytes of a thread
    shared: int  # bytes
    tensor_cores: bool
    warps: int


def call_of(network: str, T: int, units: int, dtype: torch.dtype) -> tuple[RecurrentArguments, int]:
    """A call of a layer with the paper's layer norm, and how many results it has."""
    layer = getattr(ln, network)(16, units, dtype=dtype)
    state = [torch.zeros(B, units, dtype=dtype) for _ in range(2 if network == "LSTM" else 1)]
    recurrence, params = Recurrence(network, PRESETS["paper"][network]), [p.detach() for p in layer.parameters()]
    return RecurrentArguments(torch.zeros(T, B, 16, dtype=dtype), state, params, recurrence), 1 + len(state)


def launches_of(network: str, units: int, dtype: torch.dtype, precision: str = "ieee") -> dict[str, Launch]:
    """The launches of a layer with layer norm, of one step forward and back, by kernel; products by direction."""
    found: dict[str, Launch] = {}

    def record(lane: Any, kernel: Any, grid: Any, *arguments: Any, **constants: Any) -> None:
        back = " back" if constants.get("STEPS_ON") == -1 else ""
        found[kernel.fn.__name__ + back] = Launch(kernel, (lane.table, *arguments), constants)

    a, n = call_of(network, 1, units, dtype)
    torch.backends.cudnn.rnn.fp32_precision = precision
    with torch.no_grad(), mock.patch.object(Lane, "launch", record):
        results = engine._recurrent_forward(a, True)
        engine._recurrent_backward(a, results[n:], results[0], results[1:n])
    return found


class Counted(TorchDispatchMode):
    """Counts the operations that compute; those that only look at memory in another way start nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not op.is_view and "empty" not in op.__name__ and "detach" not in op.__name__
        return op(*args, **(kwargs or {}))


def started(of: Any, network: str, T: int) -> list[tuple[int, int]]:
    """Counts torch's operations, and layernorm's launches, of a forward that saves and of its backward."""
    ours, found = 0, []

    def count(lane: Any, kernel: Any, grid: Any, *arguments: Any, **constants: Any) -> None:
        nonlocal ours
        ours += 1

    a, n = call_of(network, T, 64, torch.float32)
    with torch.no_grad(), mock.patch.object(Lane, "launch", count):
        forward, backward = (of.recurrent_forward, of.recurrent_backward)
        if of is engine:
            forward, backward = engine._recurrent_forward, engine._recurrent_backward
        with Counted() as mode:
            results = forward(a, True)
        found.append((mode.count, ours))
        ours = 0
        with Counted() as mode:
            backward(a, results[n:], results[0], results[1:n])
        found.append((mode.count, ours))
    return found


def print_started(T: int = 64) -> None:
    """Prints how much one call over T steps starts."""
    print(f"A call over {T} steps, forward and back, starts: torch's operations + layernorm's launches, one by one and")
    print("with graphs of 16 steps.\n\n| network | plain equations | this engine | with graphs |\n|---|--:|--:|--:|")
    for network in ("LSTM", "GRU", "RNN"):
        plain, own = started(reference, network, T), started(engine, network, T)
        graphs = [(ops, launches - 2 * T + T // 16) for ops, launches in own]
        cells = (", ".join(f"{ops:,} + {launches}" for ops, launches in side) for side in (plain, own, graphs))
        print(f"| {network} | {' | '.join(cells)} |")
    print()


def norm_launches(N: int, dtype: torch.dtype) -> dict[str, Launch]:
    """The launches of a norm op, forward and back."""
    found: dict[str, Launch] = {}

    class Recorded:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: Any) -> Any:
            def launch(*arguments: Any, **constants: Any) -> None:
                found[self.kernel.fn.__name__] = Launch(self.kernel, arguments, constants)

            return launch

    x, vector = torch.zeros(4, N, dtype=dtype), torch.zeros(N, dtype=dtype)
    a = NormArguments(x, (N,), vector, vector, 1e-5, "layer")
    with mock.patch.multiple(
        norms, norm_forward=Recorded(norms.norm_forward), norm_backward=Recorded(norms.norm_backward)
    ):
        norms._forward(a, None, True)
        norms._backward(a, norms.normalize_saved(a), x, None)
    return found


def compiled(launch: Launch, arch: int) -> Usage:
    """Compiles what a launch would run on an architecture, such as 90 for an H100."""
    options = {name: launch.constants[name] for name in ("num_warps", "num_stages") if name in launch.constants}
    constants = {name: v for name, v in launch.constants.items() if name not in options}
    given = dict(zip(launch.kernel.arg_names, launch.arguments, strict=False)) | constants
    signature, attrs, fixed = {}, {}, {}
    constexprs = {p.name for p in launch.kernel.params if p.is_constexpr}
    for k, name in enumerate(launch.kernel.arg_names):
        value = given[name]
        if name in constexprs or value is None:
            signature[name], fixed[(k,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name], attrs[(k,)] = f"*{TYPES[value.dtype]}", [["tt.divisibility", 16]]
        elif isinstance(value, tuple):
            signature[name] = tuple("i64" for _ in value)
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(launch.kernel, signature, constexprs=fixed, attrs=attrs)
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(made.asm["cubin"])
        used, code = (
            subprocess.run([BIN / "cuobjdump", *option, path], capture_output=True, text=True, check=True).stdout
            for option in (["-res-usage"], ["-sass"])
        )
    numbers = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", used)}
    cores = re.search(r"\b(HMMA|HGMMA|UTCHMMA)\b", code) is not None
    spilled = numbers["STACK"] + numbers["LOCAL"]
    return Usage(numbers["REG"], spilled, made.metadata.shared, cores, made.metadata.num_warps)


def every_launch(units: list[int], widths: list[int]) -> Iterator[tuple[str, str, Launch]]:
    """Name, size and launch of what is compiled."""
    for H in units:
        for network in ("LSTM", "GRU", "RNN"):
            steps = launches_of(network, H, torch.float32)
            for name in ("forward_step", "backward_step"):
                yield f"{network}, {name}", f"H {H}", steps[name]
        for dtype, precision in ((torch.float32, "ieee"), (torch.float32, "tf32"), (torch.bfloat16, "ieee")):
            products = launches_of("LSTM", H, dtype, precision)
            for name in ("product", "product back"):
                kind = products[name].constants["PRECISION"] if dtype is torch.float32 else TYPES[dtype]
                yield f"{name}, {kind}", f"H {H}", products[name]
    yield "begin", "", launches_of("LSTM", 64, torch.float32)["begin"]
    yield "start_first", "H 1024", launches_of("LSTM", 1024, torch.float32)["start_first"]
    for N in widths:
        for name, launch in norm_launches(N, torch.float32).items():
            yield name, f"N {N}", launch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=int, nargs="+", default=[80, 90, 100], help="compute capabilities (%(default)s)")
    parser.add_argument("--units", type=int, nargs="+", default=[64, 256, 1024, 2048], help="of layers (%(default)s)")
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 1024, 8192, 65536], help="of norms")
    parser.add_argument("--only", default="", help="kernels whose name has this text")
    options = parser.parse_args()
    if not options.only:
        print_started()
    print("Registers of a thread / bytes spilled / bytes of shared memory of a program; T: by tensor cores.\n")
    print("| kernel | | warps |" + "".join(f" sm_{arch} |" for arch in options.arch))
    print("|---|---|--:|" + "--:|" * len(options.arch))
    for name, size, launch in every_launch(options.units, options.widths):
        if options.only in name:
            found = [compiled(launch, arch) for arch in options.arch]
            cells = (f"{u.registers} / {u.spilled} / {u.shared:,}{' T' if u.tensor_cores else ''}" for u in found)
            print(f"| {name} | {size} | {found[0].warps} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
