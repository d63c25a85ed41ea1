"""What layer norm and batch norm add to a training update of experiment 6.6, at batch sizes 128 and 4.

    python benchmarks/mnist_step.py [--threads 1] [--rounds 9] [--json FILE]

The networks 784-1000-1000-10 take turns in one process (none, layer, torch, batch, none, ...) on random images, each
turn with a new network; printed is the minimum over the rounds of the time of one update (forward, backward, Adam), and
its ratio to the network without normalisation. "torch" is torch.nn.LayerNorm in place of ours,
"batch" torch.nn.BatchNorm1d.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from layernorm.experiments.mnist.network import Config, build

NORMS = ("none", "layer", "torch", "batch")


def update(norm: str, batch_size: int) -> Callable[[], None]:
    """One training update as a function."""
    config = Config(norm="layer" if norm == "torch" else norm, batch_size=batch_size)  # type: ignore[arg-type]
    model = build(config, inputs=784)
    for i, layer in enumerate(model):
        if norm == "torch" and isinstance(layer, torch.nn.LayerNorm):
            model[i] = torch.nn.LayerNorm(layer.normalized_shape)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    images, labels = torch.rand(batch_size, 784), torch.randint(10, (batch_size,))

    def run() -> None:
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def seconds(run: Callable[[], None], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="processor threads (default: 1)")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each network (default: 9)")
    parser.add_argument("--json", metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    rows = []
    print(f"{options.threads} thread(s), torch {torch.__version__}, milliseconds an update (ratio to none)")
    print(f"{'batch size':>10}" + "".join(f"{norm:>16}" for norm in NORMS))
    for batch_size in (128, 4):
        best = dict.fromkeys(NORMS, float("inf"))
        for _ in range(options.rounds):
            for norm in NORMS:
                run = update(norm, batch_size)  # a new network: where its memory lies makes up to a fifth
                seconds(run, 10)  # warm-up
                best[norm] = min(best[norm], seconds(run, 20))
        cells = [f"{1e3 * best[norm]:.2f} ({best[norm] / best['none']:.2f}x)" for norm in NORMS]
        print(f"{batch_size:>10}" + "".join(f"{cell:>16}" for cell in cells))
        rows.append({"batch_size": batch_size, **{norm: best[norm] for norm in NORMS}})
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"threads": options.threads, "torch": torch.__version__, "seconds": rows}, file, indent=1)


if __name__ == "__main__":
    main()
