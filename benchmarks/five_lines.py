"""The README's five lines, trained: `torch.nn.LSTM` and `ln.LSTM` read scikit-learn's digits row by row.

    python benchmarks/five_lines.py                  # the table, and the figure docs/five-lines.png
    python benchmarks/five_lines.py --seeds 2 --figure five-lines.png

Both networks train at each of five rates from the same initial weights, on the same batches. Printed is the error on
the 400 digits that they do not learn from, as a mean over the seeds: of each run the mean after the last three tens of
updates. The figure shows the training loss at one rate, `RATE`, for both: a mean of each ten updates.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import layernorm as ln

FIGURE = Path(__file__).parents[1] / "docs" / "five-lines.png"
RATE, RATES = 0.01, (0.000625, 0.0025, 0.01, 0.04, 0.16)
UPDATES, TEN, BATCH, TRAIN = 300, 10, 100, 1397
NETWORKS = {"nn.LSTM": nn.LSTM, "ln.LSTM": ln.LSTM}


class Run(NamedTuple):
    """A training: the training loss, a mean of each ten updates, and the error of the digits held out after them."""

    losses: list[float]
    errors: list[float]

    @property
    def end(self) -> float:
        return sum(self.errors[-3:]) / 3


def train(network: Callable[..., nn.Module], rate: float, seed: int, rows: Tensor, labels: Tensor) -> Run:
    """Trains a network on the rows of images `[M, 8, 8]`. The first digits are learnt from, the others held out."""
    torch.manual_seed(seed)
    scores = nn.Linear(64, 10)
    lstm = network(8, 64, num_layers=2, batch_first=True)
    torch.manual_seed(seed)  # of the batches, whatever the network has drawn
    optimizer = torch.optim.Adam([*lstm.parameters(), *scores.parameters()], lr=rate)
    run = Run([], [])
    losses = []
    for update in range(1, UPDATES + 1):
        batch = torch.randint(TRAIN, (BATCH,))
        loss = F.cross_entropy(scores(lstm(rows[batch])[0][:, -1]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if update % TEN == 0:
            with torch.no_grad():
                wrong = scores(lstm(rows[TRAIN:])[0][:, -1]).argmax(1) != labels[TRAIN:]
            run.losses.append(sum(losses[-TEN:]) / TEN)
            run.errors.append(wrong.double().mean().item())
    return run


def check_same_start() -> None:
    """Checks that a seed gives both networks the same weights. Beside them ln.LSTM has its gains, which are 1."""
    started = []
    for network in NETWORKS.values():
        torch.manual_seed(0)
        started.append(dict(network(8, 64, num_layers=2).named_parameters()))
    assert all(torch.equal(started[1][name], weight) for name, weight in started[0].items())


def draw(path: Path, runs: dict[str, list[Run]]) -> None:
    """Draws the training loss of each seed, thin, and the mean, thick."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from PIL import Image

    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    x = range(TEN, UPDATES + 1, TEN)
    for (name, of_name), colour in zip(runs.items(), ("#D55E00", "#0072B2"), strict=True):
        for run in of_name:
            axes.plot(x, run.losses, color=colour, linewidth=0.8, alpha=0.4)
        mean = [sum(values) / len(values) for values in zip(*(run.losses for run in of_name), strict=True)]
        axes.plot(x, mean, color=colour, linewidth=3, label=name)
    axes.set_yscale("log")
    axes.set_yticks([0.02, 0.05, 0.1, 0.2, 0.5, 1, 2], ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2"])
    axes.set_yticks([], minor=True)
    axes.set_xlim(0, UPDATES)
    axes.tick_params(labelsize=13)
    axes.set_xlabel("updates", fontsize=14)
    axes.set_title("training loss", fontsize=15, loc="left")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=14, frameon=False)
    output = io.BytesIO()
    figure.savefig(output, dpi=200)
    Image.open(output).convert("RGB").quantize(64).save(path, "png", optimize=True)
    print(f"wrote {path}, {path.stat().st_size // 1000} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each network at each rate")
    parser.add_argument("--figure", type=Path, default=FIGURE, metavar="FILE", help="where the figure goes (PNG)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    check_same_start()
    digits = load_digits()
    rows, labels = torch.tensor(digits.images / 16, dtype=torch.float32), torch.tensor(digits.target)
    shown = {}
    print(f"{'error in %':<12}", *(f"{rate:>20g}" for rate in RATES))
    for name, network in NETWORKS.items():
        cells = []
        for rate in RATES:
            runs = [train(network, rate, seed, rows, labels) for seed in range(options.seeds)]
            ends = [100 * run.end for run in runs]
            cells.append(f"{sum(ends) / len(ends):.1f} ({min(ends):.1f} to {max(ends):.1f})")
            if rate == RATE:
                shown[name] = runs
        print(f"{name:<12}", *(f"{cell:>20}" for cell in cells), flush=True)
    for update in (50, 100, 200, 300):
        means = {name: sum(run.losses[update // TEN - 1] for run in runs) / len(runs) for name, runs in shown.items()}
        print(f"training loss at {RATE:g}, update {update}:", ", ".join(f"{n} {mean:.3f}" for n, mean in means.items()))
    draw(options.figure, shown)


if __name__ == "__main__":
    main()
