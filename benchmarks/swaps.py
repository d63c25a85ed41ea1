"""What `ln.audit` says of the tasks of `layernorm run swaps` before training, and what a swap does to trained networks.

    python benchmarks/swaps.py audit
    python benchmarks/swaps.py audit --tasks words tagger --formulas paper cell kiros
    python benchmarks/swaps.py trained --tasks words characters translation

`audit`: each task's network under a formula, with gains of 1 and matched, on the first batch, with the program's
optimiser and clipping. Printed are the two numbers that the audit compares with the plain network's: the ratio of the
normalised vector that is farthest from its size there, and the ratio of the first updates of the weight matrix that is
changed most. A `-` says that the audit found nothing: a size is then between a quarter and 4 times that of the plain
network, and an update at most 3 times.

`trained`: torch's networks are trained for a task's whole run, then converted, and all are trained for 100 more updates
at the program's rate with a new optimiser. Printed is the number that the task is judged by.

The data are those that `layernorm run swaps` finds.
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import torch
from torch import Tensor, nn

import layernorm as ln
from layernorm.experiments.errors import RunError
from layernorm.experiments.swaps.experiment import load_task
from layernorm.experiments.swaps.network import Config, Maker
from layernorm.experiments.swaps.program import Parts, Program, TaskName
from layernorm.experiments.swaps.programs import PROGRAMS
from layernorm.experiments.train.batches import INIT, derive_seed
from layernorm.formula import PRESETS


class Update(nn.Module):
    """The loss of a task's first update, as the output of a module, for `ln.audit`."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.model, self.loss = parts.model, parts.loss

    def forward(self) -> Tensor:
        return self.loss(self.model, 0)


def build(task: TaskName, networks: Any) -> Parts:
    """Builds a task with the weights of seed 0."""
    torch.manual_seed(derive_seed(0, INIT))
    return PROGRAMS[task].build(load_task(task, None), networks, 0, PROGRAMS[task].updates)


def optimizer_of(program: Program, model: nn.Module) -> torch.optim.Optimizer:
    """Makes the program's optimiser, which clips as the program does."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = program.optimizer(parameters, lr=program.rate)

    def clip(*_: object) -> None:
        if program.clip is not None:
            program.clip(parameters)

    optimizer.register_step_pre_hook(clip)
    return optimizer


def audit(task: TaskName, formulas: list[str]) -> None:
    """Prints what an audit of a task's network finds under each formula."""
    program = PROGRAMS[task]
    for formula in formulas:
        cells = []
        for start in ("1", "match"):
            parts = build(task, Maker(Config(task, formula=formula, start=start)))
            if start == "match":
                ln.match((parts.network or parts.model).eval(), *parts.example)
            parts.model.train()
            found = ln.audit(Update(parts), loss=lambda loss: loss, optimizer=optimizer_of(program, parts.model))
            for kind in ("in the plain network (its gain", "as much as in the plain network"):
                cells.append(next((f"{finding.measured:.3g}" for finding in found if kind in finding.what), "-"))
        optimizer = f"{type(optimizer_of(program, parts.model)).__name__} {program.rate:g}"
        print(f"{task:<12} {optimizer:<16} {formula:<7}", *(f"{cell:>9}" for cell in cells), flush=True)


def trained(task: TaskName, formulas: list[str]) -> None:
    """Prints the metric of a trained network, of the converted ones, and of all after 100 more updates."""
    program = PROGRAMS[task]
    parts = build(task, getattr(nn, program.network))
    train(program, parts, parts.model, 0, program.updates)
    models = {program.network: parts.model}
    for formula in formulas:
        models[formula] = ln.convert(copy.deepcopy(parts.model), formula=formula)
        models[f"{formula}, matched"] = matched = ln.convert(copy.deepcopy(parts.model), formula=formula)
        ln.match(matched.eval(), *parts.example)
    for name, model in models.items():
        ends = [parts.evaluate(model.eval())]
        train(program, parts, model, program.updates, 100)
        ends.append(parts.evaluate(model.eval()))
        print(f"{task:<12} {name:<16}", *(f"{end:>9.4f}" for end in ends), flush=True)


def train(program: Program, parts: Parts, model: nn.Module, first: int, updates: int) -> None:
    """Makes updates at the program's rate, with a new optimiser."""
    optimizer = optimizer_of(program, model.train())
    for update in range(first, first + updates):
        optimizer.zero_grad()
        parts.loss(model, update).backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["audit", "trained"])
    parser.add_argument("--tasks", nargs="+", choices=PROGRAMS, help="default: all; trained: three language tasks")
    parser.add_argument("--formulas", nargs="+", choices=PRESETS, default=["paper", "cell"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if arguments.what == "audit":
        print(f"{'':<38}{'gains of 1':^19} {'matched':^19}")
        print(f"{'task':<12} {'optimiser':<16} {'formula':<7}" + f" {'size':>9} {'update':>9}" * 2)
        for task in arguments.tasks or PROGRAMS:
            audit(task, defined(arguments.formulas, task))
    else:
        print(f"{'task':<12} {'network':<16} {'at once':>9} {'after 100':>9}")
        for task in arguments.tasks or ("words", "characters", "translation"):
            trained(task, defined(arguments.formulas, task))


def defined(formulas: list[str], task: TaskName) -> list[str]:
    """Returns those of the formulas that are defined for a task's network."""
    return [formula for formula in formulas if PROGRAMS[task].network in PRESETS[formula]]


if __name__ == "__main__":
    try:
        main()
    except RunError as error:  # a task's data are not here
        raise SystemExit(str(error)) from None
