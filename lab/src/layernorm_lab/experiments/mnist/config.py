"""The options of the experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...config import TrainingConfig, batch_option, decay_option, norm_option, option, rate_option, seed_option

BATCH_NORMS = ("batch", "batch-hidden")


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Options of the experiment. The defaults are the paper's protocol."""

    norm: Literal["none", "layer", "batch", "batch-hidden"] = norm_option(
        "what is normalised: nothing; the hidden layers (layer, batch-hidden); all layers, the logits too (batch)"
    )
    batch_size: int = batch_option(128, "training cases", in_name=True)
    seed: int = seed_option("seeds of the initial weights and of the order of the training cases")
    epochs: int = option(60, "passes over the training set", least=1)
    decay: float = decay_option()
    hidden: int = option(1000, "units in each of the two hidden layers", least=2)
    learning_rate: float = rate_option(1e-3)
    held_out: int = option(5000, "cases at the end of the training set that are kept for validation", least=1)
    train_cases: int = option(0, "number of cases to train on, from the first on (0: all)", least=0)
    unbiased_up_to: int = option(4, "largest batch size M at which batch norm's variance divides by M - 1", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm in BATCH_NORMS and self.batch_size == 1:
            raise ValueError("--batch-size must be at least 2 for batch norm, got 1")
