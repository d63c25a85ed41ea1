"""What the runs of experiment 6.6 show: Figure 6 again, its claim in numbers, and where we depart from the paper."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..report.comparison import (
    by_norm,
    curve,
    departures,
    first_reaching,
    seconds_per_update,
    unequal,
    unfinished,
    variants,
)
from ..report.page import STYLES, Curve, Deviation, Figure, Panel, Report, Table
from ..report.verdicts import order, spread, too_little
from ..runs.folder import Run

NORMS = {"none": "baseline", "layer": "layer norm", "batch": "batch norm"}
"""The norms in the order of showing, with their names in figures and tables."""

CLAIM = (
    "Layer normalization is robust to the batch size and converges faster than batch normalization applied to all "
    "layers (section 6.6, Figure 6)."
)

Group = list[Run]


@dataclass(frozen=True)
class Block:
    """The runs that are compared with one another.

    Attributes:
        size: their batch size.
        variant: tells configurations apart that would otherwise share a row; empty where there is nothing to tell.
        groups: runs that differ in the seed alone, by norm.
    """

    size: int
    variant: str
    groups: dict[str, Group]

    @property
    def label(self) -> str:
        """The batch size, and the variant if there is one."""
        return f"{self.size} {self.variant}".strip()


def report(runs: Sequence[Run]) -> Report:
    """The report on runs of `mnist` or `digits`, finished or not."""
    apart = variants(runs, row=("norm", "batch_size"))
    sizes = sorted({run.config["batch_size"] for run in runs}, reverse=True)
    found = [
        Block(size, item.mark, by_norm((run for run in item.runs if run.config["batch_size"] == size), NORMS))
        for size in sizes
        for item in apart
    ]
    blocks = [block for block in found if block.groups]
    name = runs[0].experiment
    return Report(
        title="Permutation-invariant MNIST, Figure 6" if name == "mnist" else "Figure 6 on scikit-learn's digits",
        claim=CLAIM,
        findings=[*_convergence(blocks), *_robustness(blocks)],
        status=[
            *unfinished(runs),
            *unequal(runs, apart=("norm", "batch_size", "seed")),
            *(f"Rows marked {item.mark}: {item.options}." for item in apart if item.mark),
        ],
        figures=[_figure(blocks)] if blocks else [],
        tables=[_results(blocks), _speed(blocks)],
        deviations=_deviations(runs),
        runs=runs,
    )


def _curve(groups: dict[str, Group], norm: str, metric: str) -> Curve:
    return curve(groups[norm], metric, NORMS[norm], STYLES[norm])


def _figure(blocks: Sequence[Block]) -> Figure:
    rows = []
    for block in blocks:
        title, groups = f"batch size {block.label}", block.groups
        nll = [_curve(groups, norm, "train_nll") for norm in groups]
        error = [_curve(groups, norm, "test_error") for norm in groups]
        rows.append(
            [
                Panel(title, "epoch", "training NLL, nats", nll, log=True),
                Panel(title, "epoch", "test error", error, percent=True, limits=_view(error)),
            ]
        )
    caption = (
        "Training negative log-likelihood (logarithmic axis) and test error after each epoch. Lines: mean over seeds; "
        "bands: lowest to highest seed. The test error's axis leaves out the highest values of the first epochs."
    )
    return Figure("figure6", caption, rows)


def _view(curves: list[Curve]) -> tuple[float, float]:
    """Limits that show what follows the first fifth of the curves, where the differences are."""
    late = [value for line in curves for value in line.high[len(line.high) // 5 :]]
    low = min(value for line in curves for value in line.low)
    high = max(late)
    margin = 0.08 * (high - low) or 0.01
    return max(0.0, low - margin), high + margin


def _results(blocks: Sequence[Block]) -> Table:
    rows = []
    for block in blocks:
        for norm, group in block.groups.items():
            final = [100 * run.records[-1]["test_error"] for run in group]
            chosen = [100 * min(run.records, key=lambda record: record["valid_error"])["test_error"] for run in group]
            nll = statistics.fmean(run.records[-1]["train_nll"] for run in group)
            done = min(run.records[-1]["epoch"] for run in group)
            epochs = f"{done:g}" if all(run.done for run in group) else f"{done:g} of {group[0].config['epochs']}"
            rows.append(
                [block.label, NORMS[norm], spread(final), spread(chosen), f"{nll:.1e}", str(len(group)), epochs]
            )
    return Table(
        "Results",
        ["batch", "norm", "test error, %", "at best valid., %", "train NLL", "seeds", "epochs"],
        rows,
        "Test error after the last epoch, and at the epoch with the lowest validation error (the first of equals): "
        "mean over seeds (lowest to highest). Train NLL: nats a case over the whole training set after the last epoch.",
    )


def _speed(blocks: Sequence[Block]) -> Table:
    rows = []
    for block in blocks:
        groups = block.groups
        reference = seconds_per_update(groups["none"]) if "none" in groups else None
        for norm, group in groups.items():
            seconds = seconds_per_update(group)
            ratio = f"{seconds / reference:.2f}" if reference else "-"
            reached = [_reached(groups, norm, metric) for metric in ("test_error", "train_nll")]
            rows.append([block.label, NORMS[norm], *reached, f"{1000 * seconds:.2f}", ratio])
    return Table(
        "Speed",
        ["batch", "norm", "epochs to test error", "epochs to train NLL", "ms/update", "x baseline"],
        rows,
        "Epochs to test error, to train NLL: until the mean over seeds is at the baseline's best. Time of an update: "
        "the median within an epoch, of the fastest epoch, since other work on the machine slows the rest.",
    )


def _reached(groups: dict[str, Group], norm: str, metric: str) -> str:
    if "none" not in groups:
        return "-"
    epoch = first_reaching(_curve(groups, norm, metric), min(_curve(groups, "none", metric).mean))
    return "not reached" if epoch is None else f"{epoch:g}"


def _convergence(blocks: Sequence[Block]) -> list[str]:
    """Whether LN trains faster than BN: epochs to every power of ten, and to the lowest NLL, that all runs reach."""
    findings = []
    for block in blocks:
        if not {"layer", "batch"} <= set(block.groups):
            continue
        layer, batch = block.groups["layer"], block.groups["batch"]
        lowest = max(min(record["train_nll"] for record in run.records) for run in (*layer, *batch))
        goals = [10.0**power for power in range(-1, -8, -1) if 10.0**power > lowest] + [lowest]
        first, second = ([_epochs_to(goal, group) for goal in goals] for group in (layer, batch))
        verdict = too_little(layer, batch) or order(first, second)
        findings.append(
            f"Batch size {block.label}, epochs to a training NLL of {_list(f'{goal:.2g}' for goal in goals)} (the last "
            f"is the lowest that all reach; lowest to highest seed): layer norm {_list(map(_range, first))}, "
            f"batch norm {_list(map(_range, second))}: {verdict}.{_to_baseline(block)}"
        )
    return findings


def _epochs_to(goal: float, group: Group) -> list[float]:
    """The first epoch at which each run is at or below a training NLL that all of them reach."""
    return [next(record["epoch"] for record in run.records if record["train_nll"] <= goal) for run in group]


def _to_baseline(block: Block) -> str:
    """The epochs to the baseline's best test error, which may tell another story than the training NLL."""
    if "none" not in block.groups:
        return ""
    goal = min(_curve(block.groups, "none", "test_error").mean)
    reached = [f"{NORMS[norm]} {_reached(block.groups, norm, 'test_error')}" for norm in ("layer", "batch")]
    return f" Epochs to the baseline's best test error, {100 * goal:.2f} %: {', '.join(reached)}."


def _robustness(blocks: Sequence[Block]) -> list[str]:
    """How the test error changes from the largest batch size to the smallest, in each variant."""
    findings = []
    for variant in dict.fromkeys(block.variant for block in blocks):
        alike = [block for block in blocks if block.variant == variant]
        if len(alike) > 1:
            findings += _change(alike[0], alike[-1])
    return findings


def _change(large: Block, small: Block) -> list[str]:
    """How the test error changes between two batch sizes: over the seeds, and at the last epoch, that both have."""
    pairs = {norm: _pairs(large.groups.get(norm, []), small.groups.get(norm, [])) for norm in NORMS}
    pairs = {norm: both for norm, both in pairs.items() if both}
    if not {"layer", "batch"} <= set(pairs):
        return []
    epochs = min(len(run.records) for both in pairs.values() for pair in both for run in pair)
    changes, texts = {}, []
    for norm, both in pairs.items():
        ends = [[run.records[epochs - 1]["test_error"] for run in pair] for pair in both]
        before, after = (100 * statistics.fmean(column) for column in zip(*ends, strict=True))
        changes[norm] = [end - start for start, end in ends]
        texts.append(f"{NORMS[norm]} {before:.2f} % to {after:.2f} %")
    compared = [[pair[side] for pair in pairs[norm]] for norm in ("layer", "batch") for side in (0, 1)]
    return [
        f"From batch size {large.label} to {small.label} the test error at epoch {epochs} goes: "
        f"{', '.join(texts)}. {_loss(changes, too_little(*compared))}."
    ]


def _pairs(large: Group, small: Group) -> list[tuple[Run, Run]]:
    """Runs with the same seed, as one seed starts them alike."""
    by_seed = {run.config["seed"]: run for run in small}
    return [(run, by_seed[run.config["seed"]]) for run in large if run.config["seed"] in by_seed]


def _loss(changes: dict[str, list[float]], why_none: str | None) -> str:
    """Which of layer norm and batch norm loses more, and the verdict on it; a fallen error is no loss."""
    means = {norm: statistics.fmean(values) for norm, values in changes.items()}
    if max(means.values()) <= 0:
        return "No method's error rises: no verdict"
    if max(means["layer"], means["batch"]) <= 0:
        return "Neither layer norm's error nor batch norm's rises: no verdict"
    less, more = sorted(("layer", "batch"), key=lambda norm: means[norm])
    verdict = why_none or order([changes["layer"]], [changes["batch"]])
    if means[less] <= 0:
        return f"Only {NORMS[more]} loses, {NORMS[less]} does not: {verdict}"
    words = "as much as" if means[less] == means[more] else "less than"
    return f"{NORMS[less].capitalize()} loses {words} {NORMS[more]}: {verdict}"


def _range(values: list[float]) -> str:
    return f"{min(values):g}" if min(values) == max(values) else f"{min(values):g}-{max(values):g}"


def _list(texts: Iterable[str]) -> str:
    return " / ".join(texts)


def _deviations(runs: Sequence[Run]) -> list[Deviation]:
    name, config, data = runs[0].experiment, runs[0].config, runs[0].environment["data"]
    sizes = {run.config["batch_size"] for run in runs}
    found = [
        Deviation("I", "ReLU in the hidden layers; the paper does not name the activation."),
        Deviation("I", f"Adam with step size {config['learning_rate']:g}; the paper does not name the optimiser."),
        Deviation("I", "Weights and biases start as torch.nn.Linear's do; one seed starts all norms alike."),
        Deviation("I", "Batch norm is evaluated with running averages of momentum 0.1 over the training batches."),
    ]
    biased = {size for size in sizes if size > config["unbiased_up_to"]}
    if biased:
        limit = config["unbiased_up_to"]
        text = f"Batch norm divides by M - 1 up to batch size {limit} as in the paper; above it by M, left open there."
        found.append(Deviation("I", text))
    if name == "digits":
        text = (
            f"scikit-learn's 1797 digits of 8 x 8 pixels ({1397 - config['held_out']} for training, "
            f"{config['held_out']} held out, 400 for testing) in place of MNIST, "
            f"and {config['hidden']} hidden units in place of 1000."
        )
        found.append(Deviation("stand-in", text))
    elif not data.get("original"):
        found.append(Deviation("stand-in", "The data files' content is not the original MNIST's (other SHA-256)."))
    protocol = {"epochs": 60, **({"hidden": 1000, "held_out": 5000, "train_cases": 0} if name == "mnist" else {})}
    return found + departures(runs, protocol)
