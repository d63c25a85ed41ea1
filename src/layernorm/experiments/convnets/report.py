"""The report of experiment 6.7: how fast each norm learns, its test error, and its units near the border."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..report import rates
from ..report.comparison import (
    NORMS,
    RATE,
    Block,
    Tested,
    compare,
    low_to_high,
    over_cases,
    read_tests,
    speed,
    spread,
    view,
)
from ..report.page import Deviation, Figure, Panel, Report, Table
from ..report.variants import departures
from ..runs.folder import Run
from . import units

CLAIM = (
    "With convolutional networks layer normalization speeds learning up over the baseline, and batch normalization "
    "outperforms it; because units whose receptive fields lie near the border of the image are rarely turned on and so "
    "have very different statistics from the rest of their layer (section 6.7, without figures or a protocol)."
)

REPRODUCTION = {"none": "8.96", "batch": "8.25", "weight": "8.28", "layer": "10.49"}
"""Test errors of a third party's ConvPool-CNN-C after 200 epochs, in percent."""

PROTOCOL = {"epochs": 200, "width": 96, "train_cases": 0, "batch_size": 100, "dropout": 0.5, "noise": 0.15}
"""The options of the `paper` preset; 0 means all there are."""

SENSITIVITY = (
    rates.Measure("valid_error", "validation error", percent=True),
    rates.Measure("train_nll", "training loss, nats"),
)


def report(runs: Sequence[Run]) -> Report:
    """The report on runs of `convnets`, finished or not."""
    blocks, status = compare(runs, by="width", choose=_score)
    tested, damaged = read_tests(blocks)
    about_units = [text for block in blocks for text in units.findings(block, tested)]
    return Report(
        title="Convolutional networks on CIFAR-10",
        claim=CLAIM,
        findings=[*(text for block in blocks for text in _over_images(block, tested)), *about_units],
        status=[*status, *damaged, *(line for block in blocks for line in rates.at_the_edge(block))],
        figures=[*_figures(blocks), *(figure for block in blocks for figure in units.figures(block, tested))],
        tables=[
            _results(blocks),
            _speed(blocks),
            *_rates(blocks),
            *(table for block in blocks for table in units.tables(block, tested)),
        ],
        deviations=_deviations(runs),
        runs=runs,
    )


def _score(run: Run) -> float:
    """The score by which a learning rate is chosen: the validation error after the last epoch."""
    return run.records[-1]["valid_error"]


def _train_loss(run: Run) -> float:
    return run.records[-1]["train_nll"]


def _test_error(run: Run) -> float:
    """The test error over all test images if the run is finished, otherwise that of the last evaluation."""
    return run.result["all_test_error"] if run.whole else run.records[-1]["test_error"]


def _figures(blocks: Sequence[Block]) -> list[Figure]:
    if not blocks:
        return []
    curves = []
    for block in blocks:
        title, loss, error = f"width {block.label}", block.curves("train_nll"), block.curves("test_error")
        decades = min(min(line.low) for line in loss) < 0.1  # below it a linear axis shows nothing
        curves.append(
            [
                Panel(title, "epoch", "training loss, nats", loss, log=decades),
                Panel(title, "epoch", "test error", error, percent=True, limits=view(error, 5, margin=0.01, floor=0.0)),
            ]
        )
    return [
        Figure(
            "curves",
            "Training loss and test error after each epoch, each norm at its best learning rate. "
            "Both on the first images of their part, in evaluation mode. The axis of the test error leaves out the "
            "highest values of the first epochs.",
            curves,
        ),
        *rates.sensitivity(blocks, *SENSITIVITY, title="width {}"),
    ]


def _results(blocks: Sequence[Block]) -> Table:
    rows = []
    for block in blocks:
        for norm, group in block.groups.items():
            test = spread([100 * _test_error(run) for run in group], 1)
            valid, loss = (statistics.fmean(map(value, group)) for value in (_score, _train_loss))
            start = low_to_high([run.records[0]["first_gradient_norm"] for run in group], ".2f")
            about = [f"{group[0].config[RATE]:g}", test, f"{100 * valid:.1f}", f"{loss:.2f}", start]
            rows.append([block.label, NORMS[norm], *about, str(len(group)), block.epochs(norm)])
    rows += [["96 [R]", NORMS[norm], "-", error, "-", "-", "-", "-", "200"] for norm, error in REPRODUCTION.items()]
    return Table(
        "Results",
        ["width", "norm", "rate", "test error, %", "valid.", "loss", "gradient", "seeds", "epochs"],
        rows,
        "After the last epoch, each norm at the learning rate with the lowest validation error. Test error: of "
        "finished runs over all test images; mean over seeds (lowest to highest). Valid.: the validation error in "
        "percent; loss: of training, in nats; means. Gradient: its norm at update 0, lowest to highest seed. [R]: a "
        "third party's reproduction with the whole network and data set.",
    )


def _speed(blocks: Sequence[Block]) -> Table:
    return speed(
        blocks,
        "width",
        {
            "updates to baseline's best": lambda block, norm: block.to_best(norm, "train_nll"),
            "share": lambda block, norm: block.to_best(norm, "train_nll", "share"),
            "of time": lambda block, norm: block.to_best(norm, "train_nll", "time"),
        },
        digits=0,
        note="Updates to the baseline's best training loss: of the means over seeds, interpolated between evaluations. "
        "Share: of the updates that the baseline took, and of its time. Time of an update: the median between two "
        "evaluations, of the fastest such stretch, since other work on the machine slows the rest.",
    )


def _rates(blocks: Sequence[Block]) -> list[Table]:
    if not blocks:
        return []
    return [rates.table(blocks, "width", lambda run: 100 * _score(run), "Validation error after the last epoch, %")]


def _over_images(block: Block, tested: Mapping[Path, Tested]) -> list[str]:
    what = "Test error in percentage points"
    return [
        text
        for norms in (("layer", "none"), ("layer", "batch"))
        for text in over_cases(block, norms, tested, "correct", lambda right: 100 * (1 - right.mean(0)), what)
    ]


def _deviations(runs: Sequence[Run]) -> list[Deviation]:
    data = runs[0].environment["data"]
    found = [
        Deviation("I", "The paper names neither network nor data for section 6.7: ConvPool-CNN-C on CIFAR-10 is ours."),
        Deviation(
            "S",
            "Network and training are those of the public code of Salimans and Kingma (2016): nine convolutions with "
            "leaky ReLU (0.1), 2 x 2 max pooling, Adam, a constant, then falling step size, 200 epochs.",
        ),
        Deviation(
            "S",
            "Padding: one row of zeros around the first six convolutions' inputs, none after that. Zero is mid-grey in "
            "an image.",
        ),
        Deviation(
            "I",
            "Layer norm over channels and positions has a gain and a bias for each unit, as in the paper, and so more "
            "parameters than batch norm. In the rows `gain a channel` it has one for each channel, as batch norm has.",
        ),
        Deviation(
            "I",
            "The norms are at the nine convolutions; the last, linear layer has none. Salimans and Kingma normalise it "
            "too.",
        ),
        Deviation(
            "I",
            "Weights start from N(0, 2 / (1.01 fan-in)), biases at 0, alike for every norm. These are He's weights, "
            "made for networks without a norm: they help the baseline most. Salimans and Kingma set scales and biases "
            "from the first batch.",
        ),
        Deviation("I", "Pixels are scaled to -1..1. Salimans and Kingma whiten the images (ZCA)."),
        Deviation("I", "Adam's first coefficient stays 0.9; Salimans and Kingma lower it to 0.5 in the second half."),
        Deviation("I", "Group norm, where it is compared, has 8 groups of channels."),
        Deviation("I", "Batch norm is evaluated with running averages of momentum 0.1 over the training batches."),
    ]
    if not data.get("original"):
        found.append(Deviation("stand-in", "The data files are not known to be the publisher's (no matching SHA-256)."))
    config = runs[0].config
    if config["held_out"]:
        text = f"{config['held_out']} training images are held out to choose the learning rate."
        found.append(Deviation("I", text))
    return found + departures(runs, PROTOCOL)
