"""Hashes of the bits that the library computes, a line for each case, so that `diff` says what a change has changed.

    python benchmarks/bits.py > before.txt
    python benchmarks/bits.py > after.txt         # of the changed tree
    diff before.txt after.txt

A line names the instruction set, the engine, the type, the network and what is asked of it; then come the hash of what
it returns and that of the gradients. Every formula is there with every norm. Masks, sizes, types and what happens
between steps take turns; the presets have all of them. The hashes also depend on the CPU, on PyTorch and on the
compiler: compare two trees on one machine. The script uses only public names, so that it also runs in an older tree
(`PYTHONPATH` or another environment's `python`).
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import layernorm as ln
from layernorm.formula import PRESETS, Formula

NETWORKS = ("LSTM", "GRU", "RNN")
SIZES = [(6, 5, 4, 7), (3, 12, 20, 33), (1, 2, 70, 16), (9, 1, 3, 40)]  # T, B, I, H
MASKS = ("none", "lengths", "reset", "packed", "reset_hx", "both ways")
TYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
BETWEEN: dict[str, dict[str, Any]] = {
    # what happens between steps: arguments of the module
    "zoneout": {"zoneout": 0.3},
    "recurrent_dropout": {"recurrent_dropout": 0.3},
    "all": {"zoneout": 0.3, "recurrent_dropout": 0.3, "dropout": 0.3, "variational": True, "num_layers": 2},
}


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Finds the tensors in nested tuples, lists and dicts, in their order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_of(item)


def bits(value: Any) -> str:
    """Hashes the bits of tensors, with their shapes and types."""
    found = hashlib.sha256()
    for tensor in tensors_of(value):
        found.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:12]


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    """Draws numbers that do not depend on their type."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def with_gradients(module: nn.Module, inputs: Iterable[Tensor], results: Any) -> str:
    """Hashes results, the gradients of a weighted sum of them, and the buffers, which batch norm changes."""
    found = [t for t in tensors_of(results) if t.requires_grad]
    wanted = [*(t for t in inputs if t.requires_grad), *(p for p in module.parameters() if p.requires_grad)]
    if not found:
        return f"{bits(results)} -"
    grads = [drawn(*t.shape, dtype=t.dtype, seed=k + 2) for k, t in enumerate(found)]
    gradients = torch.autograd.grad(found, wanted, grads, materialize_grads=True)
    return f"{bits([results, list(module.buffers())])} {bits(gradients)}"


def network(name: str, I: int, H: int, dtype: torch.dtype, **keywords: Any) -> nn.Module:  # noqa: E741
    """Makes a module whose parameters are all drawn."""
    torch.manual_seed(0)
    module: nn.Module = getattr(ln, name)(I, H, dtype=torch.float64, **keywords)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return module.to(dtype)


def called(module: Any, mask: str, T: int, B: int, dtype: torch.dtype) -> str:
    """Runs a sequence with a mask, forward and backward."""
    torch.manual_seed(1)
    x = drawn(T, B, module.input_size, dtype=dtype).requires_grad_()
    lengths = torch.randint(1, T + 1, (B,), generator=torch.Generator().manual_seed(2))
    reset = torch.rand(T, B, generator=torch.Generator().manual_seed(3)) < 0.3
    D = module.num_layers * (2 if module.bidirectional else 1)
    sizes = [module.proj_size or module.hidden_size, module.hidden_size][: len(module.recurrence.state_names)]
    hx: Any = tuple([drawn(D, B, size, dtype=dtype, seed=k + 4).requires_grad_() for k, size in enumerate(sizes)])
    inputs = [x, *hx]
    hx = hx if len(sizes) > 1 else hx[0]
    if mask == "packed":
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        output, final = module(packed, hx)
        return with_gradients(module, inputs, [output.data, final])
    asked: dict[str, Any] = {"lengths": {"lengths": lengths}, "reset": {"reset": reset}}.get(mask, {})
    if mask == "reset_hx":
        asked = {"reset": reset, "reset_hx": hx}
    if mask == "both ways":
        asked = {"reset": reset, "lengths": lengths}
    return with_gradients(module, inputs, module(x, hx, **asked))


def every_formula() -> Iterator[tuple[str, Formula]]:
    """Yields every network with every formula that differs from all others in it."""
    choices: dict[str, tuple[Any, ...]] = {
        "gates": ("split", "hidden", "sum", None), "span": ("joint", "per_gate", "all"),
        "cell": ("output", "carry", None), "bias_inside": (False, True), "gate_bias": (True, False),
        "biases": ("both", "input"),
        "bias_again": (False, True), "eps_on": ("variance", "deviation"),
    }  # fmt: skip
    for name in NETWORKS:
        for values in itertools.product(*choices.values()):
            f = dict(zip(choices, values, strict=True))
            plain = f["gates"] is None
            useless = [
                plain and f["cell"] is None,
                name != "LSTM" and f["cell"] is not None,
                f["bias_again"] and (not f["bias_inside"] or f["gates"] == "hidden"),
                plain and (f["span"] != "joint" or f["bias_inside"] or not f["gate_bias"]),
                name == "RNN" and f["span"] != "joint",
                name == "LSTM" and f["span"] == "all",
            ]
            if not any(useless):
                yield name, Formula(**f, eps=1e-3)


def formulas() -> Iterator[tuple[str, str]]:
    """Every formula with every norm, while the rest takes turns."""
    turns = itertools.count()
    for (name, formula), norm in itertools.product(list(every_formula()), ("layer", "rms", "batch")):
        k = next(turns)
        T, B, I, H = SIZES[k // 7 % len(SIZES)]  # noqa: E741
        B = max(B, 4) if norm == "batch" else B
        mask, dtype = MASKS[k // 3 % len(MASKS)], ("float32", "float64", "bfloat16")[k // 11 % 3]
        keywords: dict[str, Any] = {"bidirectional": True} if mask == "both ways" else {}
        if name == "LSTM" and k % 5 == 0:
            keywords["proj_size"] = 3
        if name == "LSTM" and k % 7 == 0:
            keywords["gate_clip"] = 0.1
        if name != "RNN" and k % 4 == 0:
            formula = replace(formula, forget_bias=0.5)
        if name == "RNN" and k // 3 % 2:
            keywords["nonlinearity"] = "relu"
        module = network(name, I, H, TYPES[dtype], norm=norm, formula=formula, **keywords)
        asked = " ".join(f"{key}={value}" for key, value in keywords.items())
        yield f"{dtype} {name} {norm} {formula} {mask} {asked}", called(module, mask, T, B, TYPES[dtype])


def presets(types: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The presets with all norms, masks, types and everything between steps."""
    pairs = [(name, preset) for preset, by_name in PRESETS.items() for name in by_name]
    norms = ("layer", "rms", "batch")
    kinds: list[tuple[str, str, Any]] = [(name, p, norm) for name, p in pairs for norm in norms]
    kinds += [(name, "paper", norm) for name in NETWORKS for norm in (None, "weight")]
    for (name, preset, norm), dtype in itertools.product(kinds, types):
        keywords = {"norm": norm} | ({} if norm in (None, "weight") else {"formula": preset})
        for mask in MASKS:
            more = {"bidirectional": True} if mask == "both ways" else {}
            module = network(name, 5, 18, TYPES[dtype], **keywords, **more)
            yield f"{dtype} {name} {norm} {preset} {mask}", called(module, mask, 7, 6, TYPES[dtype])
        for what, more in BETWEEN.items():
            module = network(name, 5, 18, TYPES[dtype], **keywords, **more)
            yield f"{dtype} {name} {norm} {preset} {what}", called(module, "reset", 7, 6, TYPES[dtype])
        if norm == "batch":
            module = network(name, 5, 18, TYPES[dtype], **keywords)
            called(module, "none", 7, 6, TYPES[dtype])
            yield f"{dtype} {name} {norm} {preset} eval", called(module.eval(), "lengths", 7, 6, TYPES[dtype])


def steps(types: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Cells, and the steppers of cells and of networks."""
    pairs = [(name, preset) for preset, by_name in PRESETS.items() for name in by_name]
    for (name, preset), norm, dtype, B in itertools.product(pairs, ("layer", "rms", None), types, (1, 3, 20)):
        if norm is None and preset != "paper":
            continue
        given = {"norm": norm} | ({} if norm is None else {"formula": preset})
        x = drawn(4, B, 6, dtype=TYPES[dtype]).requires_grad_()
        reset = torch.rand(4, B, generator=torch.Generator().manual_seed(3)) < 0.3
        cell: Any = network(f"{name}Cell", 6, 17, TYPES[dtype], zoneout=0.2, **given)
        kept = {"num_layers": 2, "dropout": 0.2, "recurrent_dropout": 0.2, "variational": True}
        projected = {"proj_size": 5} if name == "LSTM" else {}
        layers: Any = network(name, 6, 17, TYPES[dtype], **kept, **projected, **given)
        for what, module, step in (("cell", cell, cell), ("cell stepper", cell, cell.stepper())):
            torch.manual_seed(1)
            state, states = None, []
            for t in range(4):
                state = step(x[t], state, reset=reset[t])
                states.append(state)
            yield f"{dtype} {name} {norm} {preset} {what} B={B}", with_gradients(module, [x], states)
        torch.manual_seed(1)
        step, state, outputs = layers.stepper(), None, []
        for t in range(4):
            output, state = step(x[t], state, reset=reset[t])
            outputs.append(output)
        yield f"{dtype} {name} {norm} {preset} stepper B={B}", with_gradients(layers, [x], [outputs, step.hx(state)])


def norms(types: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The norms over rows, by themselves and with what is added before."""
    for dtype, N, M in itertools.product(types, (1, 7, 64, 515, 4096), (1, 3, 130)):
        x, y = (drawn(M, N, dtype=TYPES[dtype], seed=k).requires_grad_() for k in (1, 2))
        for what, module in (("LayerNorm", ln.LayerNorm(N)), ("RMSNorm", ln.RMSNorm(N))):
            with torch.no_grad():
                for k, parameter in enumerate(module.parameters()):
                    parameter.copy_(drawn(N, seed=k + 3))
            module.to(TYPES[dtype])
            yield f"{dtype} {what} {M} x {N}", with_gradients(module, [x], module(x))
            weight = [p for _, p in module.named_parameters()]
            add = ln.functional.add_layer_norm if what == "LayerNorm" else ln.functional.add_rms_norm
            yield f"{dtype} add {what} {M} x {N}", with_gradients(module, [x, y], add(x, y, (N,), *weight))
        if M > 1:
            batch = ln.BatchNorm(N).to(TYPES[dtype])
            yield f"{dtype} BatchNorm {M} x {N}", with_gradients(batch, [x], batch(x))


def tools() -> Iterator[tuple[str, str]]:
    """What changes or measures networks: starts, convert, match, quantize, accelerate, audit, portable copies."""
    x = drawn(6, 8, 5, dtype=torch.float32)
    for name in NETWORKS:
        for norm in ("layer", "rms", "batch", "weight", None):
            torch.manual_seed(0)
            yield f"start {name} {norm}", bits(getattr(ln, name)(5, 9, num_layers=2, norm=norm).state_dict())
        torch.manual_seed(0)
        theirs = getattr(nn, name)(5, 9, num_layers=2, bidirectional=True)
        for norm in ("layer", "rms", "batch", "weight", None):
            torch.manual_seed(0)
            converted = ln.convert(theirs, norm)
            yield f"convert {name} {norm}", bits([converted.state_dict(), converted(x)])
        torch.manual_seed(0)
        matched = getattr(ln, name)(5, 9, num_layers=2, norm="layer")
        ln.match(matched, x)
        yield f"match {name}", bits(matched.state_dict())
        for norm in ("layer", "rms", None):
            torch.manual_seed(0)
            quantized = ln.quantize(getattr(ln, name)(5, 70, norm=norm).eval(), filter_fn=lambda module, name: True)
            with torch.no_grad():
                yield f"quantize {name} {norm}", bits([quantized.state_dict(), quantized(x)])
        torch.manual_seed(0)
        fast = ln.accelerate(nn.Sequential(getattr(nn, name)(5, 9)))
        yield f"accelerate {name}", with_gradients(fast, [], fast(x))
        torch.manual_seed(0)
        ours = getattr(ln, name)(5, 9, num_layers=2)
        yield f"portable {name}", bits(ln.portable(ours)(x))
        found = ln.audit(ours, 100 * x)
        text = "\n".join(map(str, found)) + str(found)
        yield f"audit {name}", hashlib.sha256(text.encode()).hexdigest()[:12]


def print_all(part: str) -> None:
    """Prints the lines of this process, whose instruction set the environment has chosen."""
    engines = {"native": ("float32", "float64", "bfloat16"), "reference": ("float32", "float64")}
    for engine, types in engines.items():
        if part != "all" and part != engine:
            continue
        head = f"{os.environ.get('LAYERNORM_ISA', '-')} {engine}" if engine == "native" else f"- {engine}"
        found = [formulas(), presets(types), steps(types), norms([*types, "float16"] if engine == "native" else types)]
        with ln.backends.use(engine):
            for case, hashes in itertools.chain(*found):
                print(head, case, hashes, flush=True)
        if engine == "native":
            for case, hashes in tools():
                print(head, case, hashes, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", help="instruction sets (default: the one that is used, and baseline)")
    parser.add_argument("--no-reference", action="store_true", help="leave out the reference engine")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part:
        print_all(options.part)
        return 0
    sets = options.sets or dict.fromkeys([ln.backends.engine("native").ISA, "baseline"])
    for name in [*sets, *([] if options.no_reference else [None])]:
        environment = {**os.environ, **({} if name is None else {"LAYERNORM_ISA": name})}
        part = "reference" if name is None else "native"
        code = subprocess.call([sys.executable, __file__, "--part", part], env=environment)
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
