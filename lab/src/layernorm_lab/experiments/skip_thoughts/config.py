"""The options of the experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...config import TrainingConfig, batch_option, decay_option, norm_option, option, rate_option, seed_option


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Options of the experiment. The defaults are the paper's protocol."""

    norm: Literal["none", "layer", "rms", "weight"] = norm_option(
        "what the summed inputs of encoder and decoders are normalised by"
    )
    learning_rate: float = rate_option(2e-4, "learning rate", in_name=True)
    seed: int = seed_option("seeds of the initial weights and of the order of the sentences")
    updates: int = option(1_000_000, "updates of the weights", least=1)
    batch_size: int = batch_option(64, "triples of sentences")
    decay: float = decay_option()
    vocabulary: int = option(20_000, "most frequent words, with the sentence's end and the unknown word", least=3)
    words: int = option(620, "size of a word's embedding", least=1)
    hidden: int = option(2400, "units of the encoder and of each decoder", least=1)
    optimizer: Literal["legacy_adam", "adam"] = option(
        "legacy_adam", "legacy_adam: the original code's Adam, with nearly no bias correction; adam: torch's"
    )
    clip: float = option(5.0, "largest norm of the whole gradient", above=0)
    evaluate_every: int = option(50_000, "updates between evaluations", least=1)
    tasks_every: int = option(
        1,
        "SICK and the classification tasks run at each evaluation whose number it divides, and at the end (0: never)",
        least=0,
    )
    fast_eval: bool = option(
        False, "with fast evaluation, the classification tasks choose C by 3 inner folds; without it, by 10"
    )
    held_out_triples: int = option(
        2000, "triples of the validation books, and of the test books, evenly spread (0: all)", least=0
    )
