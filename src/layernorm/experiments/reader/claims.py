"""The paper's claims about the attentive reader, and the trials that decide them, from two kinds of initial weights."""

from __future__ import annotations

from typing import Literal

from ..report.judge import Arm, Claim, Robustness, Sooner, Trial, Value, shared
from .network import Config


def laptop(initial: Literal["source", "torch"] = "source") -> Config:
    """Makes the options of the laptop preset and of the trials. The prior is ours: without it no norm leaves the
    plateau of the start in so few updates."""
    return Config(
        corpus="books-cloze", updates=5000, batch_size=32, words=64, hidden=64, vocabulary=5000, initial=initial,
        prior=True, evaluate_every=250,
    )  # fmt: skip


def _trial(initial: Literal["source", "torch"], about: str) -> Trial:
    options = shared(laptop(initial), "gain_init")
    command = "layernorm run reader --gain-init 1"
    rates: tuple[float, ...] = (1e-3, 2e-3, 4e-3, 8e-3)
    if initial == "torch":  # layer norm is first at 0.016
        command += " --initial torch --learning-rate 1e-3 2e-3 4e-3 8e-3 1.6e-2 3.2e-2"
        rates = (*rates, 1.6e-2, 3.2e-2)
    return Trial(options, rates, updates=5000, paper=500_000, hours=0.04, command=command, about=about)


MAIN = _trial("source", "")
TORCH = _trial("torch", "torch's initial weights")

GOALS = {"source": 0.54, "torch": 0.56}
"""The validation errors to which updates are counted: each pilot run at its norm's best rate reaches it."""

LAYER, NONE = Arm("layer", {"gain_init": 1.0}), Arm("none")


def _speed_and_error(initial: str, trial: Trial) -> tuple[Claim, Claim]:
    speed = Sooner("valid_error", "a validation error", goal=GOALS[initial], unit=" %", scale=100)
    lowest = Value("valid_error", "lowest validation error, %", best=True, scale=100, margin=1.0)
    text, where, figure = "With layer norm the attentive reader {}.", "6.2, Figure 2", "laptop/figure2.png"
    return (
        Claim(text.format("trains faster"), where, LAYER, NONE, speed, trial, figure),
        Claim(text.format("has a lower validation error"), where, LAYER, NONE, lowest, trial, figure),
    )


CLAIMS = (
    *_speed_and_error("source", MAIN),
    *_speed_and_error("torch", TORCH),
    Claim(
        "Over all learning rates the attentive reader is better with layer norm.", "ours", LAYER, NONE,
        Robustness("valid_error", "mean over the rates of the lowest validation error, %", scale=100, margin=1.0),
        MAIN, "laptop/sensitivity.png",
    ),
)  # fmt: skip
