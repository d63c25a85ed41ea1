"""The paper's claims about order embeddings, and the trials that decide them."""

from __future__ import annotations

import dataclasses

from ...report.judge import (
    Arm,
    Claim,
    Kept,
    NearBest,
    Plan,
    Robustness,
    Rung,
    Summed,
    Trial,
    UpdatesToGoal,
    Value,
    shared,
)
from .config import Config

LAPTOP = Config(epochs=25, words=128, hidden=256, evaluate_every=25)
"""The options of the laptop preset and of the first trial."""

TRIAL = Trial(
    shared(LAPTOP),
    (1e-3, 2e-3, 4e-3, 8e-3),
    updates=1150,
    paper=88_500,
    about="25 epochs instead of 100",
)

_RUNGS = (Rung({"epochs": 25, "evaluate_every": 25}, keep=2), Rung())
CONVERGED = Trial(
    shared(Config(epochs=100, words=128, hidden=256, evaluate_every=50)),
    (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
    updates=4600,
    paper=88_500,
    plan=Plan(_RUNGS, seeds=tuple(range(20, 28)), looks=(5, 8)),
)
"""Trial 1 of docs/results/trials.md, written before its runs."""

STEADIER = dataclasses.replace(
    CONVERGED,
    plan=Plan(_RUNGS, seeds=tuple(range(30, 40)), looks=(5, 10), tried={"layer": (4e-3,), "none": (2e-3,)}),
    about="a steadier measure than the update of the best model",
)
"""Trial 10 of docs/results/trials.md: new pairs at the rates of trial 1."""

GOAL = 98.0
"""The sum of recalls to which the updates are counted. Fixed on 2026-11-23, after the pilot and before the trial: the
baseline at its best rate passes it with both seeds."""

_RECALL, _WHAT = "valid_image_recall", "R@1 + R@5 + R@10 of the images found for a caption, at most 300"
_LAYER, _NONE = Arm("layer"), Arm("none")
_KEPT = Value(_RECALL, f"best validation recall, {_WHAT}", rising=True, best=True, digits=1, margin=2.0)


def _tested(kind: str, text: str, margin: float) -> Summed:
    """Makes the measure of Table 2: the recalls of the kept model on the test set."""
    names = tuple(f"test_{kind}_r{count}" for count in (1, 5, 10))
    return Summed(_RECALL, f"test recall, R@1 + R@5 + R@10 of the {text}, at most 300", _KEPT, True, margin, digits=1,
                  names=names)  # fmt: skip


CLAIMS = (
    Claim("Layer norm's order embeddings retrieve images better.", "6.1, Table 2", _LAYER, _NONE,
          _tested("image", "images found for a caption", 3.3), CONVERGED, "laptop/figure1.png"),
    Claim("Layer norm's order embeddings retrieve captions better.", "6.1, Table 2", _LAYER,
          _NONE, _tested("caption", "captions found for an image", 7.6), CONVERGED, "laptop/figure1.png"),
    Claim("Layer norm's order embeddings have their best model sooner (in the paper in 60 % of the time).",
          "6.1, Figure 1", _LAYER, _NONE, Kept("kept_update", "updates to the best model on validation data", _KEPT),
          CONVERGED, "laptop/figure1.png"),
    Claim("Layer norm's order embeddings have their best model sooner (in the paper in 60 % of the time).",
          "6.1, Figure 1", _LAYER, _NONE,
          NearBest(_RECALL, "updates to 98 % of the run's own best validation recall", _KEPT), STEADIER),
    Claim("Layer norm's order embeddings train faster.", "6.1, Figure 1", _LAYER, _NONE,
          UpdatesToGoal(_RECALL, "a validation recall (sum of R@K)", _KEPT, True), CONVERGED,
          "laptop/figure1.png"),
    Claim("Layer norm's order embeddings retrieve images better.", "6.1, Table 2", _LAYER, _NONE,
          _KEPT, TRIAL, "laptop/figure1.png"),
    Claim("Layer norm's order embeddings train faster.", "6.1, Figure 1", _LAYER,
          _NONE, UpdatesToGoal(_RECALL, "a validation recall (sum of R@K)", goal=GOAL, rising=True), TRIAL,
          "laptop/figure1.png"),
    Claim("Over all learning rates order embeddings are better with layer norm.", "ours", _LAYER, _NONE,
          Robustness(_RECALL, f"mean over the rates of the best validation recall, {_WHAT}", rising=True, digits=1,
                     margin=2.0), TRIAL, "laptop/sensitivity.png"),
)  # fmt: skip
