"""The step size that the loop sets: constant, then falling on a line, for every optimiser and after every resuming."""

import dataclasses

import pytest
import torch
from torch import nn

from lab_support.runs import outcome
from lab_support.toy import stopped, toy, train
from layernorm_lab.runs import checkpoint, folder
from layernorm_lab.train.legacy_adam import LegacyAdam
from layernorm_lab.train.loop import step_size_factor

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "legacy_adam": LegacyAdam}


class Slope(nn.Module):
    """Two numbers, whose gradients are always 1."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))

    def forward(self):
        return (self.first + self.second).sum()

    def place(self):
        return torch.cat([self.first.detach(), self.second.detach()])


def lengths(path, kind, decay):
    """The lengths of the ten steps of each of the two numbers, `[10, 2]`, the second with a step size of its own."""
    model = Slope()
    groups = [{"params": [model.first]}, {"params": [model.second], "lr": 0.01}]
    places = []

    def loss(model, update):
        places.append(model.place())
        return model(), 1

    task = dataclasses.replace(
        toy(updates=10, evaluate_every=3, loss=loss), model=model, optimizer=OPTIMIZERS[kind](groups, lr=0.1),
        evaluate=lambda model: {}, decay=decay,
    )  # fmt: skip
    train(path, task)
    return -torch.stack([*places, model.place()]).diff(dim=0)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_steps_are_constant_then_fall_on_a_line(tmp_path, kind):
    """The last of 10 steps is 1 / (10 / 2) of what it is without decay."""
    constant = lengths(tmp_path / "constant", kind, 0.0)
    if kind != "legacy_adam":  # its first steps are longer
        # Adam's eps beside a root of 1
        assert constant.T.tolist() == [pytest.approx([rate] * 10, rel=1e-6) for rate in (0.1, 0.01)]
    shares = lengths(tmp_path / "falling", kind, 0.5) / constant
    expected = [1.0] * 6 + [0.8, 0.6, 0.4, 0.2]
    for number in (0, 1):
        assert shares[:, number].tolist() == pytest.approx(expected, rel=1e-9)  # differences of sums in float64


@pytest.mark.parametrize(
    ("decay", "updates", "factors"),
    [
        (0.0, 3, [1, 1, 1]),
        (0.5, 1, [1]),
        (0.5, 3, [1, 1, 2 / 3]),
        (0.25, 8, [1, 1, 1, 1, 1, 1, 1, 0.5]),
        (1.0, 4, [1, 0.75, 0.5, 0.25]),
        (0.01, 10, [1] * 10),
    ],
)
def test_the_factor_of_every_update(decay, updates, factors):
    assert [step_size_factor(decay, update, updates) for update in range(updates)] == pytest.approx(factors, rel=1e-12)


@pytest.mark.parametrize("stop", [8, 24, 32])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_resumed_run_has_the_bits_of_an_unbroken_one(tmp_path, kind, stop):
    """Of 37 updates the step size falls from the 19th on: a run that is stopped later has a smaller one saved."""

    def make():
        task = toy()
        task.optimizer = OPTIMIZERS[kind](task.model.parameters(), lr=0.01)
        task.decay = 0.5
        return task

    train(tmp_path / "whole", make())
    stopped(tmp_path / "broken", stop, make())
    (group,) = checkpoint.load_checkpoint(tmp_path / "broken" / folder.CHECKPOINT)[1]["groups"]
    assert (group["lr"] < 0.01) == (stop > 18)
    train(tmp_path / "broken", make())
    assert outcome(tmp_path / "broken") == outcome(tmp_path / "whole")
