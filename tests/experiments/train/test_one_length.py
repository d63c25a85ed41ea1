"""Batches of one length are a pure function of the update, and an epoch has every case once."""

import pytest
import torch

from layernorm.experiments.train.batches import OneLength

LENGTHS = torch.tensor([3, 5, 3, 3, 9, 5, 3, 5, 5, 3, 3, 9, 5])


def test_an_epoch_has_every_case_once_and_a_batch_one_length():
    order = OneLength(LENGTHS, 2, seed=0)
    assert order.updates_per_epoch == 3 + 3 + 1
    for epoch in range(3):
        batches = [order.share(epoch * 7 + position)[0] for position in range(7)]
        assert sorted(torch.cat(batches).tolist()) == list(range(13))
        assert all(len(LENGTHS[batch].unique()) == 1 for batch in batches)
        # the lengths take turns: each that has cases left once, in one order, before any comes again
        lengths = [int(LENGTHS[batch[0]]) for batch in batches]
        assert sorted(lengths[:3]) == [3, 5, 9]
        assert lengths[3:] == [length for _ in range(2) for length in lengths[:3] if length != 9]


def test_a_batch_depends_on_seed_and_update_alone():
    order = OneLength(LENGTHS, 2, seed=4)
    forward = [order.share(update)[0].tolist() for update in range(20)]
    again = OneLength(LENGTHS, 2, seed=4)
    assert [again.share(update)[0].tolist() for update in reversed(range(20))] == forward[::-1]
    other = OneLength(LENGTHS, 2, seed=5)
    assert [other.share(update)[0].tolist() for update in range(20)] != forward
    assert forward[:7] != forward[7:14], "every epoch has an order of its own"


def test_processes_share_a_batch_and_cases_are_counted():
    whole = OneLength(LENGTHS, 4, seed=1)
    parts = [OneLength(LENGTHS, 4, 1, rank, 3) for rank in range(3)]
    seen = 0
    for update in range(12):
        assert whole.seen(update) == seen
        batch, size = whole.share(update)
        shares = [part.share(update) for part in parts]
        assert {share[1] for share in shares} == {size} == {len(batch)}
        assert sorted(torch.cat([share[0] for share in shares]).tolist()) == sorted(batch.tolist())
        seen += size


@pytest.mark.parametrize("size", [0, 14])
def test_a_wrong_batch_size_is_refused(size):
    with pytest.raises(ValueError, match=rf"batch_size must lie in 1\.\.13 .*, got {size}"):
        OneLength(LENGTHS, size, 0)
