"""Small networks that learn while one watches: scikit-learn's digits, read row by row, with layer norm and without."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..experiments.swaps.experiment import load_task
from ..experiments.swaps.network import Config, Maker
from ..experiments.swaps.program import Parts
from ..experiments.swaps.tasks import digits
from ..protocol import go_on
from ..train.batches import INIT, derive_seed

NORMS = {"none": "no norm", "layer": "layer norm"}
"""What is compared. Nothing else differs: a seed gives both the same initial weights and the same batches."""

RATES = tuple(digits.PROGRAM.rate * 2.0**power for power in range(-6, 4))
"""The learning rates that can be chosen, Adam's."""

SEEDS, UNITS, UPDATES, EVERY = (0, 1, 2), 32, 200, 10
"""Of each norm: the seeds. Of each network: the units of a layer, the updates, and the updates from one point of its
curve to the next."""


class End(NamedTuple):
    """The errors of the seeds at the end of a training: their mean, the least and the greatest."""

    mean: float
    low: float
    high: float


class Training:
    """A training of one network for each norm and seed, side by side. `errors` may be read while it runs.

    Args:
        rate: the learning rate of all.

    Attributes:
        errors: by norm, a curve for each seed: the share of the 400 test digits that are wrong, every `EVERY` updates.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.errors: dict[str, list[list[float]]] = {norm: [[] for _ in SEEDS] for norm in NORMS}

    def run(self) -> None:
        """Trains the networks. It ends with a `StoppedError` at the next update once nobody waits for it."""
        courses = [(built(norm, seed), curve) for norm, curves in self.errors.items() for seed, curve in
                   zip(SEEDS, curves, strict=True)]  # fmt: skip
        optimizers = [digits.PROGRAM.optimizer(parts.model.parameters(), lr=self.rate) for parts, _ in courses]
        for update in range(UPDATES + 1):
            for (parts, curve), optimizer in zip(courses, optimizers, strict=True):
                go_on()
                if update % EVERY == 0:
                    with torch.no_grad():
                        curve.append(parts.evaluate(parts.model.eval()))
                optimizer.zero_grad()
                parts.loss(parts.model.train(), update).backward()
                optimizer.step()

    def mean(self, norm: str) -> list[float]:
        """Returns the mean curve of a norm, as far as all seeds have come."""
        return [sum(values) / len(values) for values in zip(*self.errors[norm], strict=False)]

    def end(self, norm: str) -> End:
        """Returns how far a norm has come: for each seed the mean of the last three points, as a single one jumps."""
        ends = [sum(curve[-3:]) / 3 for curve in self.errors[norm]]
        return End(sum(ends) / len(ends), min(ends), max(ends))


def built(norm: str, seed: int) -> Parts:
    """Builds a network with the task of `layernorm run swaps --task digits`, smaller."""
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(seed, INIT))
        return digits.build(load_task("digits", None), Maker(Config("digits", norm)), seed, UPDATES, UNITS)  # type: ignore[arg-type]
