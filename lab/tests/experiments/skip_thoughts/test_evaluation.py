"""SICK's labels and measures on hand-made cases, the cross-validation, and vectors of sentences."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F

from layernorm_lab.data.sick import Pairs, Sick
from layernorm_lab.data.text import Vocabulary
from layernorm_lab.experiments.skip_thoughts import encoder as encoding
from layernorm_lab.experiments.skip_thoughts import evaluation
from layernorm_lab.experiments.skip_thoughts.config import Config
from layernorm_lab.experiments.skip_thoughts.encoder import Encoder, Expansion
from layernorm_lab.experiments.skip_thoughts.network import build_skip_thoughts


@pytest.fixture(autouse=True)
def _few_features(monkeypatch):
    monkeypatch.setattr(encoding, "FEATURES", 256)


def test_soft_labels_split_a_score_between_its_neighbours():
    labels = evaluation.soft_labels(np.array([1.0, 4.25, 5.0, 2.5]))
    assert labels.tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 0.75, 0.25], [0, 0, 0, 0, 1], [0, 0.5, 0.5, 0, 0]]
    scores = np.linspace(1, 5, 41)
    # the expectation is the score: in float32
    np.testing.assert_allclose(evaluation.soft_labels(scores) @ np.arange(1, 6), scores, rtol=1e-6)


def test_the_three_measures_on_a_case_worked_by_hand():
    predicted, scores = np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 2.0])
    found = evaluation.measures(predicted, scores)
    # deviations (-4/3, -1/3, 5/3) and (-1, 1, 0): 1 / sqrt(14/3 * 2); ranks 1 2 3 and 1 3 2: 0.5; (0 + 1 + 4) / 3
    assert found["pearson"] == pytest.approx(1 / np.sqrt(28 / 3))
    assert found["spearman"] == pytest.approx(0.5)
    assert found["mse"] == pytest.approx(5 / 3)
    assert evaluation.measures(np.full(3, 2.0), scores) == {"pearson": 0, "spearman": 0, "mse": pytest.approx(2 / 3)}
    random = np.random.default_rng(0)
    first, second = random.integers(0, 5, 50).astype(float), random.normal(size=50)
    found = evaluation.measures(first, second)
    assert found["pearson"] == pytest.approx(np.corrcoef(first, second)[0, 1])
    # Spearman's is Pearson's of the ranks, ties sharing theirs
    ranks = [stats.rankdata(item) for item in (first, second)]
    assert found["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1])


def test_the_features_of_a_pair():
    found = evaluation.pair_features(torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0, 0.5]]))
    assert found.tolist() == [[2.0, 2.5, 3.0, -1.0]]


def test_relatedness_finds_what_the_vectors_tell_and_uses_the_end_sign(monkeypatch):
    monkeypatch.setattr(evaluation, "BLOCKS", 8)
    monkeypatch.setattr(evaluation, "BATCH", 400)
    angles = {f"word{number}": number * np.pi / 20 for number in range(11)}
    ends = []

    def encode(sentences, end):
        ends.append(end)
        return torch.tensor([[np.cos(angles[words[0]]), np.sin(angles[words[0]])] for words in sentences]).float()

    def pairs(count, seed):
        random = np.random.default_rng(seed)
        first, second = ([f"word{number}" for number in random.integers(0, 11, count)] for _ in range(2))
        cosines = [np.cos(angles[a] - angles[b]) for a, b in zip(first, second, strict=True)]
        return Pairs(first, second, 1 + 4 * np.array(cosines).clip(0, 1))

    data = Sick(pairs(400, 0), pairs(80, 1), pairs(90, 2), {})
    metrics, errors = evaluation.relatedness(encode, data)
    assert ends == [True]
    assert metrics["sick_pearson"] > 0.85
    assert metrics["sick_mse"] == pytest.approx(float(errors.double().mean()), rel=1e-5)  # kept in float32
    assert errors.shape == (90,)
    # the test pairs teach nothing
    other = dataclasses.replace(data, test=Pairs(data.test.first, data.test.second, 6 - data.test.scores))
    again, _ = evaluation.relatedness(encode, other)
    assert again["sick_trial_pearson"] == metrics["sick_trial_pearson"]
    assert again["sick_pearson"] == pytest.approx(-metrics["sick_pearson"])


@pytest.mark.parametrize(("fast", "inner"), [(True, 3), (False, 10)])
def test_the_cross_validation_against_one_that_starts_every_fit_anew(monkeypatch, fast, inner):
    random = np.random.default_rng(0)
    x = random.normal(size=(120, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = (x[:, 0] + 0.4 * random.normal(size=120) > 0.2).astype(int)
    penalties = (1.0, 16.0)
    assert (evaluation.INNER, evaluation.FAST_INNER) == (10, 3)
    monkeypatch.setattr(evaluation, "PENALTIES", penalties)
    monkeypatch.setattr(evaluation, "FOLDS", 4)
    order = lambda count, folds: np.array_split(np.random.RandomState(1234).permutation(count), folds)  # noqa: E731

    def right(fit, check, c):
        return LogisticRegression(C=c, tol=1e-8, max_iter=1000).fit(x[fit], y[fit]).predict(x[check]) == y[check]

    expected = np.zeros(120, bool)
    for held in order(120, 4):
        rest = np.setdiff1d(np.arange(120), held)
        parts = [(np.setdiff1d(rest, rest[part]), rest[part]) for part in order(len(rest), inner)]
        scores = [sum(right(fit, check, c).sum() for fit, check in parts) for c in penalties]
        expected[held] = right(rest, held, penalties[int(np.argmax(scores))])
    found = evaluation.cross_validated(x, y, fast)
    # a fit that ends a little earlier may decide a case at the boundary otherwise
    assert (found == expected).mean() > 0.97
    assert 0.7 < found.mean() < 1


def encoder(norm="layer"):
    config = Config(norm=norm, vocabulary=12, words=5, hidden=6)
    words = ["the", "dog", "dogs", "saw", "a", "cat", "cats", "red", "hat", "hats"]
    return Encoder(build_skip_thoughts(config, 12).eval(), Vocabulary(words))


SENTENCES = [["the", "dog"], ["a", "cat", "saw", "the", "hat"], ["dog"], ["the", "dog"], ["a", "zebra", "saw"]]


@pytest.mark.parametrize("end", [False, True])
def test_sentences_are_encoded_as_each_alone_by_the_networks_equations(end):
    found = encoder().last_states(SENTENCES, end)
    model, vocabulary = encoder().model, encoder().vocabulary
    for row, words in zip(found[:4], SENTENCES, strict=False):
        ids = torch.tensor([*vocabulary.ids(words), *([0] if end else [])]).unsqueeze(1)
        _, state = model.encoder(model.words(ids))
        torch.testing.assert_close(row, F.normalize(state[0, 0], dim=0).detach(), rtol=1e-5, atol=1e-6)
    assert torch.equal(found[0], found[3])
    assert not torch.allclose(found, encoder().last_states(SENTENCES, not end)), "the end must be seen"


def test_bags_are_means_of_embeddings_and_layer_norm_centres_them():
    plain, normed = (encoder(norm).bags(SENTENCES[:2], False) for norm in ("none", "layer"))
    table, ids = encoder().model.words.weight.detach(), encoder().vocabulary.ids(SENTENCES[1])
    mean = table[ids].mean(0)
    torch.testing.assert_close(plain[1], F.normalize(mean, dim=0))
    centred = mean - mean.mean()
    torch.testing.assert_close(normed[1], F.normalize(centred, dim=0), rtol=1e-4, atol=1e-5)  # eps scales, no more


def test_words_outside_the_vocabulary_get_embeddings_from_their_letters():
    stems = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "bdgklmnprt"]
    words = [stem + ending for stem in stems for ending in ("ing", "ness")]
    torch.manual_seed(0)
    table = 0.1 * torch.randn(len(words) + 2, 4)
    table[2::2, 0] += 3  # all words with the ending -ing
    expansion = Expansion(Vocabulary(words), table)
    ing, ness = expansion(["zazing", "xoxness"])
    assert float(ing[0]) > 2
    assert float(ness[0]) < 1
    network = encoder()
    known = network.last_states([["the", "dog"]], False)
    unknown = network.last_states([["the", "dogged"], ["the", "qqq"]], False)
    assert not torch.allclose(unknown[0], unknown[1])
    assert not torch.allclose(known[0], unknown[0])
    # learned words keep their embeddings; another batch may be summed in another order
    torch.testing.assert_close(network.last_states([["the", "qqq"], ["the", "dog"]], False)[1], known[0])
