"""The first lines of docs/start.md, trained: `torch.nn.LSTM` and `ln.LSTM` read scikit-learn's digits row by row.

    python benchmarks/five_lines.py                  # the table, and the figure docs/five-lines.png
    python benchmarks/five_lines.py --seeds 2 --figure five-lines.png

Both networks train at each of five learning rates from the same initial weights, on the same batches. The script prints
and draws the error on the 400 digits that they do not learn from, as a mean over the seeds. The error of a run is the
mean of its last three evaluations, which are 10 updates apart.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import layernorm as ln

FIGURE = Path(__file__).parents[1] / "docs" / "five-lines.png"
RATES = (0.000625, 0.0025, 0.01, 0.04, 0.16)
UPDATES, BATCH, TRAIN = 300, 100, 1397
LAST = (280, 290, 300)  # after these updates a run's error is measured
NETWORKS = {"nn.LSTM": nn.LSTM, "ln.LSTM": ln.LSTM}


def train(network: Callable[..., nn.Module], rate: float, seed: int, rows: Tensor, labels: Tensor) -> float:
    """Trains a network on the rows of images `[M, 8, 8]`, and returns the error of the last ones, in percent: the
    mean after the last three tens of updates. The first digits are learnt from, the others held out."""
    torch.manual_seed(seed)
    scores = nn.Linear(64, 10)
    lstm = network(8, 64, num_layers=2, batch_first=True)
    torch.manual_seed(seed)  # of the batches, whatever the network has drawn
    optimizer = torch.optim.Adam([*lstm.parameters(), *scores.parameters()], lr=rate)
    errors = []
    for update in range(1, UPDATES + 1):
        batch = torch.randint(TRAIN, (BATCH,))
        loss = F.cross_entropy(scores(lstm(rows[batch])[0][:, -1]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update in LAST:
            with torch.no_grad():
                wrong = scores(lstm(rows[TRAIN:])[0][:, -1]).argmax(1) != labels[TRAIN:]
            errors.append(100 * wrong.double().mean().item())
    return sum(errors) / len(errors)


def check_same_start() -> None:
    """Checks that a seed gives both networks the same weights. Beside them ln.LSTM has its gains, which are 1."""
    started = []
    for network in NETWORKS.values():
        torch.manual_seed(0)
        started.append(dict(network(8, 64, num_layers=2).named_parameters()))
    assert all(torch.equal(started[1][name], weight) for name, weight in started[0].items())


def draw(path: Path, ends: dict[str, list[list[float]]]) -> None:
    """Draws the error at each learning rate: a point for each seed, and the line of the means."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from PIL import Image

    from layernorm_lab.report.page import STYLES

    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for (name, by_rate), norm in zip(ends.items(), ("none", "layer"), strict=True):
        colour = STYLES[norm].colour
        for rate, errors in zip(RATES, by_rate, strict=True):
            axes.plot([rate] * len(errors), errors, "o", color=colour, markersize=4, alpha=0.4)
        axes.plot(RATES, [sum(errors) / len(errors) for errors in by_rate], color=colour, linewidth=3, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(RATES, [f"{rate:g}" for rate in RATES])
    axes.set_yticks([5, 10, 20, 50, 100], ["5", "10", "20", "50", "100"])
    axes.minorticks_off()
    axes.tick_params(labelsize=13)
    axes.set_xlabel("learning rate of Adam", fontsize=14)
    axes.set_title(f"wrong of the digits held out after {UPDATES} updates, in %", fontsize=14, loc="left")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=14, frameon=False, loc="upper center")
    output = io.BytesIO()
    figure.savefig(output, dpi=200)
    Image.open(output).convert("RGB").quantize(64).save(path, "png", optimize=True)
    print(f"wrote {path}, {path.stat().st_size // 1000} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each network at each learning rate")
    parser.add_argument("--figure", type=Path, default=FIGURE, metavar="FILE", help="where the figure goes (PNG)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    check_same_start()
    digits = load_digits()
    rows, labels = torch.tensor(digits.images / 16, dtype=torch.float32), torch.tensor(digits.target)
    found: dict[str, list[list[float]]] = {}
    print(f"{'error in %':<12}", *(f"{rate:>20g}" for rate in RATES))
    for name, network in NETWORKS.items():
        found[name] = [[train(network, rate, seed, rows, labels) for seed in range(options.seeds)] for rate in RATES]
        cells = [f"{sum(ends) / len(ends):.1f} ({min(ends):.1f} to {max(ends):.1f})" for ends in found[name]]
        print(f"{name:<12}", *(f"{cell:>20}" for cell in cells), flush=True)
    draw(options.figure, found)


if __name__ == "__main__":
    main()
