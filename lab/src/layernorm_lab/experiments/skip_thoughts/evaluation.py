"""Evaluation of sentence vectors: relatedness of pairs on SICK, and classification by logistic regression."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data.books import tokens
from ...data.sentences import Labelled
from ...data.sick import HIGHEST, LOWEST, Pairs, Sick
from .encoder import Encode

FOLDS, SHUFFLE = 10, 1234
"""The number of folds of the cross-validation, and the seed by which the sentences are shuffled."""

INNER, FAST_INNER = 10, 3
"""The number of folds by which C is chosen within the training part of each fold."""

PENALTIES = tuple(2.0**power for power in range(9))
"""The values of C, the inverse of the penalty, to choose from."""

BLOCK, BATCH = 100, 128
"""On SICK: the epochs between evaluations on the trial set, which are a block, and the pairs of a batch."""

BLOCKS = 30
"""The most blocks. On SICK itself the trial set's correlation falls after about 15."""


def soft_labels(scores: np.ndarray) -> np.ndarray:
    """Turns scores `[M]` into distributions over the five classes, float32 `[M, 5]`: each is split between the two
    whole numbers next to it. 4.2 is 0.8 of class 4 and 0.2 of class 5 (Tai, Socher, Manning 2015)."""
    low = np.floor(scores).astype(np.int64)
    labels = np.zeros((len(scores), HIGHEST + 1), np.float32)  # one column more: 5.0 adds 0 to class 6
    rows = np.arange(len(scores))
    labels[rows, low - LOWEST] = 1 - (scores - low)
    labels[rows, low - LOWEST + 1] += scores - low
    return labels[:, :HIGHEST]


def pair_features(first: Tensor, second: Tensor) -> Tensor:
    """Computes the features for the relatedness of two sentences: |u - v| and u v, `[M, H]` each -> `[M, 2 H]`."""
    return torch.cat([(first - second).abs(), first * second], dim=1)


def measures(predicted: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """Pearson's and Spearman's correlation and the mean squared error. A correlation with a constant is 0."""
    from scipy import stats

    constant = predicted.std() == 0 or scores.std() == 0
    return {
        "pearson": 0.0 if constant else float(stats.pearsonr(predicted, scores).statistic),
        "spearman": 0.0 if constant else float(stats.spearmanr(predicted, scores).statistic),
        "mse": float(np.square(predicted - scores).mean()),
    }


def relatedness(encode: Encode, data: Sick) -> tuple[dict[str, float], Tensor]:
    """Evaluates SICK by softmax regression on `pair_features`: measures on the test pairs, and their squared errors
    `[M]`.

    Adam trains on the soft labels, in the order of the file, until a block does not raise the trial set's Pearson
    correlation, and for at most `BLOCKS` blocks. The model of the best block is used. A prediction is the expected
    class. Sentences end with the end sign.

    Source: the public code of Kiros et al., "Skip-Thought Vectors", 2015, which shuffles the training pairs once.
    """
    splits = (data.train, data.trial, data.test)
    vectors = encode([tokens(text) for pairs in splits for text in (*pairs.first, *pairs.second)], True)
    parts = vectors.split([len(pairs) for pairs in splits for _ in range(2)])
    train, trial, test = (pair_features(*parts[2 * number : 2 * number + 2]) for number in range(3))
    model = _regression(train, data.train, trial, data.trial)
    predicted = _expected(model, test)
    metrics = measures(predicted, data.test.scores)
    trials = measures(_expected(model, trial), data.trial.scores)["pearson"]
    errors = torch.from_numpy(np.square(predicted - data.test.scores)).float()
    return {**{f"sick_{name}": value for name, value in metrics.items()}, "sick_trial_pearson": trials}, errors


@torch.enable_grad()
def _regression(train: Tensor, pairs: Pairs, trial: Tensor, trials: Pairs) -> nn.Linear:
    model = nn.Linear(train.shape[1], HIGHEST)
    nn.init.zeros_(model.weight)  # the loss is convex, so that no seed is needed
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    labels = torch.from_numpy(soft_labels(pairs.scores))
    batches = list(zip(train.split(BATCH), labels.split(BATCH), strict=True))
    best = -np.inf
    kept: dict[str, Tensor] = {}
    for _ in range(BLOCKS):
        for features, wanted in batches * BLOCK:
            F.cross_entropy(model(features), wanted).backward()
            optimizer.step()
            optimizer.zero_grad()
        score = measures(_expected(model, trial), trials.scores)["pearson"]
        if not score > best:
            break
        best, kept = score, {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(kept)
    return model


@torch.no_grad()
def _expected(model: nn.Linear, features: Tensor) -> np.ndarray:
    """Computes the expected class of each pair, float64 `[M]`."""
    classes = torch.arange(LOWEST, HIGHEST + 1, dtype=torch.float64)
    return (model(features).double().softmax(1) @ classes).numpy()


def classification(
    encode: Encode, sets: Mapping[str, Labelled], fast: bool
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Computes the accuracy in percent on each set by `cross_validated`, and whether each sentence was classified
    correctly."""
    metrics, tensors = {}, {}
    for name, data in sets.items():
        vectors = encode([tokens(text) for text in data.texts], False)
        right = cross_validated(vectors.numpy(), data.classes, fast)
        metrics[name] = 100 * float(right.mean())
        tensors[name] = torch.from_numpy(right.astype(np.uint8))
    return metrics, tensors


def cross_validated(vectors: np.ndarray, classes: np.ndarray, fast: bool) -> np.ndarray:
    """Tells whether logistic regression on vectors `[M, H]` gives each sentence its class, 0 or 1, in a ten-fold cross-
    validation, bool `[M]`. Within each fold's training part an inner one of 10 folds, or `fast` of 3, chooses C."""
    from sklearn.model_selection import KFold

    right = np.zeros(len(classes), bool)
    for rest, held in KFold(FOLDS, shuffle=True, random_state=SHUFFLE).split(vectors):
        x, y = vectors[rest], classes[rest]
        inner = KFold(FAST_INNER if fast else INNER, shuffle=True, random_state=SHUFFLE)
        scores = sum(_path(x[fit], y[fit], x[check], y[check], PENALTIES)[0] for fit, check in inner.split(x))
        best = PENALTIES[int(np.argmax(scores))]
        right[held] = _path(x, y, vectors[held], classes[held], [best])[1]
    return right


def _path(
    x: np.ndarray, y: np.ndarray, held: np.ndarray, wanted: np.ndarray, penalties: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Fits L2 logistic regression at each C, from weak to strong fits, each starting from the one before. Returns the
    number of held-out cases that each fit gets right, and which of them the last fit gets right."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(warm_start=True, max_iter=1000, tol=1e-5)
    counts = []
    for model.C in penalties:
        with warnings.catch_warnings():
            # status 2: the line search finds no lower loss because of rounding, so the fit is at its end
            warnings.filterwarnings("ignore", message=r"lbfgs failed to converge after \d+ iteration\(s\) \(status=2\)")
            model.fit(x, y)
        right = model.predict(held) == wanted
        counts.append(right.sum())
    return np.array(counts), right
