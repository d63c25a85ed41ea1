"""A batch is a pure function of the seed and the update, in every order of the cases."""

import itertools
from functools import partial

import pytest
import torch

from layernorm_lab.train.batches import Bucketed, OneLength, Shuffled, derive_seed

LENGTHS = torch.tensor([int(7 + 50 * value) for value in torch.rand(103, generator=torch.Generator().manual_seed(0))])
FEW = torch.tensor([3, 5, 3, 3, 9, 5, 3, 5, 5, 3, 3, 9, 5])

ORDERS = {  # (batch size, seed, rank, processes) -> order; cases; those that an epoch has
    "shuffled": (partial(Shuffled, 50), 50, 50),
    "bucketed": (partial(Bucketed, LENGTHS), 103, 100),  # of whole batches alone
    "one length": (partial(OneLength, FEW), 13, 13),
}


def order_of(kind, size=10, seed=1, *share):
    return ORDERS[kind][0](min(size, ORDERS[kind][1]), seed, *share)


def batches(order, updates):
    return [order.share(update).tolist() for update in updates]


def epoch_of(order, epoch):
    return batches(order, range(epoch * order.updates_per_epoch, (epoch + 1) * order.updates_per_epoch))


@pytest.mark.parametrize("size", [1, 4, 10])
@pytest.mark.parametrize("kind", ORDERS)
def test_an_epoch_has_each_case_once(kind, size):
    order = order_of(kind, size)
    left_out = []
    for epoch in range(3):
        seen = list(itertools.chain(*epoch_of(order, epoch)))
        assert len(seen) == len(set(seen)) >= ORDERS[kind][2]
        left_out.append(set(range(ORDERS[kind][1])) - set(seen))
    assert len(left_out[0]) < size
    assert not left_out[0] or left_out[0] != left_out[1]


@pytest.mark.parametrize("kind", ORDERS)
def test_batches_do_not_depend_on_what_was_asked_before(kind):
    straight = batches(order_of(kind), range(30))
    assert batches(order_of(kind), reversed(range(30))) == straight[::-1]
    assert batches(order_of(kind), [17]) == [straight[17]]


@pytest.mark.parametrize("kind", ORDERS)
def test_epochs_and_seeds_differ(kind):
    first, second = (epoch_of(order_of(kind), epoch) for epoch in (0, 1))
    assert first != second
    assert epoch_of(order_of(kind, seed=2), 0) != first


@pytest.mark.parametrize("processes", [2, 3, 5])
@pytest.mark.parametrize("kind", ORDERS)
def test_processes_share_a_batch_and_cases_are_counted(kind, processes):
    whole = order_of(kind, 4)
    shares = [order_of(kind, 4, 1, rank, processes) for rank in range(processes)]
    counted = 0
    for update in range(12):
        assert whole.seen(update) == counted
        indices = whole.share(update)
        parts = [share.share(update) for share in shares]
        assert sorted(torch.cat(parts).tolist()) == sorted(indices.tolist())
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        counted += len(indices)


@pytest.mark.parametrize("kind", ORDERS)
def test_an_impossible_batch_size_is_refused(kind):
    make, cases, _ = ORDERS[kind]
    for size in (0, -1, cases + 1):
        with pytest.raises(ValueError, match=rf"batch_size must lie in 1\.\.{cases} .*, got {size}"):
            make(size, seed=0)


def test_lengths_in_a_bucketed_batch_are_alike_and_batches_come_in_no_order():
    found = epoch_of(Bucketed(LENGTHS, 10, seed=3), 0)
    spans = sorted((int(LENGTHS[rows].min()), int(LENGTHS[rows].max())) for rows in found)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans)), "sorted, they do not overlap"
    assert [int(LENGTHS[rows].min()) for rows in found] != [span[0] for span in spans]
    # pools of one batch: nothing is sorted together
    alone = epoch_of(Bucketed(LENGTHS, 10, seed=3, pool=1), 0)
    assert max(int(LENGTHS[rows].max() - LENGTHS[rows].min()) for rows in alone) > 30


def test_batches_of_one_length_take_turns():
    order = OneLength(FEW, 2, seed=0)
    assert order.updates_per_epoch == 3 + 3 + 1
    for epoch in range(3):
        found = epoch_of(order, epoch)
        assert all(len(FEW[batch].unique()) == 1 for batch in found)
        # each length that has cases left once, in one order, before any comes again
        lengths = [int(FEW[batch[0]]) for batch in found]
        assert sorted(lengths[:3]) == [3, 5, 9]
        assert lengths[3:] == [length for _ in range(2) for length in lengths[:3] if length != 9]


def test_seeds_of_different_uses_differ():
    assert len({derive_seed(seed, use, epoch) for seed in range(4) for use in (1, 2, 3) for epoch in range(4)}) == 48
