"""What zoneout, recurrent dropout, the cells of every step and a learned restart cost.

    python benchmarks/between_steps.py [--threads 1] [--rounds 5] [--json FILE]

Each of them takes the steps of a sequence one by one. Printed are the milliseconds of a plain call, and the ratios to
it, of a training step (forward and backward) and of inference. Before that a call that returns the cells is compared
with the plain one: output and gradients.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import layernorm as ln
from timing import environment, geometric_mean, minima, save

SHAPES = [  # T, B, I, H
    (50, 32, 128, 128),
    (200, 8, 128, 128),
    (30, 64, 256, 256),
]
WISHES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    # what is asked for: arguments of the module, arguments of the call
    "plain": ({}, ()),
    "cells": ({}, ("return_cells",)),
    "reset_hx": ({}, ("reset", "reset_hx")),
    "zoneout": ({"zoneout": 0.1}, ()),
    "recurrent dropout": ({"recurrent_dropout": 0.1}, ()),
}


def sides(network: str, shape: tuple[int, int, int, int], training: bool) -> dict[str, Callable[[], list[Tensor]]]:
    """A call for each wish: output, and in training the gradients of input and parameters."""
    T, B, I, H = shape  # noqa: E741
    x, weights = torch.randn(T, B, I, requires_grad=training), torch.randn(T, B, H)
    start = torch.zeros(1, 1, H)
    given = {
        "return_cells": True,
        "reset": torch.rand(T, B) < 0.02,
        "reset_hx": (start, start) if network == "LSTM" else start,
    }
    plain = getattr(ln, network)(I, H)

    def call(module: torch.nn.Module, arguments: dict[str, Any]) -> list[Tensor]:
        if not training:
            with torch.no_grad():
                return [module(x, **arguments)[0]]
        output = module(x, **arguments)[0]
        return [output, *torch.autograd.grad(output, [x, *module.parameters()], weights)]

    runs = {}
    for name, (keywords, names) in WISHES.items():
        if name == "cells" and network != "LSTM":
            continue
        module = getattr(ln, network)(I, H, **keywords).train(training)
        module.load_state_dict(plain.state_dict())
        arguments = {key: given[key] for key in names}
        runs[name] = lambda module=module, arguments=arguments: call(module, arguments)
    return runs


def check() -> None:
    """That a call that returns the cells computes the same."""
    torch.manual_seed(0)
    runs = sides("LSTM", (10, 16, 32, 32), training=True)
    for a, b in zip(runs["cells"](), runs["plain"](), strict=True):
        error = float((a - b).detach().abs().max() / b.detach().abs().max())
        assert error < 1e-4, f"the two differ by {error:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="processor threads (default: 1)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side (default: 5)")
    parser.add_argument("--json", metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    check()
    print(f"{options.threads} thread(s), {environment()}")
    rows = []
    for training in (True, False):
        print("training" if training else "inference")
        for network in ("LSTM", "GRU", "RNN"):
            ratios: dict[str, list[float]] = {}
            for shape in SHAPES:
                best = minima(sides(network, shape, training), options.rounds)
                rows.append({"network": network, "shape": shape, "training": training, "seconds": best})
                for name, seconds in best.items():
                    ratios.setdefault(name, []).append(seconds / best["plain"])
                text = "".join(f"  {name} {r[-1]:.2f}" for name, r in ratios.items() if name != "plain")
                print(f"  {network:<5}{shape!s:<22}{1e3 * best['plain']:9.1f} ms{text}", flush=True)
            means = "".join(f"  {name} {geometric_mean(r):.2f}" for name, r in ratios.items() if name != "plain")
            print(f"  {network:<5}{'geometric mean':<34}{means}")
    save(options.json, rows)


if __name__ == "__main__":
    main()
