"""Measures how far one update moves a recurrent network's outputs under each arm of `layernorm run swaps`.

An arm is a network that is compared: without a norm, or with a formula and a start of its gains.

    python benchmarks/effective_rates.py --summary docs/results/swaps/summary.json.gz --out docs/results/swaps
    python benchmarks/effective_rates.py --tasks speech words
    python benchmarks/effective_rates.py --summary docs/results/swaps/summary.json.gz --verdicts tasks.png

From the initial weights the program's optimiser makes one update of only the recurrent matrices, on the first batch,
with the program's clipping. The number of an arm is the root mean square of the change in the outputs of all recurrent
networks, over that of the plain network: 10 means that the same learning rate moves the outputs ten times as far. The
same is printed for the gains and the biases. `--out` is a folder for effective-rates.json, from which a second call
takes the numbers, and for a figure, which has the verdicts of the runs in the summary.

`--verdicts` measures nothing. It draws for each task what the runs in the summary say of `paper`: how far it is from
the better plain network, in margins of the task, in groups by the verdict.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from accelerate import Accelerator
from matplotlib.lines import Line2D
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from layernorm.nn._normalised import Normalised
from layernorm_lab.experiments.swaps.claims import CHOICE, CHOOSING, CONFIRMING, TRIAL, TRIED, family
from layernorm_lab.experiments.swaps.config import Config
from layernorm_lab.experiments.swaps.experiment import load_task, swaps_task
from layernorm_lab.experiments.swaps.program import TaskName
from layernorm_lab.experiments.swaps.programs import PROGRAMS
from layernorm_lab.experiments.swaps.report import rule_on, style_of
from layernorm_lab.report.judge import AHEAD, BEHIND, EQUAL, UNDECIDED
from layernorm_lab.report.summary import read_summary

ARMS = {item.name: item for item in (*TRIAL, *CHOICE)}
GROUPS = ("matrices", "gains", "biases")
MARKERS = {AHEAD: "^", BEHIND: "v", EQUAL: "s", UNDECIDED: "."}
VERDICTS = {  # the panels of the verdicts: title, colour, verdicts
    "Better": ("#0072B2", (AHEAD,)),
    "Worse": ("#D55E00", (BEHIND,)),
    "Equal or too few runs to tell": ("#666666", (EQUAL, UNDECIDED)),
}

Rates = Mapping[TaskName, Mapping[str, Mapping[str, float]]]
"""How far an update moves the outputs, by task, arm and group of parameters."""


def group_of(name: str, network: Normalised) -> str:
    """Returns the group of a parameter of a network."""
    if any(name.startswith(gain) for gain in network.recurrence.gain_names):
        return "gains"
    return "matrices" if name.startswith("weight") else "biases"


def moved(config: Config) -> dict[str, float]:
    """Returns the root mean square of what one update of each group changes in the outputs."""
    made = swaps_task(config, load_task(config.task, None), Accelerator(cpu=True))
    model = made.model.train()
    networks = [part for part in model.modules() if isinstance(part, Normalised)]
    outputs: list[Tensor] = []

    def keep(network: nn.Module, inputs: object, output: tuple[Tensor | PackedSequence, object]) -> None:
        outputs.append((output[0].data if isinstance(output[0], PackedSequence) else output[0]).detach())

    for network in networks:
        network.register_forward_hook(keep)

    def loss() -> tuple[Tensor, list[Tensor]]:
        outputs.clear()
        torch.manual_seed(0)  # of dropout
        total, count = made.loss(model, 0)
        return total / count, outputs.copy()

    first_loss, first = loss()
    first_loss.backward()
    if made.before_step is not None:
        made.before_step(model)
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    before, found = copy.deepcopy(model.state_dict()), {}
    for group in GROUPS:
        for parameter in gradients:
            parameter.grad = None
        for network in networks:
            for name, parameter in network.named_parameters():
                if group_of(name, network) == group:
                    parameter.grad = gradients[parameter]
        made.optimizer.state.clear()
        made.optimizer.step()
        with torch.no_grad():
            _, second = loss()
        # an agent that acts otherwise may end its batch sooner
        squares = [(a - b).double().square().mean() for a, b in zip(first, second, strict=False) if a.shape == b.shape]
        found[group] = torch.stack(squares).mean().sqrt().item()
        model.load_state_dict(before)
    return found


def rates_of(task: TaskName) -> dict[str, dict[str, float]]:
    """Measures the arms of a task, each group over the plain network's matrices."""
    plain = moved(Config(task, "none"))
    found = {"plain": plain}
    for name, item in ARMS.items():
        found[name] = moved(Config(task, item.norm, item.formula, item.start, item.forget_bias, item.eps))
    return {name: {group: value / plain["matrices"] for group, value in arm.items()} for name, arm in found.items()}


def print_table(rates: Rates, group: str) -> None:
    """Prints a table in Markdown."""
    print(f"\n| {group} | optimiser | {' | '.join(ARMS)} |\n|---|---|{'--:|' * len(ARMS)}")
    for task, arms in rates.items():
        print(f"| {task} | {family(task)} | {' | '.join(f'{arms[name][group]:.2g}' for name in ARMS)} |", flush=True)


def draw(rates: Rates, summary: Path, path: Path) -> None:
    """Draws each task's arms where an update of the matrices moves their outputs, with their verdicts."""
    runs = read_summary(summary)
    ruled = {}
    for task in sorted(rates, key=family):
        rounds = [rule_on(task, item, runs) for item in (TRIED, CHOOSING, CONFIRMING) if task in item.tasks]
        found = {name: against for arms in rounds for name, against in arms.items() if against.known}
        ruled.update({task: found} if found else {})
    figure, axes = plt.subplots(figsize=(7.5, 0.34 * len(ruled) + 1.8), layout="constrained")
    for row, (task, found) in enumerate(ruled.items()):
        axes.axhline(row, color="0.9", zorder=0)
        for name, against in found.items():
            axes.plot(rates[task][name]["matrices"], row, MARKERS[against.verdict], **look(name))
    axes.axvline(1, color="black", linewidth=0.8, zorder=0)
    axes.set(xscale="log", xlabel="change of the outputs by one update of the matrices, over the plain network's")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(range(len(ruled)), [f"{task} ({family(task)})" for task in ruled])
    axes.invert_yaxis()
    handles = [Line2D([], [], marker="o", linestyle="", label=name, **look(name)) for name in ARMS]
    handles += [Line2D([], [], marker=sign, linestyle="", color="0.3", label=said) for said, sign in MARKERS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def look(name: str) -> dict[str, Any]:
    """Returns the colour of an arm's marks, as in the report. They are full with gains of 1, half full with 0.3."""
    filled = {"1": "full", "0.3": "left", "match": "none"}[ARMS[name].start]
    return {"color": style_of(name).colour, "markersize": 7, "fillstyle": filled}


def draw_verdicts(tasks: Sequence[TaskName], summary: Path, path: Path) -> None:
    """Draws each task's difference of `paper` from the better plain network; large enough for a small screen."""
    runs, rows = read_summary(summary), []
    for item in (TRIED, CONFIRMING):
        for task in [task for task in item.tasks if task in tasks]:
            against = rule_on(task, item, runs)["paper"]
            if against.enough:
                better = against.better
                margins = [value / better.claim.measure.margin for value in (better.effect, *better.interval)]
                rows.append((margins, task, against.verdict))
    panels = {title: sorted(row for row in rows if row[2] in verdicts) for title, (_, verdicts) in VERDICTS.items()}
    panels = {title: panel for title, panel in panels.items() if panel}
    figure = plt.figure(figsize=(5, 0.25 * len(rows) + 2), layout="constrained")
    heights = [len(panel) for panel in panels.values()]
    axes = figure.subplots(len(panels), sharex=True, squeeze=False, height_ratios=heights)
    for axis, (title, panel) in zip(axes[:, 0], panels.items(), strict=True):
        colour = VERDICTS[title][0]
        axis.axvspan(-1, 1, color="0.9", linewidth=0)
        axis.axvline(0, color="black", linewidth=0.8)
        for row, ((effect, *interval), _, verdict) in enumerate(panel):
            axis.plot(interval, [row, row], color=colour, linewidth=1.8)
            axis.plot(effect, row, MARKERS[verdict], color=colour, markersize=12 if verdict == UNDECIDED else 7)
        axis.set_title(f"{title}: {len(panel)}", loc="left", fontsize=12, color=colour, fontweight="bold")
        axis.set_xscale("symlog", linthresh=1)
        axis.set_xticks([-100, -10, -1, 0, 1, 10, 100], ["-100", "-10", "-1", "0", "1", "10", "100"], fontsize=11)
        axis.set_yticks(range(len(panel)), [task.replace("_", " ") for _, task, _ in panel], fontsize=11)
        axis.set_ylim(-0.6, len(panel) - 0.4)
        axis.tick_params(axis="y", length=0)
        axis.spines[["top", "right", "left"]].set_visible(False)
    axes[-1, 0].set_xlabel("worse  ←  margins of the task  →  better", fontsize=11)
    figure.savefig(path, dpi=200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=PROGRAMS, default=[*PROGRAMS])
    parser.add_argument("--summary", type=Path, help="the runs that the verdicts in the figure are of")
    parser.add_argument("--out", type=Path, help="folder for the numbers and the figure")
    parser.add_argument("--verdicts", type=Path, metavar="FILE", help="draw only the verdicts on `paper` here")
    arguments = parser.parse_args()
    if arguments.verdicts:
        if not arguments.summary:
            parser.error("--verdicts needs --summary")
        draw_verdicts(arguments.tasks, arguments.summary, arguments.verdicts)
        return
    torch.set_num_threads(1)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
    kept = arguments.out / "effective-rates.json" if arguments.out else None
    rates = json.loads(kept.read_text(encoding="utf-8")) if kept and kept.exists() else {}
    for task in arguments.tasks:
        if task not in rates:
            print(task, file=sys.stderr, flush=True)
            rates[task] = rates_of(task)
            if kept:
                kept.write_text(json.dumps(rates, indent=1) + "\n", encoding="utf-8")
    rates = {task: rates[task] for task in arguments.tasks}
    for group in GROUPS:
        print_table(rates, group)
    if arguments.summary and arguments.out:
        draw(rates, arguments.summary, arguments.out / "effective-rates.png")


if __name__ == "__main__":
    main()
