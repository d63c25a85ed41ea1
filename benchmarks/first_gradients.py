"""The gradient's norm at update 0 of every experiment's arms, in the laptop presets.

    python benchmarks/first_gradients.py [--only NAME ...] [--preset laptop] [--gain-init 0.5] [--json FILE]

A network for each norm of the preset, from its first seed, and the first batch of its data, which are looked for as
`layernorm run` looks for them: in $LAYERNORM_DATA/NAME, then in the cache. Printed are the norm of the whole gradient
before anything is clipped, and the largest over the smallest of an experiment. An experiment whose data are not there
is named.
"""

from __future__ import annotations

import argparse
import dataclasses

import torch

from layernorm.experiments.catalogue import EXPERIMENTS, find
from layernorm.experiments.errors import RunError
from layernorm.experiments.protocol import Experiment
from layernorm.experiments.train import distributed
from layernorm.experiments.train.batches import NOISE, derive_seed
from timing import environment, save


def first_gradients(experiment: Experiment, preset: str, gain_init: float | None) -> dict[str, float]:
    """By norm; the initial gain is the preset's, if it is not given."""
    chosen = experiment.presets[preset]
    first = {name: values[0] for name, values in chosen.several.items()}
    if gain_init is not None and hasattr(chosen.config, "gain_init"):
        first["gain_init"] = gain_init
    found = {}
    for norm in chosen.several["norm"]:
        config = dataclasses.replace(chosen.config, **{**first, "norm": norm})
        task = experiment.task(config, experiment.load(config, None), distributed.accelerator("cpu", "float32"))
        torch.manual_seed(derive_seed(config.seed, NOISE, 0))
        task.model.train()
        task.loss(task.model, 0).backward()
        found[norm] = float(
            torch.nn.utils.get_total_norm([p.grad for p in task.model.parameters() if p.grad is not None])
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=list(EXPERIMENTS), help="these experiments alone")
    parser.add_argument("--preset", default="laptop", help="(default: laptop)")
    parser.add_argument("--gain-init", type=float, help="initial gain of layer norm (default: the preset's)")
    parser.add_argument("--json", metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(environment())
    print("| experiment | gradient's norm at update 0 | largest over smallest |\n| :-- | :-- | --: |")
    rows = []
    for name in options.only:
        try:
            found = first_gradients(find(name), options.preset, options.gain_init)
        except RunError as error:
            print(f"| {name} | no data: {str(error).splitlines()[0]} | - |", flush=True)
            continue
        told = ", ".join(f"{norm} {value:.3g}" for norm, value in found.items())
        print(f"| {name} | {told} | {max(found.values()) / min(found.values()):.1f} |", flush=True)
        rows.append({"experiment": name, **found})
    save(options.json, rows)


if __name__ == "__main__":
    main()
