"""What layer norm adds to a training update of experiment 6.4, and where the time of an update goes.

    python benchmarks/draw_step.py [--threads 1] [--rounds 9] [--glimpses 16 64] [--profile] [--json FILE]

DRAW without norm and with it takes turns in one process on random images, at batch size 128 and 256 units; printed is
the minimum over the rounds of the time of one update (forward, backward, clipping, Adam), its ratio to the network
without normalisation, and the milliseconds that one glimpse adds. --profile prints what the operations of an update
with layer norm take, by torch.profiler.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from layernorm.experiments.data.binarized_mnist import PIXELS
from layernorm.experiments.draw.network import Config, build
from timing import environment, minima, save

NORMS = ("none", "layer", "rms")


def update(norm: str, glimpses: int) -> Callable[[], None]:
    """One training update as a function."""
    config = Config(norm=norm, glimpses=glimpses)  # type: ignore[arg-type]
    model = build(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate, fused=True)
    images = torch.rand(config.batch_size, PIXELS).lt(0.13).float()

    def run() -> None:
        parts = model(images, torch.randn(glimpses, config.batch_size, config.latent))
        (parts.kl + parts.reconstruction).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        optimizer.zero_grad()

    return run


def profiled(run: Callable[[], None], rows: int = 16) -> str:
    """A table of the operations of some updates, by their own time."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as record:
        for _ in range(5):
            run()
    events = sorted(record.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    lines = [f"{'operation':<40}{'share':>8}{'ms/update':>11}{'calls/update':>14}"]
    for event in events[:rows]:
        own = event.self_cpu_time_total
        lines.append(f"{event.key[:39]:<40}{own / total:>8.1%}{own / 5e3:>11.2f}{event.count / 5:>14.0f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="processor threads (default: 1)")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each network (default: 9)")
    parser.add_argument("--glimpses", type=int, nargs="+", default=[16, 64], help="(default: 16 64)")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--json", metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"{options.threads} thread(s), {environment()}")
    print("milliseconds an update (ratio to none; milliseconds a glimpse)")
    print(f"{'glimpses':>8}" + "".join(f"{norm:>24}" for norm in NORMS))
    rows = []
    for glimpses in options.glimpses:
        best = minima({norm: update(norm, glimpses) for norm in NORMS}, options.rounds)
        cells = [
            f"{1e3 * best[norm]:8.1f} ({best[norm] / best['none']:.2f}x; {1e3 * best[norm] / glimpses:.1f})"
            for norm in NORMS
        ]
        print(f"{glimpses:>8}" + "".join(f"{cell:>24}" for cell in cells), flush=True)
        rows.append({"glimpses": glimpses, "threads": options.threads, **best})
    if options.profile:
        print(profiled(update("layer", options.glimpses[0])))
    save(options.json, rows)


if __name__ == "__main__":
    main()
