"""A small run by plain gradient descent, for one process or several."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import layernorm as ln
from lab_support.toy import StopAt
from layernorm_lab.errors import Interrupted
from layernorm_lab.runs.folder import RunFolder
from layernorm_lab.train import distributed, loop
from layernorm_lab.train.batches import Shuffled
from layernorm_lab.train.loop import Fit
from layernorm_lab.train.progress import Progress
from layernorm_lab.train.task import Task


def train_and_disconnect(path):
    """Trains in one of several processes."""
    with distributed.processes_ended():
        train(path)
    # a thread of the connection that outlives it can abort the interpreter at its exit
    tasks = Path("/proc/self/task").glob("*/comm")  # Linux; none elsewhere
    left = [name for name in (task.read_text().strip() for task in tasks) if "gloo" in name]
    assert not left, left


def train_in_two_parts(path):
    """Trains in one of several processes, of which the first gets a Ctrl-C between two evaluations, and goes on."""
    with pytest.raises(Interrupted):
        train(path, StopAt(loop.BLOCK if os.environ["RANK"] == "0" else 10**9))
    train_and_disconnect(path)


def train(path, progress=None):
    """Trains on 16 cases in batches of 5: the last batch of an epoch has one case, and one process none of it."""
    accelerator = distributed.accelerator("cpu", "float32")
    whole, order = Shuffled(16, 5, 0), Shuffled(16, 5, 0, accelerator.process_index, accelerator.num_processes)
    torch.manual_seed(0)
    inputs, targets = torch.randn(16, 4), torch.randn(16, 1)
    normed = nn.Sequential(nn.Linear(4, 8), ln.BatchNorm(8), nn.Linear(8, 1))
    plain = nn.Sequential(nn.Linear(4, 8), ln.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1))
    model = nn.ModuleDict({"normed": normed, "plain": plain})
    if accelerator.num_processes > 1:
        distributed.share_batch_norms(model)
    both = _Both(model)

    def loss(model, update):
        rows = order.share(update)
        return (model(inputs[rows], len(whole.share(update)) > 1) - targets[rows]).square().sum(), len(rows)

    task = Task(
        model=both,
        optimizer=torch.optim.SGD(both.parameters(), lr=0.05),
        updates=12,
        evaluate_every=12,
        updates_per_epoch=order.updates_per_epoch,
        loss=loss,
        evaluate=lambda model: {},
        seen=order.seen,
        shown={},
    )
    folder = RunFolder(path, writes=accelerator.is_main_process)
    with folder.open():
        folder.start({"experiment": "descent"})
        Fit(task, folder, accelerator, {}, 1e9).run(progress or Progress())


class _Both(nn.Module):
    """The sum of two networks; batch norm cannot have a part in a batch of one case."""

    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def forward(self, input, with_batch_norm):
        output = self.parts["plain"](input)
        normed = self.parts["normed"]
        # zero times its parameters: DDP wants every one of them in the graph
        return output + (normed(input) if with_batch_norm else 0 * sum(p.sum() for p in normed.parameters()))
