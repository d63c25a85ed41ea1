"""The options of the experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...config import TrainingConfig, batch_option, decay_option, norm_option, option, rate_option, seed_option

BATCH_GAIN = 0.1
"""The initial gain of batch norm (Cooijmans et al. 2016)."""


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Options of the experiment. The defaults are the paper's protocol."""

    norm: Literal["none", "layer", "batch", "batch-everywhere"] = norm_option(
        "norm of the LSTMs' summed inputs; batch-everywhere has batch norm also in the attention and the output"
    )
    gain_init: float | Literal["steady"] = option(
        1.0,
        "initial gains of layer norm, or steady: 0.6 for that of W_hh h, 1 for all others (batch norm's are always "
        "0.1; the baseline has none and is named 1)",
        in_name=True,
        prefix="g",
        above=0,
    )
    learning_rate: float = rate_option(8e-5, in_name=True)
    seed: int = seed_option(
        "seeds of the initial weights, of the order of the questions, of the entities' ids and of dropout"
    )
    corpus: Literal["cnn", "books-cloze"] = option("cnn", "data set")
    updates: int = option(500_000, "updates of the weights", least=1)
    batch_size: int = batch_option(64, "questions", least=2)
    words: int = option(240, "size of a word's embedding", least=1)
    hidden: int = option(240, "units of each LSTM and of the attention", least=1)
    decay: float = decay_option()
    vocabulary: int = option(0, "size of the vocabulary: the most frequent words and all entities (0: all)", least=0)
    initial: Literal["source", "torch"] = option(
        "source", "initial matrices: as in the original code, or uniform as in torch; biases are 0 in both"
    )
    forget_bias: float = option(0.0, "initial bias of the LSTMs' forget gates", least=0)
    prior: bool = option(
        False, "with the prior, the answer's bias starts at the log frequency of each word as an answer; else at 0"
    )
    dropout: float = option(0.5, "share of the embeddings and of the output's inputs that is dropped", least=0, below=1)
    clip: Literal["source", "norm10"] = option(
        "source", "clipping of the gradient g of norm n: to 10 g / sqrt(n) where n > 100 (source), or to norm 10"
    )
    bn_eval: Literal["batch", "population"] = option(
        "batch", "statistics of batch norm in evaluation: those of the evaluated mini-batch, or the population's"
    )
    evaluate_every: int = option(1000, "updates between evaluations on the validation set", least=1)
    evaluate_cases: int = option(0, "validation questions to evaluate on (0: all)", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm != "layer":  # a fixed value, so that several gains do not make the same run several times
            object.__setattr__(self, "gain_init", 1.0 if self.norm == "none" else BATCH_GAIN)

    @property
    def evaluates_by_batch(self) -> bool:
        """Whether batch norm takes its statistics from the evaluated questions, of which it then needs two."""
        return self.norm.startswith("batch") and self.bn_eval == "batch"
