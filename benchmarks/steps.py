"""What it costs to take the steps of a sequence one by one.

    python benchmarks/steps.py [--threads 1] [--rounds 9] [--json FILE]

A stepper (`module.stepper()`) and a loop over the cell take turns with one call for the whole sequence, which a network
that feeds back cannot use. Printed are the milliseconds of a training step (forward and backward) and, in brackets, the
ratio to the one call. Before that the gradients of the three are compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import layernorm as ln
from timing import environment, minima, save

SHAPES = [  # T, B, I, H
    (64, 128, 264, 256),  # DRAW's encoder
    (500, 8, 60, 400),  # the lowest layer of handwriting
    (30, 128, 512, 512),
    (50, 32, 256, 256),
    (200, 1, 256, 256),
    (50, 16, 64, 64),
]


def sides(network: str, shape: tuple[int, int, int, int]) -> dict[str, Callable[[], list[Tensor]]]:
    """A training step of each side: output and the gradients of input and parameters."""
    T, B, I, H = shape  # noqa: E741
    module, cell = getattr(ln, network)(I, H), getattr(ln, f"{network}Cell")(I, H)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in module.state_dict().items()})
    x = torch.randn(T, B, I, requires_grad=True)
    weights = torch.randn(T, B, H)

    def training(output: Tensor, parameters: Any) -> list[Tensor]:
        return [output, *torch.autograd.grad(output, [x, *parameters], weights)]

    def one_call() -> list[Tensor]:
        return training(module(x)[0], module.parameters())

    def stepper() -> list[Tensor]:
        step, state, outputs = module.stepper(), None, []
        for frame in x.unbind():
            output, state = step(frame, state)
            outputs.append(output)
        return training(torch.stack(outputs), module.parameters())

    def loop() -> list[Tensor]:
        hx, outputs = None, []
        for frame in x.unbind():
            hx = cell(frame, hx)
            outputs.append(hx[0] if isinstance(hx, tuple) else hx)
        return training(torch.stack(outputs), cell.parameters())

    return {"one call": one_call, "stepper": stepper, "loop over the cell": loop}


def check(network: str, shape: tuple[int, int, int, int]) -> None:
    """That all sides compute the same. Over 20 steps: with layer norm a new network is near chaos, and
    the loop's rounding, which differs, has grown to 2 % after 200."""
    T, *sizes = shape
    runs = sides(network, (min(T, 20), *sizes))  # type: ignore[arg-type]
    expected, *others = (run() for run in runs.values())
    for found in others:
        for a, b in zip(found, expected, strict=True):
            error = float((a - b).detach().abs().max() / b.detach().abs().max())
            assert error < 1e-4, f"the sides differ by {error:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="processor threads (default: 1)")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each side (default: 9)")
    parser.add_argument("--json", metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"{options.threads} thread(s), {environment()}")
    print(f"{'':5}{'T, B, I, H':<20}{'one call':>12}{'stepper':>18}{'loop over the cell':>20}")
    rows = []
    for network in ("LSTM", "GRU"):
        for shape in SHAPES:
            check(network, shape)
            runs = sides(network, shape)
            best = minima(runs, options.rounds)
            whole = best["one call"]
            cells = [f"{1e3 * best[name]:.2f} ({best[name] / whole:.2f})" for name in list(runs)[1:]]
            size = ", ".join(map(str, shape))
            print(f"{network:<5}{size:<20}{1e3 * whole:>12.2f}{cells[0]:>18}{cells[1]:>20}", flush=True)
            rows.append({"network": network, "shape": shape, "threads": options.threads, **best})
    save(options.json, rows)


if __name__ == "__main__":
    main()
