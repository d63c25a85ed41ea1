"""Measures what single steps cost, steps that are taken one by one, and what happens between steps.

    python benchmarks/steps.py calls --rounds 12 --batches 1 8 16 64
    python benchmarks/steps.py calls --networks LSTMCell --units 64 --clock processor
    python benchmarks/steps.py stepper --rounds 5
    python benchmarks/steps.py between --rounds 3

`calls`: a cell, and the LSTM over a sequence of one step, beside torch's without layer norm. It prints microseconds and
the ratio to torch. Inference is a call under `torch.no_grad`; training is the call and the gradients of input, state
and parameters.

`stepper`: `module.stepper()` and a loop over the cell, beside one call for the whole sequence, which a network that
feeds back cannot use. It prints the milliseconds of a training step (forward and backward), and the ratio to the one
call.

`between`: a restart from a given state in 2 % of the steps, zoneout and recurrent dropout over a whole sequence. It
prints the milliseconds of a plain call, and the ratios to it, which include the time to draw the numbers.

All sides take turns in one process; the figures are minima over the rounds. Before that outputs and gradients are
compared: those of `calls` with float64, those of `stepper` between the sides. In `between` they differ, and are not
compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import layernorm as ln
import timing

Row = dict[str, Any]
Shape = tuple[int, int, int, int]  # T, B, I, H

ONE_STEP = ("LSTMCell", "GRUCell", "RNNCell", "LSTM")
TIMED_FOR = 1e-3  # seconds a turn of a single call: short turns are seldom interrupted
FED_BACK: list[Shape] = [
    (64, 128, 264, 256),  # DRAW's encoder
    (500, 8, 60, 400),  # the lowest layer of handwriting
    (30, 128, 512, 512),
    (50, 32, 256, 256),
    (200, 1, 256, 256),
    (50, 16, 64, 64),
]
WHOLE: list[Shape] = [(50, 32, 128, 128), (200, 8, 128, 128), (30, 64, 256, 256)]
WISHES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    # what is asked for: arguments of the module, arguments of the call
    "plain": ({}, ()),
    "reset_hx": ({}, ("reset", "reset_hx")),
    "zoneout": ({"zoneout": 0.1}, ()),
    "recurrent dropout": ({"recurrent_dropout": 0.1}, ()),
}


def compare(what: str, found: list[Tensor], expected: list[Tensor]) -> None:
    """Ends the script if two results differ by more than 2,000 roundings: sums over 128 rows and 512 units."""
    for a, b in zip(found, expected, strict=True):
        error = float((a - b).detach().abs().max() / (1e-6 + b.detach().abs().max()))
        if not error < 1e-4:
            raise SystemExit(f"{what}: off by {error:.1e}")


# One step in a call


def given(network: str, B: int, H: int) -> list[Tensor]:
    """Makes input and state; those of the LSTM have one time step."""
    shape = (B, H) if network.endswith("Cell") else (1, B, H)
    return [torch.randn(shape, requires_grad=True) for _ in range(3 if "LSTM" in network else 2)]


def called(module: nn.Module, tensors: list[Tensor]) -> Tensor:
    """Returns the output of a call."""
    x, *state = tensors
    found = module(x, tuple(state) if len(state) > 1 else state[0])
    return found[0] if isinstance(found, tuple) else found


def training(module: nn.Module, tensors: list[Tensor]) -> Callable[[], list[Tensor]]:
    """Returns a call and its gradients, as a function."""
    wanted, weights = [*tensors, *module.parameters()], torch.ones_like(tensors[1])
    return lambda: list(torch.autograd.grad(called(module, tensors), wanted, weights))


def inference(module: nn.Module, tensors: list[Tensor]) -> Callable[[], Tensor]:
    """Returns a call without gradients, as a function."""

    def run() -> Tensor:
        with torch.no_grad():
            return called(module, tensors)

    return run


def compare_with_float64(network: str, module: nn.Module, tensors: list[Tensor]) -> None:
    H = tensors[0].shape[-1]
    exact = getattr(ln, network)(H, H, dtype=torch.float64)
    exact.load_state_dict(module.state_dict())
    wide = [t.detach().double().requires_grad_() for t in tensors]
    found = [called(module, tensors), *training(module, tensors)()]
    compare(network, found, [called(exact, wide), *training(exact, wide)()])


def calls(options: argparse.Namespace) -> list[Row]:
    print(f"{'':10}{'B, H':<10}{'inference: torch':>18}{'layernorm':>18}{'training: torch':>18}{'layernorm':>18}")
    rows: list[Row] = []
    for network in options.networks:
        for H, B in ((H, B) for H in options.units for B in options.batches):
            sides = {"torch": getattr(nn, network)(H, H), "layer norm": getattr(ln, network)(H, H)}
            tensors = given(network, B, H)
            compare_with_float64(network, sides["layer norm"], tensors)
            line = f"{network:<10}{f'{B}, {H}':<10}"
            for mode, of in (("inference", inference), ("training", training)):
                runs = {name: of(module, tensors) for name, module in sides.items()}
                best = timing.minima(runs, options.rounds, TIMED_FOR)
                ratio = best["layer norm"] / best["torch"]
                line += f"{1e6 * best['torch']:>18.1f}{f'''{1e6 * best['layer norm']:.1f} ({ratio:.2f})''':>18}"
                rows.append({"network": network, "B": B, "H": H, "mode": mode, "ratio": ratio, "seconds": best})
            print(line, flush=True)
    for mode in ("inference", "training"):
        ratios = [row["ratio"] for row in rows if row["mode"] == mode]
        print(f"{mode}: geometric mean {timing.geometric_mean(ratios):.2f}, largest {max(ratios):.2f}")
    return rows


# A stepper beside one call for the whole sequence


def fed_back(network: str, shape: Shape) -> dict[str, Callable[[], list[Tensor]]]:
    """Returns a training step of each side: output and the gradients of input and parameters."""
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


def stepper(options: argparse.Namespace) -> list[Row]:
    print(f"{'':5}{'T, B, I, H':<20}{'one call':>12}{'stepper':>18}{'loop over the cell':>20}")
    rows = []
    for network in ("LSTM", "GRU"):
        for shape in FED_BACK[-1:] if options.quick else FED_BACK:
            # Over 20 steps: with layer norm a new network is near chaos. The loop's rounding, which differs, has grown
            # to 2 % after 200.
            few = fed_back(network, (min(shape[0], 20), *shape[1:]))
            for name in ("stepper", "loop over the cell"):
                compare(f"{network} {name}", few[name](), few["one call"]())
            best = timing.minima(fed_back(network, shape), options.rounds)
            whole = best["one call"]
            cells = [f"{1e3 * best[name]:.2f} ({best[name] / whole:.2f})" for name in list(best)[1:]]
            size = ", ".join(map(str, shape))
            print(f"{network:<5}{size:<20}{1e3 * whole:>12.2f}{cells[0]:>18}{cells[1]:>20}", flush=True)
            rows.append({"network": network, "shape": shape, "seconds": best})
    return rows


# What happens between steps


def asked_for(network: str, shape: Shape, training: bool) -> dict[str, Callable[[], list[Tensor]]]:
    """Returns a call for each wish: output, and in training the gradients of input and parameters."""
    T, B, I, H = shape  # noqa: E741
    x, weights = torch.randn(T, B, I, requires_grad=training), torch.randn(T, B, H)
    start = torch.zeros(1, 1, H)
    values = {
        "reset": torch.rand(T, B) < 0.02,
        "reset_hx": (start, start) if network == "LSTM" else start,
    }
    plain = getattr(ln, network)(I, H)

    def call(module: nn.Module, arguments: dict[str, Any]) -> list[Tensor]:
        if not training:
            with torch.no_grad():
                return [module(x, **arguments)[0]]
        output = module(x, **arguments)[0]
        return [output, *torch.autograd.grad(output, [x, *module.parameters()], weights)]

    runs = {}
    for name, (keywords, names) in WISHES.items():
        module = getattr(ln, network)(I, H, **keywords).train(training)
        module.load_state_dict(plain.state_dict())
        arguments = {key: values[key] for key in names}
        runs[name] = lambda module=module, arguments=arguments: call(module, arguments)
    return runs


def between(options: argparse.Namespace) -> list[Row]:
    rows = []
    for training in (True, False):
        print("training" if training else "inference")
        for network in ("LSTM", "GRU", "RNN"):
            ratios: dict[str, list[float]] = {}
            for shape in WHOLE[:1] if options.quick else WHOLE:
                best = timing.minima(asked_for(network, shape, training), options.rounds)
                rows.append({"network": network, "shape": shape, "training": training, "seconds": best})
                for name, seconds in best.items():
                    ratios.setdefault(name, []).append(seconds / best["plain"])
                text = "".join(f"  {name} {r[-1]:.2f}" for name, r in ratios.items() if name != "plain")
                print(f"  {network:<5}{shape!s:<22}{1e3 * best['plain']:9.1f} ms{text}", flush=True)
            means = "".join(f"  {name} {timing.geometric_mean(r):.2f}" for name, r in ratios.items() if name != "plain")
            print(f"  {network:<5}{'geometric mean':<34}{means}")
    return rows


TABLES = {"calls": calls, "stepper": stepper, "between": between}


def main() -> None:
    parser = timing.parser(__doc__)
    parser.add_argument("what", choices=TABLES, help="the table to print")
    parser.add_argument(
        "--networks", nargs="+", default=ONE_STEP, choices=ONE_STEP, help="of `calls` (default: all of these)"
    )
    parser.add_argument(
        "--batches", type=int, nargs="+", default=[1, 8, 64, 128], help="rows in one of `calls` (default: 1 8 64 128)"
    )
    parser.add_argument(
        "--units",
        type=int,
        nargs="+",
        default=[64, 256, 512],
        help="and its units, as many inputs (default: 64 256 512)",
    )
    parser.add_argument("--quick", action="store_true", help="one row for each network, 2 rounds")
    options = parser.parse_args()
    if options.quick:
        options.batches, options.units, options.rounds = [1], [64], 2
    rows = []
    for threads in timing.tables(options):
        print(f"\n{threads} thread(s)")
        rows += [{"threads": threads, **row} for row in TABLES[options.what](options)]
    timing.save(options.json, rows)


if __name__ == "__main__":
    main()
