"""Both losses against slow loops in float64, and ranks on matrices that one can sort by hand."""

import math
import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

from layernorm_lab.experiments.order_embeddings import objective
from layernorm_lab.experiments.order_embeddings.objective import penalties, ranking_loss, ranks, recalls


def points(count, size=7, sign=True):
    rows = F.normalize(torch.randn(count, size, dtype=torch.float64), dim=1)
    return rows if sign else rows.abs()


def slow_penalty(sentence, image, similarity):
    """E(s, v) of one pair, by its definition."""
    total = 0.0
    for s, v in zip(sentence, image, strict=True):
        total += -s * v if similarity == "cosine" else max(torch.zeros(()).double(), s - v) ** 2
    return total


def slow_loss(sentences, images, similarity, margin):
    """The sum over wrong pairs, one pair at a time."""
    total = 0.0
    zero = torch.zeros(()).double()
    for i in range(len(sentences)):
        for j in range(len(images)):
            if i != j:
                wrong = slow_penalty(sentences[i], images[j], similarity)
                for own in (i, j):  # another image for the sentence, another sentence for the image
                    right = slow_penalty(sentences[own], images[own], similarity)
                    total += max(zero, margin - wrong + right)
    return total


@pytest.mark.parametrize(("similarity", "margin"), [("order", 0.05), ("cosine", 0.2), ("order", 1.0)])
@pytest.mark.parametrize("elements", [1, 3 * 35, 2**17])  # of the differences at a time: a row, some rows, all
def test_loss_and_gradients_are_those_of_a_slow_loop(similarity, margin, elements, monkeypatch):
    monkeypatch.setattr(objective, "ELEMENTS", elements)
    given = [points(5, sign=similarity == "cosine").requires_grad_() for _ in range(2)]
    loss = ranking_loss(penalties(*given, similarity), margin)
    slow = slow_loss(*given, similarity, margin)
    assert loss.item() > 0
    # sums of at most 40 terms in float64, taken in another order
    torch.testing.assert_close(loss, slow, rtol=1e-12, atol=1e-13)
    gradients = (torch.autograd.grad(found, given) for found in (loss, slow))
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_penalties_of_unequal_numbers_and_of_none():
    sentences, images = points(4, sign=False), points(3, sign=False)
    expected = torch.stack([torch.stack([slow_penalty(s, v, "order") for v in images]) for s in sentences])
    torch.testing.assert_close(penalties(sentences, images, "order"), expected, rtol=1e-12, atol=1e-14)
    assert penalties(sentences[:0], images, "order").shape == (0, 3)
    assert penalties(sentences, images[:0], "order").shape == (4, 0)


def test_the_gradient_in_float32_is_that_in_float64():
    wide = [points(9, sign=False).requires_grad_() for _ in range(2)]
    narrow = [item.detach().float().requires_grad_() for item in wide]
    truth, found = (
        torch.autograd.grad(ranking_loss(penalties(*given, "order"), 0.05), given) for given in (wide, narrow)
    )
    for one, other in zip(found, truth, strict=True):
        # at most 16 active terms of size up to 2 add up; each rounds by 6e-8
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("similarity", ["order", "cosine"])
def test_the_loss_under_autocast_is_that_of_float32(similarity):
    given = [points(9).float() for _ in range(2)]
    with torch.autocast("cpu", torch.bfloat16):
        found = penalties(*given, similarity)
    assert torch.equal(found, penalties(*given, similarity))


def test_a_sentence_that_says_less_than_the_image_has_no_penalty():
    image = torch.tensor([[0.6, 0.8, 0.0]])
    assert penalties(torch.tensor([[0.6, 0.0, 0.0]]), image, "order").item() == 0
    assert penalties(torch.tensor([[0.6, 0.0, 0.5]]), image, "order").item() == 0.25


# two captions an image; sentences 0, 1 belong to image 0 and so on
MATRIX = torch.tensor(
    [
        [0.1, 0.5, 0.6],  # right image first
        [0.9, 0.2, 0.3],  # last
        [0.4, 0.3, 0.7],  # first
        [0.0, 0.8, 0.9],  # second
        [0.5, 0.5, 0.5],  # all alike: wrong ones stand before
        [0.2, 0.4, 0.3],  # second
    ]
)


def test_ranks_by_hand_with_ties():
    captions, images = ranks(MATRIX, 2)
    assert images.tolist() == [0, 2, 0, 1, 2, 1]
    # image 0: its best caption 0.1; of others' 0.4, 0.0, 0.5, 0.2 one is no worse
    # image 1: its best 0.3; others' 0.5, 0.2, 0.5, 0.4: one
    # image 2: its best 0.3; others' 0.6, 0.3 (a tie), 0.7, 0.9: one
    assert captions.tolist() == [1, 1, 1]


def test_a_network_that_finds_all_alike_is_last_not_first():
    captions, images = ranks(torch.zeros(15, 3), 5)
    assert images.tolist() == [2] * 15
    assert captions.tolist() == [10] * 3


def test_ranks_are_those_of_sorting():
    penalty = torch.rand(40, 8)  # five captions an image; no ties
    captions, images = ranks(penalty, 5)
    for sentence in range(40):
        assert penalty[sentence].argsort().tolist().index(sentence // 5) == images[sentence]
    for image in range(8):
        order = penalty[:, image].argsort().tolist()
        assert min(order.index(5 * image + number) for number in range(5)) == captions[image]


def test_recalls():
    metrics = recalls(torch.tensor([0, 0, 4, 5, 9, 10, 99, 3]), "found")
    assert metrics == {
        "found_r1": 25.0,
        "found_r5": 50.0,
        "found_r10": 75.0,
        "found_mean_rank": 130 / 8 + 1,
        "found_median_rank": 5.0,  # the median 4.5 is cut to 4, and ranks count from 1
    }
    assert math.isclose(recalls(torch.tensor([0]), "one")["one_mean_rank"], 1.0)


MEMORY = """
import resource, sys, torch
from layernorm_lab.experiments.order_embeddings.objective import penalties
torch.set_num_threads(1)
sentences, images = torch.rand(4000, 64), torch.rand(1000, 64)
unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
penalties(sentences, images, "order")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before)
"""


def test_the_penalties_of_many_pairs_take_little_memory():
    """The result has 16 MB, the differences of all pairs would have 1 GB: the parts must not lie side by side."""
    pytest.importorskip("resource")  # not on Windows
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100e6
