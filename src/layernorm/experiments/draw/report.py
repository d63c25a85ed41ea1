"""What the runs of experiment 6.4 show: Figure 4 again, its claim in numbers, samples, our departures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import RunError
from ..report.comparison import (
    by_norm,
    curve,
    departures,
    seconds_per_update,
    unequal,
    unfinished,
    variants,
)
from ..report.page import STYLES, Curve, Deviation, Figure, Panel, Picture, Report, Table
from ..report.verdicts import order, spread, too_little
from ..runs.folder import CHECKPOINT, Run
from . import samples
from .network import Config, Drawing

NORMS = {"none": "baseline", "layer": "layer norm", "rms": "RMS norm", "weight": "weight norm"}
"""The norms in the order of showing, with their names in figures and tables."""

CLAIM = (
    "Layer normalization speeds DRAW up: it converges almost twice as fast as the baseline, and after 200 epochs its "
    "bound on the test images is 82.09 nats against 82.36 (section 6.4, Figure 4)."
)

PAPER = {"none": "82.36", "layer": "82.09"}
"""The bound that the paper reports after 200 epochs."""

METRICS = {"test_bound": "bound", "test_kl": "KL part", "test_reconstruction": "reconstruction part"}

Group = list[Run]


@dataclass(frozen=True)
class Block:
    """The runs that are compared with one another: alike but for norm and seed.

    Attributes:
        label: the number of glimpses, and a mark where that does not tell configurations apart.
        groups: runs that differ in the seed alone, by norm.
    """

    label: str
    groups: dict[str, Group]


def report(runs: Sequence[Run]) -> Report:
    """The report on runs of `draw`, finished or not."""
    apart = variants(runs, row=("norm", "glimpses"))
    counts = sorted({run.config["glimpses"] for run in runs})
    found = [
        Block(
            f"{count} {item.mark}".strip(),
            by_norm((run for run in item.runs if run.config["glimpses"] == count), NORMS),
        )
        for count in counts
        for item in apart
    ]
    blocks = [block for block in found if block.groups]
    pictures, notes = _pictures(blocks)
    return Report(
        title="DRAW on binarised MNIST, Figure 4",
        claim=CLAIM,
        findings=[text for block in blocks for text in (*_convergence(block), *_ends(block))],
        status=[
            *unfinished(runs),
            *unequal(runs, apart=("norm", "glimpses", "seed")),
            *(f"Rows marked {item.mark}: {item.options}." for item in apart if item.mark),
            *notes,
        ],
        figures=[_figure(blocks)] if blocks else [],
        tables=[_results(blocks), _speed(blocks)],
        deviations=_deviations(runs),
        runs=runs,
        pictures=pictures,
    )


def _curve(block: Block, norm: str, metric: str) -> Curve:
    return curve(block.groups[norm], metric, NORMS[norm], STYLES[norm])


def _figure(blocks: Sequence[Block]) -> Figure:
    rows = []
    for block in blocks:
        title = f"{block.label} glimpses"
        bound, kl, reconstruction = ([_curve(block, norm, metric) for norm in block.groups] for metric in METRICS)
        rows += [
            [
                Panel(title, "epoch", "test bound, nats", bound),
                Panel(f"{title}, the later epochs", "epoch", "test bound, nats", bound, limits=_view(bound)),
            ],
            [
                Panel(title, "epoch", "KL part, nats", kl),
                Panel(title, "epoch", "reconstruction part, nats", reconstruction),
            ],
        ]
    caption = (
        "The bound on -log p of the test images, and its two parts. Lines: mean over seeds; bands: lowest to highest "
        "seed."
    )
    return Figure("figure4", caption, rows)


def _view(curves: list[Curve]) -> tuple[float, float]:
    """Limits that show what follows the first third of the curves, where the differences are."""
    late = [value for line in curves for value in line.high[len(line.high) // 3 :]]
    low = min(value for line in curves for value in line.low)
    margin = 0.08 * (max(late) - low) or 1.0
    return low - margin, max(late) + margin


def _results(blocks: Sequence[Block]) -> Table:
    rows = []
    for block in blocks:
        for norm, group in block.groups.items():
            last = [run.records[-1] for run in group]
            parts = [f"{statistics.fmean(record[name] for record in last):.2f}" for name in list(METRICS)[1:]]
            done = min(record["epoch"] for record in last)
            epochs = f"{done:.3g}" if all(run.done for run in group) else f"{done:.3g} of {group[0].config['epochs']}"
            bound = spread([record["test_bound"] for record in last])
            rows.append([block.label, NORMS[norm], bound, *parts, str(len(group)), epochs])
    rows += [["64, paper", NORMS[norm], bound, "-", "-", "-", "200"] for norm, bound in PAPER.items()]
    return Table(
        "Results",
        ["glimpses", "norm", "test bound, nats", "KL", "reconstr.", "seeds", "epochs"],
        rows,
        "Nats an image over all test images after the last epoch, mean over seeds (lowest to highest): an upper bound "
        "on -log p(x), from one draw of z an image, and its two parts.",
    )


def _speed(blocks: Sequence[Block]) -> Table:
    rows = []
    for block in blocks:
        base = block.groups.get("none")
        for norm, group in block.groups.items():
            seconds = seconds_per_update(group)
            ratio = f"{seconds / seconds_per_update(base):.2f}" if base else "-"
            reached = [_reached(block, norm, share) for share in (False, True)]
            rows.append([block.label, NORMS[norm], *reached, f"{1000 * seconds:.0f}", ratio])
    return Table(
        "Speed",
        ["glimpses", "norm", "updates to baseline's best", "share", "ms/update", "x baseline"],
        rows,
        "Updates to the baseline's best bound: of the means over seeds, interpolated between evaluations. Share: of "
        "the updates that the baseline took. Time of an update: the median between two evaluations, of the fastest "
        "such stretch, since other work on the machine slows the rest.",
    )


def _reached(block: Block, norm: str, share: bool) -> str:
    """The updates after which a norm's mean bound is at the baseline's best, or their share of the baseline's."""
    if "none" not in block.groups:
        return "-"
    goal = min(_curve(block, "none", "test_bound").mean)
    own, base = (_updates_to(goal, _mean(block, name)) for name in (norm, "none"))
    if own is None or base is None:
        return "not reached"
    return f"{own / base:.2f}" if share else f"{own:.0f}"


def _mean(block: Block, norm: str) -> list[tuple[float, float]]:
    """(update, mean bound over seeds) at every evaluation."""
    line = _curve(block, norm, "test_bound")
    return [(record["update"], bound) for record, bound in zip(block.groups[norm][0].records, line.mean, strict=False)]


def _updates_to(goal: float, line: Sequence[tuple[float, float]]) -> float | None:
    """The update at which a line of (update, bound) first comes down to a goal, interpolated; None if it never does."""
    before: tuple[float, float] | None = None
    for update, bound in line:
        if bound <= goal:
            if before is None or before[1] <= bound:
                return update
            return update - (update - before[0]) * (goal - bound) / (before[1] - bound)
        before = (update, bound)
    return None


def _convergence(block: Block) -> list[str]:
    """Whether LN learns faster: updates to bounds that all runs reach after their first evaluation."""
    if not {"layer", "none"} <= set(block.groups):
        return []
    layer, base = block.groups["layer"], block.groups["none"]
    lines = {norm: [_line(run) for run in block.groups[norm]] for norm in ("layer", "none")}
    every = [line for group in lines.values() for line in group]
    lowest = max(min(bound for _, bound in line) for line in every)
    highest = min(line[0][1] for line in every)
    goals = [goal for goal in (160.0, 140.0, 120.0, 110.0, 100.0, 95.0, 90.0, 85.0) if lowest < goal <= highest]
    goals.append(lowest)
    times = {norm: [[_updates_to(goal, line) or 0.0 for line in lines[norm]] for goal in goals] for norm in lines}
    verdict = too_little(layer, base, unit="evaluation") or order(times["layer"], times["none"])
    texts = {norm: " / ".join(map(_range, values)) for norm, values in times.items()}
    return [
        f"{block.label} glimpses, updates to a test bound of {' / '.join(f'{goal:.4g}' for goal in goals)} nats (the "
        f"last is the lowest that all reach; lowest to highest seed): layer norm {texts['layer']}, "
        f"baseline {texts['none']}: {verdict}."
    ]


def _line(run: Run) -> list[tuple[float, float]]:
    return [(record["update"], record["test_bound"]) for record in run.records]


def _ends(block: Block) -> list[str]:
    """The bounds at the last evaluation that all runs have made."""
    if not {"layer", "none"} <= set(block.groups):
        return []
    layer, base = block.groups["layer"], block.groups["none"]
    count = min(len(run.records) for run in (*layer, *base))
    ends = {norm: [run.records[count - 1]["test_bound"] for run in block.groups[norm]] for norm in ("layer", "none")}
    update = layer[0].records[count - 1]["update"]
    verdict = too_little(layer, base, unit="evaluation") or order([ends["layer"]], [ends["none"]])
    return [
        f"{block.label} glimpses, test bound after {update} updates: layer norm {spread(ends['layer'])}, baseline "
        f"{spread(ends['none'])} nats: {verdict}."
    ]


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low}-{high}"


def _pictures(blocks: Sequence[Block]) -> tuple[list[Picture], list[str]]:
    """Digits of one run for each norm, how some came about, and a line for each checkpoint that cannot be read."""
    pictures, notes = [], []
    for number, block in enumerate(blocks, 1):
        for norm, group in block.groups.items():
            drawn = [run for run in group if (run.path / CHECKPOINT).exists()]
            if not drawn:
                continue
            place = f"{norm}-{number}" if len(blocks) > 1 else norm
            try:
                drawing = samples.draw(drawn[0], 50, seed=0)
            except RunError as error:
                notes.append(f"no samples: {error}")
                continue
            pictures += _two_pictures(place, f"{NORMS[norm].capitalize()}, {block.label} glimpses", drawn[0], drawing)
    return pictures, notes


def _two_pictures(place: str, name: str, run: Run, drawing: Drawing) -> list[Picture]:
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


def _deviations(runs: Sequence[Run]) -> list[Deviation]:
    config, data = runs[0].config, runs[0].environment["data"]
    found = [
        Deviation("S", "Not in the paper, but in the protocol: z of size 100, a 2 x 2 grid to read, 5 x 5 to write."),
        Deviation("I", f"Weights start from N(0, {config['deviation']:g}^2); biases, states and the canvas at 0."),
        Deviation("I", f"The whole gradient is cut to norm {config['clip']:g}; the paper states no clipping."),
        Deviation(
            "I",
            "The filterbanks' rows are normalised exactly (as a softmax), also where a grid lies outside the image; "
            "the original adds a small constant to the denominator.",
        ),
        Deviation("I", "One draw of z an image, the same in every evaluation and for every norm of a seed."),
        Deviation("I", "No model is selected: the validation images are not used."),
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
