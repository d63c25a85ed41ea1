"""The paper's claim about handwriting synthesis, and the trials that decide it."""

from __future__ import annotations

import dataclasses

from ...report.judge import Arm, Claim, Plan, Rung, Trial, UpdatesToGoal, Value, shared
from .config import Config

LAPTOP = Config(updates=600, points=200, evaluate_every=20, valid_lines=64)
"""The options of the laptop preset."""

TRIAL = Trial(
    shared(Config(updates=3000, points=500, evaluate_every=50, valid_lines=64), "gain_init"),
    (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2), updates=3000, paper=20_000,
    note="17 earlier runs, of 600 updates on lines of 200 points, decide nothing and lean to the baseline",
    plan=Plan((Rung({"updates": 600}, keep=2), Rung({"updates": 2000})), seeds=tuple(range(20, 25)), looks=(5,)),
)  # fmt: skip
"""Trial 7 of docs/results/trials.md, written before its runs."""

GAIN = dataclasses.replace(TRIAL, about="initial gain 0.3")

_LOWEST = Value("valid_nll", "lowest validation NLL, nats in 500 points", best=True, margin=10.0)
_SPEED = UpdatesToGoal("valid_nll", "a validation NLL", _LOWEST, unit=" nats in 500 points")

_TEXT, _FIGURE = "Handwriting synthesis converges much faster with layer norm.", "laptop/figure5.png"
_NONE, _LAYER, _GAIN = Arm("none"), Arm("layer", {"gain_init": 1.0}), Arm("layer", {"gain_init": 0.3})

CLAIMS = tuple(
    Claim(_TEXT, "6.5, Figure 5", arm, _NONE, _SPEED, trial, _FIGURE) for arm, trial in ((_LAYER, TRIAL), (_GAIN, GAIN))
)
