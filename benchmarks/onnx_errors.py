"""Compares every recurrent network in ONNX Runtime with the module: largest differences, in float32.

    python benchmarks/onnx_errors.py          # every formula of every network, two arrangements, one size
    python benchmarks/onnx_errors.py --all    # all arrangements: directions x layers x lengths, three sizes

Each row is a module of its own with its own initial state, exported once with free T and B and run at three of them.
"truth" is the module in float64; the differences are the largest over output and final state, at all T and B.
Needs ``pip install '.[onnx]' onnxruntime``.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx_ir
import onnxruntime
import torch
from torch import Tensor

import layernorm as ln
from layernorm.formula import PRESETS

SIZES = ((6, 2), (1, 5), (13, 3))
"""T and B; the first are those of the export."""


class Arrangement(NamedTuple):
    """What the modules of one export have in common."""

    directions: int
    layers: int
    lengths: bool
    input_size: int
    hidden_size: int


SAMPLE = [Arrangement(1, 1, False, 5, 16), Arrangement(2, 2, True, 5, 16)]
ALL = [
    Arrangement(*a, *s) for s in ((3, 7), (5, 16), (20, 48)) for a in itertools.product((1, 2), (1, 2), (False, True))
]


class Kind(NamedTuple):
    """A row of the table: the class, what it is called, and its arguments."""

    name: str
    make: Any
    arguments: dict[str, Any]


def kinds() -> Iterator[Kind]:
    """Every formula of every network and its cell, every norm, and what only some networks have."""
    for formula, networks in PRESETS.items():
        for network in networks:
            yield Kind(f"{network} {formula}", getattr(ln, network), {"formula": formula})
            yield Kind(f"{network}Cell {formula}", getattr(ln, f"{network}Cell"), {"formula": formula})
    for norm in ("rms", "weight", None):
        for network in ("RNN", "LSTM", "GRU"):
            yield Kind(f"{network} norm={norm}", getattr(ln, network), {"norm": norm})
    deviation = ln.Formula("sum", "per_gate", "carry", bias_inside=True, eps=0.1, eps_on="deviation")
    yield Kind("LSTM on the deviation", ln.LSTM, {"formula": deviation})
    yield Kind("GRU sum, per gate", ln.GRU, {"formula": ln.Formula("sum", "per_gate", None)})
    yield Kind("GRU split, no biases", ln.GRU, {"bias": False})
    yield Kind("LSTM projected", ln.LSTM, {"proj_size": 3})
    yield Kind("LSTM projected norm=None", ln.LSTM, {"proj_size": 3, "norm": None})
    yield Kind("RNN relu", ln.RNN, {"nonlinearity": "relu"})
    yield Kind("RNN relu norm=None", ln.RNN, {"nonlinearity": "relu", "norm": None})


class Started(torch.nn.Module):
    """A network or cell with an initial state that is not zero."""

    def __init__(self, kind: Kind, a: Arrangement) -> None:
        super().__init__()
        self.cell = kind.make.__name__.endswith("Cell")
        rest = {} if self.cell else {"num_layers": a.layers, "bidirectional": a.directions == 2}
        self.module = kind.make(a.input_size, a.hidden_size, **rest, **kind.arguments)
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                if "gain" in name or "bias" in name:  # which a new module has at 1 and 0
                    parameter.add_(torch.randn_like(parameter), alpha=0.3)
        sizes = [a.hidden_size] if self.cell else self.module._state_sizes
        sizes = sizes * 2 if self.cell and self.module.network == "LSTM" else sizes
        rows = 1 if self.cell else a.layers * a.directions
        for k, size in enumerate(sizes):
            self.register_buffer(f"start{k}", torch.randn(rows, 1, size))

    def forward(self, x: Tensor, lengths: Tensor | None, reset: Tensor | None) -> list[Tensor]:
        state = [start.expand(-1, x.shape[1], -1) for start in self.buffers(recurse=False)]
        if self.cell:
            state = [part[0] for part in state]
        hx = state[0] if len(state) == 1 else tuple(state)
        found = self.module(x[0], hx) if self.cell else self.module(x, hx, lengths=lengths, reset=reset)
        return torch.utils._pytree.tree_leaves(found)


class Together(torch.nn.Module):
    """Many modules on the same input, so that one export has them all; the last one is also given ``reset``."""

    def __init__(self, rows: list[Kind], a: Arrangement) -> None:
        super().__init__()
        self.rows = torch.nn.ModuleList(Started(kind, a) for kind in rows)
        self.lengths = a.lengths

    def forward(self, x: Tensor, lengths: Tensor, reset: Tensor) -> list[list[Tensor]]:
        lengths, last = lengths if self.lengths else None, len(self.rows) - 1
        return [row(x, lengths, reset if k == last else None) for k, row in enumerate(self.rows)]


def inputs(T: int, B: int, input_size: int) -> tuple[Tensor, Tensor, Tensor]:
    lengths = torch.randint(0, T + 1, (B,))
    lengths[0], lengths[-1] = T, 0
    return torch.randn(T, B, input_size), lengths, torch.rand(T, B) < 0.3


def export(model: torch.nn.Module, args: Any, dynamic_shapes: Any) -> torch.onnx.ONNXProgram:
    program = torch.onnx.export(model, args, dynamo=True, dynamic_shapes=dynamic_shapes, verbose=False)
    assert program is not None
    return program


def run(program: torch.onnx.ONNXProgram) -> Any:
    """ONNX Runtime with the program, from tensors to tensors."""
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]

    def call(*tensors: Tensor) -> list[Tensor]:
        known = zip(("x", "lengths", "reset"), tensors, strict=False)
        given = {name: tensor.numpy() for name, tensor in known if name in names}
        return [torch.from_numpy(np.array(found)) for found in session.run(None, given)]

    return call


def nodes(program: torch.onnx.ONNXProgram) -> int:
    """Counts the nodes, also those in the bodies of Scan."""
    return sum(1 for _ in onnx_ir.traversal.RecursiveGraphIterator(program.model.graph))


def rows_of(a: Arrangement) -> list[Kind]:
    found = [kind for kind in kinds() if a == SAMPLE[0] or not kind.make.__name__.endswith("Cell")]
    return [*found, Kind("LSTM paper, reset", ln.LSTM, {})]


class Errors(NamedTuple):
    """Largest differences between ONNX Runtime, the module and the truth."""

    name: str
    onnx_module: float
    module_truth: float
    onnx_truth: float


def compare(a: Arrangement) -> list[Errors]:
    """A row for each kind of module in this arrangement."""
    torch.manual_seed(0)
    rows = rows_of(a)
    model = Together(rows, a).eval().requires_grad_(False)
    shapes = {"x": {0: "T", 1: "B"}, "lengths": {0: "B"}, "reset": {0: "T", 1: "B"}}
    args = inputs(*SIZES[0], a.input_size)
    call = run(export(model, args, shapes))
    largest = torch.zeros(len(rows), 3, dtype=torch.float64)
    for T, B in SIZES:
        x, lengths, reset = args = inputs(T, B, a.input_size)
        rest = iter(call(*args))
        expected = model(*args)
        truth = model.double()(x.double(), lengths, reset)
        model.float()
        for worst, single, exact in zip(largest, expected, truth, strict=True):
            for one, true in zip(single, exact, strict=True):
                found = next(rest)
                assert found.shape == one.shape
                pairs = ((found, one), (one, true), (found, true))
                errors = torch.stack([(p.double() - q).abs().max() for p, q in pairs])
                torch.maximum(worst, errors, out=worst)  # a nan stays
        assert next(rest, None) is None
    return [Errors(kind.name, *worst.tolist()) for kind, worst in zip(rows, largest, strict=True)]


def sizes_of_graphs() -> list[int]:
    """How many nodes the two-layer bidirectional LSTM has, exported for 4 and for 40 steps."""
    found = []
    for T in (4, 40):
        model = ln.LSTM(3, 4, 2, bidirectional=True).eval()
        found.append(nodes(export(model, (torch.randn(T, 2, 3),), None)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="all arrangements instead of two")
    for a in ALL if parser.parse_args().all else SAMPLE:
        lengths = "with" if a.lengths else "without"
        print(
            f"\nI={a.input_size}, H={a.hidden_size}, {a.directions} directions, {a.layers} layers, {lengths} lengths\n"
        )
        print("| module | ONNX - module | module - truth | ONNX - truth |\n|---|---|---|---|")
        for row in compare(a):
            print(f"| {row.name} | " + " | ".join(f"{error:.1e}" for error in row[1:]) + " |", flush=True)
    print("\nnodes of a two-layer bidirectional LSTM exported for 4 and for 40 steps:", *sizes_of_graphs())


if __name__ == "__main__":
    main()
