"""The report of experiment 6.5: Figure 5 again, its claim in numbers, samples, and where we depart from the paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import RunError
from ..report import rates
from ..report.comparison import NORMS, Block, arms, compare, named, pictures, spread, view
from ..report.page import Deviation, Figure, Panel, Picture, Report, Table
from ..report.variants import departures, one_of
from ..runs.folder import Run
from . import pen, samples

CLAIM = (
    "Layer normalization comes to a log-likelihood comparable to the baseline's much faster (section 6.5, Figure 5: "
    "between -700 and -900 nats a sequence of 500 points)."
)

SENTENCE = "layer normalization"
"""The text of the report's samples."""

METRIC = "valid_nll"


SENSITIVITY = rates.Measure(METRIC, "validation NLL, nats in 500 points")


def score(run: Run) -> float:
    """The score by which a learning rate is chosen: the lowest NLL of the validation lines."""
    return min(record[METRIC] for record in run.records)


def report(runs: Sequence[Run]) -> Report:
    """The report on runs of `handwriting`, finished or not."""
    blocks, status = compare(arms(runs), choose=score, told=("gain_init",))
    by_arm = [
        (norm, [run for run, arm in zip(runs, arms(runs), strict=True) if arm.config["norm"] == norm]) for norm in NORMS
    ]
    written, failed = pictures(by_arm, _written, "No sample")
    inch = max((pen.scale(item.strokes) for item in written), default=1.0)
    return Report(
        title="Handwriting synthesis, Figure 5",
        claim=CLAIM,
        findings=[*(line for block in blocks for line in rates.at_the_edge(block)), *_sizes(runs)],
        status=[*status, *failed],
        figures=[*([_figure(blocks)] if blocks else []), *rates.sensitivity(blocks, SENSITIVITY)],
        tables=[_table(blocks), *_rates(blocks)],
        deviations=_deviations(runs),
        runs=runs,
        pictures=[Picture(item.name, "png", item.caption, pen.png(item.strokes, inch)) for item in written],
    )


def _figure(blocks: Sequence[Block]) -> Figure:
    rows = []
    for block in blocks:
        curves = block.curves(METRIC, x="update")
        label, limits = "validation NLL, nats in 500 points", view(curves, part=4, margin=1.0)
        rows.append(
            [
                Panel(f"as in Figure 5 {block.label}".strip(), "update", label, curves, log_x=True),
                Panel(f"the same, linear axis {block.label}".strip(), "update", label, curves, limits=limits),
            ]
        )
    caption = (
        "Validation negative log-likelihood against updates (logarithmic axis on the left). The right panel leaves out "
        "the first quarter's highest values."
    )
    return Figure("figure5", caption, rows)


def _table(blocks: Sequence[Block]) -> Table:
    rows = []
    for block in blocks:
        for norm, group in block.groups.items():
            last = [run.records[-1][METRIC] for run in group]
            seconds, ratio = block.pace(norm)
            updates = min(run.records[-1]["update"] for run in group)
            rows.append(
                [
                    f"{block.label} {updates}".strip(),
                    block.name(norm),
                    spread(last, 1),
                    spread([min(record[METRIC] for record in run.records) for run in group], 1),
                    block.reached(norm, METRIC, x="update"),
                    f"{seconds:.2f}",
                    ratio,
                    str(len(group)),
                ]
            )
    return Table(
        "Results",
        ["updates", "norm", "NLL", "best NLL", "to baseline's", "s/update", "ratio", "seeds"],
        rows,
        "NLL: nats in 500 points over the validation lines after the last update, and at the best evaluation: mean "
        "over seeds (lowest to highest). To baseline's: updates until the mean over seeds is at the baseline's best. "
        "Time of an update: the median between two evaluations, of the fastest such span, since other work on the "
        "machine slows the rest; ratio: to the baseline's.",
    )


def _rates(blocks: Sequence[Block]) -> list[Table]:
    if not rates.swept(blocks):
        return []
    return [rates.table(blocks, "rows", score, "The lowest NLL of the validation lines, nats in 500 points", digits=1)]


def _sizes(runs: Sequence[Run]) -> list[str]:
    """The networks' numbers of parameters."""
    counts = {}
    for run in runs:
        try:
            model = samples.network(run)
        except RunError:
            continue
        counts[NORMS[run.config["norm"]]] = sum(parameter.numel() for parameter in model.parameters())
    text = ", ".join(f"{count:,} ({label})" for label, count in counts.items())
    return [f"Parameters: {text}."] if counts else []


class _Written(NamedTuple):
    """The writing of a network, with the name of its picture and the caption."""

    name: str
    caption: str
    strokes: list[np.ndarray]


def _written(run: Run, norm: str) -> list[_Written]:
    """The writing of a run's network at bias 0 and 1."""
    model, mean, deviation = samples.trained(run)
    update = run.records[-1]["update"] if run.records else 0
    found = []
    for bias in (0.0, 1.0):
        points, finished = samples.write(model, samples.Options(text=SENTENCE, bias=bias))
        end = "stopped by itself" if finished else "cut off, its window had not read to the end"
        caption = (
            f'"{SENTENCE}" written with {named(run)} after {update} updates, seed {run.config["seed"]}, bias {bias:g} '
            f"({len(points)} points, {end})."
        )
        found.append(_Written(f"sample-{norm}-bias{bias:g}", caption, pen.strokes(points, mean, deviation)))
    return found


def _deviations(runs: Sequence[Run]) -> list[Deviation]:
    data = runs[0].environment["data"]
    step_sizes = one_of(run.config["learning_rate"] for run in runs)
    found = [
        Deviation("I", f"Adam with step size {step_sizes}; the paper names Adam alone."),
        Deviation("I", "57 characters: 52 letters, space, . , ' and one for all others, digits among them."),
        Deviation("I", "A line's first points are used, up to the cut; the first point is given, not predicted."),
        Deviation(
            "I",
            "Layer norm as in eqs. 20-22, the cell's too; no peepholes. Weights and biases start as torch.nn.LSTM's "
            "do, those of all norms alike.",
        ),
        Deviation(
            "I",
            "The window moves 0.05 characters a point at first, and each of its components has weight 0.06 (Graves "
            "does not tell the initial values).",
        ),
        Deviation("I", "NLL over all points of the validation lines, times 500: shorter lines count by their points."),
        Deviation(
            "S",
            "Derivatives of a sequence's loss are cut as by Graves, to +-100 at the outputs and +-10 before the LSTMs' "
            "sigmoids and tanhs.",
        ),
        Deviation("I", f"Lines are cleaned as by Graves, who tells no numbers: {data.get('cleaned')}."),
    ]
    if not data.get("original"):
        found.append(Deviation("stand-in", "The lines are not those of the published lists (their content differs)."))
    protocol: dict[str, Any] = {"batch_size": 8, "points": 500, "units": 400, "mixtures": 20, "valid_lines": 0}
    protocol |= {"gain_init": 1.0, "forget_bias": 0.0, "clip": "gates", "lines": "cleaned"}
    return found + departures(runs, protocol)
