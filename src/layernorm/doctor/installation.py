"""What `layernorm doctor` prints: versions, machine, engines and what they run."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from typing import NamedTuple

import torch

from .. import backends
from . import machine
from .comparison import type_name
from .text import wrapped

VARIABLES = (
    "LAYERNORM_ENGINE", "LAYERNORM_ISA", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_ENABLE_INSTRUCTIONS",
    "ATEN_CPU_CAPABILITY", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE", "CXX",
)  # fmt: skip
"""Environment variables that change results or times."""
OPTIONAL = {
    "layernorm-lab": "pip install ./lab in layernorm's checkout",
    "onnx": "pip install '.[onnx]' in layernorm's checkout",
    "onnxscript": "pip install '.[onnx]' in layernorm's checkout",
    "sb3-contrib": "pip install '.[sb3]' in layernorm's checkout",
    "torchrl": "pip install torchrl",
}
"""What a part of the package needs, or uses the package, and how it is installed."""


class Section(NamedTuple):
    """A title, and lines that each have a name and a value."""

    title: str
    lines: list[tuple[str, str]]


def show() -> None:
    """Prints what is installed here, what is found and what is missing."""
    optional = [(name, machine.version(name) or f"missing: {how}") for name, how in OPTIONAL.items()]
    versions, *others = core()
    write([versions._replace(lines=versions.lines + optional), *others])
    write([Section("what runs where, unless an engine is asked for", what_runs_where() + what_is_asked_for())])


def write(sections: Iterable[Section]) -> None:
    """Prints sections, their values below one another."""
    for section in sections:
        print(section.title)
        for name, value in section.lines:
            print(wrapped(f"  {name:<14} {value}", 17))


def core() -> list[Section]:
    """Returns versions, machine and engines, on which the results of `--check` depend."""
    cuda = "none"
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        cuda = f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}, CUDA {torch.version.cuda}"
    variables = [(name, os.environ[name]) for name in VARIABLES if name in os.environ]
    return [
        Section("versions", [
            ("layernorm", f"{machine.version('layernorm') or 'not installed'}, commit {machine.commit() or 'unknown'}"),
            ("python", platform.python_version()),
            ("torch", torch.__version__),
            ("numpy", machine.version("numpy") or "missing"),
        ]),
        Section("machine", [
            ("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
            ("CPU", f"{machine.processor()}, {torch.backends.cpu.get_cpu_capability()}"),
            ("cores", f"{machine.cores()}; threads of torch: {torch.get_num_threads()}"),
            ("CUDA", cuda),
            *([("variables", " ".join(f"{name}={value}" for name, value in variables))] if variables else []),
        ]),
        Section("backends", [(item.name, engine(item)) for item in backends.status()]),
    ]  # fmt: skip


def engine(status: backends.Status) -> str:
    """Says whether an engine runs here and on which instructions, or why it does not."""
    if not status.available:
        return f"missing: {status.reason}"
    instructions = getattr(backends.engine(status.name), "ISA", None)
    return f"available, {instructions}" if instructions else "available"


def what_runs_where() -> list[tuple[str, str]]:
    """Returns which engine runs what on the CPU, and on a GPU if there is one, where a program asks for none."""
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    lines = [line for device in devices for line in who_runs_what(device)]
    return [*lines, ("derivatives", "second and higher ones, torch.func: reference")]


def what_is_asked_for() -> list[tuple[str, str]]:
    """Returns the engine that LAYERNORM_ENGINE asks for, or the error that a call will raise."""
    name = backends.asked_for()
    try:
        if name is not None:
            backends.engine(name)
    except (ValueError, RuntimeError) as error:
        return [("asked for", f"a call fails, unless use() asks for another: {error}")]
    return [] if name is None else [("asked for", name)]


def who_runs_what(device: str) -> list[tuple[str, str]]:
    """Returns the engine of each op on one type of device. Where it is not the same for all types, they are listed."""
    types = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    lines = []
    for label, op in (("norms", "normalize"), ("recurrent", "recurrent")):
        engines = {
            type_name(dtype): backends.preferred(backends.Kind(op, torch.device(device), dtype)).name for dtype in types
        }
        by_engine = {name: [t for t, engine in engines.items() if engine == name] for name in engines.values()}
        texts = [f"{name} in {', '.join(of)}" if len(by_engine) > 1 else name for name, of in by_engine.items()]
        lines.append((f"{device} {label}", "; ".join(texts)))
    return lines
