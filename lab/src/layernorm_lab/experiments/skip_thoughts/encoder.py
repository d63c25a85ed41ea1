"""Sentences as vectors, by a trained encoder or as a mean of embeddings. Words may also be outside the vocabulary."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ...data.text import EOS, UNKNOWN, Sentences, Vocabulary
from .network import SkipThoughts

CHUNK = 512
"""The number of sentences that are encoded together."""

NGRAMS, SIZES, FEATURES = "char_wb", (2, 5), 2048
"""A word's features are its character n-grams of these sizes, with its ends marked, hashed into `FEATURES` columns."""

PENALTY = 1.0
"""The penalty of the linear regression from features to embeddings, which is needed as n-grams are correlated."""

Words = Sequence[Sequence[str]]
"""Sentences as words in small letters."""

Encode = Callable[[Words, bool], Tensor]
"""(sentences, whether each ends with the end sign) -> float32 `[M, H]`, each of length 1."""


class Expansion:
    """Embeddings for words outside a vocabulary, by linear regression with intercept from a word's character n-grams.

    The original regresses from word2vec vectors, which are a download of gigabytes. Character n-grams need no download,
    and every word has some. Words of the vocabulary keep their learned embeddings.

    Args:
        vocabulary: the words that the regression is fitted to.
        table: their embeddings, `[V, D]`.
    """

    def __init__(self, vocabulary: Vocabulary, table: Tensor) -> None:
        features, targets = _features(vocabulary.words), table[UNKNOWN + 1 :].cpu().numpy()
        self._centre = np.asarray(features.mean(0)).ravel()
        self._intercept = targets.mean(0)
        # a sparse product: with dense features it would take most of an evaluation's time
        gram = (features.T @ features).toarray() - features.shape[0] * np.outer(self._centre, self._centre)
        gram[np.diag_indices_from(gram)] += PENALTY
        self._weight = np.linalg.solve(gram, features.T @ (targets - self._intercept))

    def __call__(self, words: Sequence[str]) -> Tensor:
        """Embeddings `[U, D]`."""
        return torch.from_numpy(_features(words) @ self._weight - self._centre @ self._weight + self._intercept)


def _features(words: Sequence[str]) -> Any:
    """Hashes words into sparse float32 `[U, FEATURES]`, rows of length 1."""
    from sklearn.feature_extraction.text import HashingVectorizer

    hashing = HashingVectorizer(analyzer=NGRAMS, ngram_range=SIZES, n_features=FEATURES, dtype=np.float32)
    return hashing.transform(words)


class Encoder:
    """Turns sentences into vectors of length 1 by a network.

    Args:
        model: in evaluation mode.
        vocabulary: the words of its ids.
    """

    def __init__(self, model: SkipThoughts, vocabulary: Vocabulary) -> None:
        self.model, self.vocabulary = model, vocabulary

    @functools.cached_property
    def _expansion(self) -> Expansion:
        return Expansion(self.vocabulary, self.model.words.weight.detach())

    @torch.no_grad()
    def last_states(self, sentences: Words, end: bool) -> Tensor:
        """Computes the encoder's last states, `[M, H]`, for sentences of at least one word each."""
        return self._by_length(sentences, end, self.model.encode, self.model.encoder.hidden_size)

    @torch.no_grad()
    def bags(self, sentences: Words, end: bool) -> Tensor:
        """Computes the means of the words' embeddings, `[M, D]`. Where the network has layer norm, they are
        layer-normalised."""
        normed = self.model.encoder.norm == "layer"

        def mean(inputs: Tensor, lengths: Tensor) -> Tensor:
            inside = torch.arange(len(inputs), device=inputs.device).unsqueeze(1) < lengths
            means = (inputs * inside.unsqueeze(-1)).sum(0) / lengths.unsqueeze(-1)
            return F.layer_norm(means, means.shape[1:]) if normed else means

        return self._by_length(sentences, end, mean, self.model.words.embedding_dim)

    def _by_length(self, sentences: Words, end: bool, encode: Callable[[Tensor, Tensor], Tensor], size: int) -> Tensor:
        """Vectors of length 1 for sentences. Those of similar length are encoded together, and equal ones once."""
        unique = list(dict.fromkeys(map(tuple, sentences)))
        place = {sentence: number for number, sentence in enumerate(unique)}
        ids, table = self._numbered(unique)
        rows = Sentences.of([[*row, EOS] for row in ids] if end else ids)
        vectors = torch.empty(len(unique), size, device=table.device)
        for part in rows.lengths.argsort(stable=True).split(CHUNK):
            batch, lengths = (item.to(table.device) for item in rows.batch(part))
            vectors[part] = F.normalize(encode(F.embedding(batch, table), lengths), dim=1)
        return vectors[[place[tuple(sentence)] for sentence in sentences]].cpu()

    def _numbered(self, sentences: Words) -> tuple[list[list[int]], Tensor]:
        """Sentences as ids of a table: the network's embeddings, and below them a row for each word that they lack."""
        table = self.model.words.weight.detach()
        new = list(dict.fromkeys(word for row in sentences for word in row if word not in self.vocabulary))
        if not new:
            return [self.vocabulary.ids(row) for row in sentences], table
        beyond = {word: number for number, word in enumerate(new, len(table))}
        ids = [
            [beyond.get(word, known) for word, known in zip(row, self.vocabulary.ids(row), strict=True)]
            for row in sentences
        ]
        return ids, torch.cat([table, self._expansion(new).to(table)])
