"""What the loop trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from ..config import TrainingConfig
from .batches import Batches
from .legacy_adam import OPTIMIZERS

if TYPE_CHECKING:
    import accelerate

Accelerator: TypeAlias = "accelerate.Accelerator"
"""The device and the processes of a run, only as a type: accelerate is imported where one is made."""

Loss: TypeAlias = "tuple[Tensor, int | None]"
"""The loss of some cases: its sum, and their number. None instead of the number: the sum itself is the loss of a
batch, whatever its size."""

Tested: TypeAlias = tuple[dict[str, float], dict[str, Tensor]]
"""What a test finds: metrics, and tensors to save with the run, such as one value for each test case."""


@dataclass
class Course:
    """What a display needs of a task, which may be in another process.

    Attributes:
        updates: the length of the run.
        updates_per_epoch: updates in one epoch.
        shown: for each metric, how the display shows it: `test error {:.2%}`. Where there is room for one, it shows the
            last.
    """

    updates: int
    updates_per_epoch: int
    shown: Mapping[str, str]

    @property
    def course(self) -> Course:
        """Only this part of a task."""
        return Course(self.updates, self.updates_per_epoch, self.shown)


@dataclass
class Task(Course):
    """One run, ready to train: exactly what the loop needs.

    Attributes:
        model: the network, on any device. The loop moves and wraps it.
        optimizer: over the model's parameters.
        evaluate_every: updates between evaluations. There is always an evaluation after the last update.
        loss: (the wrapped model, the update's number from 0) -> the loss of this process's share of a batch, as its sum
            over cases and their number. The loop divides the sum over all processes by the number over all processes.
        evaluate: (the bare model, in evaluation mode) -> metrics. Every process computes all of them by itself.
        seen: updates -> training cases seen.
        before_step: called with the bare model between the backward pass and the step, for gradient clipping.
        keep: the metric by whose highest value the model to keep is chosen, the first one among equals. None: the last
            model is kept.
        decay: the share of the updates, at the end of the run, in which the learning rate falls linearly to 0.
        test: (the bare model with the kept weights, in evaluation mode) -> what it finds. It is called once, at the
            end, unless the run has diverged.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    evaluate_every: int
    loss: Callable[[nn.Module, int], Loss]
    evaluate: Callable[[nn.Module], dict[str, float]]
    seen: Callable[[int], int]
    before_step: Callable[[nn.Module], Any] | None = None
    keep: str | None = None
    decay: float = 0.0
    test: Callable[[nn.Module], Tested] | None = None

    @classmethod
    def of(
        cls,
        config: TrainingConfig,
        batches: Batches,
        model: nn.Module,
        loss: Callable[[nn.Module, int], Loss],
        evaluate: Callable[[nn.Module], dict[str, float]],
        **parts: Any,
    ) -> Task:
        """Makes the task of an experiment: its length, its learning rate and its optimiser are the configuration's, its
        epochs the batches'. The optimiser is fused: one pass over the weights instead of a dozen, which would take most
        of an update at small batches.

        Args:
            config: the configuration.
            batches: the batches of the training cases.
            model, loss, evaluate: as in `Task`.
            parts: the other attributes.
        """
        epoch = batches.updates_per_epoch
        return cls(
            model=model,
            loss=loss,
            evaluate=evaluate,
            optimizer=OPTIMIZERS[config.optimizer_name](model.parameters(), lr=config.learning_rate, fused=True),
            updates=config.updates_of_run(epoch),
            evaluate_every=config.updates_to_evaluation(epoch),
            updates_per_epoch=epoch,
            seen=batches.seen,
            decay=config.decay,
            **parts,
        )

    def mean_loss(self, model: nn.Module, update: int) -> Tensor:
        """Computes the loss of a batch that only this process has."""
        total, count = self.loss(model, update)
        return total if count is None else total / count


def clip_to(norm: float) -> Callable[[nn.Module], Any]:
    """Makes a `before_step` that cuts the gradient of all parameters together to this norm."""
    return lambda model: nn.utils.clip_grad_norm_(model.parameters(), norm)
