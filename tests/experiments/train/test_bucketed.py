"""Batches of sequences of like length: pure functions of the update, each case at most once an epoch."""

import itertools

import pytest
import torch

from layernorm.experiments.train.batches import Bucketed

LENGTHS = torch.tensor([int(7 + 50 * value) for value in torch.rand(103, generator=torch.Generator().manual_seed(0))])


def epoch_of(order, epoch):
    return [order.share(epoch * order.updates_per_epoch + place)[0] for place in range(order.updates_per_epoch)]


def test_an_epoch_has_each_case_once_in_whole_batches():
    order = Bucketed(LENGTHS, 10, seed=3)
    assert order.updates_per_epoch == 10
    for epoch in range(2):
        cases = torch.cat(epoch_of(order, epoch))
        assert len(cases) == len(set(cases.tolist())) == 100
    assert order.seen(13) == 130
    left_out = [set(range(103)) - set(torch.cat(epoch_of(order, epoch)).tolist()) for epoch in range(2)]
    assert left_out[0] != left_out[1]


def test_a_batch_is_a_pure_function_of_seed_and_update():
    order = Bucketed(LENGTHS, 10, seed=3)
    late = order.share(27)[0]
    order.share(4)
    assert torch.equal(order.share(27)[0], late)
    assert torch.equal(Bucketed(LENGTHS, 10, seed=3).share(27)[0], late)
    assert not torch.equal(Bucketed(LENGTHS, 10, seed=4).share(27)[0], late)


def test_lengths_in_a_batch_are_alike_and_batches_come_in_no_order():
    batches = epoch_of(Bucketed(LENGTHS, 10, seed=3), 0)
    spans = sorted((int(LENGTHS[rows].min()), int(LENGTHS[rows].max())) for rows in batches)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans)), "sorted, they do not overlap"
    assert [int(LENGTHS[rows].min()) for rows in batches] != [span[0] for span in spans]
    # pools of one batch: nothing is sorted together
    alone = epoch_of(Bucketed(LENGTHS, 10, seed=3, pool=1), 0)
    assert max(int(LENGTHS[rows].max() - LENGTHS[rows].min()) for rows in alone) > 30


def test_processes_share_a_batch():
    whole, size = Bucketed(LENGTHS, 10, seed=3).share(7)
    shares = [Bucketed(LENGTHS, 10, 3, rank, 3).share(7) for rank in range(3)]
    assert [len(rows) for rows, _ in shares] == [4, 3, 3]
    assert {count for _, count in shares} == {size} == {10}
    assert set(torch.cat([rows for rows, _ in shares]).tolist()) == set(whole.tolist())


@pytest.mark.parametrize("size", [0, 104])
def test_a_batch_holds_at_least_one_case_and_at_most_all(size):
    with pytest.raises(ValueError, match=rf"must lie in 1..103 .* got {size}"):
        Bucketed(LENGTHS, size, seed=0)
