"""Measures time and memory for packed sequences of uneven lengths, against torch's networks.

    python benchmarks/packed.py
    python benchmarks/packed.py --networks LSTM --lengths tail lognormal-1.2 --threads 1 2
    python benchmarks/packed.py --memory
    python benchmarks/packed.py --json packed.json --chart lengths.png
    python benchmarks/packed.py --redraw packed.json --chart lengths.png

A batch is packed once, with ``pack_padded_sequence``, and given to `torch.nn`'s network, to the same one after
`ln.accelerate`, and to layernorm's with layer norm. The script prints the minima over rounds in milliseconds and their
ratios to torch's, for inference and training (forward and backward to the input and all parameters). With ``--memory``
it prints by how much one call raises the peak memory of a process of its own, in MB.

Batches: `tail`, one row of 4,000 steps and 127 of 5; `lognormal-S`, 256 rows whose lengths have the median 30 and the
deviation S of their logarithm; `even`, 64 rows of 60 steps. The input size and the hidden size are 128. All but `tail`
run in both directions. The chart has the last four by their deviation, `even` at 0.
"""

from __future__ import annotations

import argparse
import copy
import math
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import layernorm as ln
import timing

UNITS = 128
BATCHES = ["tail", "lognormal-0.3", "lognormal-0.8", "lognormal-1.2", "even"]
SIDES = ["torch", "accelerate", "layer norm"]
MODES = ["inference", "training"]


def deviation_of(batch: str) -> float:
    """Returns the deviation of the logarithm of a batch's lengths."""
    return 0.0 if batch == "even" else float(batch.removeprefix("lognormal-"))


def batch_name(text: str) -> str:
    """Reads the name of a batch: any deviation may stand after "lognormal-"."""
    if text not in BATCHES and not re.fullmatch(r"lognormal-\d+(\.\d+)?", text):
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(BATCHES)}, got {text!r}")
    return text


def lengths_of(batch: str) -> torch.Tensor:
    """Draws the lengths of a batch."""
    if batch == "tail":
        return torch.tensor([4000] + [5] * 127)
    if batch == "even":
        return torch.full((64,), 60)
    generator = torch.Generator().manual_seed(0)
    return (30 * (torch.randn(256, generator=generator) * deviation_of(batch)).exp()).round().long().clamp_min(1)


def packed_batch(batch: str, longest: int | None = None) -> PackedSequence:
    """Draws a batch, without the memory that padding takes. ``longest``: rows are cut to so many steps."""
    lengths = lengths_of(batch).clamp_max(longest or 10**9).sort(descending=True).values
    sizes = pack_padded_sequence(torch.zeros(int(lengths[0]), len(lengths), 1), lengths).batch_sizes
    return PackedSequence(torch.randn(int(lengths.sum()), UNITS), sizes)


def network_of(network: str, side: str, batch: str) -> Any:
    """Makes a side's network, each from the same weights."""
    torch.manual_seed(1)
    both = batch != "tail"
    if side == "layer norm":
        return getattr(ln, network)(UNITS, UNITS, bidirectional=both)
    module = getattr(nn, network)(UNITS, UNITS, bidirectional=both)
    return module if side == "torch" else ln.accelerate(module)


def call(module: Any, batch: PackedSequence, mode: str) -> Callable[[], Any]:
    """Returns one call in this mode."""

    def inference() -> Any:
        with torch.no_grad():
            return module(batch)[0].data

    def training() -> None:
        data = batch.data.detach().requires_grad_()
        module.zero_grad()
        module(PackedSequence(data, batch.batch_sizes))[0].data.sum().backward()

    return inference if mode == "inference" else training


def check(network: str, batch: str) -> None:
    """Compares both layernorm networks with the equations in float64 and stops where one is wrong.

    Rows are cut to 30 steps: a network with layer norm multiplies rounding errors by 1.01 a step at its start.
    """
    data = packed_batch(batch, 30)
    exact = PackedSequence(data.data.double(), data.batch_sizes)
    for side, true in (("accelerate", "torch"), ("layer norm", "layer norm")):
        module = network_of(network, side, batch)
        with torch.no_grad(), ln.backends.use("reference"):
            expected = copy.deepcopy(network_of(network, true, batch)).double()(exact)[0].data
        with torch.no_grad():
            error = float((module(data)[0].data.double() - expected).abs().max())
        if not error <= 1e-4:  # float32 over 30 steps; a step of another row would be wrong by a tenth and more
            raise SystemExit(f"{network} {batch} {side}: wrong by {error}")


def table(networks: list[str], batches: list[str], threads: int, rounds: int) -> list[dict[str, Any]]:
    """Times and prints all sides in turns."""
    rows = []
    for network in networks:
        for batch in batches:
            check(network, batch)
            data = packed_batch(batch)
            modules = {side: network_of(network, side, batch) for side in SIDES}
            for mode in MODES:
                found = timing.minima({side: call(modules[side], data, mode) for side in SIDES}, rounds)
                ratios = "  ".join(
                    f"{side} {found[side] * 1e3:.1f} ({found[side] / found['torch']:.2f})" for side in SIDES
                )
                print(f"{network} {batch} {mode}, {threads} threads: {ratios}", flush=True)
                rows.append({"network": network, "batch": batch, "mode": mode, "threads": threads, "seconds": found})
    return rows


def peak(network: str, batch: str, mode: str, side: str) -> int:
    """KiB by which a call raises the peak of this process."""
    data = packed_batch(batch)
    module = network_of(network, side, batch)
    small = PackedSequence(data.data[:2].clone(), torch.tensor([1, 1]))
    call(module, small, mode)()
    before = timing.peak()
    call(module, data, mode)()
    return timing.peak() - before


def memory_table(networks: list[str], batches: list[str]) -> None:
    """Prints the peaks, each in a process of its own."""
    for network in networks:
        for batch in batches:
            for mode in MODES:
                found = {}
                for side in SIDES:
                    command = [sys.executable, __file__, "--peak", network, batch, mode, side]
                    found[side] = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 1024
                texts = [f"{side} +{found[side]:.0f} MB ({found[side] / max(found['torch'], 1):.2f})" for side in SIDES]
                print(f"{network} {batch} {mode}: {', '.join(texts)}", flush=True)


def chart(path: str, rows: Sequence[dict[str, Any]]) -> None:
    """Draws how many times as fast `ln.accelerate` is, with the fewest threads; large enough for a small screen."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    threads = min(row["threads"] for row in rows)
    lines: dict[tuple[str, str], dict[float, float]] = {}
    for row in rows:
        if row["threads"] == threads and row["batch"] != "tail":
            factor = row["seconds"]["torch"] / row["seconds"]["accelerate"]
            lines.setdefault((row["network"], row["mode"]), {})[deviation_of(row["batch"])] = factor
    figure, axis = plt.subplots(figsize=(5, 4.2), layout="constrained")
    axis.axhline(1, color="#cc3311", linewidth=1.6)
    looks = {"LSTM": ("#333333", "o"), "GRU": ("#0077bb", "s"), "RNN": ("#ee7733", "^")}
    for (network, mode), line in sorted(lines.items(), key=lambda item: -max(item[1].values())):
        colour, marker = looks[network]
        dashes = "-" if mode == "training" else "--"
        places = sorted(line)
        values = [line[place] for place in places]
        axis.plot(places, values, dashes, marker=marker, color=colour, linewidth=2, label=f"{network}, {mode}")
    places = sorted({place for line in lines.values() for place in line})
    steps = [f"{30 * math.exp(-place):.0f} to {30 * math.exp(place):.0f}" if place else "all 60" for place in places]
    axis.set_xticks(places, [f"{place:g}\n{told}" for place, told in zip(places, steps, strict=True)])
    axis.set_xlabel("deviation of the logarithm of the lengths;\nsteps of two thirds of the rows", fontsize=11)
    axis.set_yscale("log")
    ticks = [1, 2, 5, 10, 20, 50, 100]
    axis.set_yticks(ticks, ["torch.nn", *(f"{tick}x" for tick in ticks[1:])])
    axis.minorticks_off()
    axis.tick_params(labelsize=11)
    axis.grid(axis="y", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="upper left", frameon=False, fontsize=11, handlelength=3)
    figure.savefig(path, dpi=200)
    print(f"wrote {path}")


def main() -> int:
    parser = timing.parser(__doc__, 3, chart="how many times as fast it is")
    parser.add_argument("--networks", nargs="+", choices=["LSTM", "GRU", "RNN"], default=["LSTM", "GRU"])
    parser.add_argument("--lengths", nargs="+", type=batch_name, default=BATCHES, help="batches (default: all)")
    parser.add_argument("--memory", action="store_true", help="measure memory, no time")
    parser.add_argument("--peak", nargs=4, help=argparse.SUPPRESS)
    options = timing.parse(parser)
    if options.peak:
        print(peak(*options.peak))
        return 0
    if options.memory:
        if options.chart or options.json:
            parser.error("--chart and --json are of times")
        memory_table(options.networks, options.lengths)
        return 0
    if options.redraw:
        rows = options.redraw
    else:
        rows = []
        for threads in timing.tables(options):
            rows += table(options.networks, options.lengths, threads, options.rounds)
        timing.save(options.json, rows)
    if options.chart:
        chart(options.chart, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
