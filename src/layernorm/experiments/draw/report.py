"""The report of experiment 6.4: Figure 4 again, its claim in numbers, samples, and where we depart from the paper."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ..report import rates
from ..report.comparison import NORMS, Block, compare, pictures, speed, spread, view
from ..report.page import Deviation, Figure, Panel, Picture, Report, Style, Table, level
from ..report.variants import departures
from ..runs.folder import Run
from . import samples
from .network import Config, Drawing

CLAIM = (
    "Layer normalization speeds DRAW up: it converges almost twice as fast as the baseline, and after 200 epochs its "
    "bound on the test images is 82.09 nats against 82.36 (section 6.4, Figure 4)."
)

PAPER = {"none": 82.36, "layer": 82.09}
"""The bound that the paper reports after 200 epochs."""

_PAPER_LINES = {"none": Style("#9a9a9a", (0, (1, 3))), "layer": Style("#9a9a9a", (0, (9, 2)))}

METRICS = {"test_bound": "bound", "test_kl": "KL part", "test_reconstruction": "reconstruction part"}


SENSITIVITY = rates.Measure("valid_bound", "validation bound, nats")


def score(run: Run) -> float:
    """The score by which a learning rate is chosen: the lowest bound on the validation images."""
    return min(record.get("valid_bound", math.nan) for record in run.records)


def report(runs: Sequence[Run]) -> Report:
    """The report on runs of `draw`, finished or not."""
    blocks, status = compare(runs, by="glimpses", choose=score)
    drawn, notes = _pictures(blocks)
    return Report(
        title="DRAW on binarised MNIST, Figure 4",
        claim=CLAIM,
        findings=[line for block in blocks for line in rates.at_the_edge(block)],
        status=[*status, *notes],
        figures=[*([_figure(blocks)] if blocks else []), *rates.sensitivity(blocks, SENSITIVITY, title="{} glimpses")],
        tables=[_results(blocks), _speed(blocks), *_rates(blocks)],
        deviations=_deviations(runs),
        runs=runs,
        pictures=drawn,
    )


def _figure(blocks: Sequence[Block]) -> Figure:
    rows = []
    for block in blocks:
        title = f"{block.label} glimpses"
        bound, kl, reconstruction = (block.curves(metric) for metric in METRICS)
        ends = [0.0, max(line.x[-1] for line in bound)]
        paper = [
            level(f"{NORMS[norm]}, in the paper", style, ends, PAPER[norm]) for norm, style in _PAPER_LINES.items()
        ]
        limits = view(bound, part=3, margin=1.0)
        rows += [
            [
                Panel(title, "epoch", "test bound, nats", [*bound, *paper]),
                Panel(f"{title}, the later epochs", "epoch", "test bound, nats", bound, limits=limits),
            ],
            [
                Panel(title, "epoch", "KL part, nats", kl),
                Panel(title, "epoch", "reconstruction part, nats", reconstruction),
            ],
        ]
    caption = (
        "The bound on -log p of the test images, and its two parts. Grey: what the paper reports after 200 epochs of "
        "64 glimpses, 82.36 nats for the baseline and 82.09 for layer norm."
    )
    return Figure("figure4", caption, rows)


def _results(blocks: Sequence[Block]) -> Table:
    rows = []
    for block in blocks:
        for norm, group in block.groups.items():
            last = [run.records[-1] for run in group]
            parts = [f"{statistics.fmean(record[name] for record in last):.2f}" for name in list(METRICS)[1:]]
            bound = spread([record["test_bound"] for record in last])
            rows.append([block.label, NORMS[norm], bound, *parts, str(len(group)), block.epochs(norm, ".3g")])
    rows += [["64, paper", NORMS[norm], f"{bound:.2f}", "-", "-", "-", "200"] for norm, bound in PAPER.items()]
    return Table(
        "Results",
        ["glimpses", "norm", "test bound, nats", "KL", "reconstr.", "seeds", "epochs"],
        rows,
        "Nats an image over all test images after the last epoch, mean over seeds (lowest to highest): an upper bound "
        "on -log p(x), from one draw of z an image, and its two parts.",
    )


def _speed(blocks: Sequence[Block]) -> Table:
    return speed(
        blocks,
        "glimpses",
        {
            "updates to baseline's best": lambda block, norm: block.to_best(norm, "test_bound"),
            "share": lambda block, norm: block.to_best(norm, "test_bound", "share"),
        },
        digits=0,
        note="Updates to the baseline's best bound: of the means over seeds, interpolated between evaluations. Share: "
        "of the updates that the baseline took. Time of an update: the median between two evaluations, of the fastest "
        "such stretch, since other work on the machine slows the rest.",
    )


def _rates(blocks: Sequence[Block]) -> list[Table]:
    if not rates.swept(blocks):
        return []
    return [rates.table(blocks, "glimpses", score, "The lowest bound on the validation images, nats")]


def _pictures(blocks: Sequence[Block]) -> tuple[list[Picture], list[str]]:
    """Digits of one run for each norm, how some were drawn, and a line for each checkpoint that cannot be read."""
    groups = []
    for number, block in enumerate(blocks, 1):
        for norm, group in block.groups.items():
            place = f"{norm}-{number}" if len(blocks) > 1 else norm
            groups.append(((place, f"{NORMS[norm].capitalize()}, {block.label} glimpses"), group))
    return pictures(groups, _two_pictures, "no samples")


def _two_pictures(run: Run, names: tuple[str, str]) -> list[Picture]:
    place, name = names
    drawing = samples.draw(run, 50, seed=0)
    about = f"{name}, seed {run.config['seed']}, after {run.records[-1]['update']} updates"
    few = Drawing(drawing.canvas[:, :5], drawing.window[:, :5])
    return [
        Picture(
            f"digits-{place}", "png", f"{about}: 50 digits drawn from the prior, none chosen; grey is a probability.",
            samples.sheet(drawing),
        ),
        Picture(
            f"canvas-{place}", "png",
            f"{about}: how the first five came about. Red: the square that the write grid spans; its line is as wide "
            "as the filters are blunt.",
            samples.strip(few),
        ),
    ]  # fmt: skip


def _start(runs: Sequence[Run]) -> str:
    """The distribution of the initial weights, in words."""
    values = sorted({run.config["deviation"] for run in runs})
    return " or ".join(f"N(0, {value:g}^2)" if value else "torch's own distributions" for value in values)


def _deviations(runs: Sequence[Run]) -> list[Deviation]:
    config, data = runs[0].config, runs[0].environment["data"]
    found = [
        Deviation("S", "Not in the paper, but in the protocol: z of size 100, a 2 x 2 grid to read, 5 x 5 to write."),
        Deviation("I", f"Weights start from {_start(runs)}; biases, states and the canvas at 0."),
        Deviation("I", f"The whole gradient is cut to norm {config['clip']:g}; the paper states no clipping."),
        Deviation(
            "I",
            "The filterbanks' rows are normalised exactly (as a softmax), also where a grid lies outside the image; "
            "the original adds a small constant to the denominator.",
        ),
        Deviation("I", "One draw of z an image, the same in every evaluation and for every norm of a seed."),
        Deviation("I", "No model is selected; learning rates are chosen by the bound on the validation images."),
        Deviation("I", "The last batch of an epoch is smaller: 391 updates in place of 390."),
    ]
    if not data.get("original"):
        text = "The data files' content is not that of Larochelle and Murray's binarised MNIST (other SHA-256)."
        found.append(Deviation("stand-in", text))
    if any(run.config["norm"] == "rms" for run in runs):
        found.append(Deviation("I", "RMS norm is not in the paper: the cell is divided by its root mean square."))
    if any(run.config["norm"] == "weight" for run in runs):
        found.append(Deviation("I", "Weight norm is not in the paper's experiment: of the LSTMs' weights alone."))
    names = ["epochs", "glimpses", "hidden", "latent", "read_size", "write_size", "batch_size", "learning_rate"]
    names += ["deviation", "clip"]
    return found + departures(runs, {name: getattr(Config(), name) for name in names})
