"""A batch is a pure function of the seed and the update."""

import pytest
import torch

from layernorm.experiments.train.batches import Shuffled, derive_seed


def batches(order, updates):
    return [order.share(update)[0].tolist() for update in updates]


@pytest.mark.parametrize(("cases", "size"), [(10, 4), (12, 4), (5, 5), (7, 1)])
def test_an_epoch_is_a_permutation(cases, size):
    order = Shuffled(cases, size, seed=3)
    for epoch in range(3):
        updates = range(epoch * order.updates_per_epoch, (epoch + 1) * order.updates_per_epoch)
        seen = [case for batch in batches(order, updates) for case in batch]
        assert sorted(seen) == list(range(cases))


def test_batches_do_not_depend_on_what_was_asked_before():
    straight = batches(Shuffled(50, 8, seed=1), range(30))
    backwards = batches(Shuffled(50, 8, seed=1), reversed(range(30)))
    assert straight == backwards[::-1]
    assert batches(Shuffled(50, 8, seed=1), [17]) == [straight[17]]


def test_epochs_and_seeds_differ():
    order = Shuffled(50, 50, seed=1)
    first, second = batches(order, [0, 1])
    assert first != second
    assert batches(Shuffled(50, 50, seed=2), [0]) != [first]


@pytest.mark.parametrize("processes", [2, 3, 5])
def test_shares_make_up_the_batch(processes):
    whole = Shuffled(22, 4, seed=0)
    shares = [Shuffled(22, 4, seed=0, rank=rank, processes=processes) for rank in range(processes)]
    for update in range(12):
        parts = torch.cat([share.share(update)[0] for share in shares])
        indices, size = whole.share(update)
        assert sorted(parts.tolist()) == sorted(indices.tolist())
        assert {share.share(update)[1] for share in shares} == {size} == {len(indices)}


def test_cases_seen():
    order = Shuffled(10, 4, seed=0)
    counted = 0
    for update in range(9):
        assert order.seen(update) == counted
        counted += len(order.share(update)[0])


@pytest.mark.parametrize("size", [0, -1, 11])
def test_an_impossible_batch_size_is_refused(size):
    with pytest.raises(ValueError, match=r"batch_size must lie in 1\.\.10"):
        Shuffled(10, size, seed=0)


def test_seeds_of_different_uses_differ():
    assert len({derive_seed(seed, use, epoch) for seed in range(4) for use in (1, 2, 3) for epoch in range(4)}) == 48
