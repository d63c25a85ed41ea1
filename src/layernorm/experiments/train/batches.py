"""Which training cases make up a batch, as a pure function of the seed and the update.

Nothing here has state that matters: a run that resumes at update 1234 asks for batch 1234 and gets the one that an
unbroken run would have had.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

INIT, ORDER, NOISE, EVALUATION = 1, 2, 3, 4
"""What a run's seed is used for: initial weights, order of the cases, what is drawn during training (dropout, z) and
what in every evaluation anew."""


def derive_seed(*words: int) -> int:
    """One well-mixed 63-bit seed from several small numbers (seed, use, epoch or process)."""
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> np.uint64(1))


class Shuffled:
    """Every epoch a fresh permutation of all cases, cut into batches; the last batch of an epoch may be smaller.

    Args:
        cases: number of training cases.
        batch_size: cases in a batch, over all processes together.
        seed: the run's seed.
        rank, processes: this process takes every `processes`-th case of each batch, from `rank` on.
        drop_last: an epoch leaves out the cases that fill no batch.
    """

    def __init__(
        self, cases: int, batch_size: int, seed: int, rank: int = 0, processes: int = 1, drop_last: bool = False
    ) -> None:
        if not 1 <= batch_size <= cases:
            raise ValueError(f"batch_size must lie in 1..{cases} (the number of training cases), got {batch_size}")
        self.cases, self.batch_size, self.seed = cases, batch_size, seed
        self.rank, self.processes = rank, processes
        self.updates_per_epoch = cases // batch_size if drop_last else -(-cases // batch_size)
        self._seen_per_epoch = self.updates_per_epoch * batch_size if drop_last else cases
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def share(self, update: int) -> tuple[Tensor, int]:
        """This process's cases of a batch.

        Args:
            update: counted from 0 over the whole run.

        Returns:
            the indices of the cases (int64), and the size of the whole batch.
        """
        epoch, position = divmod(update, self.updates_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, ORDER, epoch))
            self._epoch, self._order = epoch, torch.randperm(self.cases, generator=generator)
        batch = self._order[position * self.batch_size : (position + 1) * self.batch_size]
        return (batch[self.rank :: self.processes] if self.processes > 1 else batch), len(batch)

    def seen(self, update: int) -> int:
        """Training cases seen after so many updates."""
        epochs, position = divmod(update, self.updates_per_epoch)
        return epochs * self._seen_per_epoch + position * self.batch_size


class Bucketed:
    """The same for sequences: those of a batch are of like length, so that little of it is padding.

    Every epoch a fresh permutation is cut into pools of some batches. Each pool is sorted by length and cut into
    batches, and these come in a random order. Cases of the permutation's end that fill no batch are left out.

    Args:
        lengths: int64 `[M]`, of the training cases.
        batch_size, seed, rank, processes: as `Shuffled` has them.
        pool: batches in a pool.
    """

    def __init__(
        self, lengths: Tensor, batch_size: int, seed: int, rank: int = 0, processes: int = 1, pool: int = 50
    ) -> None:
        if not 1 <= batch_size <= len(lengths):
            raise ValueError(
                f"batch_size must lie in 1..{len(lengths)} (the number of training cases), got {batch_size}"
            )
        self.lengths, self.batch_size, self.seed, self.pool = lengths, batch_size, seed, pool
        self.rank, self.processes = rank, processes
        self.updates_per_epoch = len(lengths) // batch_size
        self._epoch, self._batches = -1, torch.empty(0, 0, dtype=torch.int64)

    def share(self, update: int) -> tuple[Tensor, int]:
        """This process's cases of a batch, and the size of the whole batch, as `Shuffled.share` returns them."""
        epoch, position = divmod(update, self.updates_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self._made(epoch)
        return self._batches[position][self.rank :: self.processes], self.batch_size

    def _made(self, epoch: int) -> Tensor:
        """The batches of an epoch, `[updates_per_epoch, batch_size]`."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, ORDER, epoch))
        cases = torch.randperm(len(self.lengths), generator=generator)[: self.updates_per_epoch * self.batch_size]
        pools = [part[self.lengths[part].argsort(stable=True)] for part in cases.split(self.pool * self.batch_size)]
        batches = torch.cat(pools).view(self.updates_per_epoch, self.batch_size)
        return batches[torch.randperm(len(batches), generator=generator)]

    def seen(self, update: int) -> int:
        """Training cases seen after so many updates."""
        return update * self.batch_size
