"""What layer norm adds to a training update of experiment 6.5, and where an update's time goes.

    python benchmarks/handwriting_step.py [--threads 1] [--rounds 5] [--points 500] [--norms none layer] [--profile]

The networks at full size (3 x 400 units) take turns in one process (none, layer, none, ...) on a batch of 8 random
lines; printed is the minimum over the rounds of the time of one update (forward, backward, Adam), its ratio to the
network without normalisation, and the time of the lowest layer with its window alone. With `--profile`, torch's
profiler says which operations an update spends its time in.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from layernorm.experiments.data.iam import Sequences
from layernorm.experiments.handwriting.experiment import nats
from layernorm.experiments.handwriting.network import Config, Synthesis, build, one_hot
from timing import environment, minima, save

CHARACTERS = 30


def lines(points: int, batch: int = 8) -> Sequences:
    """Random lines."""
    drawn = torch.randn(batch, points + 1, 3)
    drawn[..., 2] = (drawn[..., 2] > 2).float()
    text = torch.randint(57, (batch, CHARACTERS), dtype=torch.uint8)
    return Sequences(drawn, torch.full((batch,), points), text, torch.full((batch,), CHARACTERS))


def update(model: Synthesis, batch: Sequences) -> Callable[[], None]:
    """One training update as a function."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def run() -> None:
        (nats(model, batch).sum() / len(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def lowest(model: Synthesis, batch: Sequences) -> Callable[[], None]:
    """Forward and backward of the lowest layer and its window."""
    points = batch.points[:, :-1].transpose(0, 1).contiguous()
    codes = one_hot(batch.text, batch.characters, points.dtype)

    def run() -> None:
        h, reading = model.lowest(points, codes)
        (h.sum() + reading.sum()).backward()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="processor threads (default: 1)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each network (default: 5)")
    parser.add_argument("--points", type=int, default=500, help="of a line (default: 500)")
    parser.add_argument("--norms", nargs="+", default=["none", "layer"], help="none first (default: none layer)")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--json", metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    batch = lines(options.points)
    models = {norm: build(Config(norm=norm)) for norm in options.norms}
    updates = {norm: update(model, batch) for norm, model in models.items()}
    whole = minima(updates, options.rounds)
    part = minima({norm: lowest(model, batch) for norm, model in models.items()}, options.rounds)
    print(f"{options.threads} thread(s), {options.points} points, batch of 8, {environment()}")
    print(f"{'norm':<8}{'parameters':>12}{'update, s':>12}{'ratio':>8}{'lowest layer, s':>18}{'ratio':>8}")
    first = options.norms[0]
    for norm, model in models.items():
        count = sum(parameter.numel() for parameter in model.parameters())
        ratios = whole[norm] / whole[first], part[norm] / part[first]
        print(f"{norm:<8}{count:>12,}{whole[norm]:>12.3f}{ratios[0]:>8.2f}{part[norm]:>18.3f}{ratios[1]:>8.2f}")
    if options.profile:
        for norm, run in updates.items():
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                run()
            print(f"\n{norm}, self time of operations")
            found = sorted(profile.key_averages(), key=lambda item: -item.self_cpu_time_total)
            total = sum(item.self_cpu_time_total for item in found)
            for item in found[:14]:
                share = item.self_cpu_time_total / total
                print(f"  {item.key[:44]:<44}{item.self_cpu_time_total / 1e3:9.1f} ms{share:7.1%}{item.count:8}")
    save(options.json, [{"norm": norm, "update": whole[norm], "lowest_layer": part[norm]} for norm in options.norms])


if __name__ == "__main__":
    main()
