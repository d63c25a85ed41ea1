"""Compares the GPU engine with the equations in float64, by Triton's interpreter: a program of its own.

    TRITON_INTERPRET=1 PYTHONPATH=tests python -m support.through_triton LSTM 20

runs every 20th of the formulas of a network, and packed calls, forward and back, and prints how many there were. An
error may be five times that of the plain equations in float32.
"""

import sys

import torch

from layernorm.engines import reference
from layernorm.engines import triton as engine
from layernorm.formula import PRESETS, Recurrence
from support import packing
from support.formula_space import arguments_of, drawn, drawn_changes, every_formula

SHAPES = [
    (3, 2, 3, 5, 5),
    (3, 4, 2, 1, 1),
    (2, 3, 2, 7, 7),
    (1, 17, 2, 4, 4),
    (2, 0, 3, 4, 4),
    (0, 2, 3, 4, 4),
    (4, 1, 2, 300, 300),
]
TIMES, LEAST = 5.0, 1e-5


def calls(network, every):
    """Calls in float64: formulas, masks and what happens between steps take turns."""
    for number, (recurrence, (*sizes, reverse, lengths, reset)) in enumerate(every_formula(network, SHAPES)):
        if number % every or recurrence.projected:
            continue
        a = arguments_of(drawn(recurrence, *sizes, lengths, reset), recurrence, reverse)
        T, B, _, H, P = sizes
        yield a if number % 3 == 0 else a._replace(changes=drawn_changes(recurrence, T, B, H, P, number % 16))
    for kind in range(0, 16, 3):
        recurrence = Recurrence(network, PRESETS["paper"][network])
        yield packing.both_calls(recurrence, 5, 4, 3, 6, 6, kind % 2 == 1, True, kind)[1]


def results(engine, a, grads):
    """Output, final state and every gradient."""
    n = 1 + len(a.state)
    found = engine.recurrent_forward(a, True)
    inference = engine.recurrent_forward(a, False)
    assert all(map(torch.equal, found[:n], inference))
    grads = grads or [torch.randn_like(r) for r in found[:n]]
    return [*found[:n], *engine.recurrent_backward(a, found[n:], grads[0], grads[1:])], grads


def largest_error(found, expected):
    """Relative to 1 + the largest value."""
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if a.numel()]
    return max(float((a.double() - b).abs().max() / (1 + b.abs().max())) for a, b in pairs)


def main(network, every):
    torch.manual_seed(0)
    count = 0
    for a in calls(network, every):
        narrow = packing.in_type(a, torch.float32)
        expected, grads = results(reference, a, None)
        grads = [g.float() for g in grads]
        ours, plain = (largest_error(results(e, narrow, grads)[0], expected) for e in (engine, reference))
        assert ours <= max(TIMES * plain, LEAST), (a.recurrence, a.input.shape, ours, plain)
        count += 1
    print(count)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
