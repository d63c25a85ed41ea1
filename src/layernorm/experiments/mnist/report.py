"""The report of experiment 6.6: Figure 6 again, its claim in numbers, and where we depart from the paper."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..report import rates
from ..report.comparison import NORMS, Block, compare, geometric_mean, speed, spread, view
from ..report.page import Deviation, Figure, Panel, Report, Table
from ..report.variants import departures, one_of
from ..runs.folder import Run

EXACT = "exact_test_error"
"""In the records of batch norm: with the exact statistics of the training set."""

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
        claim=CLAIM if name == "mnist" else "",
        findings=[line for block in blocks for line in rates.at_the_edge(block)],
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
