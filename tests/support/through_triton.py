"""Compares the GPU engine with the equations in float64, by Triton's interpreter: a program of its own.

    TRITON_INTERPRET=1 PYTHONPATH=tests python -m support.through_triton LSTM-bfloat16-20 GRU-tf32-1

runs every 20th of the formulas of a network, and packed calls, forward and back, in a type (float32, bfloat16, float16,
or tf32). It prints of each network how many there were; the largest error, in those of the plain equations in this
type, or at least the spacing of its numbers; and how many graphs have run. The second call of each, which may differ in
no bit from the first, runs a stand-in for CUDA graphs.
"""

import sys

import torch

from layernorm.engines import reference
from layernorm.engines import triton as engine
from layernorm.formula import PRESETS, Recurrence
from support import (
    interpreted,  # noqa: F401 - mends the interpreter
    packing,
)
from support.formula_space import arguments_of, drawn, drawn_changes, every_formula
from support.graphs import StandIn, poison, stand_in

SHAPES = [
    (3, 2, 3, 5, 5),
    (3, 4, 2, 1, 1),
    (2, 3, 2, 7, 7),
    (1, 5, 2, 4, 4),
    (2, 0, 3, 4, 4),
    (0, 2, 3, 4, 4),
    (2, 1, 2, 300, 300),
]
TYPES = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
UNIT = {name: torch.finfo(dtype).eps for name, dtype in TYPES.items()} | {"tf32": 2.0**-10}
"""The spacing of the numbers that are multiplied."""


def calls(network, every):
    """Calls in float64: formulas, masks and what happens between steps take turns."""
    for number, (recurrence, (*sizes, reverse, lengths, reset)) in enumerate(every_formula(network, SHAPES)):
        if number % every:
            continue
        sizes[4] = sizes[3] // 2 + 1 if recurrence.projected else sizes[3]
        a = arguments_of(drawn(recurrence, *sizes, lengths, reset), recurrence, reverse)
        T, B, _, H, P = sizes
        yield a if number % 3 == 0 else a._replace(changes=drawn_changes(recurrence, T, B, H, P, number % 16))
    for kind in range(0, 16, 1 if every == 1 else 9):
        recurrence = Recurrence(network, PRESETS["paper"][network])
        yield packing.both_calls(recurrence, 3, 3, 2, 5, 5, kind % 2 == 1, True, kind)[1]


def results(engine, a, grads):
    """Output, final state and every gradient."""
    n = 1 + len(a.state)
    found = engine.recurrent_forward(a, True)
    grads = grads or [torch.randn_like(r) for r in found[:n]]
    return [*found[:n], *engine.recurrent_backward(a, found[n:], grads[0], grads[1:])], grads


def by_graphs(a, grads):
    """The results of the second call, which runs graphs; those of the first are the same."""
    first, _ = results(engine, a, grads)
    poison()
    assert all(map(torch.equal, first, engine.recurrent_forward(a, False)))
    poison()
    second, _ = results(engine, a, grads)
    poison()
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
    return second


def error(found, expected):
    """The largest, relative to 1 + the largest value."""
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if a.numel()]
    return max(float((a.double() - b).abs().max() / (1 + b.abs().max())) for a, b in pairs)


def compare(network, type_name, every):
    torch.manual_seed(0)
    dtype, worst, count = TYPES[type_name], 0.0, 0
    torch.backends.cudnn.rnn.fp32_precision = "tf32" if type_name == "tf32" else "ieee"
    for a in calls(network, int(every)):
        narrow = packing.in_type(a, dtype)
        plain, grads = results(reference, narrow, None)
        exact = packing.in_type(narrow, torch.float64)
        expected, _ = results(reference, exact, [g.double() for g in grads])
        ours, theirs = (error(found, expected) for found in (by_graphs(narrow, grads), plain))
        worst = max(worst, ours / max(theirs, UNIT[type_name]))
        count += 1
    print(count, worst, StandIn.replays)


if __name__ == "__main__":
    with stand_in():
        for what in sys.argv[1:]:
            compare(*what.split("-"))
