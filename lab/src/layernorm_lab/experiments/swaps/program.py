"""A task: the settings of a public program, its data, its model, its loss, and the one number that it is judged by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from layernorm.formula import Network

from ...data.source import fingerprint, sha256
from ...report.blocks import Metric
from ...train.batches import Bucketed, Shuffled, derive_seed

TaskName = Literal[
    "words", "weight_drop", "characters", "endings", "tagger", "sentences", "translation", "speech", "digits",
    "forecast", "adding", "ppo", "r2d2",
    "ptb", "letters", "dates", "pairs", "quotes", "melody", "keywords", "activity", "weather", "irregular", "maze",
    "phones", "emotions", "punctuation", "windows", "authors", "pieces",
    "pixels", "rows", "drawings", "loads", "doors", "catch", "traffic", "sessions",
]  # fmt: skip
"""The tasks in the order in which they are shown. Each is a file in `tasks/`, whose `Program.confirms` says what it is
for."""

TEST = "test_"
"""What stands before a metric's name in the records if it is of test cases."""

Networks = Callable[..., nn.Module]
"""(input size, hidden size, options of `torch.nn.LSTM`) -> a recurrent network as the arm says."""


@dataclass(frozen=True)
class Data:
    """The data of a task, the same for every arm and seed: tensors by name, and facts for records and reports."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def to(self, device: torch.device) -> Data:
        """Moves the tensors to a device."""
        return replace(self, tensors={name: tensor.to(device) for name, tensor in self.tensors.items()})


def as_data(name: str, **tensors: Tensor) -> Data:
    """Makes the data of a task, with the SHA-256 of their content."""
    digests = {key: sha256(tensor.contiguous().numpy().tobytes()) for key, tensor in tensors.items()}
    return Data(tensors, {"name": name, "fingerprint": fingerprint(digests), "original": False})


def data_generator(name: str) -> torch.Generator:
    """Makes the generator that a task's data are drawn from. It depends only on the task."""
    return torch.Generator().manual_seed(derive_seed(*name.encode()))


class Parts(NamedTuple):
    """What a task trains. `swaps_task` makes the loop's `Task` of it and the settings of its program.

    Attributes:
        model: the whole model. Whatever a resumed run needs is in its parameters and buffers.
        loss: (model, the update's number) -> the loss of a batch.
        evaluate: (model in evaluation mode) -> the number that the task is judged by.
        example: inputs, for which the matched start runs the network.
        network: the part of the model that takes the example; None: all of it.
        test: as `evaluate`, for test cases; None: there are none.
    """

    model: nn.Module
    loss: Callable[[Any, int], Tensor]
    evaluate: Callable[[Any], float]
    example: tuple[Any, ...]
    network: nn.Module | None = None
    test: Callable[[Any], float] | None = None


def batched(
    model: nn.Module,
    batch: Callable[[Tensor], tuple[tuple[Tensor, ...], Any]],
    loss: Callable[[Any, Any], Tensor],
    cases: Sequence[int],
    size: int,
    seed: int,
    score: Callable[[Any, Any], Tensor | float] | None = None,
    lengths: Tensor | None = None,
) -> Parts:
    """Makes what a task trains whose cases are drawn in batches.

    Args:
        model: (inputs) -> outputs.
        batch: (numbers of cases) -> the model's inputs, and what is right.
        loss: (outputs, what is right) -> the loss.
        cases: how many are for training, how many of the next for validation, and of the next, if any, for the test.
        size, seed: those of the batches.
        score: (outputs, what is right) -> the number that the task is judged by; None: the loss.
        lengths: of the cases, if a batch is to have cases of like lengths.
    """
    train, held_out, *test = torch.arange(sum(cases)).split([*cases])
    batches = Shuffled(len(train), size, seed) if lengths is None else Bucketed(lengths[train].cpu(), size, seed)

    def compute(model: nn.Module, rows: Tensor, measure: Callable[[Any, Any], Any]) -> Any:
        inputs, right = batch(rows)
        return measure(model(*inputs), right)

    def scored(rows: Tensor) -> Callable[[Any], float]:
        return lambda model: float(compute(model, rows, score or loss))

    return Parts(
        model,
        lambda model, update: compute(model, batches.share(update), loss),
        scored(held_out),
        batch(batches.share(0))[0],
        test=scored(*test) if test else None,
    )


def error(scores: Tensor, right: Tensor) -> Tensor:
    """Computes the share of cases `[B]` whose highest score `[B, classes]` is of another class."""
    return (scores.argmax(1) != right).double().mean()


@dataclass(frozen=True)
class Program:
    """A task with the settings of a public program.

    Attributes:
        source: where the program is published.
        settings: what is taken from it, and what is smaller or left out here.
        network: the kind of its recurrent networks.
        metric: the number that it is judged by, as figures show it.
        chance: the value of the metric where nothing is learned. A run that diverged counts with it.
        margin: the difference in the metric that does not matter.
        optimizer: (parameters, lr=the learning rate) -> the program's optimiser.
        rate: the program's own learning rate.
        updates: the length of a run.
        load: (folder given by --data, or None) -> the data.
        build: (the data, a maker of recurrent networks, the seed of the batches, the updates) -> what is trained.
        clip: what the program does to the gradients of the parameters.
        decay: the share of the updates, at the end, in which the learning rate falls to 0.
        confirms: what the task confirms that was chosen on other ones, a line or a start. It has test cases then, which
            decide. None: it is one of those on which is chosen.
        inputs: what its recurrent networks read: a few measured numbers, or vectors, such as embeddings, one-hot
            vectors and spectra.
    """

    source: str
    settings: str
    network: Network
    metric: Metric
    chance: float
    margin: float
    optimizer: Callable[..., torch.optim.Optimizer]
    rate: float
    updates: int
    load: Callable[[Path | None], Data]
    build: Callable[[Data, Networks, int, int], Parts]
    clip: Callable[[Iterable[nn.Parameter]], Any] | None = None
    decay: float = 0.0
    confirms: Literal["line", "start"] | None = None
    inputs: Literal["numbers", "vectors"] = "vectors"
