"""The report of experiment 6.6: Figure 6 again, its claim in numbers, and where we depart from the paper."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence

from ..report import rates
from ..report.comparison import (
    NORMS,
    Block,
    Group,
    compare,
    geometric_mean,
    low_to_high,
    lowest_of_all,
    reaching,
    speed,
    view,
)
from ..report.page import Deviation, Figure, Panel, Report, Table
from ..report.variants import departures, one_of
from ..report.verdicts import rule, ruled, spread, verdict
from ..runs.folder import Run

EXACT = "exact_test_error"
"""In the records of batch norm: with the exact statistics of the training set."""

RIVALS = ("batch", "batch-exact")
"""What layer norm is claimed to be ahead of, by how it is evaluated."""

CLAIM = (
    "Layer normalization is robust to the batch size and converges faster than batch normalization applied to all "
    "layers (section 6.6, Figure 6)."
)


SENSITIVITY = rates.Measure("valid_error", "validation error", percent=True)


def score(run: Run) -> float:
    """The score by which a learning rate is chosen: the lowest validation error."""
    return min(record["valid_error"] for record in run.records)


def report(runs: Sequence[Run]) -> Report:
    """The report on runs of `mnist` or `digits`, finished or not."""
    blocks, status = compare([*runs, *_exact(runs)], by="batch_size", descending=True, choose=score)
    name = runs[0].experiment
    return Report(
        title="Permutation-invariant MNIST, Figure 6" if name == "mnist" else "Figure 6 on scikit-learn's digits",
        claim=CLAIM,
        findings=ruled([*_convergence(blocks), *_robustness(blocks)], rule(rates.fewest_of_all(blocks))),
        status=status,
        figures=[
            *([_figure(blocks)] if blocks else []),
            *rates.sensitivity(blocks, SENSITIVITY, title="batch size {}"),
        ],
        tables=[_results(blocks), _speed(blocks), *_rates(blocks)],
        deviations=_deviations(runs),
        runs=runs,
    )


def _exact(runs: Sequence[Run]) -> list[Run]:
    """The runs with batch norm a second time, as a norm of their own, evaluated with exact statistics."""
    return [
        dataclasses.replace(
            run,
            config={**run.config, "norm": "batch-exact"},
            records=[
                {**record, **{name: record[f"exact_{name}"] for name in record if f"exact_{name}" in record}}
                for record in run.records
            ],
        )
        for run in runs
        if run.config["norm"] == "batch" and run.records and EXACT in run.records[0]
    ]


def _figure(blocks: Sequence[Block]) -> Figure:
    rows = []
    for block in blocks:
        title, error = f"batch size {block.label}", block.curves("test_error")
        limits = view(error, part=5, margin=0.01, floor=0.0)
        rows.append(
            [
                Panel(title, "epoch", "training NLL, nats", block.curves("train_nll", geometric=True), log=True),
                Panel(title, "epoch", "test error", error, percent=True, limits=limits),
            ]
        )
    caption = (
        "Training negative log-likelihood (logarithmic axis) and test error after each epoch. The test error's axis "
        "leaves out the highest values of the first epochs."
    )
    return Figure("figure6", caption, rows, mean="mean, of the training NLL the geometric mean,")


def _results(blocks: Sequence[Block]) -> Table:
    rows = []
    for block in blocks:
        for norm, group in block.groups.items():
            final = [100 * run.records[-1]["test_error"] for run in group]
            chosen = [100 * min(run.records, key=lambda record: record["valid_error"])["test_error"] for run in group]
            nll = geometric_mean([run.records[-1]["train_nll"] for run in group])
            cells = [spread(final), spread(chosen), f"{nll:.1e}", str(len(group)), block.epochs(norm)]
            rows.append([block.label, NORMS[norm], *cells])
    return Table(
        "Results",
        ["batch", "norm", "test error, %", "at best valid., %", "train NLL", "seeds", "epochs"],
        rows,
        "Test error after the last epoch, and at the epoch with the lowest validation error (the first of equals): "
        "mean over seeds (lowest to highest). Train NLL: nats a case over the whole training set after the last epoch, "
        "geometric mean. Exact statistics: the same networks, batch norm's mean and variance taken over the whole "
        "training set instead of averaged over the last batches.",
    )


def _speed(blocks: Sequence[Block]) -> Table:
    return speed(
        blocks,
        "batch",
        {
            "epochs to test error": lambda block, norm: block.reached(norm, "test_error"),
            "epochs to train NLL": lambda block, norm: block.reached(norm, "train_nll", geometric=True),
        },
        digits=2,
        note="Epochs to test error, to train NLL: until the mean over seeds is at the baseline's best. Time of an "
        "update: the median within an epoch, of the fastest epoch, since other work on the machine slows the rest.",
    )


def _rates(blocks: Sequence[Block]) -> list[Table]:
    if not rates.swept(blocks):
        return []
    what = "The lowest validation error, %"
    return [rates.table(blocks, "batch", lambda run: 100 * score(run), what)]


def _convergence(blocks: Sequence[Block]) -> list[str]:
    """Whether LN trains faster than BN: epochs to every power of ten, and to the lowest NLL, that all runs reach."""
    findings = []
    for block, rival in ((block, rival) for block in blocks for rival in RIVALS):
        if not block.has("layer", rival):
            continue
        layer, batch = block.groups["layer"], block.groups[rival]
        lowest = lowest_of_all((*layer, *batch), "train_nll")
        goals = [10.0**power for power in range(-1, -8, -1) if 10.0**power > lowest] + [lowest]
        first, second = (reaching(goals, group, "train_nll", "epoch") for group in (layer, batch))
        said = verdict(first, second, layer, batch, rates=rates.fewest(block, "layer", rival), unit="epoch")
        findings.append(
            f"Batch size {block.label}, epochs to a training NLL of {_list(f'{goal:.2g}' for goal in goals)} (the last "
            f"is the lowest that all reach; lowest to highest seed): layer norm {_list(map(low_to_high, first))}, "
            f"{NORMS[rival]} {_list(map(low_to_high, second))}: {said}.{_to_baseline(block, rival)}"
        )
    return findings


def _to_baseline(block: Block, rival: str) -> str:
    """The epochs to the baseline's best test error, which may disagree with the training NLL."""
    if not block.has("none"):
        return ""
    goal = min(block.curve("none", "test_error").mean)
    reached = [f"{NORMS[norm]} {block.reached(norm, 'test_error')}" for norm in ("layer", rival)]
    return f" Epochs to the baseline's best test error, {100 * goal:.2f} %: {', '.join(reached)}."


def _robustness(blocks: Sequence[Block]) -> list[str]:
    """How the test error changes from the largest batch size to the smallest, in each variant."""
    findings = []
    for mark in dict.fromkeys(block.mark for block in blocks):
        alike = [block for block in blocks if block.mark == mark]
        if len(alike) > 1:
            findings += [line for rival in RIVALS for line in _change(alike[0], alike[-1], rival)]
    return findings


def _change(large: Block, small: Block, rival: str) -> list[str]:
    """How the test error changes between two batch sizes: over the seeds, and at the last epoch, that both have."""
    pairs = {norm: _pairs(large.groups.get(norm, []), small.groups.get(norm, [])) for norm in ("none", "layer", rival)}
    pairs = {norm: both for norm, both in pairs.items() if both}
    if not {"layer", rival} <= set(pairs):
        return []
    epochs = min(len(run.records) for both in pairs.values() for pair in both for run in pair)
    changes, texts = {}, []
    for norm, both in pairs.items():
        ends = [[run.records[epochs - 1]["test_error"] for run in pair] for pair in both]
        before, after = (100 * statistics.fmean(column) for column in zip(*ends, strict=True))
        changes[norm] = [end - start for start, end in ends]
        texts.append(f"{NORMS[norm]} {before:.2f} % to {after:.2f} %")
    compared = [[pair[side] for pair in pairs[norm]] for norm in ("layer", rival) for side in (0, 1)]
    tried = min(rates.fewest(block, "layer", rival) for block in (large, small))
    return [
        f"From batch size {large.label} to {small.label} the test error at epoch {epochs} goes: "
        f"{', '.join(texts)}. {_loss(changes, rival, compared, tried)}."
    ]


def _pairs(large: Group, small: Group) -> list[tuple[Run, Run]]:
    """Runs with the same seed, as one seed starts them alike."""
    by_seed = {run.config["seed"]: run for run in small}
    return [(run, by_seed[run.config["seed"]]) for run in large if run.config["seed"] in by_seed]


def _loss(changes: dict[str, list[float]], rival: str, compared: Sequence[Group], tried: int) -> str:
    """Which of layer norm and its rival loses more, and the verdict on that. An error that falls is no loss."""
    means = {norm: statistics.fmean(values) for norm, values in changes.items()}
    if max(means.values()) <= 0:
        return "No method's error rises: no verdict"
    if max(means["layer"], means[rival]) <= 0:
        return f"Neither layer norm's error nor that of {NORMS[rival]} rises: no verdict"
    less, more = sorted(("layer", rival), key=lambda norm: means[norm])
    said = verdict([changes["layer"]], [changes[rival]], *compared, rates=tried, unit="epoch")
    if means[less] <= 0:
        return f"Only {NORMS[more]} loses, {NORMS[less]} does not: {said}"
    words = "as much as" if means[less] == means[more] else "less than"
    return f"{NORMS[less].capitalize()} loses {words} {NORMS[more]}: {said}"


def _list(texts: Iterable[str]) -> str:
    return " / ".join(texts)


def _deviations(runs: Sequence[Run]) -> list[Deviation]:
    name, config, data = runs[0].experiment, runs[0].config, runs[0].environment["data"]
    sizes = {run.config["batch_size"] for run in runs}
    step_sizes = one_of(run.config["learning_rate"] for run in runs)
    found = [
        Deviation("I", "ReLU in the hidden layers; the paper does not name the activation."),
        Deviation("I", f"Adam, as in the paper, with step size {step_sizes}, which it does not tell."),
        Deviation("I", "Weights start as by He et al. (2015), biases at 0; one seed starts all norms alike."),
        Deviation(
            "I",
            "Batch norm is evaluated with running averages of momentum 0.1 over the training batches, and again with "
            "the exact statistics of the training set.",
        ),
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
