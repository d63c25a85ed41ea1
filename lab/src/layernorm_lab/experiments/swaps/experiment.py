"""The experiment `swaps`: recurrent networks of public programs, plain and under a norm, at the programs' settings."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import nn

from layernorm.convert import match

from ...errors import UsageError
from ...protocol import Experiment, Preset
from ...report.judge import PILOT_SEEDS, TRIAL_SEEDS
from ...train.batches import INIT, derive_seed
from ...train.task import Accelerator, Task
from .claims import CHOOSING_TASKS
from .config import Config
from .network import Maker
from .program import TEST, Data, TaskName
from .programs import PROGRAMS
from .report import report_swaps


@functools.lru_cache(maxsize=1)
def load_task(task: TaskName, folder: Path | None) -> Data:
    """Loads the data of a task, and remembers the last."""
    return PROGRAMS[task].load(folder)


def swaps_task(config: Config, data: Data, accelerator: Accelerator) -> Task:
    """Makes one run of a task."""
    if accelerator.num_processes > 1:
        raise UsageError("swaps makes each run in one process; --jobs makes several runs at a time")
    program, device = PROGRAMS[config.task], accelerator.device
    updates = config.updates or program.updates
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(config.seed, INIT))
        parts = program.build(data.to(device), Maker(config), config.seed, updates)
    model = parts.model.to(device)
    if config.start == "match":
        match((parts.network or model).eval(), *(item.to(device) for item in parts.example))
    name, clip = program.metric.name, program.clip

    def evaluate(model: nn.Module) -> dict[str, float]:
        tested = {} if parts.test is None else {TEST + name: parts.test(model)}
        return {name: parts.evaluate(model), **tested}

    return Task(
        model=model,
        optimizer=program.optimizer(
            [item for item in model.parameters() if item.requires_grad], lr=program.rate * config.learning_rate
        ),
        updates=updates,
        evaluate_every=max(1, updates // 10),
        updates_per_epoch=updates,
        loss=lambda model, update: (parts.loss(model, update), 1),
        evaluate=evaluate,
        seen=lambda update: update,
        shown={name: f"{program.metric.label} {{:.4g}}"},
        before_step=None if clip is None else lambda model: clip(model.parameters()),
        decay=max(config.decay, program.decay),
    )


_ARMS = {
    "norm": ("none", "layer", "rms"), "formula": ("paper", "cell", "sonnet"), "start": ("1", "match"),
    "forget_bias": ("torch",), "eps": ("own",),
}  # fmt: skip

EXPERIMENT = Experiment(
    name="swaps",
    examples=("layernorm run swaps --jobs 2", "layernorm run swaps --task words --formula cell --start 1 match"),
    presets={
        "laptop": Preset(
            "the screening: three formulas, RMS norm, gains of 1 or matched, three learning rates, two seeds",
            Config(),
            {**_ARMS, "task": CHOOSING_TASKS, "learning_rate": (1 / 4, 1.0, 4.0), "seed": PILOT_SEEDS},
        ),
        "smoke": Preset(
            "20 updates of three tasks on made data",
            Config(updates=20),
            {
                **_ARMS,
                "norm": ("none", "layer"),
                "formula": ("paper",),
                "seed": (0,),
                "task": ("translation", "forecast", "adding"),
                "learning_rate": (1.0,),
            },
        ),
        "trial": Preset(
            "the same networks at the programs' own learning rates, with five seeds that the screening did not have",
            Config(),
            {**_ARMS, "task": CHOOSING_TASKS, "learning_rate": (1.0,), "seed": TRIAL_SEEDS},
        ),
    },
    load=lambda config, folder: load_task(config.task, folder),
    check=lambda config, data: None,  # the options do not depend on the data
    task=swaps_task,
    report=lambda runs, claims: report_swaps(runs),  # which makes its claims by task
    threads=1,
)
