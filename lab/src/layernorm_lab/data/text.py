"""Text as numbers: a vocabulary by counts, and many sentences in one tensor of word ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


EOS, UNKNOWN = 0, 1
"""The ids of a sentence's end and of words that are not in the vocabulary."""


class Vocabulary:
    """Words and their ids: 0 ends a sentence, 1 is any other word, 2 is the most frequent word.

    Args:
        words: from id 2 on, each once.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.words = list(words)
        self._ids = {word: number for number, word in enumerate(self.words, 2)}

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]], size: int | None = None) -> Vocabulary:
        """Counts the words of some sentences and orders them, the most frequent first, and words with the same count by
        the alphabet. `size`: the largest number of ids, which includes the first two."""
        counts = Counter(word for sentence in sentences for word in sentence)
        words = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(words if size is None else words[: max(size - 2, 0)])

    def __len__(self) -> int:
        """Counts the number of ids."""
        return len(self.words) + 2

    def __contains__(self, word: str) -> bool:
        return word in self._ids

    def ids(self, words: Iterable[str]) -> list[int]:
        """Numbers words, without an end."""
        return [self._ids.get(word, UNKNOWN) for word in words]


@dataclass(frozen=True)
class Sentences:
    """Sentences in one tensor.

    Attributes:
        ids: int64 `[sum of lengths]`, each sentence's ids followed by those of the next.
        ends: int64 `[M + 1]`: sentence m is `ids[ends[m]:ends[m + 1]]`.
    """

    ids: Tensor
    ends: Tensor

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Sentences:
        """Makes the tensor from a list of ids for each sentence."""
        import torch

        flat = torch.tensor([number for row in rows for number in row], dtype=torch.int64)
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        return cls(flat, torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))

    def __len__(self) -> int:
        return len(self.ends) - 1

    @property
    def lengths(self) -> Tensor:
        """Counts the words of each sentence, int64 `[M]`."""
        return self.ends.diff()

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Pads the sentences `rows`, int64 `[B]`, with 0 to the longest of them: ids `[T, B]` and lengths `[B]`."""
        import torch

        starts, lengths = self.ends[rows], self.lengths[rows]
        steps = torch.arange(int(lengths.max()) if len(rows) else 0).unsqueeze(1)
        inside = steps < lengths
        return torch.where(inside, self.ids[torch.where(inside, starts + steps, 0)], EOS), lengths
