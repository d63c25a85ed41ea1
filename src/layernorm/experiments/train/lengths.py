"""Batches of sequences of one length, as a pure function of the seed and the update."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from .batches import ORDER, derive_seed


class OneLength:
    """Every epoch all cases, in batches of one length each: the lengths in a fresh order, one batch of each in turn.

    A length that has no case left is passed over until the epoch ends. The last batch of a length may be smaller.

    Args:
        lengths: int64 `[M]`, of every case.
        batch_size: cases in a batch, over all processes together.
        seed: the run's seed.
        rank, processes: this process takes every `processes`-th case of each batch, from `rank` on.
    """

    def __init__(self, lengths: Tensor, batch_size: int, seed: int, rank: int = 0, processes: int = 1) -> None:
        if not 1 <= batch_size <= len(lengths):
            raise ValueError(f"batch_size must lie in 1..{len(lengths)} (the training cases), got {batch_size}")
        self.batch_size, self.seed, self.rank, self.processes = batch_size, seed, rank, processes
        self._cases = len(lengths)
        self._groups = [(lengths == length).nonzero().squeeze(1) for length in lengths.unique()]
        self.updates_per_epoch = sum(-(-len(group) // batch_size) for group in self._groups)
        self._epoch, self._batches = -1, list[Tensor]()

    def share(self, update: int) -> tuple[Tensor, int]:
        """This process's cases of a batch.

        Args:
            update: counted from 0 over the whole run.

        Returns:
            the indices of the cases (int64), and the size of the whole batch.
        """
        epoch, position = divmod(update, self.updates_per_epoch)
        batch = self._of(epoch)[position]
        return (batch[self.rank :: self.processes] if self.processes > 1 else batch), len(batch)

    def seen(self, update: int) -> int:
        """Training cases seen after so many updates."""
        epochs, position = divmod(update, self.updates_per_epoch)
        return epochs * self._cases + sum(map(len, self._of(epochs)[:position] if position else []))

    def _of(self, epoch: int) -> list[Tensor]:
        """The batches of an epoch."""
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, ORDER, epoch))
            order = torch.randperm(len(self._groups), generator=generator).tolist()
            shuffled = [self._groups[number] for number in order]
            shuffled = [group[torch.randperm(len(group), generator=generator)] for group in shuffled]
            rounds = itertools.zip_longest(*(group.split(self.batch_size) for group in shuffled))
            self._batches = [batch for turn in rounds for batch in turn if batch is not None]
            self._epoch = epoch
        return self._batches
