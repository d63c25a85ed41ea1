"""Runs the hot loops of every instruction set through llvm-mca, LLVM's model of CPUs: a model, not a measurement.

It is for an instruction set whose CPU is not at hand. `make mca` runs it. It needs CMake, GCC, GCC for the other kind
of CPU (Debian: g++-aarch64-linux-gnu) and llvm-mca (Debian: llvm). LLVM_MCA names another llvm-mca than that on the
path. Take one of LLVM 19 or newer: an older one knows fewer CPUs, and 14 takes another CPU's model for Neoverse.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

MODELS = {
    # set: the names of processors that llvm-mca has a model of. For AVX-512 not icelake-server and sapphirerapids: in
    # LLVM 19 these have one unit for products of 512 bits, the servers' processors have two
    "baseline": ["znver3"],
    "avx2": ["znver3", "znver4"],
    "avx512": ["skylake-avx512", "znver4"],
    "avx512bf16": ["cooperlake", "znver4"],
    "amx": [],  # LLVM 19 has no model of tiles
    "neon": ["neoverse-n1", "neoverse-v1", "tsv110", "apple-a14"],
    "neondot": ["neoverse-n1", "neoverse-v1"],
    "neonbf16": ["neoverse-v1", "neoverse-n2"],
}
LLVM = 19  # the LLVM that is known to have all of these
LOOPS = {
    # the name in mca.cpp: what it is, and which loop of the function it is, the one with the most work first. With NEON
    # a function has a loop for A by rows and one for A by columns
    "product_float32": ("float32", 0),
    "few_rows_float32": ("two rows", 0),
    "gradients_float32": ("gradients of weights", 1),
    "product_float64": ("float64", 0),
    "product_bfloat16": ("pairs of bfloat16", 0),
    "unpacked_float32": ("weights as they lie", 0),
    "unpacked_bfloat16": ("the same, bfloat16", 0),
    "int8": ("int8", 0),
}
PARTS = {
    # the work on rows of an LSTM: the name in mca.cpp, and how many vectors of a row one turn of its loop has
    "row_gates_added": ("gates, W x + U h", 1),
    "row_gates_two": ("gates, each normalised", 1),
    "row_out": ("o tanh(c)", 1),
    "row_sum": ("sum", 4),
    "row_moments": ("moments", 4),
    "row_out_backward_added": ("o, c backward, W x + U h", 1),
    "row_out_backward_two": ("o, c backward, each normalised", 1),
    "row_gates_backward_added": ("i, f, g backward, W x + U h", 1),
    "row_gates_backward_two": ("i, f, g backward, each normalised", 1),
    "row_stream_backward": ("a gate's gain and bias backward", 1),
}
WORK = [
    # an instruction of the work itself, and the additions and multiplications that it does in 128 bits
    (r"vfn?madd\d+ps\b", 8),
    (r"vfn?madd\d+pd\b", 4),
    (r"v?mulps\b|v?addps\b", 4),
    (r"v?mulpd\b|v?addpd\b", 2),
    (r"vdpbf16ps\b", 16),
    (r"vpdpbusd\b", 32),
    (r"vpmaddwd\b", 16),
    (r"vpaddd\b", 0),
    (r"fmla\b.*\.4s\b", 8),
    (r"fmla\b.*\.2d\b", 4),
    (r"bfdot\b", 16),
    (r"sdot\b", 32),
    (r"smull2?\b.*\.8h\b", 16),
    (r"sadalp\b", 0),
]


def is_arm(name: str) -> bool:
    return name.startswith("neon")


class Loop(NamedTuple):
    """A loop's instructions, without the branch back."""

    body: list[str]

    @property
    def work(self) -> list[str]:
        return [line for line in self.body if any(re.match(pattern, line) for pattern, _ in WORK)]

    @property
    def operations(self) -> int:
        total = 0
        for line in self.work:
            width = 4 if "%zmm" in line else 2 if "%ymm" in line else 1
            total += width * next(count for pattern, count in WORK if re.match(pattern, line))
        return total

    def on_the_stack(self) -> tuple[int, int]:
        """How many instructions store to the stack, and how many read it: what the registers did not hold."""
        stores = reads = 0
        for line in self.body:
            if re.match(r"(str|stp|stur)\b.*\[sp\b", line) or re.search(r",\s*-?\w*\(%r[sb]p[^)]*\)$", line):
                stores += 1
            elif re.search(r"\[sp\b|\(%r[sb]p\b", line):
                reads += 1
        return stores, reads


def loops_of(assembly: str, name: str) -> list[Loop]:
    """Returns the innermost loops of the function that is `name` in mca.cpp, the one with the most work first."""
    function = re.search(rf"^{name}:\n\s+\.[xq]?(?:uad|word)\s+(\S+)$", assembly, re.M)
    assert function, f"mca.cpp has no {name}"
    text = re.search(rf"^{re.escape(function[1])}:\n(.*?)\n\t\.size\s", assembly, re.M | re.S)
    assert text, f"no function {function[1]}"
    lines = text[1].splitlines()
    place = {line[:-1]: k for k, line in enumerate(lines) if re.match(r"\.L\w+:$", line)}
    spans = []
    for k, line in enumerate(lines):
        jump = re.match(r"\t(?:j(?!mp)\w+|b\.?\w+|cbn?z|tbn?z)\s+(?:.*,\s*)?(\.L\w+)$", line)
        if jump and place.get(jump[1], k) < k and not any(re.match(r"\tret", x) for x in lines[place[jump[1]] : k]):
            spans.append((place[jump[1]], k))
    inner = [s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]
    found = []
    for first, last in inner:
        body = [line.strip() for line in lines[first:last] if re.match(r"\t[^.]", line)]
        found.append(Loop([re.sub(r"\s*//.*", "", line) for line in body]))
    return sorted((loop for loop in found if loop.operations), key=lambda loop: (-loop.operations, len(loop.body)))


def compiler_flags(folder: Path, arm: bool, compiler: str) -> dict[str, list[str]]:
    """Returns the flags that CMake gives the kernels of each set."""
    command = [
        "cmake",
        "-S",
        str(ROOT),
        "-B",
        str(folder),
        "-DLAYERNORM_SETS=all",
        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
    ]
    command += ["-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_SYSTEM_NAME=Linux"]
    command += [f"-DCMAKE_SYSTEM_PROCESSOR={'aarch64' if arm else 'x86_64'}"]
    subprocess.run(command, check=True, capture_output=True)
    flags = {}
    for entry in json.loads((folder / "compile_commands.json").read_text(encoding="utf-8")):
        words = shlex.split(entry["command"])
        defined = [word.removeprefix("-DLAYERNORM_ISA=") for word in words if word.startswith("-DLAYERNORM_ISA=")]
        if defined and entry["file"].endswith("/kernels.cpp"):
            flags[defined[0]] = words[1 : words.index("-o")]
    return flags


def cycles(lines: list[str], model: str, arm: bool, mca: str) -> tuple[float, float]:
    """Returns the cycles of one turn of a loop of these instructions, and those of a turn that waits for no result."""
    turns = 200
    options = [f"--mtriple={'aarch64' if arm else 'x86_64'}", f"--mcpu={model}", f"--iterations={turns}"]
    if arm:
        options.append("--mattr=+dotprod,+bf16")
    done = subprocess.run([mca, *options], input="\n".join(lines), capture_output=True, text=True)
    total = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    apart = re.search(r"Block RThroughput:\s+([\d.]+)", done.stdout)
    if total is None or apart is None:
        sys.exit(f"{mca} {' '.join(options)}: {done.stderr.strip()[:500]}")
    return int(total[1]) / turns, float(apart[1])


def models_of(mca: str, arm: bool) -> str:
    """Returns llvm-mca's list of the CPUs that it knows."""
    triple = f"--mtriple={'aarch64' if arm else 'x86_64'}"
    return subprocess.run([mca, triple, "--mcpu=help"], input="", capture_output=True, text=True).stderr


class Compiled(NamedTuple):
    """The kernels of a set in assembly, and llvm-mca's models of its CPUs."""

    name: str
    assembly: str
    pairs: bool
    models: list[str]


def compiled(compiler: str, arm: bool, mca: str, asked: list[str], folder: Path) -> Iterator[Compiled]:
    """Compiles the sets of one kind of CPU."""
    known = models_of(mca, arm)
    told = re.search(r"version (\d+)", subprocess.run([mca, "--version"], capture_output=True, text=True).stdout)
    old = told is None or int(told[1]) < LLVM
    for name, flags in compiler_flags(folder, arm, compiler).items():
        if not MODELS[name] or (asked and name not in asked):
            continue
        pairs = any(re.match("-m.*bf16$", flag) for flag in flags)  # it has an instruction for products of these
        command = [compiler, *flags, "-S", str(ROOT / "benchmarks/mca.cpp"), "-o", "-"]
        assembly = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        models = []
        for model in MODELS[name]:
            if not re.search(rf"^\s+{re.escape(model)}\s", known, re.M) or (old and model.startswith("neoverse")):
                print(f"left out: {name} on {model}, which needs LLVM {LLVM} or newer", file=sys.stderr)
            else:
                models.append(model)
        yield Compiled(name, assembly, pairs, models)


def products(kernels: Compiled, arm: bool, mca: str) -> Iterator[str]:
    """Yields a set's rows of the table of products."""
    name, assembly, pairs, models = kernels
    cells: dict[str, list[str]] = {model: [] for model in models}
    for pointer, (_, place) in LOOPS.items():
        found = loops_of(assembly, pointer)
        if not found or (pointer == "product_bfloat16" and not pairs):
            for row in cells.values():
                row.append("")
            continue
        loop = found[place if is_arm(name) and place < len(found) else 0]
        stores, reads = loop.on_the_stack()
        for model, row in cells.items():
            took, _ = cycles(loop.body, model, arm, mca)
            _, best = cycles(loop.work, model, arm, mca)
            spilled = f", stack {stores} + {reads}" if stores + reads else ""
            row.append(f"{loop.operations / took:.1f}, {100 * best / took:.0f} %{spilled}")
    for model, row in cells.items():
        yield f"| `{name}` | {model} | {' | '.join(row)} |"


def rows(kernels: Compiled, arm: bool, mca: str) -> Iterator[str]:
    """Yields a set's rows of the table of the work on rows: instructions and cycles for 16 units."""
    for model in kernels.models:
        row = []
        for pointer, (_, vectors) in PARTS.items():
            body = loops_of(kernels.assembly, pointer)[0].body
            lanes = next((n for register, n in (("%zmm", 16), ("%ymm", 8)) if any(register in x for x in body)), 4)
            turns = 16 / lanes / vectors
            row.append(f"{len(body) * turns:.0f}, {cycles(body, model, arm, mca)[0] * turns:.0f}")
        yield f"| `{kernels.name}` | {model} | {' | '.join(row)} |"


def main() -> None:
    parser = argparse.ArgumentParser("python benchmarks/mca.py", description=__doc__)
    parser.add_argument("sets", nargs="*", help=f"some of {', '.join(MODELS)}; without any, all of them")
    asked = parser.parse_args().sets
    for name in asked:
        if name not in MODELS:
            parser.error(f"{name} is none of {', '.join(MODELS)}")
    mca = os.environ.get("LLVM_MCA") or shutil.which("llvm-mca")
    if not mca:
        sys.exit("no llvm-mca: apt-get install llvm (a newer one: apt-get install llvm-19, LLVM_MCA=llvm-mca-19)")
    if not shutil.which("cmake"):
        sys.exit("no cmake: apt-get install cmake")
    version = re.search(r"version (\S+)", subprocess.run([mca, "--version"], capture_output=True, text=True).stdout)
    print(f"What a model of CPUs says of the loops, not a measurement: llvm-mca {version[1] if version else ''}.")
    print(
        "Additions and multiplications a cycle, and their share of the model's own peak; where a loop uses the stack,"
    )
    print("how many instructions store there + read there. Data are in the first cache, no branch is guessed wrong.\n")
    kinds = []
    here_arm = platform.machine() in ("aarch64", "arm64")
    for arm, target in ((False, "x86_64-linux-gnu"), (True, "aarch64-linux-gnu")):
        if asked and not any(is_arm(name) == arm for name in asked):
            continue
        compiler = os.environ.get("CXX", "g++") if arm == here_arm else f"{target}-g++"
        if not shutil.which(compiler):
            sys.exit(f"no {compiler}: apt-get install g++-{target.replace('_', '-')}")
        with tempfile.TemporaryDirectory() as folder:
            kinds += [(arm, kernels) for kernels in compiled(compiler, arm, mca, asked, Path(folder))]
    for table, titles in (
        (products, [title for title, _ in LOOPS.values()]),
        (rows, [title for title, _ in PARTS.values()]),
    ):
        if table is rows:
            print("\nThe work on rows of an LSTM: instructions and cycles for 16 units of a row.\n")
        print(f"| set | model | {' | '.join(titles)} |")
        print("|---" * (2 + len(titles)) + "|")
        for arm, kernels in kinds:
            for row in table(kernels, arm, mca):
                print(row, flush=True)


if __name__ == "__main__":
    main()
