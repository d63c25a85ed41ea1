"""Measures what an LSTM takes beside its products: the work on rows, in nanoseconds for 16 units of a step.

    python benchmarks/rows.py
    python benchmarks/rows.py --threads 2 --sizes 128 16 64 128

More inputs only make the products longer. So two networks that differ in their input size tell what a column of the
products takes. The rest is what is left without any column: statistics, gates, the state, what is saved, and the call.
All sides take turns in one process. `plain` is `ln.accelerate` of torch's network, `sum` and `paper` are
layer-normalised. Training is the call and the gradients of inputs and parameters. Where more inputs make each column
slower, as in torch's training, the rest comes out too small, even below 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import layernorm as ln
import timing

STEPS = 50
SIZES = [128, 16, 128, 32, 64, 64, 64, 128, 32, 256]
SIDES: dict[str, Callable[[int, int], nn.Module]] = {
    "torch": nn.LSTM,
    "plain": lambda inputs, units: ln.accelerate(nn.LSTM(inputs, units)),
    "sum": lambda inputs, units: ln.LSTM(inputs, units, formula="sum"),
    "paper": ln.LSTM,
}


def inference(module: nn.Module, x: Tensor) -> Callable[[], Any]:
    def run() -> None:
        with torch.no_grad(), ln.backends.use("native"):
            module(x)

    return run


def training(module: nn.Module, x: Tensor) -> Callable[[], Any]:
    wanted = [x.clone().requires_grad_(), *module.parameters()]

    def run() -> None:
        with ln.backends.use("native"):
            output, _ = module(wanted[0])
            torch.autograd.grad(output, wanted, grads)

    grads = torch.randn_like(module(x)[0])
    return run


def main() -> None:
    parser = timing.parser(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="rows and units of each shape in turn")
    options = parser.parse_args()
    if len(options.sizes) % 2:
        parser.error(f"--sizes are pairs of rows and units, got {len(options.sizes)} numbers")
    shapes = list(zip(options.sizes[::2], options.sizes[1::2], strict=True))
    found = []
    for threads in timing.tables(options):
        print(f"\n{threads} thread(s)\n\n| rows | units | | {' | '.join(SIDES)} |\n|--:|--:|---|{'--:|' * len(SIDES)}")
        for B, H in shapes:
            for mode in (inference, training):
                runs = {}
                for side, make in SIDES.items():
                    for inputs in (H, 3 * H):
                        runs[side, inputs] = mode(make(inputs, H), torch.randn(STEPS, B, inputs))
                best = timing.minima({str(key): run for key, run in runs.items()}, options.rounds)
                vectors = STEPS * B * H / 16
                rest = {}
                for side in SIDES:
                    short, long = (best[str((side, inputs))] for inputs in (H, 3 * H))
                    rest[side] = (2 * short - long) / vectors * 1e9  # without 2 H columns, as many as it has
                found.append({"threads": threads, "rows": B, "units": H, "mode": mode.__name__, **rest})
                print(f"| {B} | {H} | {mode.__name__} | {' | '.join(f'{v:.0f}' for v in rest.values())} |", flush=True)
    timing.save(options.json, found)


if __name__ == "__main__":
    main()
