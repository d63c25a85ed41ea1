"""`layernorm stability RUNS`: the hidden dynamics of the recurrent layers of runs, untrained and as trained."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layernorm import geometry
from layernorm.convert import LayerCall, watch_calls
from layernorm.equations.arguments import RecurrentArguments
from layernorm.equations.recurrent import recurrent_equations

from ..errors import RunError
from ..protocol import Experiment
from ..report.curves import banded
from ..report.page import STYLES, Curve, Figure, Panel, Report, Table
from ..runs import environment
from ..runs.folder import Run
from ..runs.restore import configuration, restore_model, training_data
from ..train import distributed
from ..train.task import Task
from .stability import CASES, CLAIM, STEPS, WARMUP, lowest_to_highest, number


class Layer(NamedTuple):
    """A recurrent layer of a run at one update, driven by the inputs that it had in the network."""

    run: str
    norm: str
    name: str
    update: int
    exponents: list[float]  # of each case, nats a step
    gradients: list[float]  # log10 of the gradient's norm over that at lag 0, by lag; the geometric mean over cases


def measure_run(experiment: Experiment, run: Run, folder: Path | None) -> tuple[list[Layer], list[str]]:
    """Measures the recurrent layers of a run with its initial and its newest weights, or the best ones where the run
    keeps these. Its data are looked for in the folder, else where they were in training. Returns also a line for each
    layer that could not be measured."""
    run.checkpoint()  # or an error, before the data are read
    config = configuration(experiment.kind, run)
    data = training_data(run, folder, functools.partial(experiment.load, config))
    task = experiment.task(config, data, distributed.accelerator("cpu", "float32"))
    norm = str(run.config.get("norm", "none"))
    layers, notes = measure_layers(task, run.path.name, norm, 0)
    _, update = restore_model(task.model, run)
    later, _ = measure_layers(task, run.path.name, norm, update)
    if not layers:
        why = f": {'; '.join(notes)}" if notes else ""
        raise RunError(f"the network of {run.path} has no recurrent layer to measure{why}")
    return layers + later, [f"{run.path.name}: {note}" for note in notes]


def measure_layers(task: Task, run: str, norm: str, update: int) -> tuple[list[Layer], list[str]]:
    """Measures every layer with the current weights, on the first batch of the training. Returns also a line for each
    layer that could not be measured; the names of the run and the norm are for the results."""
    layers, notes = [], []
    for name, of_layer in layer_calls(task).items():
        if of_layer[0].module.norm == "batch":
            notes.append(f"{name} has batch norm, under which a case has no dynamics of its own")
            continue
        exponents, gradients = _of_layer(of_layer)
        layers.append(Layer(run, norm, name, update, exponents, gradients))
    return layers, notes


def layer_calls(task: Task) -> dict[str, list[LayerCall]]:
    """Returns by name the calls of every recurrent layer on the first batch of the training."""
    calls: dict[str, list[LayerCall]] = defaultdict(list)
    with (
        torch.no_grad(),
        torch.random.fork_rng(),
        watch_calls(task.model.eval(), lambda call: calls[call.name].append(call)),
    ):
        torch.manual_seed(0)
        task.loss(task.model, 0)
    return calls


def _of_layer(calls: list[LayerCall]) -> tuple[list[float], list[float]]:
    """Exponents by case and gradients by lag."""
    first, inputs = _driven(calls)
    a, inputs = first.arguments, inputs[: WARMUP + STEPS].to(torch.float64)
    params = [p.detach().to(torch.float64) for p in a.params]
    sizes = [part.shape[1] for part in a.state]

    def step(x: Tensor, state: Tensor) -> Tensor:
        one = RecurrentArguments(x[None], state.split(sizes, 1), params, a.recurrence)
        return torch.cat(recurrent_equations(one)[1:], 1)

    state, warmup = inputs.new_zeros(inputs.shape[1], sum(sizes)), min(WARMUP, len(inputs) // 3)
    g = torch.Generator().manual_seed(0)
    exponents = geometry.lyapunov(step, state, inputs, warmup=warmup, generator=g).cases[:, 0]
    with torch.no_grad():
        for x in inputs[:warmup]:
            state = step(x, state)
    logs = geometry.gradient_by_lag(step, state, inputs[warmup:], generator=g).mean(1)
    return exponents.tolist(), (logs / math.log(10)).tolist()


def _driven(calls: list[LayerCall]) -> tuple[LayerCall, Tensor]:
    """Returns the layer and its inputs (T, B, I) in the order of its steps: those of the B longest cases, up to the end
    of the shortest of these. Calls of one step are joined. Of longer calls the longest is taken."""
    longest = max(calls, key=lambda call: len(call.arguments.input))
    a = longest.arguments
    if len(a.input) == 1:
        return longest, torch.cat([call.arguments.input[:, :CASES] for call in calls])
    T, B = a.input.shape[:2]
    lengths = torch.full((B,), T) if a.lengths is None else a.lengths.cpu()
    rows = lengths.argsort(descending=True, stable=True)[:CASES].tolist()
    cases = [a.input[: int(lengths[row]), row] for row in rows]
    shortest = min(map(len, cases))
    return longest, torch.stack([(case.flip(0) if a.reverse else case)[:shortest] for case in cases], 1)


def report_layers(layers: Sequence[Layer], notes: Sequence[str]) -> Report:
    """Makes a table of every run's layers, and the gradients against lag."""
    steps = min(len(layer.gradients) for layer in layers) - 1
    rows = [
        [
            layer.run,
            layer.name,
            str(layer.update),
            lowest_to_highest(layer.exponents, "+.3f"),
            f"{layer.gradients[steps]:+.1f}",
        ]
        for layer in sorted(layers, key=lambda layer: (layer.run, layer.name, layer.update))
    ]
    by_norm: dict[tuple[str, str, bool], list[Layer]] = defaultdict(list)
    for layer in layers:
        by_norm[layer.name, layer.norm, layer.update > 0].append(layer)
    findings = []
    for (name, norm, is_trained), start in by_norm.items():
        now = by_norm.get((name, norm, True), [])
        if not is_trained and now:
            updates = lowest_to_highest([layer.update for layer in now], "d")
            then, later = (lowest_to_highest([layer.gradients[steps] for layer in of], "+.1f") for of in (start, now))
            findings.append(
                f"{name}, norm {norm}, {len(start)} run{'s' if len(start) > 1 else ''}: the exponent is "
                f"{_means(start)} at the start and {_means(now)} after {updates} "
                f"updates; a gradient has grown by {then} and {later} decades after {steps} steps back."
            )
    return Report(
        title="The stability of hidden dynamics in runs, measured",
        claim=CLAIM,
        findings=findings,
        status=list(notes),
        figures=[_layers_figure(by_norm, steps)],
        tables=[
            Table(
                "Largest Lyapunov exponent a step of every recurrent layer", ["run", "layer", "update", "exponent",
                f"gradient, {steps} steps back"], rows,
                "Each layer by itself, driven by the inputs that it has in the network on the first batch, which are "
                "held fixed. Exponent: nats a step, lowest to highest case; gradient: log10 of its norm over that at "
                "lag 0.",
            )
        ],
        start=environment.describe(),
    )  # fmt: skip


def _means(layers: Sequence[Layer]) -> str:
    """Returns the mean over the cases, from the lowest to the highest run."""
    return lowest_to_highest([sum(layer.exponents) / len(layer.exponents) for layer in layers], "+.3f")


def _layers_figure(by_norm: dict[tuple[str, str, bool], list[Layer]], steps: int) -> Figure:
    """Makes a figure with a column for each layer, at most four: above untrained, below as trained."""
    names = list(dict.fromkeys(name for name, _, _ in by_norm))[:4]

    def curve(norm: str, layers: list[Layer]) -> Curve:
        values = list(zip(*(layer.gradients[: steps + 1] for layer in layers), strict=True))
        return banded(norm, STYLES.get(norm, STYLES["none"]), range(steps + 1), values)

    rows = [
        [
            Panel(f"{name}, {when}", "lag", "log10 of the gradient's norm",
                  [curve(norm, of) for (layer, norm, is_trained), of in by_norm.items()
                   if layer == name and is_trained == trained])
            for name in names
        ]
        for trained, when in ((False, "at the start"), (True, "trained"))
    ]  # fmt: skip
    caption = "How a gradient grows or shrinks on its way back through each recurrent layer, over its norm at lag 0."
    return Figure("stability", caption, rows, of="run")


def layers_as_json(layers: Sequence[Layer]) -> dict[str, Any]:
    """Returns the layers as JSON values."""
    rows = [
        layer._asdict()
        | {name: [number(value, 6) for value in getattr(layer, name)] for name in ("exponents", "gradients")}
        for layer in layers
    ]
    return {"cases": CASES, "warmup": WARMUP, "steps": STEPS, "layers": rows}
