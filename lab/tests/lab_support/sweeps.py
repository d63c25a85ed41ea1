"""Runs at several learning rates: written as files, and those of a trial as the judge wants them."""

import itertools
from pathlib import Path

from lab_support.runs import write_digits
from layernorm_lab.report.arms import Arm
from layernorm_lab.report.blocks import compare
from layernorm_lab.report.judge import PILOT_SEEDS, TRIAL_SEEDS, Claim, Trial, UpdatesToGoal, Value
from layernorm_lab.runs.folder import Run, find_runs

RATES = (0.001, 0.002, 0.004)
TRIAL = Trial({"units": 3}, RATES, updates=30, paper=3000)
LOSS = Claim(
    "It ends lower.", "7", Arm("layer"), Arm("none"), Value("test", "the loss", chosen=Value("valid", "loss")), TRIAL
)
SPEED = Claim("It is faster.", "7", Arm("layer"), Arm("none"), UpdatesToGoal("valid", "a loss", goal=0.5), TRIAL)


def write_rates(place, norm, found, epochs=2):
    """Runs of `digits` of one norm: by learning rate the last test error of each seed; the validation error is twice
    that.

    None: the run is at its first epoch. "lost": it diverged in its second. "lost at once": in its first.
    """
    curves = {None: [0.9], "lost": [0.9], "lost at once": []}
    for rate, ends in found.items():
        for seed, end in enumerate(ends):
            curve = curves.get(end, [0.9] * (epochs - 1) + [end])
            diverged = 10 * len(curve) + 10 if isinstance(end, str) else None
            options = {"epochs": epochs, "learning_rate": rate}
            write_digits(place / f"lr{rate:g}", norm, 128, seed, curve, diverged=diverged, **options)


def runs_of_trial(fresh=TRIAL_SEEDS, **options):
    """A pilot of three arms, and fresh seeds of two. At 0.002 the loss ends lower, at 0.001 it is sooner at 0.5."""
    runs = []
    for norm, rate, seed in itertools.product(("none", "layer", "weight"), RATES, (*PILOT_SEEDS, *fresh)):
        if seed not in PILOT_SEEDS and (norm == "weight" or rate == 0.004):
            continue
        losses = {0.001: (0.4, 0.4, 0.4), 0.002: (1.0, 0.9, 0.1), 0.004: (1.0, 0.9, 0.8)}[rate]
        config = {"norm": norm, "learning_rate": rate, "seed": seed, "units": 3, "precision": "float32", **options}
        records = [
            {"update": 10 * n, "epoch": float(n), "valid": loss, "test": loss, "other": loss, "seconds": 1.0}
            for n, loss in enumerate(losses, 1)
        ]
        environment = {"data": {}, "starts": []}
        runs.append(Run(Path(f"{norm}-{rate}-{seed}"), "toy", config, environment, records, True, {"update": 30}))
    return runs


def compared(place):
    """What `compare` makes of the runs in a folder: their blocks, and the status lines."""
    return compare(find_runs(sorted(place.iterdir())).runs)


def blocks(place):
    return compared(place)[0]
