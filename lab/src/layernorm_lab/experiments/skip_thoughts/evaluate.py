"""`layernorm evaluate RUN`: a row of Table 3 for a run's newest checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...config import option
from ...data import sentences, sick
from ...protocol import Tool
from ...runs.folder import Run
from ...runs.restore import training_data
from .experiment import Data, check_classes, encoders, scores
from .trained import trained_encoder


@dataclass(frozen=True)
class EvaluateOptions:
    """The options of `layernorm evaluate`."""

    row: Literal["trained", "untrained", "bag", "random_bag"] = option(
        "trained",
        "what to evaluate: the trained encoder, the untrained encoder, the mean of the trained word embeddings (bag), "
        "or the mean of untrained ones (random_bag)",
    )
    fast_eval: bool = option(False, "in the classification tasks, choose C by 3 inner folds instead of 10")
    data: Path | None = option(
        None, "folder that has the folders `books`, `sick` and `sentences` (else those of the run's training)"
    )


def evaluation_lines(run: Run, texts: Sequence[str], options: EvaluateOptions) -> list[str]:
    """Lists the measures of SICK and the accuracies on the classification tasks."""
    encoder, config, books, update = trained_encoder(run, options.data)
    data = Data(
        books,
        training_data(run, options.data, sick.SICK.load, "sick"),
        training_data(run, options.data, sentences.SENTENCES.load, "sentences"),
    )
    check_classes(data.classified)
    encode = encoders(encoder.model, config, data)[options.row]
    metrics, _ = scores(encode, data, options.fast_eval)
    folds = "3 inner folds (--fast-eval)" if options.fast_eval else "10 inner folds"
    lines = [f"{options.row.replace('_', ' ')}, {config.norm}, update {update}; C by {folds}"]
    lines += [f"  SICK {name:<13} {metrics[f'sick_{name}']:.3f}" for name in ("pearson", "spearman", "mse")]
    return lines + [f"  {name.upper():<18} {metrics[name]:.1f} %" for name in sentences.FILES]


TOOL = Tool(
    experiment="skip-thoughts",
    texts=None,
    options=EvaluateOptions,
    ask=evaluation_lines,
    examples=("layernorm evaluate RUN --fast-eval", "layernorm evaluate RUN --row bag"),
)
