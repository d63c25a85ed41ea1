"""The tasks of `layernorm run swaps`: what `ln.audit` says of them before training, what training does to the weights,
what a swap does to trained networks, and how often the rule of the swaps is wrong.

    python benchmarks/swaps.py audit
    python benchmarks/swaps.py audit --tasks words tagger --formulas paper cell kiros
    python benchmarks/swaps.py course --tasks words ppo --rate 0.25
    python benchmarks/swaps.py trained --tasks words characters translation
    python benchmarks/swaps.py rates
    python benchmarks/swaps.py rule

`audit`: each task's network under a formula, with gains of 1 and with matched gains (those that `ln.match` sets), on
the first batch, with the program's optimiser and clipping. It prints three numbers: how many times the size of an input
differs between cases where the formula removes it; the ratio of the normalised vector that is farthest from its size in
the plain network; and the ratio of the first updates of the weight matrix that is changed most. A `-` says that the
audit found nothing: sizes then differ at most twice, a size is between a quarter and 4 times that of the plain network,
and an update at most 3 times.

`course`: one training of the plain network and of each formula, with gains of 1 and matched gains. After some updates
it prints the number that the task is judged by, how much the update changed W_ih and W_hh of the first network as a
part of their length, their length as a multiple of the first one, and the mean gains.

`trained`: torch's networks are trained for a task's whole run, then converted, and all are trained for 100 more updates
at the program's learning rate with a new optimiser. It prints the number that the task is judged by.

`rates`: what the page on swaps derives for each task, from the deviation of the summed inputs W x + U h over the units,
as it is in the plain network on the first batch; the smallest and the largest of all layers. It prints the effective
learning rate of W under `formula="sum"` with gains of 1, as a multiple of the plain network's, and the share by which a
step of Adam, or of RMSprop, changes matched gains (`-` for SGD, whose steps depend on the gradient).

`rule`: runs are drawn from N(0, 1) for two plain networks, three candidates and the paper's formula, which is what
`ln.LSTM` has without arguments. Each has five pairs on eight tasks, and on three. One candidate is better by some
deviations of a run on all tasks. It prints how often the rule finds it behind on a task, and how often the rule
recommends it.

The data are those that `layernorm run swaps` finds.
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

import layernorm as ln
from layernorm.formula import PRESETS
from layernorm_lab.errors import RunError
from layernorm_lab.experiments.swaps.claims import family
from layernorm_lab.experiments.swaps.config import Config
from layernorm_lab.experiments.swaps.experiment import load_task
from layernorm_lab.experiments.swaps.network import Maker
from layernorm_lab.experiments.swaps.program import Parts, Program, TaskName
from layernorm_lab.experiments.swaps.programs import PROGRAMS
from layernorm_lab.report.judge import LEVEL, SEEDS
from layernorm_lab.train.batches import INIT, derive_seed
from layernorm_lab.train.loop import step_size_factor


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


def optimizer_of(program: Program, model: nn.Module, rate: float = 1.0) -> torch.optim.Optimizer:
    """Makes the program's optimiser, which clips as the program does, at a multiple of the program's learning rate."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = program.optimizer(parameters, lr=program.rate * rate)

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
            for kind in ("removes its size", "in the plain network (its gain", "as much as in the plain network"):
                measured = [finding.measured for finding in found if kind in finding.what]
                cells.append(f"{max(measured):.3g}" if measured else "-")
        optimizer = f"{type(optimizer_of(program, parts.model)).__name__} {program.rate:g}"
        print(f"{task:<12} {optimizer:<16} {formula:<7}", *(f"{cell:>9}" for cell in cells), flush=True)


def course(task: TaskName, formulas: list[str], rate: float) -> None:
    """Prints what training does to the weights and gains of the plain network and of those under each formula."""
    program = PROGRAMS[task]
    arms = [Config(task, "none")]
    arms += [Config(task, formula=formula, start=start) for formula in formulas for start in ("1", "match")]  # type: ignore[arg-type]
    for config in arms:
        parts = build(task, Maker(config))
        if config.start == "match":
            ln.match((parts.network or parts.model).eval(), *parts.example)
        network = next(module for module in parts.model.modules() if isinstance(module, (ln.LSTM, ln.GRU, ln.RNN)))
        W = network.weight_ih_l0, network.weight_hh_l0
        gains = [p for name, p in network.named_parameters() if name.startswith("gain") and name.endswith("_l0")]
        first = [w.norm().item() for w in W]
        optimizer = optimizer_of(program, parts.model, rate)
        for update in range(program.updates):
            for group in optimizer.param_groups:
                group["lr"] = rate * program.rate * step_size_factor(program.decay, update, program.updates)
            before = [w.detach().clone() for w in W]
            train(parts, parts.model, optimizer, update, 1)
            if update + 1 in (1, 3, 10, 30, 100, 300, 1000, 3000, program.updates):
                with torch.no_grad():
                    numbers = [parts.evaluate(parts.model.eval())]
                numbers += [((w - old).norm() / old.norm()).item() for w, old in zip(W, before, strict=True)]
                numbers += [w.norm().item() / start for w, start in zip(W, first, strict=True)]
                numbers += [gain.abs().mean().item() for gain in gains]
                arm = "plain" if config.norm == "none" else f"{config.formula}, {config.start}"
                print(f"{task:<12} {arm:<14} {update + 1:>5}", *(f"{number:>8.3g}" for number in numbers), flush=True)


def trained(task: TaskName, formulas: list[str]) -> None:
    """Prints the metric of a trained network, of the converted ones, and of all after 100 more updates."""
    program = PROGRAMS[task]
    parts = build(task, getattr(nn, program.network))
    train(parts, parts.model, optimizer_of(program, parts.model), 0, program.updates)
    models = {program.network: parts.model}
    for formula in formulas:
        models[formula] = ln.convert(copy.deepcopy(parts.model), formula=formula)
        models[f"{formula}, matched"] = matched = ln.convert(copy.deepcopy(parts.model), formula=formula)
        ln.match(matched.eval(), *parts.example)
    for name, model in models.items():
        ends = [parts.evaluate(model.eval())]
        train(parts, model, optimizer_of(program, model), program.updates, 100)
        ends.append(parts.evaluate(model.eval()))
        print(f"{task:<12} {name:<16}", *(f"{end:>9.4f}" for end in ends), flush=True)


def train(parts: Parts, model: nn.Module, optimizer: torch.optim.Optimizer, first: int, updates: int) -> None:
    """Makes updates."""
    model.train()
    for update in range(first, first + updates):
        optimizer.zero_grad()
        parts.loss(model, update).backward()
        optimizer.step()


def rates(task: TaskName) -> None:
    """Prints the derived learning rates of a task."""
    program = PROGRAMS[task]
    parts = build(task, Maker(Config(task, formula="sum")))
    found = ln.match((parts.network or parts.model).eval(), *parts.example)
    sizes = [size for layer in found for gains in layer.gains.values() for size in gains]
    power, share = (2, "{:>7}".format("-")) if family(task) == "SGD" else (1, f"{program.rate / min(sizes):>7.1%}")
    optimizer = f"{type(optimizer_of(program, parts.model)).__name__} {program.rate:g}"
    fast = " to ".join(f"{size**-power:.3g}" for size in (max(sizes), min(sizes)))
    print(f"{task:<12} {optimizer:<16} {min(sizes):>7.3f} to {max(sizes):<7.3f} {fast:>18} {share}", flush=True)


def rule(worlds: int = 1000) -> None:
    """Prints how often the rule is wrong about an arm that is no better, and how often it finds one that is."""
    random, arms = np.random.default_rng(0), 4
    for tasks in (8, 3):
        for effect in (0, 2, 3, 4, 6):
            behind = recommended = 0
            for _ in range(worlds):
                runs = random.normal(size=(tasks, 2 + arms, SEEDS))
                runs[:, 2] += effect
                pairs = runs[:, None, 2:] - runs[:, :2, None]  # (tasks, plain networks, arms, seeds)
                mean, error = pairs.mean(-1), pairs.std(-1, ddof=1) / SEEDS**0.5
                decided = holm(2 * stats.t.sf(abs(mean) / error, SEEDS - 1).reshape(tasks, -1)).reshape(mean.shape)
                ahead = (decided & (mean > 0))[:, :, 0].all(1).sum()
                lost = (decided & (mean < 0))[:, :, 0].any()
                behind, recommended = behind + lost, recommended + (not lost and 2 * ahead >= tasks)
            print(
                f"{tasks} tasks, better by {effect}: {behind / worlds:>6.1%} behind, {recommended / worlds:>6.1%}",
                flush=True,
            )


def holm(p: Any) -> Any:
    """Returns which of the claims about each task are decided, by Holm's procedure: chances (tasks, claims)."""
    order = p.argsort(1)
    fits = np.take_along_axis(p, order, 1) <= LEVEL / np.arange(p.shape[1], 0, -1)
    decided = np.zeros_like(fits)
    np.put_along_axis(decided, order, np.logical_and.accumulate(fits, 1), 1)
    return decided


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["audit", "course", "trained", "rates", "rule"])
    parser.add_argument("--tasks", nargs="+", choices=PROGRAMS, help="default: all; course, trained: a few")
    parser.add_argument("--formulas", nargs="+", choices=PRESETS, default=["paper", "cell"])
    parser.add_argument("--rate", type=float, default=1.0, help="course: a multiple of the program's learning rate")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if arguments.what == "audit":
        print(f"{'':<38}{'gains of 1':^29} {'matched':^29}")
        print(f"{'task':<12} {'optimiser':<16} {'formula':<7}" + f" {'input':>9} {'size':>9} {'update':>9}" * 2)
        for task in arguments.tasks or PROGRAMS:
            audit(task, defined(arguments.formulas, task))
    elif arguments.what == "course":
        heads = ("judged by", "dW_ih", "dW_hh", "W_ih", "W_hh", "gains")
        print(f"{'task':<12} {'network':<14} {'update':>5}", *(f"{head:>8}" for head in heads))
        for task in arguments.tasks or ("words",):
            course(task, defined(arguments.formulas, task), arguments.rate)
    elif arguments.what == "rates":
        print(f"{'task':<12} {'optimiser':<16} {'deviation':^18} {'learning rate of W':>18} {'gains':>7}")
        for task in arguments.tasks or PROGRAMS:
            rates(task)
    elif arguments.what == "rule":
        rule()
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
