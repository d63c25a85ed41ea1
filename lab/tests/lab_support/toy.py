"""A task of a fraction of a second, and the loop over it."""

import signal

import pytest
import torch
from torch import nn

from layernorm_lab.errors import Interrupted
from layernorm_lab.runs.folder import RunFolder
from layernorm_lab.train import distributed
from layernorm_lab.train.loop import Fit
from layernorm_lab.train.progress import Progress
from layernorm_lab.train.task import Task

FACTS = {"name": "toy", "fingerprint": "0"}


def toy(updates=37, evaluate_every=8, before_step=None, loss=None):
    """A small network with dropout and batch norm: everything that has state beyond the weights."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
    inputs = torch.randn(updates, 6, 4)
    return Task(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.01),
        updates=updates,
        evaluate_every=evaluate_every,
        updates_per_epoch=10,
        loss=loss or (lambda model, update: (model(inputs[update]).square().sum(), 6)),
        evaluate=lambda model: {"value": float(model(inputs[0]).double().sum())},
        seen=lambda update: 6 * update,
        shown={},
        before_step=before_step,
    )


class StopAt(Progress):
    """Presses Ctrl-C once an update is reached."""

    def __init__(self, update):
        self.at = update

    def update(self, state, task):
        if state.update >= self.at:
            signal.raise_signal(signal.SIGINT)
            self.at = 10**9


def train(path, task=None, progress=None, checkpoint_seconds=1e9):
    """Trains in this folder, or goes on with what it holds."""
    accelerator = distributed.accelerator("cpu", "float32")
    place = RunFolder(path)
    with place.open():
        place.start({"experiment": "toy"})
        torch.manual_seed(9)
        return Fit(task or toy(), place, accelerator, FACTS, checkpoint_seconds).run(progress or Progress())


def stopped(path, update=20, task=None):
    """Trains until Ctrl-C is pressed at an update."""
    with pytest.raises(Interrupted):
        train(path, task, StopAt(update))


def resumed(path, update, make):
    """Trains a task of `make` until Ctrl-C, and another one from there to its end."""
    stopped(path, update, make())
    assert not RunFolder(path).done
    train(path, make())
