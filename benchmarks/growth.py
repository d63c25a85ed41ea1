"""Measures how a gradient grows over time in a network at its start: by formula, start of the gains, size and inputs.

    python benchmarks/growth.py
    python benchmarks/growth.py --quick
    python benchmarks/growth.py exponents
    python benchmarks/growth.py edge
    python benchmarks/growth.py experiments

The first prints the growth of gradients over 10 to 1,000 steps; `--quick` takes few rows. `exponents`: the largest
Lyapunov exponent, measured and predicted, by recurrent gain. `edge`: the recurrent gain at which the prediction is 0.
`experiments`: the recurrent layers of the paper's experiments at their start, with the data in $LAYERNORM_DATA.

The growth is that of the largest entry of a gradient of the parameters, by T, in decades over T = 10. The loss is the
last output times normal numbers. "h per 100" is the growth of the gradient of the state before the first step, in
decades per 100 steps. Weights and biases are as torch draws them; `--forget-bias` sets the forget gate's. Inputs are
noise, one input for all steps, the rows of scikit-learn's digits, and embeddings of words with Zipf's frequencies.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import layernorm as ln
from layernorm import geometry
from layernorm.formula import PRESETS

FEATURES, WORDS = 100, 1000
LENGTHS = (10, 50, 200, 1000)
INPUTS = ("noise", "constant", "digits", "embeddings")
EXPERIMENTS = ("order-embeddings", "reader", "skip-thoughts", "draw", "handwriting", "mnist", "convnets")
KINDS = (*INPUTS, "random walk")
NETWORKS = {"LSTM": ln.LSTM, "GRU": ln.GRU, "RNN": ln.RNN}
STARTS = {"gains of 1": 1.0, "recurrent gain 0.6": 0.6, "recurrent gain 0.3": 0.3}
GAINS, QUICK_GAINS = (0.1, 0.3, 0.5, 0.6, 0.7, 1.0), (0.1, 0.3, 0.6, 1.0)


def made_inputs(kind: str, steps: int, cases: int, seed: int = 0) -> Tensor:
    """Makes inputs (T, B, I) in float64."""
    g = torch.Generator().manual_seed(seed)
    if kind == "digits":
        from layernorm_lab.theory.stability import stream

        return stream(steps, cases).contiguous()
    if kind == "embeddings":
        table = torch.randn(WORDS, FEATURES, generator=g, dtype=torch.float64)
        words = torch.multinomial(1 / torch.arange(1.0, WORDS + 1), steps * cases, True, generator=g)
        return table[words].reshape(steps, cases, FEATURES)
    x = torch.randn(1 if kind == "constant" else steps, cases, FEATURES, generator=g, dtype=torch.float64)
    return (x.cumsum(0) if kind == "random walk" else x).expand(steps, -1, -1)


def made_network(
    network: str,
    formula: str | None,
    I: int,  # noqa: E741
    H: int,
    gain: float,
    forget_bias: float | None,
    dtype: torch.dtype,
) -> torch.nn.Module:
    """Makes a network whose recurrent gains are ``gain``, all other gains 1; without a formula torch's equations."""
    torch.manual_seed(0)
    site = "gain_hh" if network != "RNN" else "gain"
    more: dict[str, Any] = {"norm": None}
    if formula is not None:
        more = {"formula": formula, "gain_init": {site: gain}}
    if network != "RNN":
        more["forget_bias"] = forget_bias
    return NETWORKS[network](I, H, dtype=dtype, **more)


def largest_gradient(module: torch.nn.Module, x: Tensor) -> float:
    """Returns the largest entry of a gradient of the parameters, as a power of 10."""
    v = torch.randn(x.shape[1], module.hidden_size, generator=torch.Generator().manual_seed(1)).to(x)
    loss = (module(x)[0][-1] * v).sum() / x.shape[1]
    return math.log10(max(float(d.abs().max()) for d in torch.autograd.grad(loss, list(module.parameters()))))


def state_decades(module: torch.nn.Module, x: Tensor) -> float:
    """Returns by how many decades the gradient of a state grows in 100 steps back, the mean over the cases.

    The first steps are not counted: the state is still small there, and the norm divides by its size.
    """
    step, state = geometry.dynamics(module, x.shape[1])
    logs = geometry.gradient_by_lag(step, state, x, generator=torch.Generator().manual_seed(1)).mean(1)
    return float(logs[150] - logs[50]) / math.log(10)


def growth_rows(quick: bool, forget_bias: float | None) -> Iterator[list[str]]:
    """Measures the rows of the table of growth. The formulas beside the paper's have 128 units."""
    for network in NETWORKS:
        for formula, equations in distinct_formulas(network):
            for H in (32, 128, 512, 2048) if formula in ("paper", None) and network != "RNN" else (128,):
                if quick and (H > 128 or formula not in ("paper", None)):
                    continue
                for start, gain in STARTS.items() if equations else [("torch's own", 1.0)]:
                    for kind in INPUTS if H <= 512 else ("noise", "constant"):
                        yield [network, formula or "none", start, str(H), kind, *_growth(
                            network, formula, H, gain, kind, forget_bias)]  # fmt: skip


def distinct_formulas(network: str) -> list[tuple[str | None, Any]]:
    """Returns names and formulas with a recurrent gain of their own, each formula once; an RNN's gain serves both."""
    found: dict[Any, str] = {}
    for name, of in PRESETS.items():
        if network in of and (of[network].gates == "split" or network == "RNN"):
            found.setdefault(of[network], name)
    return [*((name, formula) for formula, name in found.items()), (None, None)]


def _growth(network: str, formula: str | None, H: int, gain: float, kind: str, forget_bias: float | None) -> list[str]:
    cases = 4 if H <= 512 else 1
    lengths = [T for T in LENGTHS if H <= 512 or T <= 200]
    x = made_inputs(kind, lengths[-1], cases).float()
    module = made_network(network, formula, x.shape[2], H, gain, forget_bias, torch.float32)
    of = {T: largest_gradient(module, x[:T]) for T in lengths}
    grown = [f"{of[T] - of[10]:+.1f}" if T in of else "" for T in LENGTHS[1:]]
    return [*grown, f"{state_decades(module, x[:200]):+.1f}"]


def exponents(module: torch.nn.Module, x: Tensor, warmup: int) -> tuple[float, float]:
    """Measures and predicts the largest exponent."""
    step, state = geometry.dynamics(module, x.shape[1])
    measured = geometry.lyapunov(step, state, x, warmup=warmup, generator=torch.Generator().manual_seed(1))
    predicted = geometry.predicted_exponent(module, x, warmup=warmup, generator=torch.Generator().manual_seed(2))
    return float(measured.exponents), float(predicted.exponents)


def exponent_rows(sizes: Sequence[int], kinds: Sequence[str], quick: bool) -> Iterator[list[str]]:
    """Measures and predicts the exponents of the paper's formula, a row for each size, input and forget bias."""
    gains = QUICK_GAINS if quick else GAINS
    for H in sizes:
        for network in ("LSTM", "GRU"):
            for kind in kinds:
                for bias in (None, 1.0):
                    x = made_inputs(kind, 300, 4 if H < 1000 else 2)
                    pairs = [
                        exponents(made_network(network, "paper", x.shape[2], H, g, bias, torch.float64), x, 100)
                        for g in gains
                    ]
                    numbers = [f"{value:+.3f}" for pair in pairs for value in pair]
                    worst = max(abs(measured - predicted) for measured, predicted in pairs)
                    yield [network, str(H), kind, "torch's" if bias is None else "1", *numbers, f"{worst:.3f}"]


def edge_rows(sizes: Sequence[int], network: str = "LSTM") -> Iterator[list[str]]:
    """Finds by bisection at which recurrent gain the predicted exponent is 0, and measures the exponent there."""
    for H in sizes:
        for kind in ("noise", "embeddings", "random walk"):
            for bias in (None, 1.0):
                x, low, high = made_inputs(kind, 400, 4), 0.3, 1.5
                for _ in range(6):
                    gain = (low + high) / 2
                    module = made_network(network, "paper", x.shape[2], H, gain, bias, torch.float64)
                    predicted = geometry.predicted_exponent(
                        module, x, warmup=100, generator=torch.Generator().manual_seed(2)
                    )
                    low, high = (gain, high) if float(predicted.exponents) < 0 else (low, gain)
                measured, _ = exponents(module, x, 100)
                yield [network, str(H), kind, "torch's" if bias is None else "1", f"{gain:.2f}", f"{measured:+.3f}"]


def experiment_rows(names: Sequence[str]) -> Iterator[list[str]]:
    """Measures the recurrent layers of the paper's experiments at their start, driven by the inputs that they get in
    the network. Where the paper's data are not there, the preset for a laptop with other data is measured."""
    from layernorm_lab import catalogue
    from layernorm_lab.errors import RunError

    for name in names:
        experiment = catalogue.find_experiment(name)
        if name in ("mnist", "convnets"):
            yield [name, "", "no recurrent layer", *[""] * 4]
            continue
        for preset in ("paper", "laptop"):
            try:
                yield from _rows_of(experiment, preset)
                break
            except RunError as error:
                missing = str(error)
        else:
            yield [name, "", missing.partition(":")[0], *[""] * 4]


def _rows_of(experiment: Any, preset: str) -> Iterator[list[str]]:
    from layernorm_lab.theory import trained
    from layernorm_lab.train import distributed

    config = experiment.presets[preset].config
    data = experiment.load(replace(config, norm="none"), None)
    for start in ("none", "layer", "layer, gains of 0.1", "layer, recurrent gain 0.3", "layer, recurrent gain 0.6"):
        more: dict[str, Any] = {"norm": start.partition(",")[0]}
        if hasattr(config, "gain_init"):  # the reader's option
            more["gain_init"] = 0.1 if "gains of 0.1" in start else 1.0
        elif "gains of 0.1" in start:
            continue
        task = experiment.task(replace(config, **more), data, distributed.accelerator("cpu", "float32"))
        if "recurrent" in start:
            gains = [p for name, p in task.model.named_parameters() if "gain_hh" in name]
            if not gains:
                continue
            for gain in gains:
                gain.data.fill_(float(start.split()[-1]))
        steps = {name: _steps(calls) for name, calls in trained.layer_calls(task).items()}
        for layer in trained.measure_layers(task, experiment.name, more["norm"], 0)[0]:
            exponent = sum(layer.exponents) / len(layer.exponents)
            decades = exponent * steps[layer.name] / math.log(10)
            yield [experiment.name, preset, layer.name, start, str(steps[layer.name]), f"{exponent:+.3f}",
                   f"{decades:+.1f}"]  # fmt: skip


def _steps(calls: Sequence[Any]) -> int:
    """Returns the number of steps of a layer's longest sequence in a batch."""
    longest = max(len(call.arguments.input) for call in calls)
    return len(calls) if longest == 1 else longest


def show(header: Sequence[str], rows: Iterator[list[str]]) -> None:
    """Prints a table in Markdown, row by row."""
    print("|", " | ".join(header), "|\n|", " | ".join(["---"] * len(header)), "|")
    for row in rows:
        print("|", " | ".join(row), "|", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="growth", choices=["growth", "exponents", "edge", "experiments"])
    parser.add_argument("--quick", action="store_true", help="few rows")
    parser.add_argument("--units", type=int, nargs="+", default=[64, 256, 1024], help="of exponents and edge")
    parser.add_argument("--inputs", nargs="+", choices=KINDS, default=KINDS, help="of exponents")
    parser.add_argument("--names", nargs="+", choices=EXPERIMENTS, default=EXPERIMENTS, help="of experiments")
    parser.add_argument("--forget-bias", type=float, help="of growth (default: as torch draws it)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if args.what == "growth":
        header = ["network", "formula", "start", "H", "inputs", *(f"T = {T:,}" for T in LENGTHS[1:]), "h per 100"]
        show(header, growth_rows(args.quick, args.forget_bias))
    elif args.what == "exponents":
        gains = QUICK_GAINS if args.quick else GAINS
        header = [
            "network",
            "H",
            "inputs",
            "forget bias",
            *(t for g in gains for t in (f"{g:g}", "predicted")),
            "worst",
        ]
        show(header, exponent_rows(args.units, args.inputs, args.quick))
    elif args.what == "edge":
        header = ["network", "H", "inputs", "forget bias", "recurrent gain at the edge", "exponent measured there"]
        show(header, edge_rows(args.units))
    else:
        show(
            ["experiment", "preset", "layer", "norm", "steps", "exponent", "decades over these"],
            experiment_rows(args.names),
        )


if __name__ == "__main__":
    main()
