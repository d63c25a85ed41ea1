"""Which training cases are in a batch, as a pure function of the seed and the update.

No state needs to be saved: a run that resumes at update 1234 asks for batch 1234, and gets the batch that a run without
an interruption would have got.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..config import TrainingConfig

if TYPE_CHECKING:
    from accelerate import Accelerator
    from typing_extensions import Self

INIT, ORDER, NOISE, EVALUATION = 1, 2, 3, 4
"""The uses of a run's seed: the initial weights, the order of the cases, the draws during training (dropout, z), and
the draws that are the same in every evaluation."""


def derive_seed(*words: int) -> int:
    """Mixes several small numbers (seed, use, epoch or process) into one 63-bit seed. Zeros at the end do not count:
    each use of one seed must have a word before them that no other has."""
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> np.uint64(1))


class Batches(ABC):
    """Training cases in batches, which are different in every epoch.

    Args:
        cases: number of training cases.
        batch_size: cases in a batch, over all processes together.
        seed: the run's seed.
        rank, processes: this process takes every `processes`-th case of each batch, from `rank` on.
    """

    updates_per_epoch: int
    """The number of batches in an epoch. It is the same in every epoch, and so is the number of cases in them."""

    def __init__(self, cases: int, batch_size: int, seed: int, rank: int = 0, processes: int = 1) -> None:
        if not 1 <= batch_size <= cases:
            raise ValueError(f"batch_size must lie in 1..{cases} (the number of training cases), got {batch_size}")
        self.cases, self.batch_size, self.seed = cases, batch_size, seed
        self.rank, self.processes = rank, processes
        self._epoch = -1
        self._batches: Sequence[Tensor] = ()
        # how many of the epoch's cases come before each batch; the last entry is their total
        self._seen: Sequence[int] = ()

    @classmethod
    def of(cls, cases: Any, config: TrainingConfig, accelerator: Accelerator, **options: Any) -> Self:
        """Makes the batches of a run: of these cases, with the size and the seed of its configuration."""
        rank, processes = accelerator.process_index, accelerator.num_processes
        return cls(cases, config.batch_size, config.seed, rank, processes, **options)

    @abstractmethod
    def _made(self, generator: torch.Generator) -> Sequence[Tensor]:
        """Draws the batches of an epoch by its own generator. A batch is the indices of its cases (int64)."""

    def share(self, update: int) -> Tensor:
        """Returns the indices, int64, of this process's cases of the batch of an update, counted from 0 over the whole
        run."""
        epoch, position = divmod(update, self.updates_per_epoch)
        self._go_to(epoch)
        return self._batches[position][self.rank :: self.processes]

    def seen(self, update: int) -> int:
        """Counts the training cases seen after a number of updates."""
        epochs, position = divmod(update, self.updates_per_epoch)
        self._go_to(epochs)
        return epochs * self._seen[-1] + self._seen[position]

    def _go_to(self, epoch: int) -> None:
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, ORDER, epoch))
            self._epoch, self._batches = epoch, self._made(generator)
            self._seen = list(itertools.accumulate(map(len, self._batches), initial=0))


class Shuffled(Batches):
    """A new permutation of all cases in every epoch, cut into batches. The last batch of an epoch may be smaller.

    Args:
        cases, batch_size, seed, rank, processes: as in `Batches`.
        drop_last: whether an epoch leaves out the cases that do not fill a batch.
    """

    def __init__(
        self, cases: int, batch_size: int, seed: int, rank: int = 0, processes: int = 1, drop_last: bool = False
    ) -> None:
        super().__init__(cases, batch_size, seed, rank, processes)
        self.updates_per_epoch = cases // batch_size if drop_last else -(-cases // batch_size)

    def _made(self, generator: torch.Generator) -> Sequence[Tensor]:
        order = torch.randperm(self.cases, generator=generator)
        return order[: self.updates_per_epoch * self.batch_size].split(self.batch_size)


class Bucketed(Batches):
    """Sequences in batches of similar length, so that little of a batch is padding.

    In every epoch a new permutation is cut into pools of several batches. Each pool is sorted by length and cut into
    batches, and these come in a random order. Cases at the end of the permutation that do not fill a batch are left
    out.

    Args:
        lengths: int64 `[M]`, the lengths of the training cases.
        batch_size, seed, rank, processes: as in `Batches`.
        pool: the number of batches in a pool.
    """

    def __init__(
        self, lengths: Tensor, batch_size: int, seed: int, rank: int = 0, processes: int = 1, pool: int = 50
    ) -> None:
        super().__init__(len(lengths), batch_size, seed, rank, processes)
        self.lengths, self.pool = lengths, pool
        self.updates_per_epoch = len(lengths) // batch_size

    def _made(self, generator: torch.Generator) -> Sequence[Tensor]:
        cases = torch.randperm(self.cases, generator=generator)[: self.updates_per_epoch * self.batch_size]
        pools = [part[self.lengths[part].argsort(stable=True)] for part in cases.split(self.pool * self.batch_size)]
        batches = torch.cat(pools).view(self.updates_per_epoch, self.batch_size)
        return batches[torch.randperm(len(batches), generator=generator)].unbind()


class OneLength(Batches):
    """Sequences in batches of one length each. The lengths come in a new order every epoch, one batch of each in turn.

    A length that has no case left is skipped until the epoch ends. The last batch of a length may be smaller.

    Args:
        lengths: int64 `[M]`, the lengths of the training cases.
        batch_size, seed, rank, processes: as in `Batches`.
    """

    def __init__(self, lengths: Tensor, batch_size: int, seed: int, rank: int = 0, processes: int = 1) -> None:
        super().__init__(len(lengths), batch_size, seed, rank, processes)
        self._groups = [(lengths == length).nonzero().squeeze(1) for length in lengths.unique()]
        self.updates_per_epoch = sum(-(-len(group) // batch_size) for group in self._groups)

    def _made(self, generator: torch.Generator) -> Sequence[Tensor]:
        order = torch.randperm(len(self._groups), generator=generator).tolist()
        shuffled = [self._groups[number] for number in order]
        shuffled = [group[torch.randperm(len(group), generator=generator)] for group in shuffled]
        rounds = itertools.zip_longest(*(group.split(self.batch_size) for group in shuffled))
        return [batch for turn in rounds for batch in turn if batch is not None]
